package middleware

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

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
	sys := Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorSys}}
	ids := Access{UIDs: []uint32{0, 5}, GIDs: []uint32{50}}
	for _, tt := range []struct {
		name string
		a    Access
		addr string
		cred oncrpc.Auth
		want oncrpc.AuthStat
	}{
		{"the zero value: AUTH_SYS", Access{}, here, user(1, 1), ok},
		{"the zero value: AUTH_NONE", Access{}, here, none, ok},
		{"the zero value: RPCSEC_GSS", Access{}, here, gss, ok},
		{"the zero value: no address", Access{}, "somewhere", user(1, 1), ok},
		{"the zero value: a body cut short", Access{}, here, cut, ok},

		{"AUTH_SYS required", sys, here, user(1, 1), ok},
		{"AUTH_SYS required: AUTH_NONE", sys, here, none, weak},
		{"AUTH_SYS required: RPCSEC_GSS", sys, here, gss, weak},
		{"AUTH_SYS required: a body cut short", sys, here, cut, bad},
		{"AUTH_SYS required: bytes behind the body", sys, here, trailing, bad},
		{"an empty list of flavors", Access{Flavors: []oncrpc.Flavor{}}, here, user(1, 1), weak},
		{"an empty list of flavors: AUTH_NONE", Access{Flavors: []oncrpc.Flavor{}}, here, none, weak},
		{"AUTH_NONE, but users", Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorNone, oncrpc.FlavorSys}, UIDs: []uint32{0}}, here, none, weak},
		{"AUTH_NONE, but groups", Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorNone, oncrpc.FlavorSys}, GIDs: []uint32{0}}, here, none, weak},
		{"another flavor", Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorGSS}}, here, gss, ok},
		{"another flavor, and users", Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorGSS}, UIDs: []uint32{5}}, here, gss, ok},
		{"another flavor, a user of AUTH_SYS", Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorGSS}, UIDs: []uint32{5}}, here, user(5, 1), weak},
		{"another flavor, elsewhere", Access{Flavors: []oncrpc.Flavor{oncrpc.FlavorGSS}, From: prefixes("10.2.0.0/16")}, here, gss, weak},

		{"within", lan, "10.1.255.255:1", user(1, 1), ok},
		{"within, AUTH_NONE", lan, "10.1.0.0:1", none, ok},
		{"within, RPCSEC_GSS", lan, "10.1.0.0:1", gss, ok},
		{"within, a body cut short", lan, "10.1.0.0:1", cut, ok},
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
		{"an empty list: AUTH_NONE", Access{From: prefixes()}, here, none, weak},

		{"a user", ids, here, user(5, 1), ok},
		{"root", ids, here, user(0, 0), ok},
		{"no user", ids, here, none, weak},
		{"RPCSEC_GSS, but users", ids, here, gss, weak},
		{"a user, cut short", ids, here, cut, bad},
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
		p.Auth = Allow(Access{Null: true, Flavors: []oncrpc.Flavor{oncrpc.FlavorSys}})
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

// TestRefusalsAreLogged: the first call of a host that a rule refuses has a record with the rule's name.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log records
		p := program(nothing)
		p.Auth = Allow(Access{From: prefixes("10.0.0.0/8"), ReservedPorts: true, UIDs: []uint32{7}, Logger: log.logger()})
		r, stop := newRig(t, nil, p)
		defer stop()
		cut := user(7, 1)
		cut.Body = cut.Body[:9]
		for _, tt := range []struct {
			addr string
			cred oncrpc.Auth
			want string // of the record: rule, status and flavor; "": none
		}{
			{"10.0.0.1:700", user(7, 1), ""},
			{"11.0.0.1:700", user(7, 1), "From AUTH_TOOWEAK AUTH_SYS 7"},
			{"11.0.0.1:701", user(7, 1), ""},
			{"11.0.0.2:700", oncrpc.Auth{}, "From AUTH_TOOWEAK AUTH_NONE <nil>"},
			{"10.0.0.1:7000", user(7, 1), "ReservedPorts AUTH_TOOWEAK AUTH_SYS 7"},
			{"10.0.0.1:700", user(8, 1), "UIDs, GIDs AUTH_TOOWEAK AUTH_SYS 8"},
			{"10.0.0.1:700", oncrpc.Auth{}, ""},
			{"10.0.0.1:700", cut, "malformed AUTH_SYS AUTH_BADCRED AUTH_SYS <nil>"},
			{"[2001:db8::1]:700", oncrpc.Auth{}, "From AUTH_TOOWEAK AUTH_NONE <nil>"},
			{"[2001:db8::2]:700", oncrpc.Auth{}, ""}, // a host may have all of its /64
		} {
			cl := r.from(tt.addr)
			for range 3 {
				call(cl, 1, tt.cred)
			}
			cl.Close()
			got := log.take(t)
			if tt.want == "" {
				if len(got) > 0 {
					t.Errorf("%s: %v", tt.addr, got)
				}
				continue
			}
			if len(got) != 1 {
				t.Fatalf("%s: %d records: %v", tt.addr, len(got), got)
			}
			rec := got[0]
			if s := fmt.Sprint(rec["rule"], " ", rec["status"], " ", rec["flavor"], " ", rec["uid"]); s != tt.want || rec["peer"] != tt.addr ||
				rec["msg"] != "call refused" || rec["level"] != "WARN" || rec["proc"] != "procedure 1 of program 0x20000088 v1" {
				t.Errorf("%s: %v, want %s", tt.addr, rec, tt.want)
			}
		}
	})
}

// TestRefusalsAreBounded: neither the log nor the memory of many hosts grows without limit.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRefusals(nil)
		host := func(i int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
		}
		records := 0
		for i := range 100 {
			if _, ok := f.first(host(i), ruleFrom); ok {
				records++
			}
		}
		if records != refusedRecords {
			t.Errorf("%d records at once", records)
		}
		time.Sleep(time.Second)
		if omitted, ok := f.first(host(50), ruleFrom); !ok || omitted != 90 {
			t.Errorf("a host without a record: %v, %d omitted", ok, omitted)
		}
		for i := range 3 * refusedHosts {
			time.Sleep(time.Second)
			if _, ok := f.first(host(1000+i), ruleFrom); !ok {
				t.Fatalf("no record of host %d", i)
			}
			if _, ok := f.first(host(1000+i), ruleFrom); ok {
				t.Fatalf("two records of host %d", i)
			}
			if len(f.hosts) > refusedHosts {
				t.Fatalf("%d hosts are remembered", len(f.hosts))
			}
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
