// Command tcp is a service and its client over TCP: tcp serve ADDR, tcp sum ADDR <FILE.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/rpcrdma/rpcrdma/examples/move"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// provider makes the connections.
var provider = transport.TCP{}

// summer implements move.MoveV1Server.
type summer struct{}

func (summer) Sum(_ context.Context, _ *rpc.Request, args *move.File, res *move.Sum) error {
	*res = sha256.Sum256(args.Data)
	return nil
}

// serve serves until ctx ends. It then answers the calls that have already arrived.
func serve(ctx context.Context, addr string) {
	server, err := transport.NewServer(nil)
	check(err)
	check(move.RegisterMoveV1(server, summer{}))
	l, err := server.Listen(ctx, provider, addr)
	check(err)
	fmt.Println("listening on", l.Addr())
	go server.Serve(l)
	<-ctx.Done()
	check(server.Shutdown(context.Background()))
}

// sum prints the checksum of standard input.
func sum(ctx context.Context, addr string) {
	data, err := io.ReadAll(os.Stdin)
	check(err)
	client, err := transport.Dial(ctx, provider, addr, nil)
	check(err)
	defer client.Close()
	sum, err := move.NewMoveV1Client(client).Sum(ctx, &move.File{Data: data})
	check(err)
	fmt.Printf("%x, read by RDMA: %v\n", sum, client.Stats().ReadChunk > 0)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	commands := map[string]func(ctx context.Context, addr string){"serve": serve, "sum": sum}
	if len(os.Args) != 3 || commands[os.Args[1]] == nil {
		log.Fatal("usage: serve ADDR | sum ADDR <FILE")
	}
	commands[os.Args[1]](ctx, os.Args[2])
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
