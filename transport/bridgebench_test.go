package transport_test

import (
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// BenchmarkBridge: a call to a server that knows records alone, and 16 of them at once.
func BenchmarkBridge(b *testing.B) {
	for _, parallel := range []struct {
		name  string
		calls int
	}{{"one", 1}, {"sixteen", 16}} {
		b.Run(parallel.name, func(b *testing.B) {
			cl, stop := bridgeBench(b, nil)
			defer stop()
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range parallel.calls {
				wg.Go(func() {
					call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, MaxResults: 100}
					for n := i; n < b.N; n += parallel.calls {
						if err := cl.Call(bg, &call); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// bridgeBench serves echoes through a bridge, and returns a client.
func bridgeBench(b *testing.B, cfg *transport.ServerConfig) (cl *transport.Client, stop func()) {
	provider := iwarp.New(iwarp.Config{})
	server, err := transport.NewServer(cfg)
	if err != nil {
		b.Fatal(err)
	}
	bridge := server.Bridge(nil, prog)
	l, err := server.Listen(bg, provider, "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	wg.Go(func() {
		for {
			c, err := bridge.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { echoRecords(b, c) })
		}
	})
	if cl, err = transport.Dial(bg, provider, l.Addr().String(), nil); err != nil {
		b.Fatal(err)
	}
	return cl, func() { cl.Close(); server.Close(); wg.Wait() }
}
