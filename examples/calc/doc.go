// Package calc is what xdrgen makes of calc.x: a calculator, with lists and unions.
package calc

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen calc.x
