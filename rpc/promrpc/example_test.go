package promrpc_test

import (
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/promrpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

func ExampleNew() {
	// NFS, which is known by name, and a program that xdrgen has compiled.
	table, err := names.New(append(names.Known(100003), kv.StoreV1Names)...)
	if err != nil {
		log.Fatal(err)
	}
	c := promrpc.New(promrpc.Config{Table: table})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: c}})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}
