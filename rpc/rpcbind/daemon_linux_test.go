package rpcbind

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind/rpcbindtest"
)

// TestDaemon tests with the real rpcbind. CTX-1833-1: register and look up netid rdma.
func TestDaemon(t *testing.T) {
	rpcbindtest.Run(t, func(t *testing.T) {
		for _, c := range []Client{
			{"tcp", rpcbindtest.Addr}, {"udp", rpcbindtest.Addr}, {"tcp", rpcbindtest.Addr6}, {"udp", rpcbindtest.Addr6},
		} {
			t.Run("CTX-1833-1 version 4 over "+c.Network+" at "+c.Addr, func(t *testing.T) {
				if l, err := net.Listen("tcp6", "[::1]:0"); err == nil {
					l.Close()
				} else if c.Addr == rpcbindtest.Addr6 {
					t.Skipf("the kernel has no IPv6: %v", err)
				}
				useDaemon(t, c, true)
			})
		}
		for _, highest := range []uint32{3, 2} {
			for _, network := range []string{"tcp", "udp"} {
				t.Run("CTX-1833-1 version "+string(rune('0'+highest))+" over "+network, func(t *testing.T) {
					useDaemon(t, newPeer(t, network, func(xid uint32, h *oncrpc.CallHeader, call []byte) [][]byte {
						if h.Vers > highest {
							return [][]byte{reply(xid, oncrpc.ProgMismatch, highest)}
						}
						return [][]byte{forward(t, network, rpcbindtest.Addr, call)}
					}), highest > 2)
				})
			}
		}
		t.Run("addresses of the whole machine become rpcbind's", func(t *testing.T) {
			ctx := t.Context()
			c := Client{Addr: rpcbindtest.Addr}
			for _, tt := range []struct {
				netid      Netid
				addr, want string
			}{
				{TCP, "0.0.0.0.8.1", "127.0.0.1:2049"},
				{UDP, "0.0.0.0.8.1", "127.0.0.1:2049"},
				{RDMA, "0.0.0.0.78.81", "127.0.0.1:20049"},
				{RDMA6, "::.78.81", "[::]:20049"},
			} {
				if err := c.Set(ctx, Mapping{Prog: 100003, Vers: 3, Netid: tt.netid, Addr: tt.addr}); err != nil {
					t.Fatal(err)
				}
				if at, err := c.GetAddr(ctx, 100003, 3, tt.netid); err != nil || at.String() != tt.want {
					t.Errorf("%s: %v, %v, want %s", tt.netid, at, err, tt.want)
				}
			}
			if err := c.Unset(ctx, 100003, 3, ""); err != nil {
				t.Fatal(err)
			}
			if list, err := c.Dump(ctx); err != nil || slices.ContainsFunc(list, func(m Mapping) bool { return m.Prog == 100003 }) {
				t.Errorf("UNSET of all netids leaves %v, %v", list, err)
			}
		})
	})
}

// useDaemon registers, looks up and unregisters; netid rdma as well if rpcbind supports a
// version that has it.
func useDaemon(t *testing.T, c Client, rdma bool) {
	ctx := t.Context()
	const prog, vers = 0x20000001, 7
	for _, m := range []Mapping{
		{Prog: prog, Vers: vers, Netid: TCP, Addr: "127.0.0.1.78.82"},
		{Prog: prog, Vers: vers, Netid: UDP, Addr: "127.0.0.1.78.83"},
		{Prog: prog, Vers: vers, Netid: RDMA, Addr: "127.0.0.1.78.81"},
		{Prog: prog, Vers: vers, Netid: RDMA6, Addr: "2001:db8::1.78.81"},
	} {
		err := c.Set(ctx, m)
		if _, known := portmapProto(m.Netid); !known && !rdma {
			var old *VersionError
			if !errors.As(err, &old) || old.Netid != m.Netid {
				t.Errorf("SET of %s at a port mapper: %v", m.Netid, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Set(ctx, m); err != nil {
			t.Errorf("SET again: %v", err)
		}
		want, _ := ParseAddr(m.Addr)
		if at, err := c.GetAddr(ctx, prog, vers, m.Netid); err != nil || at != want {
			t.Errorf("GETADDR of %s: %v, %v, want %v", m.Netid, at, err, want)
		}
		list, err := c.Dump(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list, func(got Mapping) bool {
			a, err := ParseAddr(got.Addr)
			return got.Prog == m.Prog && got.Vers == m.Vers && got.Netid == m.Netid && err == nil && a.Port() == want.Port()
		}) {
			t.Errorf("DUMP lacks %v:\n%v", m, list)
		}
		other := m
		other.Addr = FormatAddr(netip.AddrPortFrom(want.Addr(), want.Port()+100))
		if err := c.Set(ctx, other); !errors.Is(err, ErrRefused) {
			t.Errorf("SET of another address: %v", err)
		}
		if err := c.Unset(ctx, prog, vers, m.Netid); err != nil {
			t.Error(err)
		}
		if at, err := c.GetAddr(ctx, prog, vers, m.Netid); !errors.Is(err, ErrNotRegistered) {
			t.Errorf("GETADDR after UNSET: %v, %v", at, err)
		}
	}
}
