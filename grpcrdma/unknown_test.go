package grpcrdma_test

import (
	"context"
	"io"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// TestUnaryUnknown: the handler of unknown methods executes unary calls, too, and whatever it does, the call has an
// answer.
func TestUnaryUnknown(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		late := make(chan error, 1)
		srv := grpcrdma.NewServer(grpcrdma.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			name, _ := grpc.MethodFromServerStream(s)
			var m grpcrdma.RawMessage
			if err := s.RecvMsg(&m); err != nil {
				return err
			}
			if err := s.RecvMsg(new(grpcrdma.RawMessage)); err != io.EOF {
				return err
			}
			s.SetTrailer(metadata.Pairs("trailer", name))
			switch name {
			case "/x/Silent":
				return nil
			case "/x/Twice":
				if err := s.SendMsg(&m); err != nil {
					return err
				}
			case "/x/Panic":
				defer func() {
					go func() { late <- s.RecvMsg(&m) }()
				}()
				panic("of the test")
			}
			return s.SendMsg(&m)
		}))
		cc := serve(t, p, addr, srv)
		for name, want := range map[string]codes.Code{
			"/x/Echo": codes.OK, "/x/Silent": codes.Internal, "/x/Twice": codes.Internal, "/x/Panic": codes.Internal,
		} {
			for _, n := range []int{0, 10, 1 << 20} {
				in, out := wrapperspb.Bytes(make([]byte, n)), new(wrapperspb.BytesValue)
				var trailer metadata.MD
				err := cc.Invoke(t.Context(), name, in, out, grpc.Trailer(&trailer))
				if status.Code(err) != want || err == nil && len(out.Value) != n || len(trailer["trailer"]) != 1 {
					t.Errorf("%s of %d bytes: %v, with %d bytes and trailer %v", name, n, err, len(out.Value), trailer)
				}
				if name == "/x/Panic" {
					if err := <-late; err == nil {
						t.Error("there is a message after the end")
					}
				}
			}
		}
	})
}

// TestGracefulStopOfUnary: connections without streams do not keep a server.
func TestGracefulStopOfUnary(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv := grpcrdma.NewServer(grpcrdma.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			return s.SendMsg(new(grpcrdma.RawMessage))
		}))
		cc := serve(t, p, addr, srv)
		var m wrapperspb.BytesValue
		if err := cc.Invoke(t.Context(), "/x/y", &m, &m); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			srv.GracefulStop()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("GracefulStop does not return")
		}
	})
}

// TestAbandoned: a stream that the client has dropped ends at its server, too.
func TestAbandoned(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		begun, ended := make(chan struct{}), make(chan struct{})
		srv := grpcrdma.NewServer(grpcrdma.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			close(begun)
			<-s.Context().Done()
			close(ended)
			return nil
		}))
		cc := serve(t, p, addr, srv)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/x/y"); err != nil {
			t.Fatal(err)
		}
		<-begun
		for end := time.After(30 * time.Second); ; {
			runtime.GC()
			select {
			case <-ended:
				return
			case <-end:
				t.Fatal("it lives on")
			case <-time.After(time.Millisecond):
			}
		}
	})
}
