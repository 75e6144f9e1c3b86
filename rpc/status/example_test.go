package status_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/status"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A server with a page about itself, which only this machine gets.
func Example() {
	table, err := names.New(names.Known(100003)...)
	if err != nil {
		log.Fatal(err)
	}
	monitor := status.New(status.Config{Title: "files of example.org", Table: table})
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: monitor}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := srv.Listen(context.Background(), iwarp.New(iwarp.Config{}), ":20049")
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/debug/rpcrdma", monitor)
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil)) }()
	log.Fatal(srv.Serve(l))
}

// The data of the page is there for programs, too.
func ExampleMonitor_Snapshot() {
	monitor := status.New(status.Config{Title: "a client"})
	client, err := transport.Dial(context.Background(), iwarp.New(iwarp.Config{}), "server.example:20049",
		&transport.ClientConfig{Config: transport.Config{Observer: monitor}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, c := range monitor.Snapshot().Conns {
		fmt.Println(c.Peer, c.Credits)
	}
}
