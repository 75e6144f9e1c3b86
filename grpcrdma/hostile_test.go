package grpcrdma_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A stranger is a client that sends what it likes.
type stranger struct {
	*transport.Client
	t *testing.T
}

func newStranger(t *testing.T, p fabric.Provider, addr string) *stranger {
	t.Helper()
	cl, err := transport.Dial(t.Context(), p, addr, &transport.ClientConfig{
		Config: grpcrdma.Config(4 << 20), Callbacks: []rpc.Program{{Number: wire.GrpcProg, Low: 1, High: 1, Handler: rpc.Procedures{wire.GrpcSend: func(context.Context, *rpc.Request, *rpc.Response) {}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return &stranger{cl, t}
}

// send makes a call with args, which may be refused, and returns its results.
func (s *stranger) send(proc uint32, args []byte) []byte {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	call := &rpc.Call{Prog: wire.GrpcProg, Vers: wire.GrpcV1, Proc: proc, Args: args, MaxResults: 64 << 10, NoResend: true}
	if err := s.Call(ctx, call); ctx.Err() != nil {
		s.t.Fatalf("no answer: %v", err)
	}
	return call.Results
}

// frames sends frames in one call, with items.
func (s *stranger) frames(items [][]byte, frames ...wire.Frame) {
	s.t.Helper()
	body := xdr.AppendUint32(nil, uint32(len(frames)))
	for i := range frames {
		body = frames[i].Append(body)
	}
	args := xdr.AppendUint32(nil, uint32(len(items)))
	for _, it := range items {
		args = xdr.AppendOpaque(args, it)
	}
	s.send(wire.GrpcSend, xdr.AppendOpaque(args, body))
}

func frame(id, seq uint64, c wire.Content) wire.Frame {
	return wire.Frame{Id: id, Own: true, Seq: seq, Content: c}
}

func opening(method string) wire.Content {
	return wire.Content{Kind: wire.KindOpen, Open: wire.Open{Method: method}}
}

func text(n int, places ...wire.Path) wire.Content {
	return wire.Content{Kind: wire.KindMessage, Message: wire.Text{Bodies: append(xdr.AppendUint32(nil, uint32(n)), make([]byte, n)...), Layout: wire.Layout{Places: places}}}
}

// TestHostileFrames: frames that make no sense end their stream at most, and neither memory nor other callers
// suffer.
func TestHostileFrames(t *testing.T) {
	const echo = testgrpc.TestService_FullDuplexCall_FullMethodName
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv := grpcrdma.NewServer()
		testgrpc.RegisterTestServiceServer(srv, &service{unary: echoes, duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			<-s.Context().Done() // and reads nothing
			return nil
		}})
		at := listen(t, p, addr, srv)
		cc, err := grpcrdma.Dial(t.Context(), p, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		s := newStranger(t, p, at)
		before := inUse()
		half := wire.Content{Kind: wire.KindHalfClose}
		for name, do := range map[string]func(id uint64){
			"of no stream": func(id uint64) {
				s.frames(nil, frame(id, 1, text(100)), frame(id, 0, half), frame(id, 0, wire.Content{Kind: wire.KindCancel}))
			},
			"opened twice":      func(id uint64) { s.frames(nil, frame(id, 0, opening(echo)), frame(id, 0, opening(echo))) },
			"half closed twice": func(id uint64) { s.frames(nil, frame(id, 0, opening(echo)), frame(id, 1, half), frame(id, 2, half)) },
			"of a server": func(id uint64) {
				s.frames(nil, frame(id, 0, opening(echo)), frame(id, 1, wire.Content{Kind: wire.KindStatus}))
			},
			"of an unknown method": func(id uint64) { s.frames(nil, frame(id, 0, opening("no such method")), frame(id, 1, text(10))) },
			"beyond the window": func(id uint64) {
				s.frames(nil, frame(id, 0, opening(echo)))
				for seq := range uint64(20) {
					s.frames(nil, frame(id, seq+1, text(30_000)))
				}
			},
			"early for ever": func(id uint64) {
				s.frames(nil, frame(id, 0, opening(echo)))
				for seq := range uint64(50) {
					s.frames(nil, frame(id, 2+seq, text(30_000)))
				}
			},
			"with the numbers of others": func(id uint64) {
				s.frames(nil, frame(id, 0, opening(echo)), frame(id, 1<<63, text(1)), frame(id, 1<<63, text(1)))
			},
			"with a huge window": func(id uint64) {
				s.frames(nil, frame(id, 0, opening(echo)), frame(id, 0, wire.Content{Kind: wire.KindGrant, Bytes: 1<<32 - 1}))
			},
			"without their items": func(id uint64) {
				s.frames(nil, frame(id, 0, opening(echo)), frame(id, 1, text(10, wire.Path{{Field: 1}})))
			},
			"with bodies of another length": func(id uint64) {
				for i, bodies := range [][]byte{nil, {0}, {0, 0, 0, 1}, {0, 0, 0, 1, 7, 0, 0}, {255, 255, 255, 255, 1}} {
					bad := wire.Content{Kind: wire.KindMessage, Message: wire.Text{Bodies: bodies}}
					s.frames(nil, frame(id<<8+uint64(i), 0, opening(echo)), frame(id<<8+uint64(i), 1, bad))
				}
			},
			"several with an item": func(id uint64) {
				two := wire.Content{Kind: wire.KindMessage, Message: wire.Text{Bodies: make([]byte, 8), Layout: wire.Layout{Places: []wire.Path{{{Field: 1}}}}}}
				s.frames([][]byte{{1}}, frame(id, 0, opening(echo)), frame(id, 1, two))
			},
			"with items of others": func(id uint64) { s.frames([][]byte{{1}, {2}}, frame(id, 0, opening(echo)), frame(id, 1, text(10))) },
		} {
			t.Run(name, func(t *testing.T) {
				for i := range uint64(20) {
					do(1000*uint64(len(name)) + i)
				}
			})
		}
		t.Run("short ones beside much else", func(t *testing.T) {
			s.frames(nil, frame(1, 0, opening(echo)), frame(2, 0, opening(echo)))
			held := inUse()
			for seq := range uint64(150) {
				s.frames(nil, frame(1, seq+1, text(1)), frame(3, 1, text(900_000)))
				s.frames(nil, frame(2, seq+2, wire.Content{Kind: wire.KindHeader, Header: wire.Metadata{{Key: "k", Value: make([]byte, 60_000)}}}))
			}
			if more := inUse() - held; more > 16<<20 {
				t.Errorf("they hold %d bytes", more)
			}
		})
		t.Run("calls", func(t *testing.T) {
			for _, r := range []wire.Request{
				{Method: "x"}, {Method: "/"}, {Method: "/a/b/c", Timeout: 1 << 63}, {Timeout: 1<<64 - 1, Method: testgrpc.TestService_UnaryCall_FullMethodName},
				{Method: testgrpc.TestService_UnaryCall_FullMethodName, Layout: wire.Layout{Places: []wire.Path{{}, {{Field: 1 << 31}}}}},
				{Method: testgrpc.TestService_UnaryCall_FullMethodName, Layout: wire.Layout{Encoding: "zip", Subtype: "yaml"}},
				{Method: testgrpc.TestService_UnaryCall_FullMethodName, Offered: wire.Offers{1<<32 - 1, 1<<32 - 1}},
			} {
				s.send(wire.GrpcUnary, append(r.Append(nil), make([]byte, 8)...))
			}
			s.send(wire.GrpcFetch, make([]byte, 12))
			s.send(wire.GrpcFetch, nil)
			s.send(99, nil)
		})
		t.Run("noise", func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			f := frame(7, 0, opening(echo))
			good := xdr.AppendOpaque(make([]byte, 4), f.Append(xdr.AppendUint32(nil, 1)))
			q := wire.Request{Method: testgrpc.TestService_UnaryCall_FullMethodName, Layout: wire.Layout{Places: []wire.Path{{{Field: 1}, {Field: 2}}}}}
			unary := append(q.Append(nil), 0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0)
			for i := range 2000 {
				args, proc := append([]byte(nil), good...), uint32(wire.GrpcSend)
				if i%2 == 0 {
					args, proc = append([]byte(nil), unary...), wire.GrpcUnary
				}
				for range 1 + r.IntN(3) {
					args[r.IntN(len(args))] ^= byte(1 << r.IntN(8))
				}
				s.send(proc, args[:len(args)-4*r.IntN(2)])
			}
		})
		reply, err := testgrpc.NewTestServiceClient(cc).UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: payload(100_000)})
		if err != nil || proto.Size(reply) < 100_000 {
			t.Errorf("another caller: %v", err)
		}
		s.Close()
		testutil.Eventually(t, "at most 60 goroutines are left", func() bool { return runtime.NumGoroutine() <= 60 })
		testutil.Eventually(t, "at most 16 MiB are left", func() bool { return inUse()-before <= 16<<20 })
	})
}

// TestEarlyFrames: a window full of short messages may arrive before the one in front of them.
func TestEarlyFrames(t *testing.T) {
	const n = 64 << 10 / 32
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv, got := grpcrdma.NewServer(), make(chan error, 1)
		testgrpc.RegisterTestServiceServer(srv, &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) (err error) {
			for i := 0; i < n && err == nil; i++ {
				_, err = s.Recv()
			}
			got <- err
			return err
		}})
		s := newStranger(t, p, listen(t, p, addr, srv))
		s.frames(nil, frame(1, 0, opening(testgrpc.TestService_FullDuplexCall_FullMethodName)))
		var early []wire.Frame
		for seq := range uint64(n) {
			early = append(early, frame(1, seq+1, text(0)))
		}
		s.frames(nil, early[1:]...)
		s.frames(nil, early[0])
		select {
		case err := <-got:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testutil.Patience):
			t.Error("the messages have not been received")
		}
	})
}

// TestHostileHeaders: the metadata of open streams is bounded for each connection.
func TestHostileHeaders(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv := grpcrdma.NewServer()
		var open atomic.Int64
		testgrpc.RegisterTestServiceServer(srv, &service{unary: echoes, duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			open.Add(1)
			<-s.Context().Done()
			return nil
		}})
		cc := serve(t, p, addr, srv)
		c := testgrpc.NewTestServiceClient(cc)
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "k", strings.Repeat("x", 60_000)), time.Minute)
		defer cancel()
		const fit = 64 << 20 / (60_000 + 1 + 32)
		start := func() testgrpc.TestService_FullDuplexCallClient {
			s, err := c.FullDuplexCall(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		for range fit {
			defer runtime.KeepAlive(start())
		}
		// Streams may overtake each other until they are open.
		testutil.Eventually(t, "all that fit are open", func() bool { return open.Load() == fit })
		if _, err := start().Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one stream too many: %v", err)
		}
		cancel()
		testutil.Eventually(t, "there is room again", func() bool {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "k", strings.Repeat("x", 60_000)), 100*time.Millisecond)
			defer cancel()
			s, err := c.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return status.Code(err) == codes.DeadlineExceeded
		})
	})
}
