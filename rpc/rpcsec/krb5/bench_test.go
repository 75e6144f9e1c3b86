package krb5

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/kdctest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A flavor is how the calls of a benchmark are protected.
type flavor struct {
	name string
	rpc.Caller
}

// An operation is what a benchmark measures.
type operation struct {
	name string
	proc uint32
	size int // of the bulk data, in bytes
}

const (
	benchRead  = 1 // unsigned length to opaque<>
	benchWrite = 2 // opaque<> to void
)

var operations = []operation{{"NULL", 3, 0}, {"Read/64KiB", benchRead, 64 << 10}, {"Read/1MiB", benchRead, 1 << 20}, {"Write/1MiB", benchWrite, 1 << 20}}

// flavors serves a program over iWARP, with contexts of MIT's KDC, and over iWARP and TCP with TLS, and returns a Caller for each
// flavor.
func flavors(b *testing.B) []flavor {
	k := kdctest.New(b, "EXAMPLE.COM")
	const etype = kdctest.AES
	acceptor, err := NewAcceptor(AcceptorConfig{Keytab: k.Keytab(b, "nfs/a", etype), Service: "nfs"})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 1<<20)
	handler := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		d := req.Decoder()
		switch req.Proc {
		case benchRead:
			res.AddItem(data[:min(d.Uint32(), uint32(len(data)))], nil)
		case benchWrite:
			if len(d.Opaque(1<<20)) == 0 {
				res.Fail(oncrpc.GarbageArgs)
			}
		}
	})
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: acceptor, Seal: true})
	a := testutil.NewAuthority(b)
	secure := &tls.Config{Certificates: []tls.Certificate{a.Issue(b, nil, "IP:127.0.0.1")}, RootCAs: a.Pool(), ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	onTCP := transport.Config{TLS: &transport.TLS{Config: secure, Optional: true}}
	server, err := transport.NewServer(&transport.ServerConfig{Config: onTCP})
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Register(rpc.Program{Number: prog, Low: 1, High: 1, Null: true, Idempotent: rpc.Every, Handler: rpc.Chain(handler, sec.Wrap)}); err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	b.Cleanup(func() { server.Close(); wg.Wait() })
	over := func(p fabric.Provider, cfg transport.Config) func() *transport.Client {
		l, err := server.Listen(b.Context(), p, "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() { server.Serve(l) })
		return func() *transport.Client {
			cl, err := transport.Dial(b.Context(), p, l.Addr().String(), &transport.ClientConfig{Config: cfg})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { cl.Close() })
			return cl
		}
	}
	i, err := NewInitiator(InitiatorConfig{Service: "nfs@a", Config: k.Config, Keytab: k.Keytab(b, "alice", etype), Principal: "alice"})
	if err != nil {
		b.Fatal(err)
	}
	dial, cred := over(iwarp.New(iwarp.Config{}), transport.Config{}), (&oncrpc.AuthSys{Machine: "client", UID: 1000, GID: 1000}).Auth()
	sys := func(name string, cl *transport.Client) flavor {
		return flavor{name, rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
			call.Cred = cred
			return cl.Call(ctx, call)
		})}
	}
	all := []flavor{
		sys("sys", dial()), sys("tls", over(iwarp.New(iwarp.Config{TLS: secure}), transport.Config{})()),
		sys("tcp", over(transport.TCP{}, transport.Config{})()), sys("tcptls", over(transport.TCP{}, onTCP)()),
	}
	for _, f := range []struct {
		name string
		cfg  rpcsec.ClientConfig
	}{
		{"krb5", rpcsec.ClientConfig{Service: rpc.ServiceNone}},
		{"krb5i", rpcsec.ClientConfig{Service: rpc.ServiceIntegrity}},
		{"krb5p", rpcsec.ClientConfig{Service: rpc.ServicePrivacy}},
		{"sealed", rpcsec.ClientConfig{Service: rpc.ServicePrivacy, Seal: rpcsec.SealRequired}},
	} {
		f.cfg.Initiator = i
		all = append(all, flavor{f.name, rpcsec.NewClient(dial(), f.cfg)})
	}
	return all
}

// do makes a call with memory that the calls of a flavor share.
func (o operation) do(b *testing.B, f flavor, call *rpc.Call, data []byte) {
	call.Prog, call.Vers, call.Proc = prog, 1, o.proc
	call.Args, call.ReadItems, call.WriteItems, call.MaxResults = call.Args[:0], call.ReadItems[:0], call.WriteItems[:0], 0
	switch o.proc {
	case benchRead:
		call.Args, call.MaxResults = xdr.AppendUint32(call.Args, uint32(o.size)), 4
		call.Receive(data[:o.size])
	case benchWrite:
		call.Args = xdr.AppendUint32(call.Args, uint32(o.size))
		call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: 4, Data: data[:o.size]})
	}
	if err := f.Call(b.Context(), call); err != nil {
		b.Fatal(err)
	}
	if o.proc == benchRead {
		if d := call.Decoder(); len(d.Item()) != o.size || d.End() != nil {
			b.Fatal(d.Err())
		}
	}
}

// BenchmarkFlavors measures each operation with each flavor, and then, as "ratios", all flavors in turn: how much longer a call
// is than one with AUTH_SYS, in the fastest rounds of 8, as the machine has other work.
func BenchmarkFlavors(b *testing.B) {
	all, data := flavors(b), make([]byte, 1<<20)
	for _, o := range operations {
		for _, f := range all {
			var call rpc.Call
			b.Run(fmt.Sprintf("%s/%s", o.name, f.name), func(b *testing.B) {
				o.do(b, f, &call, data)
				b.SetBytes(int64(o.size))
				b.ReportAllocs()
				for b.Loop() {
					o.do(b, f, &call, data)
				}
			})
		}
		b.Run(o.name+"/ratios", func(b *testing.B) {
			calls, spent := make([]rpc.Call, len(all)), make([]time.Duration, len(all))
			for b.Loop() {
				for i, f := range all {
					o.do(b, f, &calls[i], data) // which warms the caches
					start := time.Now()
					for range 8 {
						o.do(b, f, &calls[i], data)
					}
					if took := time.Since(start); spent[i] == 0 || took < spent[i] {
						spent[i] = took
					}
				}
			}
			b.ReportMetric(float64(spent[0])/1e3/8, "µs/sys")
			for i, f := range all[1:] {
				b.ReportMetric(float64(spent[i+1])/float64(spent[0]), f.name+"/sys")
			}
		})
	}
}
