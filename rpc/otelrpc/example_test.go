package otelrpc_test

import (
	"context"
	"log"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/otelrpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The calls of a client and a server are measured and traced. Both ends have agreed on a flavor of
// verifier for the context of a trace.
func Example() {
	table, err := names.New(kv.StoreV1Names)
	if err != nil {
		log.Fatal(err)
	}
	cfg := otelrpc.Config{Table: table, Carrier: otelrpc.Verifier(0x2f000001)}
	metrics, err := otelrpc.NewMetrics(cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer metrics.Close()
	tracing := otelrpc.NewTracing(cfg)

	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: metrics}})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	program := kv.StoreV1Program(kv.UnimplementedStoreV1Server{})
	program.Handler = tracing.Handler(program.Handler)
	if err := srv.Register(program); err != nil {
		log.Fatal(err)
	}

	client, err := transport.Dial(context.Background(), iwarp.New(iwarp.Config{}), "server:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	store := kv.NewStoreV1Client(tracing.Caller(client))
	if _, err := store.Put(context.Background(), "key", kv.Value("value")); err != nil {
		log.Fatal(err)
	}
}
