package rpcsec_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A server greets callers that a mechanism has authenticated. Calls are encrypted.
func Example() {
	hello := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		res.Results = xdr.AppendString(res.Results, "hello, "+req.Peer().Principal.Name)
	})
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Required: true})
	server, err := transport.NewServer(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := server.Register(rpc.Program{Number: prog, Low: 1, High: 1, Null: true, Handler: rpc.Chain(hello, sec.Wrap)}); err != nil {
		log.Fatal(err)
	}
	l, err := server.Listen(bg, transport.TCP{}, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(l)

	conn, err := transport.Dial(bg, transport.TCP{}, l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := rpcsec.NewClient(conn, rpcsec.ClientConfig{Initiator: alice, Service: rpc.ServicePrivacy})
	call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, MaxResults: 100}
	if err := client.Call(bg, &call); err != nil {
		log.Fatal(err)
	}
	d := call.Decoder()
	fmt.Println(d.String(100))
	// Output: hello, alice
}
