package transport_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Both ends over TCP, on the loopback interface, with the handlers and the callers that the
// tests over RDMA have.

// A tcpWorld is a server over TCP.
type tcpWorld struct {
	server *transport.Server
	svc    *service
	addr   string
}

// startTCP serves until the test ends, and checks that nothing is left.
func startTCP(t testing.TB, cfg *transport.Settings, more ...rpc.Program) *tcpWorld {
	t.Helper()
	leak.Check(t)
	var c transport.Settings
	if cfg != nil {
		c = *cfg
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	w := &tcpWorld{svc: &service{}}
	var err error
	if w.server, err = transport.NewServer(c.Server()); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(more, rpc.Program{
		Number: prog, Low: 1, High: 1, Handler: w.svc, Idempotent: rpc.Every,
		Inline: func(_, proc uint32) bool { return proc == procEcho },
	}) {
		if err := w.server.Register(p); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.server.ServeTCP(l) }()
	t.Cleanup(func() {
		w.server.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("ServeTCP returned %v", err)
		}
		// Handlers of calls that were given up may still run: see Server.Close.
		for end := time.Now().Add(30 * time.Second); transport.MemoryUse(w.server) != 0; runtime.Gosched() {
			if time.Now().After(end) {
				t.Errorf("in the end the server counts %d bytes", transport.MemoryUse(w.server))
				break
			}
		}
	})
	return w
}

func (w *tcpWorld) dial(t testing.TB, cfg *transport.Settings) *transport.Client {
	t.Helper()
	cl, err := transport.DialTCP(bg, w.addr, cfg.Client())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

func TestTCPSizes(t *testing.T) {
	both := &transport.TLS{Config: mutual(t)}
	for _, tt := range []struct {
		name           string
		server, client *transport.Settings
	}{
		{"defaults", nil, nil},
		{"one call at a time", &transport.Settings{Credits: 1}, &transport.Settings{Credits: 1}},
		{"TLS", &transport.Settings{TLS: both}, &transport.Settings{TLS: both}},
		{"no time limit", &transport.Settings{StallTimeout: -1}, &transport.Settings{StallTimeout: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := startTCP(t, tt.server)
			cl := w.dial(t, tt.client)
			data, buf := make([]byte, 4<<20), make([]byte, 4<<20)
			fill(data, 3)
			var call rpc.Call
			for _, n := range append(sizes, 16<<10-56, 16<<10, 16<<10+4) {
				for _, proc := range []uint32{procEcho, procSlow} {
					if err := echo(cl, proc, data[:n], buf, &call); err != nil {
						t.Fatalf("size %d: %v", n, err)
					}
					d := call.Decoder()
					if n == 0 {
						continue
					}
					if got := d.Item(); d.End() != nil || !bytes.Equal(got, data[:n]) || &got[0] != &buf[0] || call.WriteItems[0].Chunked {
						t.Fatalf("size %d: Item returns %d bytes: %v", n, len(got), d.Err())
					}
				}
			}
			for _, n := range []int{0, 1, 1000, 100_000} {
				call := rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, uint32(n)), MaxResults: 4 * n}
				if err := cl.Call(bg, &call); err != nil || len(call.Results) != 4*n {
					t.Errorf("%d words: %d bytes, %v", n, len(call.Results), err)
				}
			}
			for _, n := range []int{1, 5, 5000, 3 << 20} { // from Response.Alloc
				call := rpc.Call{Prog: prog, Vers: 1, Proc: procMake, Args: xdr.AppendUint32(xdr.AppendUint32(nil, uint32(n)), 9), MaxResults: n + 8}
				want := make([]byte, n)
				fill(want, 9)
				if err := cl.Call(bg, &call); err != nil || !bytes.Equal(call.Results, xdr.AppendOpaque(nil, want)) {
					t.Errorf("%d bytes made: %v", n, err)
				}
			}
			call = rpc.Call{Prog: prog, Vers: 1, Proc: procSum, Args: xdr.AppendOpaque(nil, data[:1<<20])}
			if want := sha256.Sum256(data[:1<<20]); cl.Call(bg, &call) != nil || !bytes.Equal(call.Results, want[:]) {
				t.Error("another sum")
			}
		})
	}
}

// TestTCPParallel checks many callers on one connection with calls of all sizes, some of which are abandoned. Every
// call must get its own reply, and an abandoned call must not affect others.
func TestTCPParallel(t *testing.T) {
	for _, credits := range []int{1, 8, 128} {
		t.Run(fmt.Sprint(credits), func(t *testing.T) {
			w := startTCP(t, &transport.Settings{Credits: credits})
			cl := w.dial(t, &transport.Settings{Credits: credits})
			var wg sync.WaitGroup
			var gaveUp, failed atomic.Int64
			for g := range 24 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 1))
					data, buf := make([]byte, 1<<18), make([]byte, 1<<18)
					fill(data, uint32(g))
					var call rpc.Call
					for range 200 {
						n := rng.IntN(200)
						if rng.IntN(10) == 0 {
							n = rng.IntN(len(data))
						}
						off := rng.IntN(len(data) - n + 1)
						ctx, cancel := bg, context.CancelFunc(func() {})
						if rng.IntN(10) == 0 {
							ctx, cancel = context.WithTimeout(bg, time.Duration(rng.IntN(1000))*time.Microsecond)
						}
						err := echo(callerFunc(func(call *rpc.Call) error { return cl.Call(ctx, call) }), procEcho+uint32(rng.IntN(2)), data[off:off+n], buf, &call)
						cancel()
						switch {
						case ctx != bg && errors.Is(err, context.DeadlineExceeded):
							gaveUp.Add(1)
							clear(data[off : off+n]) // which is the caller's again
							fill(data, uint32(g))
						case err != nil:
							failed.Add(1)
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			st := cl.Stats()
			t.Logf("%d gave up; %+v", gaveUp.Load(), st)
			if st.Conns != 1 {
				t.Errorf("%d connections, want 1", st.Conns)
			}
			if err := cl.Null(bg, prog, 1); err != nil {
				t.Error(err)
			}
		})
	}
}

type callerFunc func(call *rpc.Call) error

func (f callerFunc) Call(_ context.Context, call *rpc.Call) error { return f(call) }

// TestTCPRefusals checks that the server's error replies are the same as over RDMA.
func TestTCPRefusals(t *testing.T) {
	w := startTCP(t, nil, rpc.Program{Number: prog + 1, Low: 2, High: 4, Handler: rpc.HandlerFunc(
		func(context.Context, *rpc.Request, *rpc.Response) { panic("as it must") })})
	cl := w.dial(t, nil)
	for _, tt := range []struct {
		name string
		call rpc.Call
		want oncrpc.RPCError
	}{
		{"no program", rpc.Call{Prog: prog + 2, Vers: 1, Proc: 1}, oncrpc.RPCError{AcceptStat: oncrpc.ProgUnavail}},
		{"no version", rpc.Call{Prog: prog + 1, Vers: 1, Proc: 1}, oncrpc.RPCError{AcceptStat: oncrpc.ProgMismatch, Low: 2, High: 4}},
		{"no procedure", rpc.Call{Prog: prog, Vers: 1, Proc: 99}, oncrpc.RPCError{AcceptStat: oncrpc.ProcUnavail}},
		{"garbage", rpc.Call{Prog: prog, Vers: 1, Proc: procEcho}, oncrpc.RPCError{AcceptStat: oncrpc.GarbageArgs}},
		{"a panic", rpc.Call{Prog: prog + 1, Vers: 3, Proc: 1}, oncrpc.RPCError{AcceptStat: oncrpc.SystemErr}},
		{"results beyond MaxMessage", rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 1<<20)}, oncrpc.RPCError{AcceptStat: oncrpc.SystemErr}},
	} {
		want := tt.want
		want.Prog, want.Vers, want.Proc = tt.call.Prog, tt.call.Vers, tt.call.Proc
		var got *oncrpc.RPCError
		if err := cl.Call(bg, &tt.call); !errors.As(err, &got) || *got != want {
			t.Errorf("%s: %v, want %v", tt.name, err, &want)
		}
	}
	if err := cl.Null(bg, prog, 1); err != nil {
		t.Error(err)
	}
	if st := cl.Stats(); st.Conns != 1 {
		t.Errorf("%d connections", st.Conns)
	}
}

// TestTCPUnsendable checks that a message that cannot be sent is not sent, and that the connection survives.
func TestTCPUnsendable(t *testing.T) {
	w := startTCP(t, nil)
	cl := w.dial(t, nil)
	for _, tt := range []struct {
		name string
		call rpc.Call
		want any
	}{
		{"a call that is too long", rpc.Call{Args: make([]byte, 5<<20)}, new(*rpc.SizeError)},
		{"a reply that may get too long", rpc.Call{MaxResults: 5 << 20}, new(*rpc.SizeError)},
		{"an item without its length", rpc.Call{Args: make([]byte, 4), ReadItems: []rpc.ReadItem{{Offset: 4, Data: make([]byte, 7)}}}, new(*rpc.ItemError)},
	} {
		tt.call.Prog, tt.call.Vers, tt.call.Proc = prog, 1, procSum
		if err := cl.Call(bg, &tt.call); !errors.As(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	var op *transport.OperationError
	if _, err := cl.Operate(bg, transport.Optional{Type: 7}); !errors.As(err, &op) {
		t.Errorf("an optional operation: %v", err)
	}
	if m, err := cl.RegisterMemory(make([]byte, 100)); err != nil || m.Close() != nil {
		t.Errorf("memory to be registered: %v", err)
	}
	if i := cl.Info(); i.Provider != "tcp" || i.Credits != transport.DefaultCredits || i.RemoteAddr.String() != w.addr {
		t.Errorf("the connection is %+v", i)
	}
	long := rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: xdr.AppendUint32(nil, 9000)}
	var bad *rpc.BadReplyError
	if err := cl.Call(bg, &long); !errors.As(err, &bad) {
		t.Errorf("a reply that is longer than promised: %v", err)
	}
	if err := cl.Null(bg, prog, 1); err != nil || cl.Stats().Conns != 1 {
		t.Errorf("%v, %d connections", err, cl.Stats().Conns)
	}
}

// TestTCPFragments checks that a stream of records from another client gets its replies, however the records are
// fragmented.
func TestTCPFragments(t *testing.T) {
	w := startTCP(t, nil)
	nc, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 1<<20)
	fill(data, 5)
	var stream []byte
	const calls = 200
	want := make(map[uint32][]byte)
	for xid := range uint32(calls) {
		n := rng.IntN(100)
		if xid%20 == 0 {
			n = rng.IntN(len(data))
		}
		h := oncrpc.CallHeader{XID: xid, RPCVers: 2, Prog: prog, Vers: 1, Proc: procEcho + xid%2}
		msg := xdr.AppendOpaque(oncrpc.AppendCall(nil, &h), data[:n])
		want[xid] = xdr.AppendOpaque(nil, data[:n])
		for len(msg) > 0 {
			k := len(msg)
			if rng.IntN(2) == 0 {
				k = 1 + rng.IntN(min(len(msg), 1<<uint(rng.IntN(20))))
			}
			stream = append(oncrpc.AppendRecordMark(stream, k, k == len(msg)), msg[:k]...)
			msg = msg[k:]
		}
		if xid%50 == 0 { // the last fragment may be empty
			stream = oncrpc.AppendRecordMark(stream, 4, false)
			stream = append(stream, 0, 0, 0, 9)
			stream = oncrpc.AppendRecordMark(stream, 0, true) // not a message: is ignored
		}
	}
	go func() {
		for len(stream) > 0 {
			k := min(1+rng.IntN(40_000), len(stream))
			nc.Write(stream[:k])
			stream = stream[k:]
		}
	}()
	for range calls {
		msg, err := readRecord(nc)
		if err != nil {
			t.Fatal(err)
		}
		var h oncrpc.ReplyHeader
		n, err := oncrpc.ConsumeReply(msg, &h)
		if err != nil || h.Err() != nil || !bytes.Equal(msg[n:], want[h.XID]) {
			t.Fatalf("reply %+v of %d bytes: %v", h, len(msg), err)
		}
		delete(want, h.XID)
	}
}

// TestTCPRecordConn checks that a client written for TCP also runs over a Client with a TCP connection.
func TestTCPRecordConn(t *testing.T) {
	w := startTCP(t, nil)
	nc := transport.NewRecordConn(w.dial(t, nil), nil, 100_000)
	defer nc.Close()
	for i, n := range []int{0, 50, 90_000} {
		h := oncrpc.CallHeader{XID: uint32(1000 + i), RPCVers: 2, Prog: prog, Vers: 1, Proc: procEcho}
		want := xdr.AppendOpaque(nil, bytes.Repeat([]byte{7}, n))
		msg := append(oncrpc.AppendCall(nil, &h), want...)
		if _, err := nc.Write(append(oncrpc.AppendRecordMark(nil, len(msg), true), msg...)); err != nil {
			t.Fatal(err)
		}
		reply, err := readRecord(nc)
		if err != nil {
			t.Fatal(err)
		}
		var rh oncrpc.ReplyHeader
		k, err := oncrpc.ConsumeReply(reply, &rh)
		if err != nil || rh.Err() != nil || rh.XID != h.XID || !bytes.Equal(reply[k:], want) {
			t.Errorf("%d bytes: %+v, %v", n, rh, err)
		}
	}
}
