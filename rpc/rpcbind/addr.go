package rpcbind

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A Netid names a kind of transport. RFC 5665 section 5.1.
type Netid string

// The netids of IP: those of RFC 5665 section 5.1.4.1 and of RFC 5666 section 12.
const (
	TCP   Netid = "tcp"
	TCP6  Netid = "tcp6"
	UDP   Netid = "udp"
	UDP6  Netid = "udp6"
	RDMA  Netid = "rdma"
	RDMA6 Netid = "rdma6"
)

// family returns the IP version of n's addresses, or 0 if n is not one of the netids above.
func (n Netid) family() int {
	switch n {
	case TCP, UDP, RDMA:
		return 4
	case TCP6, UDP6, RDMA6:
		return 6
	}
	return 0
}

// For returns n ("tcp", "udp" or "rdma") or its IPv6 counterpart, according to the IP version
// of a.
func (n Netid) For(a netip.Addr) Netid {
	n = Netid(strings.TrimSuffix(string(n), "6"))
	if a.Is4() || a.Is4In6() {
		return n
	}
	return n + "6"
}

// An AddrError is an invalid universal address, or an invalid mapping passed by the caller.
type AddrError struct {
	Netid Netid // empty if irrelevant
	Addr  string
	What  string
}

func (e *AddrError) Error() string {
	switch {
	case e.Netid == "":
		return fmt.Sprintf("rpcbind: address %.60q: %s", e.Addr, e.What)
	case e.Addr == "":
		return fmt.Sprintf("rpcbind: netid %.60q: %s", e.Netid, e.What)
	}
	return fmt.Sprintf("rpcbind: address %.60q of netid %.60q: %s", e.Addr, e.Netid, e.What)
}

// ParseAddr parses a universal address of IP: an address, followed by the two bytes of the
// port in decimal. The error is an [*AddrError].
//
//	h1.h2.h3.h4.p1.p2       192.0.2.1.78.81 is port 20049
//	x1:x2:...:x8.p1.p2      2001:db8::1.78.81 is the same, in any of IPv6's spellings
//
// Leading zeros are not allowed, nor are zones, which are only valid on one machine. RFC 5665
// sections 5.2.3.3 and 5.2.3.4.
func ParseAddr(s string) (netip.AddrPort, error) {
	fail := func(what string) (netip.AddrPort, error) {
		return netip.AddrPort{}, &AddrError{Addr: s, What: what}
	}
	host, low, ok := cutLast(s)
	host, high, ok2 := cutLast(host)
	if !ok || !ok2 {
		return fail("is cut short")
	}
	p1, ok := octet(high)
	p2, ok2 := octet(low)
	if !ok || !ok2 {
		return fail("the port is not two numbers from 0 to 255")
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return fail("the host is no address of IP")
	}
	if ip.Zone() != "" {
		return fail("the host has a zone")
	}
	return netip.AddrPortFrom(ip, p1<<8|p2), nil
}

// FormatAddr returns the universal address of a, such as "192.0.2.1.78.81", or "" if a is not
// valid. The zone is omitted, and an IPv4-mapped IPv6 address is converted to IPv4. RFC 5665
// sections 5.2.3.3 and 5.2.3.4.
func FormatAddr(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return fmt.Sprintf("%v.%d.%d", a.Addr().Unmap().WithZone(""), a.Port()>>8, a.Port()&0xff)
}

// cutLast cuts s at its last dot.
func cutLast(s string) (before, after string, ok bool) {
	dot := strings.LastIndexByte(s, '.')
	if dot < 0 {
		return "", "", false
	}
	return s[:dot], s[dot+1:], true
}

// octet parses a number from 0 to 255 without leading zeros.
func octet(s string) (uint16, bool) {
	v, err := strconv.ParseUint(s, 10, 8)
	return uint16(v), err == nil && (s[0] != '0' || len(s) == 1)
}

// parseFor is ParseAddr for an address that must be of netid's IP version and have a port.
func parseFor(netid Netid, s string) (netip.AddrPort, error) {
	a, err := ParseAddr(s)
	what := ""
	switch {
	case err != nil:
		what = err.(*AddrError).What
	case a.Addr().Is4() != (netid.family() == 4):
		what = "is of the other version of IP"
	case a.Port() == 0:
		what = "has no port"
	default:
		return a, nil
	}
	return netip.AddrPort{}, &AddrError{Netid: netid, Addr: s, What: what}
}
