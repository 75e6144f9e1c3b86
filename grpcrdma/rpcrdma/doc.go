// Package rpcrdma defines an option for fields in .proto files, which says whether package grpcrdma places them:
//
//	import "rpcrdma/placed.proto";
//
//	message Block {
//	  bytes data = 1 [(rpcrdma.placed) = true];
//	  string note = 2 [(rpcrdma.placed) = false];
//	}
//
// For protoc to find placed.proto, add the directory of module github.com/rpcrdma/rpcrdma/grpcrdma to its import paths.
package rpcrdma
