package released

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The programs of server and client, and their procedures. Recordings have these numbers: they stay
// as they are.
const (
	program  = 0x20000077 // of the server
	echo     = 1          // returns its argument, an opaque
	sum      = 2          // the argument is an opaque, which may be a read chunk; returns the sum of its bytes
	fill     = 3          // the argument is a length; returns so many bytes, which may be a write chunk
	long     = 4          // the same, never as a write chunk
	fail     = 5          // does not understand its arguments
	ask      = 6          // asks the client, and returns its answer
	back     = 0x20000078 // of the client
	question = 1          // returns its argument twice
)

// size is that of bulk data, in bytes: more than fits inline, and not a multiple of 4.
const size = 6001

// pattern returns bulk data.
func pattern(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func total(data []byte) (n uint32) {
	for _, b := range data {
		n += uint32(b)
	}
	return n
}

// opaque decodes an opaque from arguments or results.
func opaque(b []byte) []byte {
	d := xdr.NewDecoder(b)
	data := d.Opaque(2 * size)
	if d.Err() != nil {
		return nil
	}
	return data
}

// serve returns today's server, and its address.
func serve(t *testing.T) string {
	t.Helper()
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	repeat := func(place func(res *rpc.Response, data []byte)) rpc.HandlerFunc {
		return func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			if len(req.Args) != 4 {
				res.Fail(oncrpc.GarbageArgs)
				return
			}
			place(res, pattern(int(min(binary.BigEndian.Uint32(req.Args), 2*size))))
		}
	}
	err = server.Register(rpc.Program{Number: program, Low: 1, High: 1, Handler: rpc.Procedures{
		echo: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, req.Args...)
		},
		sum: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			res.Results = xdr.AppendUint32(res.Results, total(opaque(req.Args)))
		},
		fill: repeat(func(res *rpc.Response, data []byte) { res.AddItem(data, nil) }),
		long: repeat(func(res *rpc.Response, data []byte) { res.Results = xdr.AppendOpaque(res.Results, data) }),
		fail: func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.Fail(oncrpc.GarbageArgs) },
		ask: func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			req.Conn().AllowBackward(1)
			call := rpc.Call{Prog: back, Vers: 1, Proc: question, Args: req.Args, MaxResults: 64}
			if err := req.Conn().Call(ctx, &call); err != nil {
				res.FailWith(req, err)
				return
			}
			res.Results = append(res.Results, call.Results...)
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	return l.Addr().String()
}

// dial returns today's client.
func dial(t *testing.T, addr string, version transport.Version) (*transport.Client, error) {
	t.Helper()
	answer := func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		res.Results = xdr.AppendOpaque(res.Results, bytes.Repeat(opaque(req.Args), 2))
	}
	return transport.Dial(t.Context(), iwarp.New(iwarp.Config{}), addr, &transport.ClientConfig{
		NoReconnect: true,
		Config:      transport.Config{Version: version},
		Callbacks:   []rpc.Program{{Number: back, Low: 1, High: 1, Handler: rpc.Procedures{question: answer}}},
	})
}

// A scenario is one way that a call can go.
type scenario struct {
	name string
	run  func(ctx context.Context, c *transport.Client) error // makes the call and looks at what comes of it
}

// scenarios are the recorded scenarios. A version adds some and removes none.
var scenarios = []scenario{
	{"null", func(ctx context.Context, c *transport.Client) error { return c.Null(ctx, program, 1) }},
	{"inline", func(ctx context.Context, c *transport.Client) error {
		args := xdr.AppendOpaque(nil, []byte("hello"))
		return calls(ctx, c, &rpc.Call{Proc: echo, Args: args, MaxResults: 64}, args)
	}},
	{"read-chunk", func(ctx context.Context, c *transport.Client) error {
		data := pattern(size)
		return calls(ctx, c, &rpc.Call{
			Proc: sum, Args: xdr.AppendUint32(nil, size), ReadItems: []rpc.ReadItem{{Offset: 4, Data: data}}, MaxResults: 4,
		}, xdr.AppendUint32(nil, total(data)))
	}},
	{"write-chunk", func(ctx context.Context, c *transport.Client) error {
		buf := make([]byte, size+3)
		call := &rpc.Call{Proc: fill, Args: xdr.AppendUint32(nil, size), WriteItems: []rpc.WriteItem{{Buf: buf}}, MaxResults: 4}
		if err := calls(ctx, c, call, xdr.AppendUint32(nil, size)); err != nil {
			return err
		}
		if item := call.WriteItems[0]; !item.Chunked || !bytes.Equal(buf[:item.N], pattern(size)) {
			return fmt.Errorf("the data, %d bytes, is not in the write chunk", item.N)
		}
		return nil
	}},
	{"reply-chunk", func(ctx context.Context, c *transport.Client) error {
		return calls(ctx, c, &rpc.Call{Proc: long, Args: xdr.AppendUint32(nil, size), MaxResults: size + 7}, xdr.AppendOpaque(nil, pattern(size)))
	}},
	{"long-call", func(ctx context.Context, c *transport.Client) error {
		data := pattern(size)
		return calls(ctx, c, &rpc.Call{Proc: sum, Args: xdr.AppendOpaque(nil, data), MaxResults: 4}, xdr.AppendUint32(nil, total(data)))
	}},
	{"program-error", func(ctx context.Context, c *transport.Client) error {
		err := calls(ctx, c, &rpc.Call{Proc: fail, MaxResults: 4}, nil)
		if e := (*oncrpc.RPCError)(nil); !errors.As(err, &e) || e.AcceptStat != oncrpc.GarbageArgs {
			return fmt.Errorf("got %v, want GARBAGE_ARGS", err)
		}
		return nil
	}},
	{"transport-error", func(ctx context.Context, c *transport.Client) error {
		err := calls(ctx, c, &rpc.Call{Proc: long, Args: xdr.AppendUint32(nil, size), MaxResults: 64}, nil)
		if e := (*rpc.RDMAError)(nil); !errors.As(err, &e) || e.Code != rpcrdma.ErrChunk {
			return fmt.Errorf("got %v, want ERR_CHUNK", err)
		}
		return nil
	}},
	{"backward", func(ctx context.Context, c *transport.Client) error {
		return calls(ctx, c, &rpc.Call{Proc: ask, Args: xdr.AppendOpaque(nil, []byte("who?")), MaxResults: 64}, xdr.AppendOpaque(nil, []byte("who?who?")))
	}},
}

// calls makes a call of the program and compares its results.
func calls(ctx context.Context, c *transport.Client, call *rpc.Call, want []byte) error {
	call.Prog, call.Vers = program, 1
	if err := c.Call(ctx, call); err != nil {
		return err
	}
	if !bytes.Equal(call.Results, want) {
		return fmt.Errorf("the results are %x, want %x", call.Results, want)
	}
	return nil
}
