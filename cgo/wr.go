//go:build linux && cgo

package cgo

// A SendWR is a work request for the send queue, in a flat layout of this package. Its gather list is a range of the
// SGEs that it is posted with. The caller keeps the memory at its addresses alive and in place.
type SendWR struct {
	ID         uint64
	RemoteAddr uint64 // Read, Write, atomics; datagrams: see [AH.Word]
	Arg1       uint64 // atomics: compare or add; bind: address; datagrams: QPN << 32 | Q_Key; TSO: address of the header
	Arg2       uint64 // atomics: swap; bind: length in bytes; TSO: length of the header << 32 | MSS
	MW         uint64 // bind: see [MW.Word]
	MR         uint64 // bind: see [MR.Word]
	Opcode     uint32 // enum ibv_wr_opcode
	Flags      uint32 // enum ibv_send_flags
	RKey       uint32 // the peer's key; bind: the window's new key
	Imm        uint32 // immediate data in network byte order, or the key to invalidate
	FirstSGE   uint32
	NumSGE     uint32
	BindAccess uint32 // bind: enum ibv_access_flags
	SRQNum     uint32 // XRC: the peer's shared receive queue
}

// A RecvWR is a work request for a receive queue, in the same kind of layout as a SendWR.
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

// A WCEx is a completion of an extended queue. Fields that the queue was not created with are zero.
type WCEx struct {
	WC
	Timestamp uint64 // by the clock of the device
	WallClock uint64 // nanoseconds since 1970
	Tag       uint64 // struct ibv_wc_tm_info
	TagPriv   uint32
	FlowTag   uint32
	CVLAN     uint16
	_         [3]uint16
}

// Flags of [Progress].
const (
	// TakeEvent takes one completion event from the channel, if there is one. The
	// channel must be non-blocking.
	TakeEvent uint32 = 1 << iota
	// Arm requests an event for the next completion if nothing was polled, and then polls once more, because a
	// completion in between raises no event. With TakeEvent the queue is assumed to be armed, and is armed again only
	// if an event was taken.
	Arm
	// Extended posts sends with ibv_wr_start and ibv_wr_complete, all or none of them. The queue pair must come from
	// CreateQPEx, with the operations of all sends.
	Extended
)

// An Outcome is the result of [Progress]. Errors are errno values.
type Outcome struct {
	Recvs   uint32 // receives posted
	Sends   uint32 // sends posted
	RecvErr int32  // why the next receive was not posted
	SendErr int32  // why the next send was not posted
	PollErr int32  // why taking the event, arming or polling failed
	WCs     uint32 // completions stored
	Events  uint32 // completion events taken, which the caller must acknowledge
	Armed   uint32 // 1 if the queue was armed
}

// A CMEvent is a copy of an event of librdmacm, which has been acknowledged.
type CMEvent struct {
	ID                 uint64 // see [CMID.Word]
	Context            uint64 // of the ID, or of the listener for a connection request
	Type               int32  // enum rdma_cm_event_type
	Status             int32  // errno or reason, see rdma_get_cm_event(3)
	QPNum              uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	PrivateDataLen     uint8
	HasVerbs           uint8 // 1 if the ID is bound to a device
	PrivateData        [256]byte
	Qkey               uint32 // for datagrams
	_                  uint32
	AH                 AHAttr // for datagrams; laid out as struct ibv_ah_attr
}

// An AsyncEvent is a copy of an asynchronous event of a device, which has been acknowledged.
type AsyncEvent struct {
	Element uint64 // the Word of a QP, CQ or SRQ, or a port number
	Type    int32  // enum ibv_event_type
	_       int32
}
