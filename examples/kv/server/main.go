// Command server keeps values in memory, and tells clients that watch them of changes.
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
	"github.com/rpcrdma/rpcrdma/transport"
)

// A store implements kv.StoreV1Server. Values are replaced, never modified: replies refer to them.
type store struct {
	mu       sync.Mutex // held by Put and Get
	values   map[string][]byte
	watchers sync.Map // prefixes of keys, by the chan string to which changed keys go
}

func (s *store) Put(_ context.Context, _ *rpc.Request, key string, value kv.Value, res *kv.Status) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.values[key]; !ok && len(s.values) == kv.MaxKeys {
		*res = kv.Full
		return nil
	}
	s.values[key] = bytes.Clone(value) // the original is the transport's after Put
	for changes, prefix := range s.watchers.Range {
		if strings.HasPrefix(key, prefix.(string)) {
			select {
			case changes.(chan string) <- key:
			default: // a client may be slow, but not cost memory
				s.watchers.Delete(changes)
				close(changes.(chan string))
			}
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

// Watch calls the client over the connection that its own call came by.
func (s *store) Watch(ctx context.Context, req *rpc.Request, prefix string, res *kv.Status) error {
	changes := make(chan string, 64)
	s.watchers.Store(changes, prefix)
	defer s.watchers.Delete(changes)
	req.Conn().AllowBackward(1)
	client := kv.NewWatcherV1Client(req.Conn())
	for {
		select {
		case key, ok := <-changes:
			if !ok {
				*res = kv.TooSlow
				return nil
			}
			if err := client.Changed(ctx, key); err != nil {
				return err
			}
		case <-ctx.Done(): // with the connection
			return ctx.Err()
		}
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20100", "`address` to listen on")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "serve over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	server, err := transport.NewServer(nil)
	check(err)
	check(kv.RegisterStoreV1(server, &store{values: make(map[string][]byte)}))
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
