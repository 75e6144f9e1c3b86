// Package pb is what protoc-gen-go and protoc-gen-go-grpc make of files.proto.
package pb

//go:generate go run github.com/rpcrdma/rpcrdma/tools/protogen files.proto
