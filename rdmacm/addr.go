//go:build linux && cgo

package rdmacm

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// sockaddr converts ap to a struct sockaddr_in or sockaddr_in6.
func sockaddr(ap netip.AddrPort) *cgo.Sockaddr {
	var s cgo.Sockaddr
	addr := ap.Addr().Unmap()
	binary.BigEndian.PutUint16(s[2:], ap.Port())
	if addr.Is4() {
		binary.NativeEndian.PutUint16(s[0:], syscall.AF_INET)
		a := addr.As4()
		copy(s[4:], a[:])
		return &s
	}
	binary.NativeEndian.PutUint16(s[0:], syscall.AF_INET6)
	a := addr.As16()
	copy(s[8:], a[:])
	binary.NativeEndian.PutUint32(s[24:], uint32(zoneIndex(addr.Zone())))
	return &s
}

// addrPort is the inverse of sockaddr. It returns the zero AddrPort for other address families.
func addrPort(s *cgo.Sockaddr) netip.AddrPort {
	port := binary.BigEndian.Uint16(s[2:])
	switch binary.NativeEndian.Uint16(s[0:]) {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), port)
	case syscall.AF_INET6:
		addr := netip.AddrFrom16([16]byte(s[8:24]))
		if scope := binary.NativeEndian.Uint32(s[24:]); scope != 0 {
			addr = addr.WithZone(zoneName(int(scope)))
		}
		return netip.AddrPortFrom(addr.Unmap(), port)
	}
	return netip.AddrPort{}
}

func zoneIndex(zone string) int {
	if zone == "" {
		return 0
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return i.Index
	}
	n, _ := strconv.Atoi(zone)
	return n
}

func zoneName(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return strconv.Itoa(index)
}
