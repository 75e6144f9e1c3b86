// Package wire defines the messages of package stream: see stream.x.
package wire

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen stream.x
