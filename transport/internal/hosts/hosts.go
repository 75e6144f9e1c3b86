// Package hosts determines which host a peer's address belongs to, and which connections a server keeps if it has no
// room for all.
package hosts

import (
	"net"
	"net/netip"
)

// Of returns the host that an address with a port counts as. For IPv6 that is a network with a prefix of bits. An
// address that is not an IP address is a host of its own.
func Of(addr string, bits int) string {
	machine := Machine(addr)
	if a, err := netip.ParseAddr(machine); err == nil {
		return Prefix(a, bits).String()
	}
	return machine
}

// Machine returns the address without its port, in canonical form.
func Machine(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String()
	}
	return host
}

// Prefix returns the network of a that counts as one host.
func Prefix(a netip.Addr, bits int) netip.Prefix {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		bits = a.BitLen()
	}
	p, _ := a.Prefix(bits) // a zero Prefix if a is the zero Addr
	return p
}
