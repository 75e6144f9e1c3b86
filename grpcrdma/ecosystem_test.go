package grpcrdma_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	hello "google.golang.org/grpc/examples/helloworld/helloworld"
	route "google.golang.org/grpc/examples/route_guide/routeguide"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestServices: grpc-go's health and reflection services, and the services of its examples, run as they are.
func TestServices(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		srv := grpcrdma.NewServer()
		checks := health.NewServer()
		healthpb.RegisterHealthServer(srv, checks)
		hello.RegisterGreeterServer(srv, greeter{})
		route.RegisterRouteGuideServer(srv, &guide{})
		reflection.Register(srv)
		cc := serve(t, p, addr, srv)

		t.Run("health", func(t *testing.T) {
			watch, err := healthpb.NewHealthClient(cc).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "s"})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
				healthpb.HealthCheckResponse_SERVICE_UNKNOWN, healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
			} {
				if r, err := watch.Recv(); err != nil || r.Status != want {
					t.Fatalf("got %v, %v, want %v", r, err, want)
				}
				if want == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
					checks.SetServingStatus("s", healthpb.HealthCheckResponse_SERVING)
				} else {
					checks.SetServingStatus("s", healthpb.HealthCheckResponse_NOT_SERVING)
				}
			}
		})
		t.Run("reflection", func(t *testing.T) {
			s, err := reflectpb.NewServerReflectionClient(cc).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}); err != nil {
				t.Fatal(err)
			}
			r, err := s.Recv()
			if n := len(r.GetListServicesResponse().GetService()); err != nil || n < 4 {
				t.Errorf("%d services, %v", n, err)
			}
		})
		t.Run("helloworld", func(t *testing.T) {
			r, err := hello.NewGreeterClient(cc).SayHello(t.Context(), &hello.HelloRequest{Name: "world"})
			if err != nil || r.Message != "Hello world" {
				t.Errorf("got %v, %v", r, err)
			}
		})
		t.Run("route_guide", func(t *testing.T) { testRoutes(t, route.NewRouteGuideClient(cc)) })
	})
}

type greeter struct {
	hello.UnimplementedGreeterServer
}

func (greeter) SayHello(_ context.Context, r *hello.HelloRequest) (*hello.HelloReply, error) {
	return &hello.HelloReply{Message: "Hello " + r.Name}, nil
}

// A guide has a method of each kind.
type guide struct {
	route.UnimplementedRouteGuideServer
	mu    sync.Mutex
	notes []*route.RouteNote
}

func (g *guide) GetFeature(_ context.Context, p *route.Point) (*route.Feature, error) {
	return &route.Feature{Location: p}, nil
}

func (g *guide) ListFeatures(r *route.Rectangle, s route.RouteGuide_ListFeaturesServer) error {
	for i := r.Lo.Latitude; i < r.Hi.Latitude; i++ {
		if err := s.Send(&route.Feature{Name: fmt.Sprint(i)}); err != nil {
			return err
		}
	}
	return nil
}

func (g *guide) RecordRoute(s route.RouteGuide_RecordRouteServer) error {
	var points int32
	for {
		_, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(&route.RouteSummary{PointCount: points})
		}
		if err != nil {
			return err
		}
		points++
	}
}

func (g *guide) RouteChat(s route.RouteGuide_RouteChatServer) error {
	for {
		n, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.notes = append(g.notes, n)
		notes := g.notes
		g.mu.Unlock()
		for _, n := range notes {
			if err := s.Send(n); err != nil {
				return err
			}
		}
	}
}

func testRoutes(t *testing.T, c route.RouteGuideClient) {
	ctx := t.Context()
	if f, err := c.GetFeature(ctx, &route.Point{Latitude: 7}); err != nil || f.Location.Latitude != 7 {
		t.Errorf("GetFeature: %v, %v", f, err)
	}
	list, err := c.ListFeatures(ctx, &route.Rectangle{Lo: &route.Point{}, Hi: &route.Point{Latitude: 2000}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for f, err := list.Recv(); err != io.EOF; f, err = list.Recv() {
		if err != nil || f.Name != fmt.Sprint(n) {
			t.Fatalf("feature %d: %v, %v", n, f, err)
		}
		n++
	}
	if n != 2000 {
		t.Errorf("%d features", n)
	}
	record, err := c.RecordRoute(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if err := record.Send(&route.Point{}); err != nil {
			t.Fatal(err)
		}
	}
	if sum, err := record.CloseAndRecv(); err != nil || sum.PointCount != 500 {
		t.Errorf("RecordRoute: %v, %v", sum, err)
	}
	chat, err := c.RouteChat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := chat.Send(&route.RouteNote{Message: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := chat.CloseSend(); err != nil {
		t.Fatal(err)
	}
	notes := 0
	for _, err = chat.Recv(); err == nil; _, err = chat.Recv() {
		notes++
	}
	if err != io.EOF || notes != 20*21/2 {
		t.Errorf("%d notes, %v", notes, err)
	}
}

// TestInterceptors: those of go-grpc-middleware and the handlers of otelgrpc see calls and streams.
func TestInterceptors(t *testing.T) {
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		var mu sync.Mutex
		lines := make(map[string]int)
		log := logging.LoggerFunc(func(_ context.Context, _ logging.Level, msg string, _ ...any) {
			mu.Lock()
			defer mu.Unlock()
			lines[msg]++
		})
		spans := tracetest.NewSpanRecorder()
		tracer := otelgrpc.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
		c, _ := client(t, p, addr, &service{
			unary:  func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { panic("unary") },
			duplex: echoStream,
		},
			grpcrdma.UnaryInterceptor(logging.UnaryServerInterceptor(log), recovery.UnaryServerInterceptor()),
			grpcrdma.StreamInterceptor(logging.StreamServerInterceptor(log), recovery.StreamServerInterceptor()),
			grpcrdma.WithUnaryInterceptor(logging.UnaryClientInterceptor(log)), grpcrdma.WithStreamInterceptor(logging.StreamClientInterceptor(log)),
			grpcrdma.StatsHandler(otelgrpc.NewServerHandler(tracer)), grpcrdma.StatsHandler(otelgrpc.NewClientHandler(tracer)),
		)
		if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}); status.Code(err) != codes.Unknown {
			t.Errorf("the handler that panics: %v", err) // as recovery makes it
		}
		s, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		s.CloseSend()
		if _, err := s.Recv(); err != io.EOF {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if lines["finished call"] != 4 {
			t.Errorf("the logs have %v", lines)
		}
		testutil.Eventually(t, "both ends have ended their spans", func() bool { // the server does after the client has the end
			names := make(map[string]int)
			for _, s := range spans.Ended() {
				names[s.Name()]++
			}
			return names["grpc.testing.TestService/UnaryCall"] >= 2 && names["grpc.testing.TestService/FullDuplexCall"] >= 2
		})
	})
}
