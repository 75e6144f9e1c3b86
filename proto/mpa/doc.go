// Package mpa encodes and decodes Marker PDU Aligned framing, the lowest layer of iWARP: the start-up frames and the
// FPDUs of RFC 5044, and the enhanced connection data of RFC 6581.
//
// Decoders are called Consume and read from the front of a slice; encoders are called Append. Neither allocates or
// keeps references. A decoder either fills the caller's struct and returns the number of bytes consumed, or returns an
// [Error]. Only ErrShort can be resolved by more bytes.
//
// # Limitations
//
// Markers (RFC 5044 section 4.3) are neither inserted nor removed. An endpoint need not support them as long as it
// rejects connections that require them.
package mpa

import "strconv"

// Error is the reason why a frame is invalid.
type Error uint8

const (
	// ErrShort: the frame extends beyond the bytes given.
	ErrShort Error = 1 + iota
	// ErrKey: neither of the two keys of RFC 5044 section 7.1.1.
	ErrKey
	// ErrRevision: a revision newer than MaxRevision. RFC 6581 section 6.
	ErrRevision
	// ErrPrivateDataLen: more than MaxPrivateData bytes, or fewer than the
	// enhanced data needs. RFC 5044 section 7.1.1, RFC 6581 section 9.
	ErrPrivateDataLen
	// ErrCRC: the CRC field does not match. RFC 5044 section 4.4.
	ErrCRC
)

func (e Error) Error() string {
	switch e {
	case ErrShort:
		return "mpa: frame is incomplete"
	case ErrKey:
		return "mpa: no MPA key"
	case ErrRevision:
		return "mpa: unknown revision"
	case ErrPrivateDataLen:
		return "mpa: private data length out of range"
	case ErrCRC:
		return "mpa: CRC mismatch"
	}
	return "mpa: error " + strconv.Itoa(int(e))
}

// Code is an MPA error code as a Terminate message carries it with layer LLP
// and error type MPA. RFC 5044 section 8; the last three are RFC 6581's.
type Code uint8

const (
	CodeConnLost        Code = 0x01 // TCP connection closed, terminated or lost
	CodeCRC             Code = 0x02 // received CRC does not match
	CodeFPDUStart       Code = 0x03 // marker and length fields disagree
	CodeInvalidFrame    Code = 0x04 // invalid MPA request or reply frame
	CodeCatastrophic    Code = 0x05 // RFC 6581: local catastrophic error
	CodeInsufficientIRD Code = 0x06 // RFC 6581: insufficient IRD resources
	CodeNoMatchingRTR   Code = 0x07 // RFC 6581: no matching RTR option
)

// TypeMPA is the one error type of the layer LLP. RFC 5044 section 8.
const TypeMPA = 0x0

// String returns the RFC's wording.
func (c Code) String() string {
	switch c {
	case CodeConnLost:
		return "TCP connection closed, terminated, or lost"
	case CodeCRC:
		return "Received MPA CRC does not match"
	case CodeFPDUStart:
		return "FPDU start and ULPDU length do not agree"
	case CodeInvalidFrame:
		return "Invalid MPA Request Frame or MPA Response Frame"
	case CodeCatastrophic:
		return "Local catastrophic error"
	case CodeInsufficientIRD:
		return "Insufficient IRD resources"
	case CodeNoMatchingRTR:
		return "No matching RTR option"
	}
	return "MPA error " + strconv.Itoa(int(c))
}
