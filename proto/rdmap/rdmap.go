// Package rdmap encodes and decodes what the Remote Direct Memory Access
// Protocol of RFC 5040 adds to DDP segments: the control field, the RDMA Read
// Request header and the Terminate header. It is iWARP's upper layer.
//
// Decoders read from the front of a slice into the caller's struct; encoders append. Neither
// allocates or keeps references. A decoder returns either the number of bytes consumed or an
// [Error].
package rdmap

import (
	"encoding/binary"
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

// Version is the RDMAP version of RFC 5040 section 4.1.
const Version = 1

// Queue numbers of untagged messages. RFC 5040 section 4.1, figure 4.
const (
	QNSend      = 0 // all Send messages
	QNRead      = 1 // RDMA Read Request
	QNTerminate = 2 // Terminate
)

// An Opcode is the kind of an RDMAP message. RFC 5040 section 4.1, figure 4.
type Opcode uint8

const (
	OpWrite        Opcode = 0 // RDMA Write, tagged
	OpReadRequest  Opcode = 1 // RDMA Read Request, untagged on QNRead
	OpReadResponse Opcode = 2 // RDMA Read Response, tagged
	OpSend         Opcode = 3 // Send, untagged on QNSend
	OpSendInv      Opcode = 4 // Send with Invalidate
	OpSendSE       Opcode = 5 // Send with Solicited Event
	OpSendSEInv    Opcode = 6 // Send with Solicited Event and Invalidate
	OpTerminate    Opcode = 7 // Terminate, untagged on QNTerminate
)

// String returns the RFC's spelling.
func (o Opcode) String() string {
	switch o {
	case OpWrite:
		return "RDMA Write"
	case OpReadRequest:
		return "RDMA Read Request"
	case OpReadResponse:
		return "RDMA Read Response"
	case OpSend:
		return "Send"
	case OpSendInv:
		return "Send with Invalidate"
	case OpSendSE:
		return "Send with Solicited Event"
	case OpSendSEInv:
		return "Send with Solicited Event and Invalidate"
	case OpTerminate:
		return "Terminate"
	}
	return "OpCode " + strconv.Itoa(int(o))
}

// IsSend reports whether o is one of the four Send messages.
func (o Opcode) IsSend() bool { return o >= OpSend && o <= OpSendSEInv }

// Invalidates reports whether o carries an STag to invalidate.
func (o Opcode) Invalidates() bool { return o == OpSendInv || o == OpSendSEInv }

// Tagged reports whether o travels in tagged segments. Unknown opcodes do not.
func (o Opcode) Tagged() bool { return o == OpWrite || o == OpReadResponse }

// Error is the reason why a header is invalid.
type Error uint8

const (
	ErrShort   Error = 1 + iota // the message ends inside its header
	ErrVersion                  // RV is not Version
)

func (e Error) Error() string {
	switch e {
	case ErrShort:
		return "rdmap: message ends inside its header"
	case ErrVersion:
		return "rdmap: unknown version"
	}
	return "rdmap: error " + strconv.Itoa(int(e))
}

// Control returns the RDMAP control field, which is the ULP byte of the DDP
// header. RFC 5040 section 4.1.
//
//	 0 1 2 3 4 5 6 7
//	+---+---+-------+
//	|RV |Rsv| OpCode|
//	+---+---+-------+
func Control(op Opcode) uint8 { return Version<<6 | uint8(op)&0xf }

// ParseControl splits the control field. An unknown opcode is not an error: which opcodes are
// acceptable depends on the segment.
func ParseControl(c uint8) (Opcode, error) {
	op := Opcode(c & 0xf)
	if c>>6 != Version {
		return op, ErrVersion
	}
	return op, nil
}

// ReadRequestLen is the length of a ReadRequest. RFC 5040 section 4.4.
const ReadRequestLen = 28

// A ReadRequest is the payload of an RDMA Read Request message. RFC 5040
// section 4.4.
//
//	+---------------------------------------------------------------+
//	|                    Data Sink STag (SinkSTag)                  |
//	+---------------------------------------------------------------+
//	|                Data Sink Tagged Offset (SinkTO), 64 bits      |
//	+                                                               +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|               RDMA Read Message Size (RDMARDSZ)               |
//	+---------------------------------------------------------------+
//	|                  Data Source STag (SrcSTag)                   |
//	+---------------------------------------------------------------+
//	|               Data Source Tagged Offset (SrcTO), 64 bits      |
//	+                                                               +
//	|                                                               |
//	+---------------------------------------------------------------+
type ReadRequest struct {
	SinkSTag uint32
	SinkTO   uint64
	Size     uint32
	SrcSTag  uint32
	SrcTO    uint64
}

// AppendReadRequest appends the header.
func AppendReadRequest(b []byte, r *ReadRequest) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SrcSTag)
	return binary.BigEndian.AppendUint64(b, r.SrcTO)
}

// ConsumeReadRequest reads the header.
func ConsumeReadRequest(b []byte, r *ReadRequest) (n int, err error) {
	*r = ReadRequest{}
	if len(b) < ReadRequestLen {
		return 0, ErrShort
	}
	r.SinkSTag = binary.BigEndian.Uint32(b)
	r.SinkTO = binary.BigEndian.Uint64(b[4:])
	r.Size = binary.BigEndian.Uint32(b[12:])
	r.SrcSTag = binary.BigEndian.Uint32(b[16:])
	r.SrcTO = binary.BigEndian.Uint64(b[20:])
	return ReadRequestLen, nil
}

// A Layer is the layer that found an error. RFC 5040 section 4.8.
type Layer uint8

const (
	LayerRDMA Layer = 0x0
	LayerDDP  Layer = 0x1
	LayerLLP  Layer = 0x2 // MPA
)

// String returns the RFC's spelling.
func (l Layer) String() string {
	switch l {
	case LayerRDMA:
		return "RDMA"
	case LayerDDP:
		return "DDP"
	case LayerLLP:
		return "LLP"
	}
	return "layer " + strconv.Itoa(int(l))
}

// An ErrorType is the error type of layer RDMA. RFC 5040 section 4.8.
type ErrorType uint8

const (
	TypeCatastrophic ErrorType = 0x0 // local catastrophic error
	TypeProtection   ErrorType = 0x1 // remote protection error
	TypeOperation    ErrorType = 0x2 // remote operation error
)

// String returns the RFC's wording.
func (t ErrorType) String() string {
	switch t {
	case TypeCatastrophic:
		return "Local Catastrophic Error"
	case TypeProtection:
		return "Remote Protection Error"
	case TypeOperation:
		return "Remote Operation Error"
	}
	return "RDMA error type " + strconv.Itoa(int(t))
}

// A Code is an error code of layer RDMA. RFC 5040 section 4.8: codes up to
// CodeTOWrap belong to TypeProtection, those from CodeVersion to
// CodeCatastrophicGlobal to TypeOperation, the last two to both.
type Code uint8

const (
	CodeInvalidSTag        Code = 0x00
	CodeBaseBounds         Code = 0x01
	CodeAccess             Code = 0x02
	CodeNotAssociated      Code = 0x03
	CodeTOWrap             Code = 0x04
	CodeVersion            Code = 0x05
	CodeUnexpectedOpcode   Code = 0x06
	CodeCatastrophicStream Code = 0x07
	CodeCatastrophicGlobal Code = 0x08
	CodeCannotInvalidate   Code = 0x09
	CodeUnspecified        Code = 0xff
)

// String returns the RFC's wording.
func (c Code) String() string {
	switch c {
	case CodeInvalidSTag:
		return "Invalid STag"
	case CodeBaseBounds:
		return "Base or bounds violation"
	case CodeAccess:
		return "Access rights violation"
	case CodeNotAssociated:
		return "STag not associated with RDMAP Stream"
	case CodeTOWrap:
		return "TO wrap"
	case CodeVersion:
		return "Invalid RDMAP version"
	case CodeUnexpectedOpcode:
		return "Unexpected OpCode"
	case CodeCatastrophicStream:
		return "Catastrophic error, localized to RDMAP Stream"
	case CodeCatastrophicGlobal:
		return "Catastrophic error, global"
	case CodeCannotInvalidate:
		return "STag cannot be Invalidated"
	case CodeUnspecified:
		return "Unspecified Error"
	}
	return "code " + strconv.Itoa(int(c))
}

// A Cause is the layer, error type and error code of a Terminate message. RFC 5040 section
// 4.8.
type Cause struct {
	Layer Layer // four bits
	Type  uint8 // four bits: ErrorType, ddp.ErrorType or mpa.TypeMPA
	Code  uint8
}

// String returns layer, error type and error code in the wording of the RFC that defines them.
func (c Cause) String() string {
	s := c.Layer.String() + ": "
	switch c.Layer {
	case LayerRDMA:
		if ErrorType(c.Type) == TypeCatastrophic && c.Code == 0 {
			return s + TypeCatastrophic.String() // the type has no codes of its own
		}
		return s + ErrorType(c.Type).String() + ": " + Code(c.Code).String()
	case LayerDDP:
		if ddp.ErrorType(c.Type) == ddp.TypeCatastrophic && c.Code == 0 {
			return s + ddp.TypeCatastrophic.String()
		}
		return s + ddp.ErrorType(c.Type).String() + ": " + ddp.CodeString(ddp.ErrorType(c.Type), c.Code)
	case LayerLLP:
		if c.Type == mpa.TypeMPA {
			return s + mpa.Code(c.Code).String()
		}
	}
	return s + "type " + strconv.Itoa(int(c.Type)) + ", code " + strconv.Itoa(int(c.Code))
}

// MaxTerminateLen is the length of the longest Terminate header.
const MaxTerminateLen = 4 + 2 + ddp.UntaggedLen + ReadRequestLen

// Bits of HdrCt, the lower three of the 19 bits of Terminate Control.
const (
	hdrM = 0x80 // DDP Segment Length is valid
	hdrD = 0x40 // the DDP header is included
	hdrR = 0x20 // the RDMAP header is included
)

// A Terminate is the payload of a Terminate message. RFC 5040 section 4.8.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+---------------+-----+-------------------------+
//	| Layer | EType |  Error Code   |M|D|R|        Reserved         |
//	+-------+-------+---------------+-----+-------------------------+
//	|  DDP Segment Length (if any)  |                               |
//	+-------------------------------+                               +
//	|        Terminated DDP Header (if any), 14 or 18 bytes         |
//	+                                                               +
//	|        Terminated RDMA Header (if any), 28 bytes              |
//	+---------------------------------------------------------------+
//
// Segment, DDP and RDMAP describe the offending segment. DDP and RDMAP are views: of the
// caller's bytes when encoding, of the message when decoding.
type Terminate struct {
	Cause
	HasSegment bool   // M
	Segment    uint16 // length of the terminated DDP segment
	DDP        []byte // its DDP header, or nil (D)
	RDMAP      []byte // its Read Request header, or nil (R)
}

// AppendTerminate appends the header. It panics if a quoted header does not have a length that
// the protocol defines.
func AppendTerminate(b []byte, t *Terminate) []byte {
	var ct byte
	if t.HasSegment {
		ct |= hdrM
	}
	if t.DDP != nil {
		if !t.HasSegment || len(t.DDP) != ddpLen(t.DDP) {
			panic("rdmap: malformed DDP header in Terminate")
		}
		ct |= hdrD
	}
	if t.RDMAP != nil {
		if !t.HasSegment || len(t.RDMAP) != ReadRequestLen {
			panic("rdmap: malformed RDMAP header in Terminate")
		}
		ct |= hdrR
	}
	b = append(b, byte(t.Layer)<<4|t.Type&0xf, t.Code, ct, 0)
	if t.HasSegment {
		b = binary.BigEndian.AppendUint16(b, t.Segment)
	}
	b = append(b, t.DDP...)
	return append(b, t.RDMAP...)
}

// ConsumeTerminate reads the header. If the header is truncated after the Cause, it stores the Cause nevertheless: the
// reason is valid even if the quoted headers are not.
func ConsumeTerminate(b []byte, t *Terminate) (n int, err error) {
	*t = Terminate{}
	if len(b) < 4 {
		return 0, ErrShort
	}
	t.Cause = Cause{Layer(b[0] >> 4), b[0] & 0xf, b[1]}
	ct := b[2]
	n = 4
	// RFC 5040 section 4.8: the segment length field is present if M, D or R is set, but it is
	// valid only if M is set.
	if ct&(hdrM|hdrD|hdrR) == 0 {
		return n, nil
	}
	if len(b) < n+2 {
		return 0, ErrShort
	}
	seg := binary.BigEndian.Uint16(b[n:])
	n += 2
	var d, r []byte
	if ct&hdrD != 0 {
		if len(b) <= n || len(b) < n+ddpLen(b[n:]) {
			return 0, ErrShort
		}
		d = b[n:][:ddpLen(b[n:])]
		n += len(d)
	}
	if ct&hdrR != 0 {
		if len(b) < n+ReadRequestLen {
			return 0, ErrShort
		}
		r = b[n:][:ReadRequestLen]
		n += ReadRequestLen
	}
	t.HasSegment, t.Segment, t.DDP, t.RDMAP = true, seg, d, r
	return n, nil
}

// ddpLen returns the length of the DDP header at the start of b.
func ddpLen(b []byte) int {
	switch {
	case len(b) == 0:
		return -1
	case ddp.IsTagged(b):
		return ddp.TaggedLen
	}
	return ddp.UntaggedLen
}
