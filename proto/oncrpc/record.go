package oncrpc

import (
	"encoding/binary"
	"fmt"
)

// Record marking, RFC 5531 section 11: on a byte stream an RPC message is a
// record of one or more fragments, and every fragment has a four-byte header.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-------------------------------------------------------------+
//	|L|               fragment length in bytes                      |
//	+-+-------------------------------------------------------------+
//
// L is set on the last fragment of a record. RPC over RDMA has no record marks.
const (
	RecordMarkSize = 4         // size in bytes of the fragment header
	LastFragment   = 1 << 31   // L
	MaxFragment    = 1<<31 - 1 // largest fragment in bytes, header not counted
)

// AppendRecordMark appends the header of a fragment of n bytes. It panics if n is negative or
// exceeds [MaxFragment].
func AppendRecordMark(b []byte, n int, last bool) []byte {
	if n < 0 || n > MaxFragment {
		panic(fmt.Sprintf("oncrpc: fragment of %d bytes has no record mark", n))
	}
	mark := uint32(n)
	if last {
		mark |= LastFragment
	}
	return binary.BigEndian.AppendUint32(b, mark)
}

// ConsumeRecordMark reads the header of a fragment: its length in bytes, and whether it is the last of its record. n is
// [RecordMarkSize], or negative if b is too short. The length comes from the peer: the caller must check it against a
// limit before allocating memory for the fragment.
func ConsumeRecordMark(b []byte) (length uint32, last bool, n int) {
	if len(b) < RecordMarkSize {
		return 0, false, -1
	}
	mark := binary.BigEndian.Uint32(b)
	return mark &^ LastFragment, mark&LastFragment != 0, RecordMarkSize
}
