// Package ddp encodes and decodes the two segment headers of Direct Data
// Placement over reliable transports, RFC 5041: the middle layer of iWARP.
//
// Decoders read from the front of a slice into the caller's struct; encoders append. Neither
// allocates or keeps references. A decoder returns either the header's length or an [Error].
package ddp

import (
	"encoding/binary"
	"strconv"
)

// Version is the DDP version of RFC 5041 section 4.
const Version = 1

// Header lengths in bytes. RFC 5041 sections 4.2 and 4.3.
const (
	TaggedLen   = 14
	UntaggedLen = 18
)

// Bits of the first byte. RFC 5041 section 4.1.
const (
	flagTagged  = 0x80 // T
	flagLast    = 0x40 // L
	maskVersion = 0x03 // DV; the four bits between are reserved
)

// Error is the reason why a header is invalid.
type Error uint8

const (
	ErrShort   Error = 1 + iota // the segment ends inside its header
	ErrVersion                  // DV is not Version
	ErrModel                    // tagged where untagged is required, or the reverse
)

func (e Error) Error() string {
	switch e {
	case ErrShort:
		return "ddp: segment ends inside its header"
	case ErrVersion:
		return "ddp: unknown version"
	case ErrModel:
		return "ddp: wrong buffer model"
	}
	return "ddp: error " + strconv.Itoa(int(e))
}

// A Tagged is the header of a tagged segment. RFC 5041 section 4.2.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-------+---+---------------+-------------------------------+
//	|T|L| Rsvd  |DV |   RsvdULP     |             STag              |
//	|1| |       |   |               |                               |
//	+-+-+-------+---+---------------+-------------------------------+
//	|             STag (cont)       |              TO               |
//	+-------------------------------+                               +
//	|                              TO (cont)                        |
//	+                               +-------------------------------+
//	|                               |
//	+-------------------------------+
type Tagged struct {
	Last bool   // L: the last segment of its message
	ULP  uint8  // RsvdULP: opaque to DDP, for the upper layer
	STag uint32 // the buffer
	TO   uint64 // offset in the buffer for the payload
}

// An Untagged is the header of an untagged segment. RFC 5041 section 4.3.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-------+---+---------------+-------------------------------+
//	|T|L| Rsvd  |DV |   RsvdULP     |         RsvdULP (32)          |
//	|0| |       |   |               |                               |
//	+-+-+-------+---+---------------+-------------------------------+
//	|         RsvdULP (cont)        |              QN               |
//	+-------------------------------+-------------------------------+
//	|           QN (cont)           |              MSN              |
//	+-------------------------------+-------------------------------+
//	|           MSN (cont)          |              MO               |
//	+-------------------------------+-------------------------------+
//	|           MO (cont)           |
//	+-------------------------------+
type Untagged struct {
	Last  bool   // L: the last segment of its message
	ULP   uint8  // the first eight bits of RsvdULP
	ULP32 uint32 // the other 32 bits of RsvdULP
	QN    uint32 // queue number
	MSN   uint32 // message sequence number, from 1 on each queue
	MO    uint32 // offset in the message of the payload
}

// IsTagged reports whether the segment that begins with b is tagged.
// b must not be empty.
func IsTagged(b []byte) bool { return b[0]&flagTagged != 0 }

// AppendTagged appends the header.
func AppendTagged(b []byte, h *Tagged) []byte {
	b = append(b, flagTagged|last(h.Last)|Version, h.ULP)
	b = binary.BigEndian.AppendUint32(b, h.STag)
	return binary.BigEndian.AppendUint64(b, h.TO)
}

// ConsumeTagged reads the header of a tagged segment. With ErrVersion it stores the header nevertheless, so that a
// Terminate message can quote it.
func ConsumeTagged(b []byte, h *Tagged) (n int, err error) {
	*h = Tagged{}
	if len(b) < 1 {
		return 0, ErrShort
	}
	if !IsTagged(b) {
		return 0, ErrModel
	}
	if len(b) < TaggedLen {
		return 0, ErrShort
	}
	h.Last = b[0]&flagLast != 0
	h.ULP = b[1]
	h.STag = binary.BigEndian.Uint32(b[2:])
	h.TO = binary.BigEndian.Uint64(b[6:])
	if b[0]&maskVersion != Version {
		return 0, ErrVersion
	}
	return TaggedLen, nil
}

// AppendUntagged appends the header.
func AppendUntagged(b []byte, h *Untagged) []byte {
	b = append(b, last(h.Last)|Version, h.ULP)
	b = binary.BigEndian.AppendUint32(b, h.ULP32)
	b = binary.BigEndian.AppendUint32(b, h.QN)
	b = binary.BigEndian.AppendUint32(b, h.MSN)
	return binary.BigEndian.AppendUint32(b, h.MO)
}

// ConsumeUntagged reads the header of an untagged segment. With ErrVersion it stores the header nevertheless, so that a
// Terminate message can quote it.
func ConsumeUntagged(b []byte, h *Untagged) (n int, err error) {
	*h = Untagged{}
	if len(b) < 1 {
		return 0, ErrShort
	}
	if IsTagged(b) {
		return 0, ErrModel
	}
	if len(b) < UntaggedLen {
		return 0, ErrShort
	}
	h.Last = b[0]&flagLast != 0
	h.ULP = b[1]
	h.ULP32 = binary.BigEndian.Uint32(b[2:])
	h.QN = binary.BigEndian.Uint32(b[6:])
	h.MSN = binary.BigEndian.Uint32(b[10:])
	h.MO = binary.BigEndian.Uint32(b[14:])
	if b[0]&maskVersion != Version {
		return 0, ErrVersion
	}
	return UntaggedLen, nil
}

func last(on bool) byte {
	if on {
		return flagLast
	}
	return 0
}

// An ErrorType is the error type of layer DDP in a Terminate message.
// RFC 5041 section 8.2.
type ErrorType uint8

const (
	TypeCatastrophic ErrorType = 0x0 // local catastrophic
	TypeTagged       ErrorType = 0x1 // tagged buffer error
	TypeUntagged     ErrorType = 0x2 // untagged buffer error
	TypeLLP          ErrorType = 0x3 // reserved for the layer below
)

// String returns the RFC's wording.
func (t ErrorType) String() string {
	switch t {
	case TypeCatastrophic:
		return "Local Catastrophic"
	case TypeTagged:
		return "Tagged Buffer Error"
	case TypeUntagged:
		return "Untagged Buffer Error"
	case TypeLLP:
		return "Reserved for the use by the LLP"
	}
	return "DDP error type " + strconv.Itoa(int(t))
}

// Error codes of TypeTagged. RFC 5041 section 8.2.
const (
	TaggedInvalidSTag   = 0x00
	TaggedBaseBounds    = 0x01
	TaggedNotAssociated = 0x02 // STag not associated with the DDP stream
	TaggedTOWrap        = 0x03
	TaggedVersion       = 0x04
)

// Error codes of TypeUntagged. RFC 5041 section 8.2.
const (
	UntaggedInvalidQN  = 0x01
	UntaggedNoBuffer   = 0x02 // invalid MSN: no buffer available
	UntaggedMSNRange   = 0x03 // invalid MSN: range is not valid
	UntaggedInvalidMO  = 0x04
	UntaggedMsgTooLong = 0x05
	UntaggedBadVersion = 0x06
)

// CodeString returns the RFC's wording for an error code of type t.
func CodeString(t ErrorType, code uint8) string {
	var names []string
	switch t {
	case TypeTagged:
		names = taggedNames[:]
	case TypeUntagged:
		names = untaggedNames[:]
	}
	if int(code) < len(names) && names[code] != "" {
		return names[code]
	}
	return "code " + strconv.Itoa(int(code))
}

var taggedNames = [...]string{
	TaggedInvalidSTag:   "Invalid STag",
	TaggedBaseBounds:    "Base or bounds violation",
	TaggedNotAssociated: "STag not associated with DDP Stream",
	TaggedTOWrap:        "TO wrap",
	TaggedVersion:       "Invalid DDP version",
}

var untaggedNames = [...]string{
	UntaggedInvalidQN:  "Invalid QN",
	UntaggedNoBuffer:   "Invalid MSN - no buffer available",
	UntaggedMSNRange:   "Invalid MSN - MSN range is not valid",
	UntaggedInvalidMO:  "Invalid MO",
	UntaggedMsgTooLong: "DDP Message too long for available buffer",
	UntaggedBadVersion: "Invalid DDP version",
}
