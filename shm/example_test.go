//go:build linux

package shm_test

import (
	"context"
	"fmt"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A server and a client of one host. They are usually two processes; the socket is then one that both see.
func Example() {
	ctx := context.Background()
	server, err := transport.NewServer(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	program := rpc.Program{Number: 0x20000000, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		if peer, ok := req.Conn().RemoteAddr().(shm.Addr); ok {
			fmt.Println("called by a process, as the system says:", peer.PID != 0)
		}
	})}
	if err := server.Register(program); err != nil {
		fmt.Println(err)
		return
	}
	l, err := server.Listen(ctx, shm.New(shm.Config{}), "@")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(l)
	defer server.Close()

	client, err := transport.Dial(ctx, shm.New(shm.Config{}), l.Addr().String(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	fmt.Println(client.Call(ctx, &rpc.Call{Prog: 0x20000000, Vers: 1, Proc: 1}))
	// Output:
	// called by a process, as the system says: true
	// <nil>
}
