// Command server keeps values in memory, and streams the keys that change to clients that watch.
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

// A store implements kv.StoreV1Server. Values are replaced, never modified: replies refer to them.
type store struct {
	mu       sync.Mutex
	values   map[string][]byte
	watchers map[*stream.Sender[kv.Key]]string // prefixes of keys
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
	s.values[key] = bytes.Clone(value) // the original is the transport's after Put
	for watcher, prefix := range s.watchers {
		if strings.HasPrefix(key, prefix) {
			watcher.Offer(key) // one that does not read learns that it has missed something
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

// Watch streams keys until the client or its connection has gone.
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
