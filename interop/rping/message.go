package rping

import (
	"encoding/binary"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Port is where rping(1) listens unless told otherwise.
const Port = 7174

const (
	// DefaultSize is the length of a text unless told otherwise.
	DefaultSize = 64

	// MinSize is the length of the shortest text: the number of every ping
	// has room in it.
	MinSize = 23

	// DefaultMaxSize is the longest text that a Server takes unless told
	// otherwise. The longest that rping(1) sends is a byte shorter.
	DefaultMaxSize = 1 << 16
)

// messageLen is the length of every message: address (64), rkey (32), length
// (32), in network byte order.
const messageLen = 16

// putMessage fills b, which is messageLen bytes long, with the name of memory.
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

// Letters of a text run from first to last and begin again.
const first, last = 'A', 'z'

// PutText fills b with the text of a ping: its number, counted from zero, and
// letters, which begin one further in each ping. The last byte is zero.
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
