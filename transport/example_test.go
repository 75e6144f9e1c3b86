package transport_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"strings"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A program with one procedure, which returns as many bytes as the caller wants: the client's adapter
// receives them right in the caller's memory.
func Example() {
	ctx := context.Background()
	provider := iwarp.New(iwarp.Config{}) // RDMA in software, over TCP
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}

	server, err := transport.NewServer(nil)
	check(err)
	check(server.Register(rpc.Program{Number: 0x20000001, Low: 1, High: 1, Handler: rpc.Procedures{
		1: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			n, size := xdr.ConsumeUint32(req.Args)
			if size < 0 || n > 1<<20 {
				res.Fail(oncrpc.GarbageArgs)
				return
			}
			data := res.Alloc(int(n))
			copy(data, strings.Repeat("data", int(n)/4+1))
			res.AddItem(data, nil) // an opaque<>, which may go to a write chunk
		},
	}}))
	l, err := server.Listen(ctx, provider, "127.0.0.1:0")
	check(err)
	go server.Serve(l)
	defer server.Shutdown(ctx)

	client, err := transport.Dial(ctx, provider, l.Addr().String(), nil)
	check(err)
	defer client.Close()
	call := rpc.Call{
		Prog: 0x20000001, Vers: 1, Proc: 1,
		Args:       xdr.AppendUint32(nil, 1_000_000),
		WriteItems: []rpc.WriteItem{{Buf: make([]byte, 1<<20)}},
	}
	check(client.Call(ctx, &call))
	results := call.Decoder()
	data := results.Item() // wherever it came
	check(results.End())
	fmt.Println(len(data), string(data[len(data)-8:]), call.WriteItems[0].Chunked)
	// Output: 1000000 datadata true
}

// A server uses a socket that is open when the program starts, for instance one of systemd, which
// net.FileListener returns. With iwarp.Config.ListenTCP it is a listener for RDMA in software.
// Server.ServeTCP accepts any net.Listener for calls over TCP.
func ExampleServer_Listen_socket() {
	ctx := context.Background()
	server, err := transport.NewServer(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	p := iwarp.New(iwarp.Config{ListenTCP: func(context.Context, string) (*net.TCPListener, error) {
		return socket.(*net.TCPListener), nil
	}})
	l, err := server.Listen(ctx, p, "") // the address is that of the socket
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(l)

	client, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), socket.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	fmt.Println(client.Info().Provider)
	// Output: iwarp
}

// One goroutine has eight calls outstanding.
func ExamplePipeline() {
	ctx := context.Background()
	server, err := transport.NewServer(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	err = server.Register(rpc.Program{Number: 0x20000001, Low: 1, High: 1, Handler: rpc.Procedures{
		1: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			n, _ := xdr.ConsumeUint32(req.Args)
			res.Results = xdr.AppendUint32(res.Results, n*n)
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	provider := iwarp.New(iwarp.Config{})
	l, err := server.Listen(ctx, provider, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(l)
	client, err := transport.Dial(ctx, provider, l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	p := transport.NewPipeline(client)
	defer p.Close()
	calls := make([]rpc.Call, 8)
	for i := range calls {
		calls[i] = rpc.Call{Prog: 0x20000001, Vers: 1, Proc: 1, Args: xdr.AppendUint32(nil, uint32(i)), MaxResults: 4}
		p.Start(&calls[i])
	}
	sum := uint32(0)
	for p.Len() > 0 {
		call, err := p.Wait(ctx) // in the order in which they end
		if err != nil {
			log.Fatal(err)
		}
		n, _ := xdr.ConsumeUint32(call.Results)
		sum += n
	}
	fmt.Println(sum)
	// Output: 140
}

// Buffers that are used again stay registered. Where the adapter has no memory windows,
// the server can reach them until Close.
func ExampleClient_RegisterMemory() {
	ctx := context.Background()
	client, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "server.example:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	mem, err := client.RegisterMemory(make([]byte, 16<<20))
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Close()
	var call rpc.Call
	for block := range uint32(16) {
		buf := mem.Bytes()[block<<20:][:1<<20]
		call.Prog, call.Vers, call.Proc = 0x20000001, 1, 1
		call.Args = xdr.AppendUint32(call.Args[:0], block)
		call.WriteItems = append(call.WriteItems[:0], rpc.WriteItem{Buf: buf})
		if err := client.Call(ctx, &call); err != nil {
			log.Fatal(err)
		}
	}
}
