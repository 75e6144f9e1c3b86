// Package grpcrdma carries gRPC services over ONC RPC: the stubs that protoc-gen-go-grpc generates, unchanged,
// over RDMA, shared memory or TCP.
//
// A [ClientConn] is a grpc.ClientConnInterface, and a [Server] a grpc.ServiceRegistrar:
//
//	srv := grpcrdma.NewServer()
//	helloworld.RegisterGreeterServer(srv, &greeter{})
//	err := srv.Serve(ctx, iwarp.New(iwarp.Config{}), ":50051")
//
//	cc, err := grpcrdma.Dial(ctx, iwarp.New(iwarp.Config{}), "host:50051")
//	client := helloworld.NewGreeterClient(cc)
//
// A unary call is one remote procedure call. Streams are frames, several in one call, that both ends send
// each other over the same connection; docs/grpc.md describes the wire.
//
// # Placement
//
// Fields of type bytes or string with 4 KiB or more leave their message: the adapter reads them from where
// the sender has them, and puts them where the receiver's message refers to from then on. They are not
// copied. An option of package rpcrdma makes a field do so whatever its length, or never. [Into] has the results of a call placed in memory of the caller's.
//
// A message that has been received may refer to one piece of memory in all of its long fields, which lives
// as long as one of them does.
//
// # Memory
//
// A message that is sent belongs to the call until it returns, as grpc-go demands. SendMsg returns when the
// long fields of the message have arrived, so that their memory may be used again; the rest is copied.
package grpcrdma

//go:generate go run github.com/rpcrdma/rpcrdma/tools/protogen rpcrdma/placed.proto
