// Package move is what xdrgen makes of move.x: a service that moves from TCP to RDMA.
package move

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen move.x
