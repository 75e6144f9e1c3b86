package rping

import (
	"encoding/binary"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Port is the default port of rping(1).
const Port = 7174

const (
	// DefaultSize is the default length of a text.
	DefaultSize = 64

	// MinSize is the minimum length of a text, which fits the number of any ping.
	MinSize = 23

	// DefaultMaxSize is the default for the longest text that a Server accepts. The longest
	// that rping(1) sends is a byte shorter.
	DefaultMaxSize = 1 << 16
)

// messageLen is the length of every message: address (64), rkey (32), length
// (32), in network byte order.
const messageLen = 16

// putMessage encodes s into b, which is messageLen bytes long.
func putMessage(b []byte, s fabric.Segment) {
	binary.BigEndian.PutUint64(b[0:], s.Offset)
	binary.BigEndian.PutUint32(b[8:], s.Handle)
	binary.BigEndian.PutUint32(b[12:], s.Length)
}

// parseMessage is the inverse of putMessage.
func parseMessage(b []byte) (fabric.Segment, error) {
	if len(b) != messageLen {
		return fabric.Segment{}, &PeerError{Reason: fmt.Sprintf("a message of %d bytes, not %d", len(b), messageLen)}
	}
	return fabric.Segment{
		Offset: binary.BigEndian.Uint64(b[0:]),
		Handle: binary.BigEndian.Uint32(b[8:]),
		Length: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

// The letters of a text cycle from first to last.
const first, last = 'A', 'z'

// PutText fills b with the text of a ping: its number, counted from zero, and letters, which
// start one further in each ping. The last byte is zero.
func PutText(b []byte, ping int) {
	if len(b) == 0 {
		return
	}
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", ping))
	letter := byte(first + ping%(last-first+1))
	for i := n; i < len(b); i++ {
		b[i] = letter
		if letter++; letter > last {
			letter = first
		}
	}
	b[len(b)-1] = 0
}
