package grpcrdma_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

func moveServer(ctx context.Context, svc pb.TestServiceServer) error {
	srv := grpcrdma.NewServer() // was: grpc.NewServer()
	pb.RegisterTestServiceServer(srv, svc)
	return srv.ListenAndServe(ctx, iwarp.New(iwarp.Config{}), ":50051") // was: srv.Serve(listener)
}

func moveClient(ctx context.Context) (pb.TestServiceClient, error) {
	cc, err := grpcrdma.Dial(ctx, iwarp.New(iwarp.Config{}), "host:50051") // was: grpc.NewClient
	if err != nil {
		return nil, err
	}
	return pb.NewTestServiceClient(cc), nil
}

// TestPage: the code of docs/grpc.md is that above.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../docs/grpc.md")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(page), "```go\n")
	code, _, ok := strings.Cut(code, "```")
	if !ok || !strings.Contains(string(own), code) {
		t.Errorf("the page has other code than this file:\n%s", code)
	}
	_, _ = moveServer, moveClient
}

// A service without a method of its own, and a client of it in the same process.
func Example() {
	ctx := context.Background()
	srv := grpcrdma.NewServer()
	pb.RegisterTestServiceServer(srv, echo{})
	l, err := srv.Listen(ctx, iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go srv.Serve(l)
	defer srv.Stop()

	cc, err := grpcrdma.Dial(ctx, iwarp.New(iwarp.Config{}), l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cc.Close()
	reply, err := pb.NewTestServiceClient(cc).UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("hello")}})
	fmt.Println(string(reply.GetPayload().GetBody()), err)
	// Output: hello <nil>
}
