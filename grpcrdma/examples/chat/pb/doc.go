// Package pb holds the code that protoc-gen-go and protoc-gen-go-grpc generate from chat.proto.
package pb

//go:generate go run github.com/rpcrdma/rpcrdma/tools/protogen chat.proto
