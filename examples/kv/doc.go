// Package kv is what xdrgen makes of kv.x: a key-value store that tells clients of changes.
package kv

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen kv.x
