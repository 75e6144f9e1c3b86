// Command rdma is the helloworld example of grpc-go over RDMA: rdma serve ADDR, rdma greet ADDR NAME.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	pb "google.golang.org/grpc/examples/helloworld/helloworld"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

type greeter struct {
	pb.UnimplementedGreeterServer
}

// SayHello implements pb.GreeterServer.
func (greeter) SayHello(_ context.Context, r *pb.HelloRequest) (*pb.HelloReply, error) {
	return &pb.HelloReply{Message: "Hello " + r.Name}, nil
}

func serve(addr string) {
	srv := grpcrdma.NewServer()
	pb.RegisterGreeterServer(srv, greeter{})
	l, err := srv.Listen(context.Background(), iwarp.New(iwarp.Config{}), addr)
	check(err)
	fmt.Println("listening on", l.Addr())
	check(srv.Serve(l))
}

func greet(addr, name string) {
	cc, err := grpcrdma.Dial(context.Background(), iwarp.New(iwarp.Config{}), addr)
	check(err)
	defer cc.Close()
	r, err := pb.NewGreeterClient(cc).SayHello(context.Background(), &pb.HelloRequest{Name: name})
	check(err)
	fmt.Println(r.Message)
}

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		serve(args[1])
	case len(args) == 3 && args[0] == "greet":
		greet(args[1], args[2])
	default:
		log.Fatal("usage: serve ADDR | greet ADDR NAME")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
