// Package wire defines the messages that package grpcrdma sends: see grpc.x.
package wire

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -package wire -o grpc.go grpc.x
