package rpcbind_test

import (
	"fmt"
	"net/netip"

	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

// The last two numbers of a universal address are the bytes of the port.
func ExampleParseAddr() {
	at, err := rpcbind.ParseAddr("192.0.2.1.78.81")
	fmt.Println(at, err)
	_, err = rpcbind.ParseAddr("192.0.2.1:20049")
	fmt.Println(err)
	// Output:
	// 192.0.2.1:20049 <nil>
	// rpcbind: address "192.0.2.1:20049": the port is not two numbers from 0 to 255
}

// A listener's address becomes a mapping that can be registered.
func ExampleFormatAddr() {
	at := netip.MustParseAddrPort("[2001:db8::1]:20049")
	m := rpcbind.Mapping{Prog: 100003, Vers: 3, Netid: rpcbind.RDMA.For(at.Addr()), Addr: rpcbind.FormatAddr(at)}
	fmt.Println(m.Netid, m.Addr)
	// Output: rdma6 2001:db8::1.78.81
}
