package middleware

import (
	"net/netip"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func TestAllow(t *testing.T) {
	none := oncrpc.Auth{}
	gss := oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: []byte{1, 2, 3, 4}}
	cut := user(1, 1)
	cut.Body = cut.Body[:9]
	trailing := user(1, 1)
	trailing.Body = append(trailing.Body, 0, 0, 0, 0)
	const here, ok, weak, bad = "10.1.2.3:700", oncrpc.AuthOK, oncrpc.AuthTooWeak, oncrpc.AuthBadCred
	lan := Access{From: prefixes("10.1.0.0/16", "2001:db8::/32", "192.168.7.7/32")}
	ids := Access{UIDs: []uint32{0, 5}, GIDs: []uint32{50}}
	for _, tt := range []struct {
		name string
		a    Access
		addr string
		cred oncrpc.Auth
		want oncrpc.AuthStat
	}{
		{"the zero value: AUTH_SYS", Access{}, here, user(1, 1), ok},
		{"the zero value: AUTH_NONE", Access{}, here, none, weak},
		{"the zero value: RPCSEC_GSS", Access{}, here, gss, weak},
		{"the zero value: no address", Access{}, "somewhere", user(1, 1), ok},
		{"a body cut short", Access{}, here, cut, bad},
		{"bytes behind the body", Access{}, here, trailing, bad},
		{"AUTH_NONE", Access{None: true}, here, none, ok},
		{"AUTH_NONE, but users", Access{None: true, UIDs: []uint32{0}}, here, none, weak},
		{"AUTH_NONE, but groups", Access{None: true, GIDs: []uint32{0}}, here, none, weak},
		{"another flavor", Access{Others: []oncrpc.Flavor{oncrpc.FlavorGSS}}, here, gss, ok},
		{"another flavor, elsewhere", Access{Others: []oncrpc.Flavor{oncrpc.FlavorGSS}, From: prefixes("10.2.0.0/16")}, here, gss, weak},

		{"within", lan, "10.1.255.255:1", user(1, 1), ok},
		{"beside", lan, "10.2.0.0:1", user(1, 1), weak},
		{"within IPv6", lan, "[2001:db8:ffff::1]:1", user(1, 1), ok},
		{"within IPv6, with a zone", lan, "[2001:db8::1%eth0]:1", user(1, 1), ok},
		{"beside IPv6", lan, "[2001:db9::1]:1", user(1, 1), weak},
		{"IPv4 in IPv6", lan, "[::ffff:10.1.0.9]:1", user(1, 1), ok},
		{"one address", lan, "192.168.7.7:1", user(1, 1), ok},
		{"its neighbour", lan, "192.168.7.6:1", user(1, 1), weak},
		{"no address", lan, "somewhere", user(1, 1), weak},
		{"a prefix with host bits", Access{From: []netip.Prefix{netip.MustParsePrefix("10.1.9.9/16")}}, here, user(1, 1), ok},
		{"a prefix of IPv4 in IPv6", Access{From: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("::ffff:10.1.0.0"), 112)}}, here, user(1, 1), ok},
		{"a prefix that is none", Access{From: []netip.Prefix{{}}}, here, user(1, 1), weak},
		{"all of IPv4", Access{From: prefixes("0.0.0.0/0")}, here, user(1, 1), ok},
		{"all of IPv4, not IPv6", Access{From: prefixes("0.0.0.0/0")}, "[::1]:1", user(1, 1), weak},
		{"an empty list", Access{From: prefixes()}, here, user(1, 1), weak},

		{"a user", ids, here, user(5, 1), ok},
		{"root", ids, here, user(0, 0), ok},
		{"another user", ids, here, user(6, 0), weak},
		{"by its group", ids, here, user(6, 50), ok},
		{"by another of its groups", ids, here, user(6, 1, 2, 3, 50), ok},
		{"by none of its groups", ids, here, user(50, 5, 0, 5), weak},
		{"an empty list of users", Access{UIDs: []uint32{}}, here, user(0, 0), weak},
		{"an empty list of groups", Access{GIDs: []uint32{}}, here, user(0, 0), weak},

		{"a reserved port", Access{ReservedPorts: true}, "10.0.0.9:1023", user(1, 1), ok},
		{"another port", Access{ReservedPorts: true}, "10.0.0.9:1024", user(1, 1), weak},
		{"no port", Access{ReservedPorts: true}, "10.0.0.9:0", user(1, 1), weak},
		{"nowhere", Access{ReservedPorts: true}, "somewhere", user(1, 1), weak},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := program(nothing)
			asked.Auth = Allow(tt.a)
			wrapped := program(nothing)
			wrapped.Handler = rpc.Chain(wrapped.Handler, Require(Allow(tt.a)))
			for _, p := range []rpc.Program{asked, wrapped} {
				r, stop := newRig(t, nil, p)
				cl := r.from(tt.addr)
				if got := call(cl, 1, tt.cred); got != error(tt.want) && !(got == nil && tt.want == ok) {
					t.Errorf("%v, want %v", got, tt.want)
				}
				if got := call(cl, 0, none); got != nil {
					t.Errorf("procedure 0: %v", got)
				}
				cl.Close()
				stop()
			}
		})
	}
	t.Run("procedure 0", func(t *testing.T) {
		p := program(nothing)
		p.Auth = Allow(Access{Null: true})
		r, stop := newRig(t, nil, p)
		defer stop()
		cl := r.from(here)
		defer cl.Close()
		if got := call(cl, 0, none); got != weak {
			t.Error(got)
		}
		if got := call(cl, 0, user(1, 1)); got != nil {
			t.Error(got)
		}
	})
}

// FuzzPrefixSet compares a set with the list that it was made of.
func FuzzPrefixSet(f *testing.F) {
	f.Add([]byte{10, 1, 0, 0}, uint8(16), []byte{10, 1, 2, 3}, uint8(32), []byte{10, 1, 9, 9})
	f.Add([]byte{10, 1, 0, 0}, uint8(0), []byte{10, 1, 2, 3}, uint8(33), []byte{200, 1, 9, 9})
	six := func(s string) []byte { return netip.MustParseAddr(s).AsSlice() }
	f.Add(six("2001:db8::"), uint8(32), six("::ffff:1.2.3.4"), uint8(120), []byte{1, 2, 3, 77})
	f.Add(six("fe80::"), uint8(128), six("::"), uint8(96), []byte{1, 2, 3, 77})
	f.Fuzz(func(t *testing.T, a []byte, abits uint8, b []byte, bbits uint8, c []byte) {
		var list []netip.Prefix
		for _, p := range []struct {
			addr []byte
			bits uint8
		}{{a, abits}, {b, bbits}} {
			addr, _ := netip.AddrFromSlice(p.addr)
			list = append(list, netip.PrefixFrom(addr, int(p.bits)))
		}
		addr, ok := netip.AddrFromSlice(c)
		if !ok {
			return
		}
		addr = addr.Unmap()
		want := false
		for _, p := range list {
			want = want || p.Contains(addr) ||
				p.IsValid() && p.Addr().Is4In6() && p.Bits() >= 96 && netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Contains(addr)
		}
		if got := newPrefixSet(list).has(addr); got != want {
			t.Errorf("%v in %v: %v", addr, list, got)
		}
	})
}
