package grpcrdma_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

type echo struct {
	testgrpc.UnimplementedTestServiceServer
}

func (echo) UnaryCall(_ context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{Payload: r.Payload}, nil
}

func (echo) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: r.Payload}); err != nil {
			return err
		}
	}
}

func (echo) StreamingInputCall(s testgrpc.TestService_StreamingInputCallServer) error {
	n := 0
	for {
		if _, err := s.Recv(); err != nil {
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		}
		n++
	}
}

func benchBeds(b *testing.B, f func(b *testing.B, c testgrpc.TestServiceClient)) {
	b.Run("grpc-go", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
		testgrpc.RegisterTestServiceServer(s, echo{})
		go s.Serve(l)
		defer s.Stop()
		cc, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
		if err != nil {
			b.Fatal(err)
		}
		defer cc.Close()
		f(b, testgrpc.NewTestServiceClient(cc))
	})
	for _, bed := range []struct {
		name string
		p    fabric.Provider
		addr string
	}{
		{"iwarp", iwarp.New(iwarp.Config{}), "127.0.0.1:0"},
		{"tcp", transport.TCP{}, "127.0.0.1:0"},
		{"shm", shm.New(shm.Config{}), "@"},
	} {
		b.Run(bed.name, func(b *testing.B) {
			srv := grpcrdma.NewServer(grpcrdma.MaxRecvMsgSize(16 << 20))
			testgrpc.RegisterTestServiceServer(srv, echo{})
			l, err := srv.Listen(context.Background(), bed.p, bed.addr)
			if err != nil {
				b.Fatal(err)
			}
			go srv.Serve(l)
			defer srv.Stop()
			cc, err := grpcrdma.Dial(context.Background(), bed.p, l.Addr().String(), grpcrdma.MaxRecvMsgSize(16<<20))
			if err != nil {
				b.Fatal(err)
			}
			defer cc.Close()
			f(b, testgrpc.NewTestServiceClient(cc))
		})
	}
}

func payload(n int) *testgrpc.Payload { return &testgrpc.Payload{Body: make([]byte, n)} }

func BenchmarkUnary(b *testing.B) {
	for _, n := range []int{64, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchBeds(b, func(b *testing.B, c testgrpc.TestServiceClient) {
				req := &testgrpc.SimpleRequest{Payload: payload(n)}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.UnaryCall(context.Background(), req); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func BenchmarkUnary32(b *testing.B) {
	benchBeds(b, func(b *testing.B, c testgrpc.TestServiceClient) {
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				req := &testgrpc.SimpleRequest{Payload: payload(64)}
				for range b.N/32 + 1 {
					if _, err := c.UnaryCall(context.Background(), req); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

func BenchmarkPingPong(b *testing.B) {
	benchBeds(b, func(b *testing.B, c testgrpc.TestServiceClient) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			b.Fatal(err)
		}
		req := &testgrpc.StreamingOutputCallRequest{Payload: payload(64)}
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Send(req); err != nil {
				b.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkOneWay(b *testing.B) {
	benchBeds(b, func(b *testing.B, c testgrpc.TestServiceClient) {
		s, err := c.StreamingInputCall(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		req := &testgrpc.StreamingInputCallRequest{Payload: payload(1024)}
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Send(req); err != nil {
				b.Fatal(err)
			}
		}
		if r, err := s.CloseAndRecv(); err != nil || int(r.AggregatedPayloadSize) != b.N {
			b.Fatal(r, err)
		}
	})
}
