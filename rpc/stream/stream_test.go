package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/rpc/stream/internal/wire"
	"github.com/rpcrdma/rpcrdma/transport"
	"github.com/rpcrdma/rpcrdma/transport/transporttest"
)

// The program of the tests streams numbers: what a generated server is.
var names = &oncrpc.Program{Number: 0x2000007a, Vers: 1, Name: "COUNTER", Procedures: []string{"NULL", "COUNT"}}

type counter struct {
	streams stream.Streams
	run     func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error
}

func (c *counter) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	d := req.Decoder()
	open := c.streams.Accept(ctx, req, res, &d)
	if open == nil {
		return
	}
	arg := d.Uint32()
	if err := d.End(); err != nil {
		res.FailArgs(req, err)
		return
	}
	stream.Start(open, func(b []byte, v uint32) ([]byte, error) {
		if v == tooBig {
			return nil, errTooBig
		}
		return xdr.AppendUint32(b, v), nil
	}, func(ctx context.Context, req *rpc.Request, out *stream.Sender[uint32]) error {
		if req.Conn() == nil || len(req.Args) > 0 || len(req.Alloc(3)) != 3 {
			return errors.New("the request is not detached")
		}
		return c.run(ctx, arg, out)
	})
}

const tooBig = 1 << 31

var errTooBig = errors.New("too big")

// A world is a client and a server of the program, within a bubble.
type world struct {
	t      *testing.T
	net    *transporttest.Network
	client *transport.Client
	log    bytes.Buffer
}

// in runs f with a server that executes run.
func in(t *testing.T, run func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: transporttest.New(t)}
		s, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Logger: slog.New(slog.NewTextHandler(&w.log, nil))}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p := rpc.Program{
			Number: names.Number, Low: 1, High: 1, Names: []*oncrpc.Program{names}, Handler: &counter{run: run},
			Idempotent: rpc.Every,
		}
		if err := s.Register(p); err != nil {
			t.Fatal(err)
		}
		l, err := s.Listen(t.Context(), w.net.Provider(), "192.0.2.1:1")
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve(l)
		w.client, err = transport.Dial(t.Context(), w.net.Provider(), l.Addr().String(), &transport.ClientConfig{Streams: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.client.Close()
		f(w)
	})
}

func call(arg uint32) *rpc.Call {
	return &rpc.Call{Prog: names.Number, Vers: 1, Proc: 1, Names: names, Args: xdr.AppendUint32(nil, arg)}
}

// count ranges over the stream of arg, until f returns false.
func (w *world) count(ctx context.Context, arg uint32, f func(v uint32, err error) bool) {
	stream.Receive(ctx, w.client, call(arg), nil, func(d *xdr.Decoder) uint32 { return d.Uint32() })(f)
}

// send sends 0, 1, ..., arg-1.
func send(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
	for i := range arg {
		if err := out.Send(i); err != nil {
			return err
		}
	}
	return nil
}

// TestOrder: all results arrive, in order, and the iteration ends with the stream, however slow either end is and
// however many there are.
func TestOrder(t *testing.T) {
	for _, n := range []uint32{0, 1, 64, 65, 256, 257, 5000} {
		for _, slow := range []string{"", "client", "server"} {
			t.Run(fmt.Sprint(n, slow), func(t *testing.T) {
				in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
					for i := range arg {
						if err := out.Send(i); err != nil {
							return err
						}
						if slow == "server" {
							time.Sleep(time.Millisecond)
						}
					}
					return nil
				}, func(w *world) {
					next := uint32(0)
					w.count(context.Background(), n, func(v uint32, err error) bool {
						if v != next || err != nil {
							t.Errorf("result %d: %d, %v", next, v, err)
							return false
						}
						if slow == "client" {
							time.Sleep(time.Millisecond)
						}
						next++
						return true
					})
					if next != n {
						t.Errorf("%d results, want %d", next, n)
					}
				})
			})
		}
	}
}

// TestBackPressure: a client that does not read has the server stop, and delays neither calls nor other streams.
func TestBackPressure(t *testing.T) {
	sent := uint32(0)
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		if arg == 10 {
			return send(ctx, arg, out)
		}
		for ; sent < arg; sent++ {
			if err := out.Send(sent); err != nil {
				return err
			}
		}
		return nil
	}, func(w *world) {
		got := uint32(0)
		w.count(context.Background(), 10000, func(v uint32, err error) bool {
			if got == 0 {
				time.Sleep(time.Hour)
				synctest.Wait()
				if sent > 256+64+1 {
					t.Errorf("the server has sent %d results to a client that has read one", sent)
				}
				other := 0
				w.count(context.Background(), 10, func(uint32, error) bool { other++; return true })
				if err := w.client.Null(context.Background(), names.Number, 1); err != nil || other != 10 {
					t.Errorf("beside it: a call %v, %d results of another stream", err, other)
				}
			}
			got++
			return err == nil
		})
		if got != 10000 {
			t.Errorf("%d results", got)
		}
	})
}

// TestEnds: the iterator's last error is that of the handler, and what the handler has sent before comes first.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(out *stream.Sender[uint32]) error
		stat oncrpc.AcceptStat
		log  string
	}{
		"an error":      {func(*stream.Sender[uint32]) error { return errors.New("the disk is full") }, oncrpc.SystemErr, "the disk is full"},
		"a status":      {func(*stream.Sender[uint32]) error { return oncrpc.ProcUnavail }, oncrpc.ProcUnavail, ""},
		"a denial":      {func(*stream.Sender[uint32]) error { return oncrpc.AuthTooWeak }, oncrpc.SystemErr, ""},
		"a panic":       {func(*stream.Sender[uint32]) error { panic("no") }, oncrpc.SystemErr, "stream_test.go"},
		"Goexit":        {func(*stream.Sender[uint32]) error { runtime.Goexit(); return nil }, oncrpc.SystemErr, "Goexit"},
		"a wrong value": {func(out *stream.Sender[uint32]) error { return out.Send(tooBig) }, oncrpc.SystemErr, "too big"},
		"a wrong offer": {func(out *stream.Sender[uint32]) error { return out.Offer(tooBig) }, oncrpc.SystemErr, "too big"},
		"end in order":  {func(*stream.Sender[uint32]) error { return nil }, oncrpc.Success, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
				if err := send(ctx, arg, out); err != nil {
					return err
				}
				return tt.end(out)
			}, func(w *world) {
				got, last := 0, error(nil)
				w.count(context.Background(), 3, func(_ uint32, err error) bool {
					if last = err; err == nil {
						got++
					}
					return true
				})
				var refused *oncrpc.RPCError
				if tt.stat == oncrpc.Success && last == nil {
					refused = &oncrpc.RPCError{}
				} else if !errors.As(last, &refused) || !strings.Contains(last.Error(), "COUNT of COUNTER v1") {
					t.Fatal(last)
				}
				if got != 3 || refused.AcceptStat != tt.stat {
					t.Errorf("%d results, then %v", got, last)
				}
				if text := w.log.String(); (text != "") != (tt.log != "") || !strings.Contains(text, tt.log) {
					t.Errorf("the log is %q, want %q", text, tt.log)
				}
			})
		})
	}
}

// TestLeft: the handler's context ends when the client breaks out of the loop, when its context ends, and with the
// connection; the stream is forgotten.
func TestLeft(t *testing.T) {
	var why chan error
	ended := func() error {
		select {
		case err := <-why:
			return err
		case <-time.After(time.Hour):
			return errors.New("it has not")
		}
	}
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		out.Send(arg)
		<-ctx.Done()
		why <- context.Cause(ctx)
		if out.Send(arg) == nil {
			t.Error("a result was sent after the end")
		}
		return ctx.Err()
	}, func(w *world) {
		why = make(chan error, 3) // in the bubble
		w.count(context.Background(), 1, func(uint32, error) bool { return false })
		if err := ended(); err != stream.ErrClosed {
			t.Errorf("after break: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var last error
		w.count(ctx, 1, func(_ uint32, err error) bool { last = err; return true })
		if err := ended(); err != stream.ErrClosed || last != context.DeadlineExceeded {
			t.Errorf("after the end of the context: %v, and the client has %v", err, last)
		}
		w.count(context.Background(), 1, func(uint32, error) bool {
			w.client.Close()
			return true
		})
		if err := ended(); err == nil {
			t.Error("the context has not ended with the connection")
		}
	})
}

// TestReconnect: the stream goes on after a lost connection, with a GapError.
func TestReconnect(t *testing.T) {
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		for i := uint32(0); ; i++ {
			if err := out.Send(i); err != nil {
				return err
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}, func(w *world) {
		gaps, fresh := 0, 0
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		w.count(ctx, 0, func(v uint32, err error) bool {
			var gap *stream.GapError
			switch {
			case errors.As(err, &gap):
				if gaps++; gap.Cause == nil || gap.Dropped > 0 {
					t.Errorf("the gap is %v", err)
				}
			case err != nil:
				t.Error(err)
				return false
			case v == 0:
				fresh++
			case v == 5:
				w.net.SetDown(true)
				w.net.Cut()
				time.AfterFunc(time.Minute, func() { w.net.SetDown(false) })
			}
			return gaps < 3
		})
		if fresh != 3 { // the fourth has not been read
			t.Errorf("%d streams for %d gaps", fresh, gaps)
		}
	})
}

// TestOffer: dropped results are counted, and the others arrive in order.
func TestOffer(t *testing.T) {
	const n = 10000
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		for i := range uint32(n) {
			if out.Offer(i); i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	}, func(w *world) {
		next, dropped := uint32(0), 0
		w.count(context.Background(), 0, func(v uint32, err error) bool {
			var gap *stream.GapError
			if errors.As(err, &gap) {
				dropped += gap.Dropped
				next += uint32(gap.Dropped)
				return true
			}
			if err != nil || v != next {
				t.Fatalf("%d, %v, want %d", v, err, next)
			}
			next++
			time.Sleep(500 * time.Microsecond)
			return true
		})
		if next != n || dropped == 0 {
			t.Errorf("%d results and %d dropped", next-uint32(dropped), dropped)
		}
	})
}

// TestIdle: a thousand streams on which nothing happens hold no credit of the connection, and one more is refused.
func TestIdle(t *testing.T) {
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		<-ctx.Done()
		return nil
	}, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		for range 1024 {
			go w.count(ctx, 0, func(uint32, error) bool { return true })
		}
		synctest.Wait()
		if n := w.client.Conn().Stats().InFlight; n != 0 {
			t.Errorf("%d calls are in flight", n)
		}
		if err := w.client.Null(ctx, names.Number, 1); err != nil {
			t.Error(err)
		}
		w.count(ctx, 0, func(_ uint32, err error) bool {
			if !strings.Contains(fmt.Sprint(err), "SYSTEM_ERR") {
				t.Errorf("one more: %v", err)
			}
			return true
		})
		cancel()
		synctest.Wait()
	})
}

// TestHostile: what no client of this package sends is refused or ignored, and so is what no server sends.
func TestHostile(t *testing.T) {
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		<-ctx.Done()
		return nil
	}, func(w *world) {
		request := func(r wire.Request, rest ...byte) error {
			c := call(0)
			c.Args = append(r.Append(nil), rest...)
			return w.client.Call(context.Background(), c)
		}
		zero := []byte{0, 0, 0, 0}
		for name, tt := range map[string]struct {
			err  error
			want string
		}{
			"a grant for no stream":   {request(wire.Request{Op: wire.OpGrant, Stream: 99, Items: 1}), "<nil>"},
			"the close of no stream":  {request(wire.Request{Op: wire.OpClose, Stream: 99}), "<nil>"},
			"a stream without room":   {request(wire.Request{Op: wire.OpOpen, Stream: 99}, zero...), "GARBAGE_ARGS"},
			"no arguments":            {request(wire.Request{Op: wire.OpOpen, Stream: 99, Items: 1}), "GARBAGE_ARGS"},
			"more than a grant":       {request(wire.Request{Op: wire.OpGrant, Stream: 99, Items: 1}, zero...), "GARBAGE_ARGS"},
			"an operation of no kind": {request(wire.Request{Op: 7, Stream: 99, Items: 1}, zero...), "GARBAGE_ARGS"},
			"a stream":                {request(wire.Request{Op: wire.OpOpen, Stream: 99, Items: 1}, zero...), "<nil>"},
		} {
			if got := fmt.Sprint(tt.err); got != tt.want && !strings.Contains(got, tt.want) {
				t.Errorf("%s: %v", name, tt.err)
			}
		}
		if err := request(wire.Request{Op: wire.OpOpen, Stream: 99, Items: 1}, zero...); !strings.Contains(fmt.Sprint(err), "GARBAGE_ARGS") {
			t.Errorf("the stream again: %v", err)
		}
	})

	// A server that sends more than it may, and to streams that do not exist.
	answers := make(chan bool, 300)
	in(t, func(ctx context.Context, arg uint32, out *stream.Sender[uint32]) error {
		<-ctx.Done()
		return nil
	}, func(w *world) {
		rogue, err := transport.NewServer(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer rogue.Close()
		err = rogue.Register(rpc.Program{Number: names.Number, Low: 1, High: 1, Idempotent: rpc.Every, Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
			d := req.Decoder()
			var q wire.Request
			if q.Decode(&d); q.Op != wire.OpOpen {
				return
			}
			conn := req.Conn()
			conn.AllowBackward(0)
			go func() {
				client := wire.NewStreamV1Client(conn)
				for i := range 300 {
					open, err := client.Events(context.Background(), &wire.Events{Stream: q.Stream + uint64(i/299), List: []wire.Event{{Item: []byte{0, 0, 0, 0}}}})
					if err != nil {
						t.Error(err)
					}
					answers <- open
				}
			}()
		})})
		if err != nil {
			t.Fatal(err)
		}
		l, err := rogue.Listen(context.Background(), w.net.Provider(), "192.0.2.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go rogue.Serve(l)
		cl, err := transport.Dial(context.Background(), w.net.Provider(), l.Addr().String(), &transport.ClientConfig{Streams: true})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		n, last := 0, error(nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		stream.Receive(ctx, cl, call(0), nil, func(d *xdr.Decoder) uint32 { return d.Uint32() })(func(_ uint32, err error) bool {
			if n == 0 {
				time.Sleep(time.Minute) // all have been sent
			}
			if last = err; err == nil {
				n++
			}
			return true
		})
		if !errors.As(last, new(*rpc.PeerError)) || n > 256+1 {
			t.Errorf("%d results, then %v", n, last)
		}
		for i := range 300 {
			if open := <-answers; open != (i < 256) {
				t.Errorf("event %d: open is %v", i, open)
			}
		}

		plain, err := transport.Dial(context.Background(), w.net.Provider(), l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		stream.Receive(context.Background(), plain, call(0), nil, func(d *xdr.Decoder) uint32 { return d.Uint32() })(func(_ uint32, err error) bool {
			if err != stream.ErrNoStreams {
				t.Errorf("without ClientConfig.Streams: %v", err)
			}
			return true
		})
	})
}
