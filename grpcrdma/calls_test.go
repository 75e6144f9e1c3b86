package grpcrdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A service has the methods that a test gives it.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
	duplex func(s testgrpc.TestService_FullDuplexCallServer) error
}

func (s *service) UnaryCall(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return s.unary(ctx, r)
}

func (s *service) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	return s.duplex(stream)
}

// echoes answers with what it gets.
func echoes(_ context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{Payload: r.Payload}, nil
}

func echoStream(s testgrpc.TestService_FullDuplexCallServer) error {
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.Send(&testgrpc.StreamingOutputCallResponse{Payload: r.Payload})
		}
		if err != nil {
			return err
		}
	}
}

// client returns one of a server with svc.
func client(t *testing.T, p fabric.Provider, addr string, svc *service, opts ...grpcrdma.Option) (testgrpc.TestServiceClient, *grpcrdma.ClientConn) {
	srv := grpcrdma.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(srv, svc)
	cc := serve(t, p, addr, srv, opts...)
	return testgrpc.NewTestServiceClient(cc), cc
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// TestSizes: messages of each size come back as they were, whichever way they go, and again when the client
// knows how long results are.
func TestSizes(t *testing.T) { onBeds(t, testSizes) }

func testSizes(t *testing.T, p fabric.Provider, addr string) {
	c, _ := client(t, p, addr, &service{unary: echoes, duplex: echoStream})
	s, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 900, 1024, 3000, 4095, 4096, 70000, 300000, 1 << 20, 4<<20 - 64, 5, 1 << 19} {
		sent := pattern(n)
		for round := range 2 {
			r, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: sent}})
			if err != nil || !bytes.Equal(r.Payload.Body, sent) {
				t.Fatalf("%d bytes, round %d: %v", n, round, err)
			}
		}
		if err := s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: sent}}); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Recv(); err != nil || !bytes.Equal(r.Payload.Body, sent) {
			t.Fatalf("%d bytes by stream: %v", n, err)
		}
		// Many short fields, of which none is placed.
		req := &testgrpc.StreamingOutputCallRequest{ResponseParameters: make([]*testgrpc.ResponseParameters, n/100)}
		for i := range req.ResponseParameters {
			req.ResponseParameters[i] = &testgrpc.ResponseParameters{Size: math.MaxInt32, IntervalUs: math.MaxInt32}
		}
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestInto: results are placed in the caller's memory, which the message refers to.
func TestInto(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{unary: echoes})
		own := make([]byte, 1<<20)
		for _, tt := range []struct {
			n     int
			owned bool
		}{{1 << 20, true}, {5000, true}, {1<<20 + 1, false}, {100, false}, {1 << 19, true}} {
			sent := pattern(tt.n)
			r, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: sent}}, grpcrdma.Into(own))
			if err != nil || !bytes.Equal(r.Payload.Body, sent) {
				t.Fatalf("%d bytes: %v", tt.n, err)
			}
			if owned := unsafe.SliceData(r.Payload.Body) == unsafe.SliceData(own); owned != tt.owned {
				t.Errorf("%d bytes: in the caller's memory: %v, want %v", tt.n, owned, tt.owned)
			}
		}
	})
}

// TestKept: what a handler has received stays as it was after it has returned.
func TestKept(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		var mu sync.Mutex
		var kept [][]byte
		c, _ := client(t, p, addr, &service{unary: func(_ context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, r.Payload.Body)
			return &testgrpc.SimpleResponse{}, nil
		}})
		for i := range 20 {
			body := bytes.Repeat([]byte{byte(i)}, 100_000)
			if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: body}}); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for i, b := range kept {
			if !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, 100_000)) {
				t.Errorf("message %d has changed", i)
			}
		}
	})
}

// TestDeadline: the time that a caller has left is the handler's too, and a call that is canceled ends it.
func TestDeadline(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		ends := make(chan error, 1)
		wait := func(ctx context.Context) error {
			<-ctx.Done()
			ends <- context.Cause(ctx)
			return ctx.Err()
		}
		started := make(chan struct{}, 1)
		c, _ := client(t, p, addr, &service{
			unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				started <- struct{}{}
				return nil, wait(ctx)
			},
			duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
				started <- struct{}{}
				return wait(s.Context())
			},
		})
		call := func(ctx context.Context) error {
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{})
			return err
		}
		stream := func(ctx context.Context) error {
			s, err := c.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}
		for name, do := range map[string]func(context.Context) error{"unary": call, "stream": stream} {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // enough for the call to reach its handler
			if err := do(ctx); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			select {
			case <-started:
			case <-time.After(testutil.Patience):
				t.Fatalf("%s: the handler has not been called", name)
			}
			<-ends
			ctx, cancel = context.WithCancel(t.Context())
			go func() {
				<-started
				cancel()
			}()
			if err := do(ctx); status.Code(err) != codes.Canceled {
				t.Errorf("%s: %v", name, err)
			}
			if err := <-ends; !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
				t.Errorf("%s: the handler ended with %v", name, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		defer cancel()
		if err := call(ctx); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a deadline in the past: %v", err)
		}
	})
}

// TestContextLater: the context of a handler that asks it for something only after the call has ended, too.
func TestContextLater(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		kept := make(chan context.Context, 1)
		c, _ := client(t, p, addr, &service{unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			kept <- ctx
			return echoes(ctx, r)
		}})
		if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
		ctx := <-kept
		if _, ok := peer.FromContext(ctx); !ok {
			t.Error("the context has no peer")
		}
		select {
		case <-ctx.Done():
		case <-time.After(testutil.Patience):
			t.Error("the context has not ended")
		}
	})
}

// TestCanceledResult: a call that is given up while its result is awaited in memory for it costs no connection.
func TestCanceledResult(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		begun, held, conns := make(chan struct{}), make(chan struct{}), make(chan rpc.Conn, 10)
		c, _ := client(t, p, addr, &service{unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			conns <- rpc.ConnFromContext(ctx)
			if r.FillUsername {
				close(begun)
				<-held // whatever ctx says
			}
			return &testgrpc.SimpleResponse{Payload: payload(100_000)}, nil
		}})
		call := func(ctx context.Context, hold bool) error {
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{FillUsername: hold})
			return err
		}
		if err := call(t.Context(), false); err != nil { // which shows how long results are
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-begun
			cancel()
		}()
		if err := call(ctx, true); status.Code(err) != codes.Canceled {
			t.Errorf("got %v", err)
		}
		close(held)
		for range 3 {
			if err := call(t.Context(), false); err != nil {
				t.Error(err)
			}
		}
		first := <-conns
		for range 4 {
			if next := <-conns; next != first {
				t.Error("the connection was lost")
			}
		}
	})
}

// TestMetadata: what is sent arrives, with the texts and details of statuses; too much is refused.
func TestMetadata(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			from, ok := peer.FromContext(ctx)
			if !ok || from.Addr == nil {
				t.Error("the handler does not know its peer")
			}
			if len(md["grpc-status"]) > 0 || len(md["big"]) == 0 && !slices.Equal(md["grpc-trace-bin"], []string{"y"}) {
				t.Errorf("the metadata is %q", md)
			}
			if len(md["big"]) > 0 {
				return nil, grpc.SetTrailer(ctx, metadata.Pairs("big", strings.Repeat("x", 100_000)))
			}
			if err := grpc.SendHeader(ctx, metadata.Pairs("header-bin", "\x00\xff")); err != nil {
				t.Error(err)
			}
			if err := grpc.SetHeader(ctx, metadata.Pairs("late", "")); err == nil {
				t.Error("a header has been set that was sent")
			}
			return nil, status.Error(codes.FailedPrecondition, strings.Join(md["key"], "+"))
		}})
		var header metadata.MD
		var at peer.Peer
		ctx := metadata.AppendToOutgoingContext(t.Context(), "Key", "a", "key", "b", "grpc-status", "x", "grpc-trace-bin", "y")
		_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header), grpc.Peer(&at))
		if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "a+b" {
			t.Errorf("got %v", err)
		}
		if got := header["header-bin"]; len(got) != 1 || got[0] != "\x00\xff" {
			t.Errorf("the header is %q", got)
		}
		if at.Addr == nil {
			t.Error("the caller does not know its peer")
		}
		ctx = metadata.AppendToOutgoingContext(t.Context(), "big", strings.Repeat("x", 10_000_000))
		if _, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("100 MB of metadata: %v", err)
		}
	})
}

// TestLimits: messages beyond the limits of either end are RESOURCE_EXHAUSTED, and calls go on.
func TestLimits(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{unary: echoes, duplex: echoStream}, grpcrdma.MaxRecvMsgSize(100_000))
		send := func(n int, opts ...grpc.CallOption) error {
			_, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, n)}}, opts...)
			return err
		}
		for name, err := range map[string]error{
			"too long for the server": send(100_001),
			"for the caller to send":  send(5000, grpc.MaxCallSendMsgSize(1000)),
			"for the caller to get":   send(5000, grpc.MaxCallRecvMsgSize(1000)),
			"for any transport":       send(64 << 20),
		} {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %v", name, err)
			}
		}
		s, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 64<<20)}}); err == nil {
			_, err = s.Recv()
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("by stream: %v", err)
			}
		} else if _, err = s.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("by stream: %v", err)
		}
		if err := send(50_000); err != nil {
			t.Errorf("after all that: %v", err)
		}
	})
}

// TestCompressed: compressed messages come and go in both kinds of calls.
func TestCompressed(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{unary: echoes, duplex: echoStream})
		body := bytes.Repeat([]byte("many words "), 10_000)
		r, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: body}}, grpc.UseCompressor("gzip"))
		if err != nil || !bytes.Equal(r.Payload.Body, body) {
			t.Errorf("unary: %v", err)
		}
		s, err := c.FullDuplexCall(t.Context(), grpc.UseCompressor("gzip"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: body}}); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Recv(); err != nil || !bytes.Equal(r.Payload.Body, body) {
			t.Errorf("stream: %v", err)
		}
		_, err = c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, grpc.UseCompressor("unheard-of"))
		if status.Code(err) != codes.Internal {
			t.Errorf("an unknown compressor: %v", err)
		}
	})
}

// logged keeps what a server logs.
type logged struct {
	mu  sync.Mutex
	all []byte
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, b...)
	return len(b), nil
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}

// TestPanics: a handler that panics is INTERNAL to its caller, and the server goes on.
func TestPanics(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		var log logged
		c, _ := client(t, p, addr, &service{
			unary:  func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { panic("unary") },
			duplex: func(testgrpc.TestService_FullDuplexCallServer) error { panic("stream") },
		}, grpcrdma.ServerTransport(transport.ServerConfig{Config: transport.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}))
		if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}); status.Code(err) != codes.Internal {
			t.Errorf("unary: %v", err)
		}
		s, err := c.FullDuplexCall(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.Internal {
			t.Errorf("stream: %v", err)
		}
		for _, method := range []string{testgrpc.TestService_UnaryCall_FullMethodName, testgrpc.TestService_FullDuplexCall_FullMethodName} {
			if !strings.Contains(log.text(), method) {
				t.Errorf("the log of the server does not name %s: %s", method, log.text())
			}
		}
	})
}

// TestLost: calls and streams that lose their connection are UNAVAILABLE, and the next call has another one.
func TestLost(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		started, cut := make(chan struct{}, 2), make(chan rpc.Conn, 2)
		hang := func(ctx context.Context) error {
			cut <- rpc.ConnFromContext(ctx)
			started <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		svc := &service{
			unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				if r.ResponseSize == 0 {
					return &testgrpc.SimpleResponse{}, nil
				}
				return nil, hang(ctx)
			},
			duplex: func(s testgrpc.TestService_FullDuplexCallServer) error { return hang(s.Context()) },
		}
		c, _ := client(t, p, addr, svc)
		s, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ends := make(chan error, 2)
		go func() {
			_, err := s.Recv()
			ends <- err
		}()
		go func() {
			_, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: 1})
			ends <- err
		}()
		<-started
		<-started
		(<-cut).Close()
		for range 2 {
			if err := <-ends; status.Code(err) != codes.Unavailable || !errors.Is(err, net.ErrClosed) {
				t.Errorf("ended with %v", err)
			}
		}
		if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

// TestRaw: programs that do not know the types pass messages on, with their long fields.
func TestRaw(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		_, cc := client(t, p, addr, &service{unary: echoes, duplex: echoStream})
		m := &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: pattern(100_000)}, FillUsername: true}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		sent := grpcrdma.RawMessage(b)
		var raw grpcrdma.RawMessage
		var got testgrpc.SimpleResponse
		if err := cc.Invoke(t.Context(), testgrpc.TestService_UnaryCall_FullMethodName, &sent, &raw); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(raw, &got); err != nil || !bytes.Equal(got.Payload.Body, m.Payload.Body) {
			t.Errorf("got another message: %v", err)
		}
	})
}

// TestAllocsOfUnary: a short call allocates little at both ends together.
func TestAllocsOfUnary(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{unary: echoes})
		req := &testgrpc.SimpleRequest{Payload: payload(64)}
		got := testing.AllocsPerRun(2000, func() {
			if _, err := c.UnaryCall(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		})
		if t.Log(got); got > 16 {
			t.Errorf("%v allocations", got)
		}
	})
}

// TestLongReply: metadata and details that do not fit a short reply arrive all the same, with results and without.
func TestLongReply(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		long := strings.Repeat("x", 20_000)
		c, _ := client(t, p, addr, &service{unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			if err := grpc.SetTrailer(ctx, metadata.Pairs("long", long)); err != nil {
				return nil, err
			}
			if !r.FillUsername {
				return &testgrpc.SimpleResponse{Payload: r.Payload}, nil
			}
			st, err := status.New(codes.Aborted, "with details").WithDetails(&testgrpc.SimpleResponse{Username: long})
			if err != nil {
				return nil, err
			}
			return nil, st.Err()
		}})
		for _, n := range []int{0, 500, 100_000} {
			for _, fails := range []bool{false, true} {
				var trailer metadata.MD
				sent := payload(n)
				r, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: sent, FillUsername: fails}, grpc.Trailer(&trailer))
				if got := trailer["long"]; len(got) != 1 || got[0] != long {
					t.Errorf("%d bytes: the trailer has %d values: %v", n, len(got), err)
				}
				switch {
				case !fails && (err != nil || len(r.Payload.Body) != n):
					t.Errorf("%d bytes: %v", n, err)
				case fails && (status.Code(err) != codes.Aborted || len(status.Convert(err).Details()) != 1):
					t.Errorf("the status: %v", err)
				}
			}
		}
	})
}

// TestOptionsAgain: options serve any number of connections.
func TestOptionsAgain(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		opts := []grpcrdma.Option{grpcrdma.WithTransport(transport.ClientConfig{Config: grpcrdma.Config(1 << 20)})}
		for range 2 {
			c, _ := client(t, p, addr, &service{unary: echoes}, opts...)
			if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestBothWaysCompressed: a stream that one goroutine sends on and another receives from is compressed as its client
// has asked.
func TestBothWaysCompressed(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			sent := make(chan error, 1)
			go func() {
				var err error
				for range 100 {
					err = errors.Join(err, s.Send(&testgrpc.StreamingOutputCallResponse{Payload: payload(1000)}))
				}
				sent <- err
			}()
			for {
				if _, err := s.Recv(); err != nil {
					return <-sent
				}
			}
		}})
		s, err := c.FullDuplexCall(t.Context(), grpc.UseCompressor("gzip"))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range 100 {
				s.Send(&testgrpc.StreamingOutputCallRequest{Payload: payload(1000)})
			}
			s.CloseSend()
		}()
		n := 0
		for _, err = s.Recv(); err == nil; _, err = s.Recv() {
			n++
		}
		if err != io.EOF || n != 100 {
			t.Errorf("%d messages, %v", n, err)
		}
	})
}
