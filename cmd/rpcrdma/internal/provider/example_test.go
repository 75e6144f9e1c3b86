package provider_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A client on the device that has a route to the server, or in software without one.
func Example() {
	ctx, addr := context.Background(), "server.example:20049"
	choice := provider.ForDial(ctx, addr)
	p, err := provider.New(choice.Name, rdmacm.Config{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	client, err := transport.Dial(ctx, p, addr, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}

// The devices of this machine, and what is wrong with those that cannot be used.
func ExampleDevices() {
	devices, err := provider.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		fmt.Println(d.Name, d.Transport, d.Usable, d.Reason)
	}
}
