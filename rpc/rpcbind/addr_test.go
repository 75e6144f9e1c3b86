package rpcbind

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// goodAddrs are universal addresses in the form that FormatAddr gives them. The
// formats are those of RFC 5665 sections 5.2.3.3 and 5.2.3.4, the port that of NFS
// over RDMA (RFC 5666 section 12) or rpcbind's own (RFC 1833 section 3.1), the hosts
// are from RFC 5737, RFC 3849 and RFC 4291 section 2.2. Immutable.
var goodAddrs = map[string]string{
	"192.0.2.1.78.81":                    "192.0.2.1:20049",
	"0.0.0.0.0.111":                      "0.0.0.0:111",
	"255.255.255.255.255.255":            "255.255.255.255:65535",
	"127.0.0.1.0.0":                      "127.0.0.1:0",
	"::.0.111":                           "[::]:111",
	"::1.78.81":                          "[::1]:20049",
	"2001:db8::8:800:200c:417a.8.1":      "[2001:db8::8:800:200c:417a]:2049",
	"ff01::101.78.81":                    "[ff01::101]:20049",
	"2001:db8:1:2:3:4:5:6.255.0":         "[2001:db8:1:2:3:4:5:6]:65280",
	"fe80::20c:29ff:fe0c:47d5.78.81":     "[fe80::20c:29ff:fe0c:47d5]:20049",
	"abcd:ef01:2345:6789:abcd:0:1:1.0.1": "[abcd:ef01:2345:6789:abcd:0:1:1]:1",
}

func TestAddr(t *testing.T) {
	t.Run("CTX-1833-1 parse and format", func(t *testing.T) {
		for uaddr, want := range goodAddrs {
			got, err := ParseAddr(uaddr)
			if err != nil || got.String() != want {
				t.Errorf("ParseAddr(%q): %v, %v, want %s", uaddr, got, err, want)
			}
			if back := FormatAddr(netip.MustParseAddrPort(want)); back != uaddr {
				t.Errorf("FormatAddr(%s): %q, want %q", want, back, uaddr)
			}
		}
	})
	t.Run("other spellings of IPv6", func(t *testing.T) {
		for uaddr, want := range map[string]string{
			"0:0:0:0:0:0:0:1.78.81":                    "[::1]:20049",
			"2001:DB8::1.78.81":                        "[2001:db8::1]:20049",
			"::ffff:192.0.2.1.78.81":                   "[::ffff:192.0.2.1]:20049",
			"::13.1.68.3.0.111":                        "[::d01:4403]:111",
			"2001:0db8:0000:0000:0000:0000:0000:1.0.1": "[2001:db8::1]:1",
		} {
			if got, err := ParseAddr(uaddr); err != nil || got.String() != want {
				t.Errorf("ParseAddr(%q): %v, %v, want %s", uaddr, got, err, want)
			}
		}
	})
	t.Run("what is none", func(t *testing.T) {
		for _, uaddr := range []string{
			"", ".", "..", "...", "1.2", "78.81", ".78.81", "192.0.2.1", "192.0.2.78.81", "192.0.2.1.78", "192.0.2.1.78.",
			"192.0.2.1..81", "192.0.2.1.256.0", "192.0.2.1.0.256", "192.0.2.1.-1.0", "192.0.2.1.+1.0", "192.0.2.1.00.1",
			"192.0.2.1.078.81", "192.0.2.1.0x4e.81", "192.0.2.1. 78.81", "192.0.2.1.78.81 ", " 192.0.2.1.78.81", "192.0.2.1.78.81\n",
			"192.0.2.1.78.81\x00", "192.0.2.256.78.81", "192.0.02.1.78.81", "1.192.0.2.1.78.81", "192.0.2.1.78.٨١",
			"[::1].78.81", "::1:78.81", "::1", ":::.0.1", "fe80::1%eth0.78.81", "fe80::1%.78.81", "1:2:3:4:5:6:7.0.1", "1:2:3:4:5:6:7:8:9.0.1",
			"host.example.78.81", "/run/rpcbind.sock", strings.Repeat("1.", 200) + "1", strings.Repeat(":", 256) + ".1.1",
		} {
			got, err := ParseAddr(uaddr)
			var ae *AddrError
			if !errors.As(err, &ae) || ae.Addr != uaddr || got.IsValid() {
				t.Errorf("ParseAddr(%q): %v, %v", uaddr, got, err)
			}
		}
	})
	t.Run("format", func(t *testing.T) {
		if got := FormatAddr(netip.AddrPort{}); got != "" {
			t.Errorf("no address is %q", got)
		}
		if got := FormatAddr(netip.MustParseAddrPort("[::ffff:192.0.2.1]:111")); got != "192.0.2.1.0.111" {
			t.Errorf("as net.TCPAddr has it: %q", got)
		}
		if got := FormatAddr(netip.MustParseAddrPort("[fe80::1%eth0]:111")); got != "fe80::1.0.111" {
			t.Errorf("with a zone: %q", got)
		}
	})
	t.Run("netids", func(t *testing.T) {
		for netid, family := range map[Netid]int{TCP: 4, UDP: 4, RDMA: 4, TCP6: 6, UDP6: 6, RDMA6: 6, "local": 0, "": 0} {
			if got := netid.family(); got != family {
				t.Errorf("%q is of IP version %d", netid, got)
			}
		}
		for addr, want := range map[string]Netid{"192.0.2.1": RDMA, "::1": RDMA6, "::ffff:192.0.2.1": RDMA} {
			for _, netid := range []Netid{RDMA, RDMA6} {
				if got := netid.For(netip.MustParseAddr(addr)); got != want {
					t.Errorf("%s for %s is %s", netid, addr, got)
				}
			}
		}
	})
}

// A parsed address formats to a string that parses to the same address.
func FuzzParseAddr(f *testing.F) {
	for uaddr := range goodAddrs {
		f.Add(uaddr)
	}
	f.Add("fe80::1%eth0.78.81")
	f.Add("::ffff:192.0.2.1.78.81")
	f.Add("192.0.2.1.078.81")
	f.Fuzz(func(t *testing.T, uaddr string) {
		a, err := ParseAddr(uaddr)
		if (err == nil) != a.IsValid() {
			t.Fatalf("%q: %v, %v", uaddr, a, err)
		}
		if err != nil {
			return
		}
		back, err := ParseAddr(FormatAddr(a))
		if err != nil || back != netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) {
			t.Errorf("%q: %v becomes %q, and that %v, %v", uaddr, a, FormatAddr(a), back, err)
		}
	})
}

func TestParseAddrAllocs(t *testing.T) {
	for uaddr := range goodAddrs {
		if n := testing.AllocsPerRun(100, func() { ParseAddr(uaddr) }); n != 0 {
			t.Errorf("ParseAddr(%q) allocates %v times", uaddr, n)
		}
	}
}
