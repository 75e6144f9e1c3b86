// Command server keeps values in memory, and tells clients that watch them of changes.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A store implements kv.StoreV1Server. Values are replaced, never modified: replies refer to them.
type store struct {
	mu       sync.Mutex
	values   map[string][]byte
	watchers map[chan string]string // prefixes of keys, by where changed keys go
}

func (s *store) Put(_ context.Context, _ *transport.Request, args *kv.Pair, res *kv.Status) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.values[args.Key]; !ok && len(s.values) == kv.MaxKeys {
		*res = kv.Full
		return nil
	}
	s.values[args.Key] = bytes.Clone(args.Value) // the original is the transport's after Put
	for changes, prefix := range s.watchers {
		if !strings.HasPrefix(args.Key, prefix) {
			continue
		}
		select {
		case changes <- args.Key:
		default: // a client may be slow, but not cost memory
			close(changes)
			delete(s.watchers, changes)
		}
	}
	return nil
}

func (s *store) Get(_ context.Context, _ *transport.Request, key string, res *kv.Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.values[key]
	if res.Value = value; !ok {
		res.Status = kv.NoKey
	}
	return nil
}

// Watch calls the client over the connection that its own call came by.
func (s *store) Watch(ctx context.Context, req *transport.Request, prefix string, res *kv.Status) error {
	changes := make(chan string, 64)
	s.mu.Lock()
	s.watchers[changes] = prefix
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, changes)
		s.mu.Unlock()
	}()
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
	tcp := flag.Bool("tcp", false, "serve over TCP, not RDMA")
	flag.Parse()
	server, err := transport.NewServer(nil)
	check(err)
	check(kv.RegisterStoreV1(server, &store{values: make(map[string][]byte), watchers: make(map[chan string]string)}))
	if *tcp {
		l, err := net.Listen("tcp", *addr)
		check(err)
		fmt.Println("listening on", l.Addr())
		check(server.ServeTCP(l))
	}
	l, err := server.Listen(context.Background(), iwarp.New(iwarp.Config{}), *addr)
	check(err)
	fmt.Println("listening on", l.Addr())
	check(server.Serve(l))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
