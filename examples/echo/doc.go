// Package echo is what xdrgen makes of echo.x: the smallest service.
package echo

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen echo.x
