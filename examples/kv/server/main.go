// Command server keeps values in memory and streams changed keys to clients that watch.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

// store implements kv.StoreV1Server. Values are replaced, never modified, because replies refer to them.
type store struct {
	mu       sync.Mutex
	values   map[string][]byte
	watchers map[*stream.Sender[kv.Key]]string // with the key prefixes that they watch
}

func newStore() *store {
	return &store{values: make(map[string][]byte), watchers: make(map[*stream.Sender[kv.Key]]string)}
}

func (s *store) Put(_ context.Context, _ *rpc.Request, key string, value kv.Value, res *kv.Status) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.values[key]; !ok && len(s.values) == kv.MaxKeys {
		*res = kv.Full
		return nil
	}
	s.values[key] = bytes.Clone(value) // value belongs to the transport after Put returns
	for watcher, prefix := range s.watchers {
		if strings.HasPrefix(key, prefix) {
			watcher.Offer(key) // a client that reads too slowly learns that it missed keys
		}
	}
	return nil
}

func (s *store) Get(_ context.Context, _ *rpc.Request, key string, res *kv.Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.values[key]
	if res.Value = value; !ok {
		res.Status = kv.NoKey
	}
	return nil
}

// Watch streams changed keys until the client cancels or its connection ends.
func (s *store) Watch(ctx context.Context, _ *rpc.Request, prefix string, changed *stream.Sender[kv.Key]) error {
	s.mu.Lock()
	s.watchers[changed] = prefix
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, changed)
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20100", "`address` to listen on")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "serve over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	server, err := transport.NewServer(nil)
	check(err)
	check(kv.RegisterStoreV1(server, newStore()))
	l, err := server.Listen(context.Background(), provider, *addr)
	check(err)
	fmt.Println("listening on", l.Addr())
	check(server.Serve(l))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
