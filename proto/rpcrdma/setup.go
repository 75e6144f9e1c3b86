package rpcrdma

import (
	"encoding/binary"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The setup message exchanges properties in the private data of the connection setup, after the message of RFC 8797.
// Peers that both know it begin with version 2 and its properties, without a message for that. docs/protocol.md, At
// setup.
const (
	SetupID   = 0x8d52a04b // RDMA_PROP_CM_FORMAT, the format identifier
	SetupSize = 24         // octets
)

// A Setup is a setup message. docs/protocol.md, At setup.
//
//	0    4        8                                  24
//	+----+--------+-----------------------------------+
//	| id | credit | RDMA_PROP_OFFER, RDMA_PROP_ACCEPT |
//	+----+--------+-----------------------------------+
type Setup struct {
	// Credit is how many calls the client would like to have in flight, or how many the server permits until its first
	// reply. It is not zero.
	Credit uint32

	Properties // an offer from the client, an acceptance from the server
}

// AppendSetup appends s, [SetupSize] octets. It panics if s is neither an offer nor an
// acceptance.
func AppendSetup(b []byte, s Setup) []byte {
	if s.Dir != PropOffer && s.Dir != PropAccept {
		panic("rpcrdma: a setup message is no " + s.Dir.String())
	}
	return AppendProperties(appendWords(b, SetupID, s.Credit), s.Properties)
}

// FindSetup searches for a setup message of kind dir anywhere in the private data that the connection manager
// delivered. Like [FindPrivateData], it permits other data before and after it. It skips messages that do not decode,
// have no credit or are of another kind.
func FindSetup(b []byte, dir PropDir) (s Setup, ok bool) {
	for ; len(b) >= SetupSize; b = b[1:] {
		if binary.BigEndian.Uint32(b) != SetupID {
			continue
		}
		p, err := ConsumeProperties(b[2*xdr.Unit : SetupSize])
		s := Setup{Credit: binary.BigEndian.Uint32(b[xdr.Unit:]), Properties: p}
		if err == nil && p.Dir == dir && s.Credit > 0 && s.Credit <= math.MaxInt32 {
			return s, true
		}
	}
	return Setup{}, false
}
