package trace

// An opKind is the kind of an operation.
type opKind uint8

const (
	opPrivate   opKind = iota // private data of the set-up
	opReject                  // the answer declines the connection
	opSend                    // a whole message, or what there is of it
	opWrite                   // a part of an RDMA Write
	opRead                    // an RDMA Read Request
	opReadData                // a part of what an RDMA Read has fetched
	opTerminate               // the stream ends for an error
	opFault                   // a frame that cannot be
	opHole                    // something was not captured
)

// An op is an operation, or a part of one, of one direction of a conversation.
type op struct {
	stamp
	kind opKind
	dir  int // 0: as the packet that the conversation is known by

	data  []byte // what was captured, from the start; valid during the call
	size  int    // as long as it is
	whole bool   // opSend: nothing is missing

	key    uint32 // the memory: of the peer of dir, for opReadData of dir's own end
	offset uint64

	invalidates bool   // opSend: with Invalidate of key
	text        string // opTerminate, opFault
}

// maxMessage is the longest message that is put together, in bytes: RFC 8797 has thresholds of up to
// 256 KiB.
const maxMessage = 512 << 10

// A message is a Send that is put together.
type message struct {
	data []byte
	size int // bytes there were
	cut  bool
	open bool
}

// add appends a part. size is how long it was.
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
