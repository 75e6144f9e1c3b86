package rpcbind

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -types -o rpcbind_xdr.go rpcbind.x

// Port is the port of rpcbind with both TCP and UDP. RFC 1833 sections 2.1 and 3.1.
const Port int = 111

// procName is the RFC's name of a procedure in versions 3 and 4 without its prefix. The numbers
// are the same in all versions.
func procName(p uint32) string {
	switch p {
	case procSet:
		return "SET"
	case procUnset:
		return "UNSET"
	case procGetAddr:
		return "GETADDR"
	case procDump:
		return "DUMP"
	}
	return "PROC(" + strconv.FormatUint(uint64(p), 10) + ")"
}

// Limits, beside maxString. The RFC has none. In practice there are some dozens of mappings.
const (
	maxMappings = 4096    // in one DUMP
	maxReply    = 1 << 20 // bytes
)

// portmapProto returns the port mapper's protocol number of a netid, or false if it has none.
func portmapProto(n Netid) (uint32, bool) {
	switch n {
	case TCP:
		return protoTCP, true
	case UDP:
		return protoUDP, true
	}
	return 0, false
}

// A Mapping is the address of a version of a program. RFC 1833 section 2.1, rpcb.
type Mapping struct {
	Prog, Vers uint32
	Netid      Netid

	// Addr is a universal address. For the netids that this package defines it is one that
	// ParseAddr accepts; other netids have other formats.
	Addr string

	// Owner is the owner of the registration. Most rpcbinds determine it themselves and ignore
	// the caller's value. The port mapper does not return it.
	Owner string
}

func (m *Mapping) append(b []byte) []byte {
	e := entry{m.Prog, m.Vers, []byte(m.Netid), []byte(m.Addr), []byte(m.Owner)}
	return e.Append(b)
}

// check reports why m cannot be registered.
func (m *Mapping) check() error {
	fail := func(what string) error { return &AddrError{Netid: m.Netid, Addr: m.Addr, What: what} }
	switch {
	case max(len(m.Netid), len(m.Addr), len(m.Owner)) > maxString:
		return fail(fmt.Sprintf("a netid, address or owner is over %d bytes", maxString))
	// "Note that neither "r_netid" nor "r_addr" can be NULL". RFC 1833 section 2.2.1.
	case m.Netid == "" || m.Addr == "":
		return fail("a mapping needs both a netid and an address")
	case m.Netid.family() != 0:
		_, err := parseFor(m.Netid, m.Addr)
		return err
	}
	return nil
}

func (e *entry) mapping() Mapping {
	return Mapping{e.prog, e.vers, Netid(e.netid), string(e.addr), string(e.owner)}
}

// A portEntry is a mapping of the port mapper that has its port checked.
type portEntry struct{ portMapping }

// Decode decodes e and leaves its error in d.
func (e *portEntry) Decode(d *xdr.Decoder) {
	e.portMapping.Decode(d)
	e.port = checkPort(d, e.port)
}

// checkPort fails unless port, which has just been decoded, is one: the port mapper's protocol has
// it as an unsigned int. It returns the port, or 0.
func checkPort(d *xdr.Decoder, port uint32) uint32 {
	if port > 65535 {
		d.Fail("port " + strconv.FormatUint(uint64(port), 10))
		return 0
	}
	return port
}

// mapping converts e. The port mapper has no addresses, so it is the unspecified one. For a
// protocol that is neither TCP nor UDP the netid is the number.
func (e *portEntry) mapping() Mapping {
	m := Mapping{Prog: e.prog, Vers: e.vers}
	switch e.prot {
	case protoTCP:
		m.Netid = TCP
	case protoUDP:
		m.Netid = UDP
	default:
		m.Netid = Netid(strconv.FormatUint(uint64(e.prot), 10))
	}
	m.Addr = FormatAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(e.port)))
	return m
}

// each decodes a list of optional-data and calls f after each element. RFC 1833 sections 2.1
// and 3.1, rp__list and pmaplist.
func each(d *xdr.Decoder, e interface{ Decode(*xdr.Decoder) }, f func()) {
	for n := 0; d.Optional(); n++ {
		if n == maxMappings {
			d.Fail(fmt.Sprintf("list of over %d mappings", maxMappings))
			return
		}
		if e.Decode(d); d.Err() == nil {
			f()
		}
	}
}
