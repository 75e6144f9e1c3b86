// Package rpcrdma has an option for fields in .proto files, which says whether package grpcrdma places them:
//
//	import "rpcrdma/placed.proto";
//
//	message Block {
//	  bytes data = 1 [(rpcrdma.placed) = true];
//	  string note = 2 [(rpcrdma.placed) = false];
//	}
//
// The compiler finds placed.proto with the directory of module github.com/rpcrdma/rpcrdma/grpcrdma among its import
// paths.
package rpcrdma
