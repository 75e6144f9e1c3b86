//go:build linux && cgo

package cgo

// A SendWR is a work request for the send queue, in our own flat layout. Its
// gather list is a run of the list of SGEs that it is posted with. Addresses are
// of memory that does not move and that somebody else keeps alive.
type SendWR struct {
	ID         uint64
	RemoteAddr uint64 // Read, Write, atomics
	Arg1       uint64 // atomics: compare or add; bind: address
	Arg2       uint64 // atomics: swap; bind: length in bytes
	MW         uint64 // bind: see [MW.Word]
	MR         uint64 // bind: see [MR.Word]
	Opcode     uint32 // enum ibv_wr_opcode
	Flags      uint32 // enum ibv_send_flags
	RKey       uint32 // the peer's key; bind: the window's new key
	Imm        uint32 // immediate data in network byte order, or the key to invalidate
	FirstSGE   uint32
	NumSGE     uint32
	BindAccess uint32 // bind: enum ibv_access_flags
	_          uint32
}

// A RecvWR is a work request for a receive queue, likewise.
type RecvWR struct {
	ID       uint64
	FirstSGE uint32
	NumSGE   uint32
}

// An SGE is struct ibv_sge: Length bytes at address Addr in the region with the
// local key LKey.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// A WC is struct ibv_wc, see ibv_poll_cq(3).
type WC struct {
	ID        uint64
	Status    int32 // enum ibv_wc_status
	Opcode    int32 // enum ibv_wc_opcode; undefined unless Status is success
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32 // immediate data in network byte order, or the key that was invalidated
	QPNum     uint32
	SrcQP     uint32
	Flags     uint32 // enum ibv_wc_flags
	PkeyIndex uint16
	SLID      uint16
	SL        uint8
	DLIDPath  uint8
	_         [2]uint8
}

// Flags of [Progress].
const (
	// TakeEvent takes one completion event from the channel, if there is one.
	// The channel must not block.
	TakeEvent uint32 = 1 << iota
	// Arm asks for an event with the next completion when nothing was polled,
	// and polls once more: what came in between raises no event. Together with
	// TakeEvent it stands for a queue that is armed, and arms only when the event
	// has been taken.
	Arm
)

// An Outcome is what became of a call to [Progress]. Errors are errno values.
type Outcome struct {
	Recvs   uint32 // receives posted
	Sends   uint32 // sends posted
	RecvErr int32  // why the next receive was not
	SendErr int32  // why the next send was not
	PollErr int32  // taking the event, arming or polling failed
	WCs     uint32 // completions stored
	Events  uint32 // completion events taken: to be acknowledged
	Armed   uint32 // 1 when the queue has been armed
}

// A CMEvent is an event of librdmacm, copied and already acknowledged.
type CMEvent struct {
	ID                 uint64 // see [CMID.Word]
	Context            uint64 // of the ID; for a connection request of the listener
	Type               int32  // enum rdma_cm_event_type
	Status             int32  // errno or reason, see rdma_get_cm_event(3)
	QPNum              uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	PrivateDataLen     uint8
	HasVerbs           uint8 // 1 when the ID is bound to a device
	PrivateData        [256]byte
}

// An AsyncEvent is an asynchronous event of a device, copied and already
// acknowledged.
type AsyncEvent struct {
	Element uint64 // the Word of a QP, CQ or SRQ, or a port number
	Type    int32  // enum ibv_event_type
	_       int32
}
