package grpcproxy_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// both is how all methods of a peer are called.
var both = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

var interopRounds = flag.Int("interop", 1, "how often TestInterop runs each case")

// TestInterop runs grpc-go's interoperability cases through a proxy. A failure ends the process, with a message.
func TestInterop(t *testing.T) {
	cases := []struct {
		name string
		do   func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)
	}{
		{"EmptyUnary", interop.DoEmptyUnaryCall},
		{"LargeUnary", interop.DoLargeUnaryCall},
		{"ClientStreaming", interop.DoClientStreaming},
		{"ServerStreaming", interop.DoServerStreaming},
		{"PingPong", interop.DoPingPong},
		{"EmptyStream", interop.DoEmptyStream},
		{"TimeoutOnSleepingServer", interop.DoTimeoutOnSleepingServer},
		{"CancelAfterBegin", interop.DoCancelAfterBegin},
		{"CancelAfterFirstResponse", interop.DoCancelAfterFirstResponse},
		{"CustomMetadata", interop.DoCustomMetadata},
		{"StatusCodeAndMessage", interop.DoStatusCodeAndMessage},
		{"SpecialStatusMessage", interop.DoSpecialStatusMessage},
	}
	onBeds(t, true, func(t *testing.T, b bed) {
		cc, _ := through(t, b, func(s grpc.ServiceRegistrar) { testgrpc.RegisterTestServiceServer(s, interop.NewTestServer()) })
		for range *interopRounds {
			for _, tc := range cases {
				t.Run(tc.name, func(t *testing.T) { tc.do(t.Context(), testgrpc.NewTestServiceClient(cc)) })
			}
		}
		interop.DoUnimplementedService(t.Context(), testgrpc.NewUnimplementedServiceClient(cc))
		var m testgrpc.Empty
		if err := cc.Invoke(t.Context(), "/grpc.testing.TestService/UnimplementedCall", &m, &m); status.Code(err) != codes.Unimplemented {
			t.Error(err)
		}
	})
}

// sent is metadata that a peer answers with.
var sent = metadata.MD{"x-text": {"one", "two"}, "x-raw-bin": {"\x00\xff\n", ""}}

func wantSent(t *testing.T, where string, got metadata.MD) {
	t.Helper()
	for k, want := range sent {
		if !slices.Equal(got[k], want) {
			t.Errorf("%s: %s is %q, want %q", where, k, got[k], want)
		}
	}
	if n := len(got["content-type"]); n > 1 {
		t.Errorf("%s: %d types of content", where, n)
	}
}

// TestPasses: metadata, messages, statuses and ends pass in both directions, and so does what compresses.
func TestPasses(t *testing.T) {
	onBeds(t, true, func(t *testing.T, b bed) {
		p := newPeer()
		cc, _ := through(t, b, p.register, "--max-message", "8M")
		ctx := metadata.NewOutgoingContext(t.Context(), sent)

		var header, trailer metadata.MD
		for _, n := range []int{0, 100, 5 << 20} {
			in, out := wrapperspb.Bytes(bytes.Repeat([]byte("x"), n)), new(wrapperspb.BytesValue)
			for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
				err := cc.Invoke(ctx, "/test.Peer/Echo", in, out, append(opts, grpc.Header(&header), grpc.Trailer(&trailer))...)
				if err != nil || !proto.Equal(in, out) {
					t.Errorf("%d bytes, %d options: %v", n, len(opts), err)
				}
				wantSent(t, "header", header)
				wantSent(t, "trailer", trailer)
			}
		}

		err := cc.Invoke(ctx, "/test.Peer/Fail", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue), grpc.Trailer(&trailer))
		if got, want := status.Convert(err).Proto(), status.Convert(failure()).Proto(); !proto.Equal(got, want) {
			t.Errorf("the status is %v, want %v", got, want)
		}
		wantSent(t, "trailer of an error", trailer)

		// The header comes before a message, and the end of the call reaches the server.
		for _, end := range []struct {
			name string
			call func() (context.Context, context.CancelFunc)
			want error
			code codes.Code
		}{
			{"cancel", func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }, context.Canceled, codes.Canceled},
			{"deadline", func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Second)
			}, context.DeadlineExceeded, codes.DeadlineExceeded},
		} {
			ctx, cancel := end.call()
			s, err := cc.NewStream(ctx, both, "/test.Peer/Wait")
			testutil.Must(t, err)
			md, err := s.Header()
			testutil.Must(t, err)
			wantSent(t, "header of a call under way", md)
			<-p.waiting
			if end.want == context.Canceled {
				cancel()
			}
			// To a server with a late clock the deadline is a cancellation.
			if got := <-p.ended; got != end.want && got != context.Canceled {
				t.Errorf("%s: the server sees %v", end.name, got)
			}
			if err := s.RecvMsg(new(wrapperspb.BytesValue)); status.Code(err) != end.code {
				t.Errorf("%s: the client sees %v", end.name, err)
			}
			cancel()
		}
	})
}

// TestLimit: a message that is too long for the proxy ends the call with a text that says so, in either direction.
func TestLimit(t *testing.T) {
	onBeds(t, false, func(t *testing.T, b bed) {
		cc, _ := through(t, b, func(s grpc.ServiceRegistrar) {
			newPeer().register(s)
			testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
		}, "--max-message", "100K")
		err := cc.Invoke(t.Context(), "/test.Peer/Echo", wrapperspb.Bytes(make([]byte, 200<<10)), new(wrapperspb.BytesValue))
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
			t.Errorf("a request: %v", err)
		}
		_, err = testgrpc.NewTestServiceClient(cc).UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: 200 << 10})
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
			t.Errorf("a reply: %v", err)
		}
		testutil.Must(t, cc.Invoke(t.Context(), "/test.Peer/Echo", wrapperspb.Bytes(make([]byte, 50<<10)), new(wrapperspb.BytesValue)))
	})
}

// TestBackpressure: a client cannot send a server that does not read more than windows hold, and what it has
// sent arrives.
func TestBackpressure(t *testing.T) {
	onBeds(t, false, func(t *testing.T, b bed) {
		p := newPeer()
		cc, _ := through(t, b, p.register)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := cc.NewStream(ctx, both, "/test.Peer/Silent")
		testutil.Must(t, err)
		const size, all = 16 << 10, 1000
		sent := make(chan int, all)
		go func() {
			for i := range all {
				if s.SendMsg(wrapperspb.Bytes(make([]byte, size))) != nil {
					break
				}
				sent <- i
			}
			s.CloseSend()
			close(sent)
		}()
		n := 0
		for last := -1; last != n; { // until nothing happens for a while
			last = n
			for quiet := time.After(200 * time.Millisecond); quiet != nil; {
				select {
				case <-sent:
					n++
				case <-quiet:
					quiet = nil
				}
			}
		}
		if n*size > 4<<20 {
			t.Errorf("%d messages of %d bytes wait somewhere", n, size)
		}
		close(p.silent)
		got := 0
		for ; ; got++ {
			if err := s.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				break
			}
		}
		if got != all {
			t.Errorf("%d messages come back, want %d", got, all)
		}
	})
}

// TestGoroutines: a call costs the proxy two at most, beside those of the libraries, and none is left when it has ended.
func TestGoroutines(t *testing.T) {
	onBeds(t, false, func(t *testing.T, b bed) {
		p := newPeer()
		cc, _ := through(t, b, p.register)
		testutil.Must(t, cc.Invoke(t.Context(), "/test.Peer/Echo", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue)))
		const calls = 10
		before := ours()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var streams [calls]grpc.ClientStream
		for i := range streams {
			var err error
			streams[i], err = cc.NewStream(ctx, both, "/test.Peer/Wait")
			testutil.Must(t, err)
			<-p.waiting
		}
		if n := ours() - before; n > 2*calls || n < calls {
			t.Errorf("%d goroutines for %d calls", n, calls)
		}
		cancel()
		for range streams {
			<-p.ended
		}
		runtime.KeepAlive(&streams)
		for end := time.Now().Add(10 * time.Second); ours() > before && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := ours() - before; n > 0 {
			t.Errorf("%d goroutines are left", n)
		}
	})
}

// ours counts the goroutines that run functions of the proxy for calls.
func ours() int {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for g := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(g, "grpcproxy.(*passer)") {
			n++
		}
	}
	return n
}

// TestNoServer: a server that is not there makes calls fail with a clear text, until it is there.
func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	to := l.Addr().String()
	l.Close()
	for _, b := range beds(true) {
		if b.addr == "" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			leak.Check(t)
			args := []string{b.option, "--addr", "127.0.0.1:0", to}
			var cc grpc.ClientConnInterface
			if b.reverse {
				cc = dialRDMA(t, b, start(t, append(args, "--reverse")...).addr)
			} else {
				cc = dialHTTP(t, start(t, args...).addr)
			}
			call := func(opts ...grpc.CallOption) error {
				return cc.Invoke(t.Context(), "/test.Peer/Echo", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue), opts...)
			}
			if err := call(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), to) || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("without a server: %v", err)
			}
			if b.reverse {
				srv := grpc.NewServer()
				newPeer().register(srv)
				l, err := net.Listen("tcp", to)
				testutil.Must(t, err)
				go srv.Serve(l)
				t.Cleanup(srv.Stop)
			} else {
				srv := grpcrdma.NewServer()
				newPeer().register(srv)
				b.addr = to
				serveRDMA(t, b, srv)
			}
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				err := call()
				if err == nil {
					break
				}
				if time.Now().After(end) || status.Code(err) != codes.Unavailable {
					t.Fatalf("with a server: %v", err)
				}
			}
		})
	}
}

// TestStop: at its end the proxy lets calls end, for as long as it may.
func TestStop(t *testing.T) {
	onBeds(t, false, func(t *testing.T, b bed) {
		for _, timeout := range []string{"1m", "1s"} {
			if b.adapter.Name() == "shm" && timeout != "1m" {
				continue // the socket is that of the server before
			}
			p := newPeer()
			cc, proxy := through(t, b, p.register, "--timeout", timeout)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := cc.NewStream(ctx, both, "/test.Peer/Echo")
			testutil.Must(t, err)
			exchange := func() error {
				if err := s.SendMsg(wrapperspb.Bytes([]byte("x"))); err != nil {
					return err
				}
				return s.RecvMsg(new(wrapperspb.BytesValue))
			}
			testutil.Must(t, exchange())
			done := make(chan error, 1)
			go func() { done <- proxy.stop() }()
			if timeout == "1s" {
				if err := <-done; err == nil || err.Error() != "grpc-proxy: calls still under way after 1s were cut off (1)" {
					t.Errorf("it ends with %v", err)
				}
				if err := s.RecvMsg(new(wrapperspb.BytesValue)); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
					t.Errorf("the call ends with %v", err)
				}
				continue
			}
			time.Sleep(50 * time.Millisecond)
			if err := exchange(); err != nil {
				t.Errorf("a call under way: %v", err)
			}
			testutil.Must(t, s.CloseSend())
			if err := s.RecvMsg(new(wrapperspb.BytesValue)); err != io.EOF {
				t.Errorf("a call under way ends with %v", err)
			}
			if err := <-done; err != nil {
				t.Errorf("it ends with %v", err)
			}
		}
	})
}

// TestOtherMessages: what is not Protocol Buffers is refused, and not mistaken for them.
func TestOtherMessages(t *testing.T) {
	leak.Check(t)
	b := beds(false)[0]
	cc, _ := through(t, b, newPeer().register)
	err := cc.Invoke(t.Context(), "/test.Peer/Echo", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue),
		grpc.CallContentSubtype("json"), grpc.ForceCodec(jsonCodec{}))
	const want = `grpc-proxy: messages of "application/grpc+json" do not pass, those of Protocol Buffers do`
	if status.Code(err) != codes.Unimplemented || status.Convert(err).Message() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

type jsonCodec struct{}

func (jsonCodec) Name() string                { return "json" }
func (jsonCodec) Marshal(any) ([]byte, error) { return []byte("{}"), nil }
func (jsonCodec) Unmarshal([]byte, any) error { return nil }
