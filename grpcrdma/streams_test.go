package grpcrdma_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestCanceledSendsNothing checks that the server receives neither a message nor a half-close that the client sends after it
// has canceled the stream.
func TestCanceledSendsNothing(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		ends := make(chan error, 1)
		c, _ := client(t, p, addr, &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			_, err := s.Recv()
			ends <- err
			return err
		}})
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := c.FullDuplexCall(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if i%2 == 0 {
				if err := s.Send(&testgrpc.StreamingOutputCallRequest{}); err != io.EOF {
					t.Errorf("Send: %v", err)
				}
			}
			s.CloseSend()
			if _, err := s.Recv(); status.Code(err) != codes.Canceled {
				t.Errorf("the client got %v", err)
			}
			if err := <-ends; status.Code(err) != codes.Canceled {
				t.Fatalf("the server got %v", err)
			}
		}
	})
}

// TestUnread: a stream that is not read holds its window at most, and does not delay another one.
func TestUnread(t *testing.T) {
	const window = 128 << 10
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		var mu sync.Mutex
		sent := 0
		c, _ := client(t, p, addr, &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			r, err := s.Recv()
			if err != nil {
				return err
			}
			if r.ResponseType == 0 { // the other stream
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
					return err
				}
				return echoStream(s)
			}
			for {
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: payload(int(r.ResponseParameters[0].Size))}); err != nil {
					return err
				}
				mu.Lock()
				sent += int(r.ResponseParameters[0].Size)
				mu.Unlock()
			}
		}}, grpcrdma.Window(window))
		for _, size := range []int{100, 3000, 20000, 200000} {
			mu.Lock()
			sent = 0
			mu.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			unread, err := c.FullDuplexCall(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := unread.Send(&testgrpc.StreamingOutputCallRequest{
				ResponseType: 1, ResponseParameters: []*testgrpc.ResponseParameters{{Size: int32(size)}},
			}); err != nil {
				t.Fatal(err)
			}
			other, err := c.FullDuplexCall(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range 200 {
				if err := other.Send(&testgrpc.StreamingOutputCallRequest{Payload: payload(1000)}); err != nil {
					t.Fatal(err)
				}
				if _, err := other.Recv(); err != nil && other.CloseSend() == nil {
					t.Fatal(err)
				}
			}
			mu.Lock()
			if sent > window+2*size {
				t.Errorf("messages of %d bytes: %d bytes are on their way, with a window of %d", size, sent, window)
			}
			mu.Unlock()
			cancel()
		}
	})
}

// TestOrder: messages of all sizes from many goroutines, each with a stream, arrive as they were sent, while
// unary calls go on.
func TestOrder(t *testing.T) { onBeds(t, testOrder) }

func testOrder(t *testing.T, p fabric.Provider, addr string) {
	c, _ := client(t, p, addr, &service{unary: echoes, duplex: echoStream})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			if err := conversation(t.Context(), c, r, 60); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// conversation sends messages at random over a stream that echoes them, and reads what comes back.
func conversation(ctx context.Context, c testgrpc.TestServiceClient, r *rand.Rand, messages int) error {
	s, err := c.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	lengths := make(chan int, messages)
	defer func() {
		for range lengths { // until the goroutine has ended
		}
	}()
	go func() {
		defer close(lengths)
		for i := range messages {
			n := 8 + r.IntN(1<<(3+r.IntN(15)))
			if *soak >= time.Minute {
				n = longLength(r)
			}
			body := pattern(n)
			binary.BigEndian.PutUint64(body, uint64(i))
			lengths <- n // first: a message may arrive, and come back, although Send has lost its connection
			if s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: body}}) != nil {
				return
			}
		}
		s.CloseSend()
	}()
	for i := 0; ; i++ {
		m, err := s.Recv()
		if err == io.EOF && i == messages {
			return nil
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		want := pattern(<-lengths)
		binary.BigEndian.PutUint64(want, uint64(i))
		if !bytes.Equal(m.Payload.Body, want) {
			return fmt.Errorf("message %d of %d bytes is not what was sent", i, len(want))
		}
	}
}

// TestBusyOpens: what streams send right after they have been opened arrives, however much else leaves at the same time.
func TestBusyOpens(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		c, _ := client(t, p, addr, &service{duplex: echoStream})
		ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, "k", strings.Repeat("x", 60_000))
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 3))
				for range 20 {
					if err := conversation(ctx, c, r, 3); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestMessagesStay: messages that have been received do not change, whatever is received after them.
func TestMessagesStay(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		const n = 3000
		bodies := make(chan []byte, n)
		c, _ := client(t, p, addr, &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			for {
				m, err := s.Recv()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				bodies <- m.Payload.Body
			}
		}})
		s, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		size := func(i int) int { return 1 + i*i%3900 } // what travels in the message
		for i := range n {
			body := bytes.Repeat([]byte{byte(i)}, size(i))
			if err := s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: body}}); err != nil {
				t.Fatal(err)
			}
		}
		s.CloseSend()
		if _, err := s.Recv(); err != io.EOF || len(bodies) != n {
			t.Fatalf("%d messages, %v", len(bodies), err)
		}
		for i := range n {
			if body := <-bodies; !bytes.Equal(body, bytes.Repeat([]byte{byte(i)}, size(i))) {
				t.Fatalf("message %d has changed", i)
			}
		}
	})
}

var soak = flag.Duration("soak", 3*time.Second, "how long TestCut cuts connections: for a minute or more with 64 callers of each kind and messages up to 4 MiB")

// longLength is that of a message of a long soak: up to 4 MiB.
func longLength(r *rand.Rand) int { return 8<<10<<r.IntN(10) - 1<<10 }

// TestCut: while connections are cut, each message arrives once and in order, or its stream ends with
// UNAVAILABLE.
func TestCut(t *testing.T) { onBeds(t, testCut) }

func testCut(t *testing.T, p fabric.Provider, addr string) {
	var mu sync.Mutex
	conns := make(map[rpc.Conn]bool)
	c, _ := client(t, p, addr, &service{unary: echoes, duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		mu.Lock()
		conns[rpc.ConnFromContext(s.Context())] = true
		mu.Unlock()
		return echoStream(s)
	}})
	over := time.Now().Add(*soak)
	callers, every := 8, *soak/10
	length := func(r *rand.Rand) int { return 8 << r.IntN(16) }
	if *soak >= time.Minute {
		callers, every = 64, time.Second
		length = longLength
	}
	var wg sync.WaitGroup
	done, lost := 0, 0
	count := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			done++
		case status.Code(err) == codes.Unavailable:
			lost++
		default:
			t.Error(err)
		}
	}
	for i := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for time.Now().Before(over) {
				count(conversation(t.Context(), c, r, 20))
			}
		})
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for time.Now().Before(over) {
				body := pattern(length(r))
				m, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: body}})
				if err == nil && !bytes.Equal(m.Payload.Body, body) {
					t.Error("another message than was sent")
				}
				count(err)
			}
		})
	}
	for time.Now().Before(over) {
		time.Sleep(every)
		mu.Lock()
		for conn := range conns {
			conn.Close()
		}
		clear(conns)
		mu.Unlock()
	}
	wg.Wait()
	t.Logf("%d calls and streams have ended well, %d have lost their connection", done, lost)
	if done == 0 || lost == 0 {
		t.Errorf("%d calls and streams have ended well, and %d lost their connection", done, lost)
	}
}

// TestAllocsOfIdleStreams: streams that are open and have nothing to say take little memory.
func TestAllocsOfIdleStreams(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector multiplies memory")
	}
	const n = 10_000
	c, _ := client(t, iwarp.New(iwarp.Config{}), "127.0.0.1:0", &service{duplex: echoStream})
	before := inUse()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range n {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { runtime.KeepAlive(s) })
	}
	each := (inUse() - before) / n
	t.Logf("%d bytes for both ends of each", each)
	if each > 16<<10 {
		t.Errorf("a stream takes %d bytes at both ends together", each)
	}
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestFromServer: a server calls a service of its client, and has streams with it, over the client's
// connection.
func TestFromServer(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv := grpcrdma.NewServer()
		ends := make(chan error, 1)
		testgrpc.RegisterTestServiceServer(srv, &service{unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			back := testgrpc.NewTestServiceClient(srv.NewClientConn(rpc.ConnFromContext(ctx)))
			go func() {
				ends <- conversation(context.WithoutCancel(ctx), back, rand.New(rand.NewPCG(1, 1)), 50)
			}()
			return back.UnaryCall(ctx, r)
		}})
		own := grpcrdma.NewServer()
		testgrpc.RegisterTestServiceServer(own, &service{unary: echoes, duplex: echoStream})
		cc := serve(t, p, addr, srv, grpcrdma.WithServices(own))
		body := pattern(100_000)
		r, err := testgrpc.NewTestServiceClient(cc).UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: body}})
		if err != nil || !bytes.Equal(r.Payload.Body, body) {
			t.Errorf("got %v", err)
		}
		if err := <-ends; err != nil {
			t.Errorf("the stream: %v", err)
		}
	})
}

// TestGracefulStop: the server waits for what it has begun, and refuses the rest.
func TestGracefulStop(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv := grpcrdma.NewServer()
		testgrpc.RegisterTestServiceServer(srv, &service{unary: echoes, duplex: echoStream})
		c := testgrpc.NewTestServiceClient(serve(t, p, addr, srv))
		s, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		talk := func() error {
			if err := s.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
				return err
			}
			_, err := s.Recv()
			return err
		}
		if err := talk(); err != nil {
			t.Fatal(err)
		}
		stopped := make(chan struct{})
		go func() {
			srv.GracefulStop()
			close(stopped)
		}()
		for {
			if _, err = c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}); err != nil {
				break
			}
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("a call: %v", err)
		}
		if err := talk(); err != nil {
			t.Errorf("the stream: %v", err)
		}
		s.CloseSend()
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("the stream ended with %v", err)
		}
		<-stopped
	})
}
