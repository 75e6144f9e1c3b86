package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A client over an RDMA device.
func Example() {
	provider, err := rdmacm.New(rdmacm.Config{})
	if errors.Is(err, rdmacm.ErrNotBuilt) {
		log.Fatal("build this with cgo, on Linux: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()
	client, err := transport.Dial(context.Background(), provider, "10.9.9.1:20049", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	fmt.Println(client.Info().Provider)
}
