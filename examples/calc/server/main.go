// Command server evaluates expressions.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/examples/calc"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// calculator implements calc.CalcV1Server.
type calculator struct{}

func (calculator) Evaluate(_ context.Context, _ *rpc.Request, args *calc.Expression, res *calc.Result) error {
	if len(args.Steps) > calc.MaxSteps { // the interface language cannot bound lists
		res.Status = calc.TooLong
		return nil
	}
	var stack []float64
	for i, step := range args.Steps {
		if step.Token.Kind == calc.Number {
			stack = append(stack, step.Token.Value)
			continue
		}
		n := len(stack) - 2
		if n < 0 {
			*res = calc.Result{Status: calc.Missing, Step: uint32(i)}
			return nil
		}
		a, b := stack[n], stack[n+1]
		// Only defined operations reach this line. For others the caller gets GARBAGE_ARGS.
		results := [...]float64{calc.Add: a + b, calc.Subtract: a - b, calc.Multiply: a * b, calc.Divide: a / b}
		stack = append(stack[:n], results[step.Token.Does])
	}
	*res = calc.Result{Status: calc.LeftOver, Stack: stack}
	if len(stack) == 1 {
		*res = calc.Result{Status: calc.Ok, Value: stack[0]}
	}
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20102", "`address` to listen on")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "serve over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	server, err := transport.NewServer(nil)
	check(err)
	check(calc.RegisterCalcV1(server, calculator{}))
	l, err := server.Listen(context.Background(), provider, *addr)
	check(err)
	fmt.Println("listening on", l.Addr())
	check(server.Serve(l))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
