package transport

import (
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
)

// An addressed is a connection of which nothing is known but the peer's address.
type addressed struct {
	connection
	peer  net.Addr
	asked int
}

func (a *addressed) remote() net.Addr { a.asked++; return a.peer }

func TestRemoteAddrPort(t *testing.T) {
	for _, tt := range []struct {
		addr net.Addr
		want string
	}{
		{nil, "invalid AddrPort"},
		{&net.UnixAddr{Name: "/x"}, "invalid AddrPort"},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5}, "192.0.2.1:5"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 5, Zone: "eth0"}, "[fe80::1]:5"},
		{&net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 7}, "[2001:db8::1]:7"},
		{&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, "192.0.2.1:7"},
		{peerAddr("[::ffff:192.0.2.1]:9"), "192.0.2.1:9"},
	} {
		c := &addressed{peer: tt.addr}
		cn := &Conn{c: c}
		for range 2 {
			if got := cn.RemoteAddrPort().String(); got != tt.want {
				t.Errorf("%v: %s, want %s", tt.addr, got, tt.want)
			}
		}
		if tt.addr != nil && c.asked != 1 {
			t.Errorf("%v: made %d times", tt.addr, c.asked)
		}
	}
}

// TestHost checks that an IPv6 host is a network prefix, because one machine can have all addresses in it.
func TestHost(t *testing.T) {
	for _, tt := range []struct {
		addr string
		bits int
		want string
	}{
		{"192.0.2.1:5", 64, "192.0.2.1/32"},
		{"[::ffff:192.0.2.1]:5", 64, "192.0.2.1/32"},
		{"[2001:db8:1:2:3::4]:5", 64, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:3::4]:5", 48, "2001:db8:1::/48"},
		{"[2001:db8::1]:5", 128, "2001:db8::1/128"},
		{"[fe80::1%eth0]:5", 64, "fe80::/64"},
	} {
		cn := &Conn{c: &addressed{peer: peerAddr(tt.addr)}, cfg: &config{Config: Config{HostBits: tt.bits}}}
		if got := cn.Host().String(); got != tt.want {
			t.Errorf("Host of %s with %d bits: %s, want %s", tt.addr, tt.bits, got, tt.want)
		}
		if got := hosts.Of(tt.addr, tt.bits); got != tt.want {
			t.Errorf("hostOf %s with %d bits: %s, want %s", tt.addr, tt.bits, got, tt.want)
		}
	}
}
