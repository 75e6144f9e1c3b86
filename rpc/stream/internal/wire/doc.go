// Package wire is what package stream sends: see stream.x.
package wire

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen stream.x
