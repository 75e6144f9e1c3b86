//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// The connection manager alone: which device has a route to an address.
func ExampleID() {
	channel, err := rdmacm.NewEventChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	id, err := channel.NewID()
	if err != nil {
		log.Fatal(err)
	}
	defer id.Close()
	ctx, to := context.Background(), netip.MustParseAddrPort("10.9.9.1:20049")
	if err := id.ResolveAddr(ctx, netip.AddrPort{}, to, time.Second); err != nil {
		log.Fatal(err)
	}
	if err := id.ResolveRoute(ctx, time.Second); err != nil {
		log.Fatal(err)
	}
	fmt.Println(id.Verbs().Info().Name, "port", id.Port(), "from", id.LocalAddr())
}
