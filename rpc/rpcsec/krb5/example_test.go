package krb5_test

import (
	"context"
	"log"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A client makes its calls with the tickets of kinit, and encrypts them.
func ExampleNewInitiator() {
	ctx := context.Background()
	conn, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "server.example.com:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	tickets, err := krb5.NewInitiator(krb5.InitiatorConfig{Service: "nfs@server.example.com"})
	if err != nil {
		log.Fatal(err)
	}
	client := rpcsec.NewClient(conn, rpcsec.ClientConfig{Initiator: tickets, Service: rpc.ServicePrivacy})
	if err := client.Call(ctx, &rpc.Call{Prog: 100003, Vers: 3, Proc: 1, Args: []byte("...")}); err != nil {
		log.Fatal(err)
	}
}

// A server executes calls of callers that have a ticket for it, and of no others.
func ExampleNewAcceptor() {
	keys, err := krb5.NewAcceptor(krb5.AcceptorConfig{Keytab: "/etc/krb5.keytab", Service: "nfs"})
	if err != nil {
		log.Fatal(err)
	}
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: keys, Required: true})
	server, err := transport.NewServer(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	handler := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
		log.Print(req.Peer().Principal.Name)
	})
	program := rpc.Program{Number: 400000, Low: 1, High: 1, Null: true, Handler: rpc.Chain(handler, sec.Wrap)}
	if err := server.Register(program); err != nil {
		log.Fatal(err)
	}
}
