// Command client makes a server evaluate an expression in postfix notation.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strconv"

	"github.com/rpcrdma/rpcrdma/examples/calc"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:20102", "`address` of the server")
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	flag.BoolFunc("tcp", "connect over TCP, not RDMA", func(string) error { provider = transport.TCP{}; return nil })
	flag.Parse()
	operations := map[string]calc.Operation{"+": calc.Add, "-": calc.Subtract, "x": calc.Multiply, "/": calc.Divide}
	var expression calc.Expression
	var err error
	for _, word := range flag.Args() {
		operation, ok := operations[word]
		token := calc.Token{Kind: calc.Operator, Does: operation}
		if !ok {
			token.Kind = calc.Number
			token.Value, err = strconv.ParseFloat(word, 64)
			check(err)
		}
		expression.Steps = append(expression.Steps, calc.Step{Token: token})
	}
	ctx := context.Background()
	client, err := transport.Dial(ctx, provider, *addr, nil)
	check(err)
	defer client.Close()
	res, err := calc.NewCalcV1Client(client).Evaluate(ctx, &expression)
	check(err)
	switch res.Status {
	case calc.Ok:
		fmt.Println(res.Value)
	case calc.Missing:
		log.Fatalf("%s lacks operands", flag.Arg(int(res.Step)))
	case calc.LeftOver:
		log.Fatalln(res.Status, res.Stack)
	default:
		log.Fatalln(res.Status)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
