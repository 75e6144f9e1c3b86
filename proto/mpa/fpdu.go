package mpa

import (
	"encoding/binary"

	"github.com/rpcrdma/rpcrdma/internal/crc32c"
)

const (
	// LengthLen is the length of the ULPDU_Length field. RFC 5044 section 4.
	LengthLen = 2
	// CRCLen is the length of the CRC field. The field is present, and zero, when no CRC is in
	// use. RFC 5044 section 4.4.
	CRCLen = 4
	// MaxULPDU is the longest ULPDU that ULPDU_Length can express.
	MaxULPDU = 1<<16 - 1
)

// Pad returns how many pad bytes, 0 to 3, follow a ULPDU of n bytes: length
// field, ULPDU and pad together are a multiple of four. RFC 5044 section 4.
func Pad(n int) int { return -(LengthLen + n) & 3 }

// FPDULen returns the length of the FPDU around a ULPDU of n bytes.
func FPDULen(n int) int { return LengthLen + n + Pad(n) + CRCLen }

// MULPDU returns the longest ULPDU that fits, as an FPDU without markers, into one TCP segment of
// emss bytes. RFC 5044 section 4.1: MULPDU = EMSS - (6 + EMSS mod 4). It never exceeds MaxULPDU.
func MULPDU(emss int) int {
	return min(max(emss-(LengthLen+CRCLen+emss%4), 0), MaxULPDU)
}

// UpdateCRC extends a CRC over b. The first call takes zero. It is the CRC32C of
// iSCSI, and covers the length field, the ULPDU and the pad. RFC 5044 section 4.4.
func UpdateCRC(crc uint32, b []byte) uint32 { return crc32c.Update(crc, b) }

// PutCRC stores a CRC in a CRC field. The bit reflection of CRC32C makes the
// least significant byte the first one on the wire; the examples of RFC 3720
// appendix B.4 are in that order.
func PutCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// CRC reads a CRC field.
func CRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// AppendFPDU appends the FPDU around ulpdu, with a CRC or with a zero in its
// place. RFC 5044 section 4:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+                               +
//	|         ULPDU_Length          |         ULPDU ...             |
//	+-------------------------------+               +---------------+
//	|                                               | PAD (0-3)     |
//	+-----------------------------------------------+---------------+
//	|                             CRC                               |
//	+---------------------------------------------------------------+
//
// It panics if ulpdu is longer than MaxULPDU.
func AppendFPDU(b, ulpdu []byte, crc bool) []byte {
	if len(ulpdu) > MaxULPDU {
		panic("mpa: ULPDU is too long")
	}
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	b = append(b, make([]byte, Pad(len(ulpdu)))...)
	var sum uint32
	if crc {
		sum = UpdateCRC(0, b[start:])
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// ConsumeFPDU takes the FPDU at the front of b and returns its ULPDU, a view of b. If crc is
// false the CRC field is ignored (RFC 5044 section 4.4).
func ConsumeFPDU(b []byte, crc bool) (ulpdu []byte, n int, err error) {
	if len(b) < LengthLen {
		return nil, 0, ErrShort
	}
	u := int(binary.BigEndian.Uint16(b))
	n = FPDULen(u)
	if len(b) < n {
		return nil, 0, ErrShort
	}
	if crc && UpdateCRC(0, b[:n-CRCLen]) != CRC(b[n-CRCLen:]) {
		return nil, 0, ErrCRC
	}
	return b[LengthLen:][:u], n, nil
}
