package prometheus_test

import (
	"log"
	"net/http"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/prometheus"
	"github.com/rpcrdma/rpcrdma/transport"
)

func ExampleNew() {
	// NFS, which is known by name, and a program of our own.
	own := names.Program{Number: 0x20000055, Vers: 1, Name: "MOVE", Procedures: []string{"NULL", "PUT", "GET"}}
	table, err := names.New(append(names.Known(100003), own)...)
	if err != nil {
		log.Fatal(err)
	}
	c := prometheus.New(prometheus.Config{Table: table})
	registry := prom.NewRegistry()
	registry.MustRegister(c)
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: c}})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}
