package rpcrdma

import "encoding/binary"

// Private data, RFC 8797 section 4. Both peers send it when they connect:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                       format identifier                       |
//	+---------------+-------------+-+---------------+---------------+
//	|    version    |   reserved  |R|   send size   |  receive size |
//	+---------------+-------------+-+---------------+---------------+
const (
	PrivateDataSize    = 8          // octets, section 4
	PrivateDataID      = 0xf6ab0e18 // format identifier, sections 4 and 8
	PrivateDataVersion = 1          // version, section 4

	privFlagR = 0x01 // least significant bit of octet 5, section 4.1

	// MinInline and MaxInline are the smallest and largest inline threshold, in bytes, that a size field can express,
	// and InlineUnit is their step. Section 4.2.
	MinInline  = 1024
	MaxInline  = 262144
	InlineUnit = 1024
)

// A PrivateData describes one end of a connection, for the life of that connection. RFC 8797
// section 4.
type PrivateData struct {
	// RemoteInvalidation is set by a peer that supports remote invalidation of all its
	// handles. Replies may be sent with invalidation only if both peers set it. Section 4.1.
	RemoteInvalidation bool

	SendSize int // largest message that this peer will Send, in bytes, section 4.2
	RecvSize int // largest message that this peer can receive, in bytes, section 4.2
}

// DefaultPrivateData is assumed for a peer that sent none: no remote invalidation, 1024 bytes
// each way. RFC 8797 section 5.1.
func DefaultPrivateData() PrivateData {
	return PrivateData{SendSize: DefaultInline, RecvSize: DefaultInline}
}

// AppendPrivateData appends the encoding of p, [PrivateDataSize] octets. It rounds sizes down to a multiple of
// [InlineUnit] and clamps them to [MinInline] and [MaxInline], because the fields cannot express others.
func AppendPrivateData(b []byte, p PrivateData) []byte {
	var flags byte
	if p.RemoteInvalidation {
		flags |= privFlagR
	}
	b = binary.BigEndian.AppendUint32(b, PrivateDataID)
	return append(b, PrivateDataVersion, flags, encodeSize(p.SendSize), encodeSize(p.RecvSize))
}

// FindPrivateData searches for private data of this protocol anywhere in what the connection manager delivered: at any
// offset, since other layers may prepend their own, and followed by any octets (RFC 8797 section 5.2). It skips a
// format identifier that is not followed by a complete message of a known version. Reserved bits are ignored.
//
// If none exists, it returns [DefaultPrivateData] and false.
func FindPrivateData(b []byte) (PrivateData, bool) {
	for ; len(b) >= PrivateDataSize; b = b[1:] {
		if binary.BigEndian.Uint32(b) != PrivateDataID || b[4] != PrivateDataVersion {
			continue
		}
		return PrivateData{
			RemoteInvalidation: b[5]&privFlagR != 0,
			SendSize:           decodeSize(b[6]),
			RecvSize:           decodeSize(b[7]),
		}, true
	}
	return DefaultPrivateData(), false
}

// SendInline returns the inline threshold, in bytes, for messages from the peer described by p to the one described by
// to: the smaller of what the former sends and the latter receives. client.SendInline(server) limits a client's calls
// and its replies to backward calls, and server.SendInline(client) those of a server. RFC 8797 section 4.2.
func (p PrivateData) SendInline(to PrivateData) int { return min(p.SendSize, to.RecvSize) }

func encodeSize(size int) byte {
	return byte(min(max(size, MinInline), MaxInline)/InlineUnit - 1)
}

func decodeSize(v byte) int { return (int(v) + 1) * InlineUnit }
