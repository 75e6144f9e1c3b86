package rpcbind

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Program is the program number of rpcbind, Port its port with both TCP and UDP. RFC 1833
// sections 2.1 and 3.1.
const (
	Program uint32 = 100000
	Port    int    = 111
)

// Versions of the protocol. RFC 1833 sections 2.1 and 3.1.
const (
	version4 uint32 = 4
	version3 uint32 = 3
	version2 uint32 = 2 // the port mapper
)

// A proc is a procedure. The numbers are the same in all versions. RFC 1833 sections 2.1 and
// 3.1.
type proc uint32

const (
	procSet     proc = 1 // RPCBPROC_SET, PMAPPROC_SET
	procUnset   proc = 2 // RPCBPROC_UNSET, PMAPPROC_UNSET
	procGetAddr proc = 3 // RPCBPROC_GETADDR, PMAPPROC_GETPORT
	procDump    proc = 4 // RPCBPROC_DUMP, PMAPPROC_DUMP
)

// String is the RFC's name in versions 3 and 4 without its prefix.
func (p proc) String() string {
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

// Limits. The RFC has none. In practice there are some dozens of mappings.
const (
	maxMappings = 4096    // in one DUMP
	maxString   = 256     // bytes of a netid, address or owner
	maxReply    = 1 << 20 // bytes
)

// Protocol numbers of the port mapper. RFC 1833 section 3.1.
const (
	protoTCP uint32 = 6
	protoUDP uint32 = 17
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
	b = xdr.AppendUint32(b, m.Prog)
	b = xdr.AppendUint32(b, m.Vers)
	b = xdr.AppendString(b, string(m.Netid))
	b = xdr.AppendString(b, m.Addr)
	return xdr.AppendString(b, m.Owner)
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

// An entry is a Mapping whose strings are views of the message.
//
//	0      4      8                                   RFC 1833 section 2.1
//	+------+------+---------+--------+---------+
//	| prog | vers | netid<> | addr<> | owner<> |
//	+------+------+---------+--------+---------+
type entry struct {
	prog, vers         uint32
	netid, addr, owner []byte
}

func (e *entry) decode(d *xdr.Decoder) {
	e.prog = d.Uint32()
	e.vers = d.Uint32()
	e.netid = d.Opaque(maxString)
	e.addr = d.Opaque(maxString)
	e.owner = d.Opaque(maxString)
}

func (e *entry) mapping() Mapping {
	return Mapping{e.prog, e.vers, Netid(e.netid), string(e.addr), string(e.owner)}
}

// A portEntry is a mapping of the port mapper.
//
//	0      4      8      12                           RFC 1833 section 3.1
//	+------+------+------+------+
//	| prog | vers | prot | port |
//	+------+------+------+------+
type portEntry struct{ prog, vers, prot, port uint32 }

func (e *portEntry) append(b []byte) []byte {
	for _, v := range [...]uint32{e.prog, e.vers, e.prot, e.port} {
		b = xdr.AppendUint32(b, v)
	}
	return b
}

func (e *portEntry) decode(d *xdr.Decoder) {
	e.prog = d.Uint32()
	e.vers = d.Uint32()
	e.prot = d.Uint32()
	e.port = decodePort(d)
}

// decodePort decodes a port, which is an unsigned int in the port mapper's protocol.
func decodePort(d *xdr.Decoder) uint32 {
	port := d.Uint32()
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
func each(d *xdr.Decoder, e interface{ decode(*xdr.Decoder) }, f func()) {
	for n := 0; d.Optional(); n++ {
		if n == maxMappings {
			d.Fail(fmt.Sprintf("list of over %d mappings", maxMappings))
			return
		}
		if e.decode(d); d.Err() == nil {
			f()
		}
	}
}
