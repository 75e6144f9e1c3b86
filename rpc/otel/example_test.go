package otel_test

import (
	"context"
	"log"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/otel"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The calls of a client and a server are measured and traced. Both ends have agreed on a flavor of
// verifier for the context of a trace.
func Example() {
	table, err := names.New(names.Program{Number: 0x20000055, Vers: 1, Name: "MOVE", Procedures: []string{"NULL", "PUT", "GET"}})
	if err != nil {
		log.Fatal(err)
	}
	cfg := otel.Config{Table: table, Carrier: otel.Verifier(0x2f000001)}
	metrics, err := otel.NewMetrics(cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer metrics.Close()
	tracing := otel.NewTracing(cfg)

	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: metrics}})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	handler := transport.Procedures{} // the program's own
	if err := srv.Register(transport.Program{Number: 0x20000055, Low: 1, High: 1, Handler: tracing.Handler(handler)}); err != nil {
		log.Fatal(err)
	}

	client, err := transport.Dial(context.Background(), iwarp.New(iwarp.Config{}), "server:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	caller := tracing.Caller(client) // for everything that accepts a transport.Caller
	_ = caller
}
