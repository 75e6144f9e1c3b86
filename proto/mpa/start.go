package mpa

import (
	"encoding/binary"
	"strconv"
)

const (
	// StartLen is the length of a start-up frame without its private data.
	// RFC 5044 section 7.1.1.
	StartLen = 20

	// MaxPrivateData is the longest private data of a start-up frame, enhanced data included.
	// RFC 5044 section 7.1.1.
	MaxPrivateData = 512

	// MaxRevision is the newest revision: 1 is RFC 5044, 2 is RFC 6581
	// section 6. Revision 0 is the RDMA Consortium's draft, with the same
	// frame.
	MaxRevision = 2

	keyLen = 16
)

// The two keys of RFC 5044 section 7.1.1.
const (
	reqKey = "MPA ID Req Frame"
	repKey = "MPA ID Rep Frame"
)

// A Kind distinguishes requests from replies.
type Kind uint8

const (
	Request Kind = 1 + iota
	Reply
)

func (k Kind) String() string {
	switch k {
	case Request:
		return "MPA Request Frame"
	case Reply:
		return "MPA Reply Frame"
	}
	return "MPA frame " + strconv.Itoa(int(k))
}

// Flags are the bits before the revision. RFC 5044 section 7.1.1; the S bit is RFC 6581 section 6. The other bits are
// reserved: they are sent as zero and ignored when received.
type Flags uint8

const (
	FlagMarkers  Flags = 0x80 // M: the sender wants to receive markers
	FlagCRC      Flags = 0x40 // C: CRCs are generated and checked both ways
	FlagReject   Flags = 0x20 // R: the reply declines the connection
	FlagEnhanced Flags = 0x10 // S: private data begins with enhanced data

	flagsKnown = FlagMarkers | FlagCRC | FlagReject | FlagEnhanced
)

func (f Flags) String() string {
	var b [8]byte
	s := b[:0]
	for i, c := range "MCRS" {
		if f&(FlagMarkers>>i) != 0 {
			s = append(s, byte(c))
		}
	}
	if rest := f &^ flagsKnown; rest != 0 {
		s = append(s, '+')
		s = strconv.AppendUint(s, uint64(rest), 16)
	}
	if len(s) == 0 {
		return "-"
	}
	return string(s)
}

// A Start is an MPA Request Frame or an MPA Reply Frame up to its private data.
// RFC 5044 section 7.1.1, with the S bit of RFC 6581 section 6.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|  Key: "MPA ID Req Frame" or "MPA ID Rep Frame" (16 bytes)     |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S| Res   |     Rev       |          PD_Length            |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|           Private Data (PD_Length bytes) ...                  |
type Start struct {
	Kind     Kind
	Flags    Flags
	Revision uint8
	PDLength int // bytes of private data that follow, at most MaxPrivateData
}

// AppendStart appends the frame without its private data. It panics if s.Kind is unknown or
// s.PDLength is out of range.
func AppendStart(b []byte, s *Start) []byte {
	switch s.Kind {
	case Request:
		b = append(b, reqKey...)
	case Reply:
		b = append(b, repKey...)
	default:
		panic("mpa: start-up frame is neither request nor reply")
	}
	if s.PDLength < 0 || s.PDLength > MaxPrivateData {
		panic("mpa: private data of " + strconv.Itoa(s.PDLength) + " bytes")
	}
	b = append(b, byte(s.Flags), s.Revision)
	return binary.BigEndian.AppendUint16(b, uint16(s.PDLength))
}

// ConsumeStart reads the frame up to its private data and returns its length, StartLen. With ErrRevision and
// ErrPrivateDataLen it stores the frame in s nevertheless, so that the caller can answer it.
func ConsumeStart(b []byte, s *Start) (n int, err error) {
	*s = Start{}
	// Report a wrong key at the first byte that differs: a peer that does not speak MPA may never send a whole frame.
	k := min(len(b), keyLen)
	isReq, isRep := string(b[:k]) == reqKey[:k], string(b[:k]) == repKey[:k]
	if !isReq && !isRep {
		return 0, ErrKey
	}
	if len(b) < StartLen {
		return 0, ErrShort
	}
	s.Kind = Request
	if isRep {
		s.Kind = Reply
	}
	s.Flags = Flags(b[keyLen])
	s.Revision = b[keyLen+1]
	s.PDLength = int(binary.BigEndian.Uint16(b[keyLen+2:]))
	if s.Revision > MaxRevision {
		return 0, ErrRevision
	}
	if s.PDLength > MaxPrivateData {
		return 0, ErrPrivateDataLen
	}
	if s.Revision >= 2 && s.Flags&FlagEnhanced != 0 && s.PDLength < EnhancedLen {
		return 0, ErrPrivateDataLen
	}
	return StartLen, nil
}

const (
	// EnhancedLen is the length of the enhanced connection data before the private data. RFC
	// 6581 section 9.
	EnhancedLen = 4

	// MaxReads is the largest IRD or ORD that the field can express.
	MaxReads = 0x3ffe

	// ReadsUnknown in the IRD or ORD field means that the sender leaves the number to the upper layer. RFC 6581 section
	// 9.
	ReadsUnknown = 0x3fff
)

// Enhanced is the enhanced RDMA connection establishment data, which precedes the private
// data: RFC 6581 section 9.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+---------------------------+-+-+---------------------------+
//	|A|B|        IRD (14)           |C|D|        ORD (14)           |
//	+-+-+---------------------------+-+-+---------------------------+
type Enhanced struct {
	PeerToPeer bool // A: the initiator will send a Ready To Receive frame
	RTRSend    bool // B: as a zero-length FULPDU
	RTRWrite   bool // C: as a zero-length RDMA Write
	RTRRead    bool // D: as a zero-length RDMA Read

	IRD uint16 // RDMA Reads that the sender serves concurrently
	ORD uint16 // RDMA Reads that the sender wants to have outstanding
}

// AppendEnhanced appends the four bytes. IRD and ORD must fit 14 bits.
func AppendEnhanced(b []byte, e *Enhanced) []byte {
	if e.IRD > ReadsUnknown || e.ORD > ReadsUnknown {
		panic("mpa: IRD or ORD exceeds 14 bits")
	}
	b = binary.BigEndian.AppendUint16(b, bit(e.PeerToPeer, 0x8000)|bit(e.RTRSend, 0x4000)|e.IRD)
	return binary.BigEndian.AppendUint16(b, bit(e.RTRWrite, 0x8000)|bit(e.RTRRead, 0x4000)|e.ORD)
}

// ConsumeEnhanced reads the four bytes.
func ConsumeEnhanced(b []byte, e *Enhanced) (n int, err error) {
	*e = Enhanced{}
	if len(b) < EnhancedLen {
		return 0, ErrShort
	}
	i, o := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	e.PeerToPeer, e.RTRSend, e.IRD = i&0x8000 != 0, i&0x4000 != 0, i&0x3fff
	e.RTRWrite, e.RTRRead, e.ORD = o&0x8000 != 0, o&0x4000 != 0, o&0x3fff
	return EnhancedLen, nil
}

func bit(on bool, v uint16) uint16 {
	if on {
		return v
	}
	return 0
}
