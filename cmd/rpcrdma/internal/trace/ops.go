package trace

// opKind is the kind of an operation.
type opKind uint8

const (
	opPrivate   opKind = iota // private data of the connection setup
	opReject                  // the reply rejects the connection
	opSend                    // a whole message, or the captured part of it
	opWrite                   // a part of an RDMA Write
	opRead                    // an RDMA Read Request
	opReadData                // a part of the data of an RDMA Read
	opTerminate               // an error ends the stream
	opFault                   // an invalid frame
	opHole                    // something was not captured
)

// op is an operation, or a part of one, in one direction of a conversation.
type op struct {
	stamp
	kind opKind
	dir  int // 0: same direction as the packet that identifies the conversation

	data  []byte // captured part, from the start; valid during the call
	size  int    // original length
	whole bool   // opSend: nothing is missing

	key    uint32 // memory of the peer of dir, or for opReadData of dir's own end
	offset uint64

	invalidates bool   // opSend: Send with Invalidate of key
	text        string // opTerminate, opFault
}

// maxMessage is the longest message that is reassembled, in bytes: RFC 8797 has thresholds of up to 256 KiB.
const maxMessage = 512 << 10

// message is a Send being reassembled.
type message struct {
	data []byte
	size int // original bytes so far
	cut  bool
	open bool
}

// add appends a part. size is its original length.
func (m *message) add(part []byte, size int) {
	m.open = true
	m.size += size
	if m.cut {
		return
	}
	if len(m.data)+len(part) > maxMessage {
		m.cut = true
		return
	}
	m.data = append(m.data, part...)
	m.cut = len(part) < size
}

func (m *message) reset() { *m = message{data: m.data[:0]} }
