//go:build linux && cgo

package ibv

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// An Opcode is the operation of a work request of the send queue, see ibv_post_send(3).
type Opcode uint32

// Operations. The comments list the fields of [SendWR] that each uses in addition to ID and Flags.
const (
	OpRDMAWrite        Opcode = 0  // SGL to RemoteAddr, RKey
	OpRDMAWriteWithImm Opcode = 1  // as OpRDMAWrite, with Imm; consumes a receive of the peer
	OpSend             Opcode = 2  // SGL; To for a datagram
	OpSendWithImm      Opcode = 3  // SGL, Imm; To for a datagram
	OpRDMARead         Opcode = 4  // RemoteAddr, RKey to SGL
	OpAtomicCmpSwp     Opcode = 5  // RemoteAddr, RKey, CompareAdd, Swap; 8 bytes to SGL
	OpAtomicFetchAdd   Opcode = 6  // RemoteAddr, RKey, CompareAdd; 8 bytes to SGL
	OpLocalInv         Opcode = 7  // RKey: invalidates a window of type 2 of this side
	OpBindMW           Opcode = 8  // Bind
	OpSendWithInv      Opcode = 9  // SGL, RKey: invalidates a window of type 2 of the peer
	OpTSO              Opcode = 10 // TSO, SGL: on a raw packet queue pair
	OpAtomicWrite      Opcode = 15 // SGL with one buffer of 8 bytes, which extended queue pairs copy while posting, to RemoteAddr, RKey
)

func (o Opcode) String() string {
	return name([]string{
		"IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM", "IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_RDMA_READ",
		"IBV_WR_ATOMIC_CMP_AND_SWP", "IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WR_LOCAL_INV", "IBV_WR_BIND_MW", "IBV_WR_SEND_WITH_INV",
		"IBV_WR_TSO", 15: "IBV_WR_ATOMIC_WRITE",
	}, int32(o), "ibv_wr_opcode")
}

// SendFlags are flags of a work request of the send queue, see ibv_post_send(3).
type SendFlags uint32

// Flags of work requests.
const (
	SendFence     SendFlags = 1 << 0 // starts after earlier RDMA Reads and atomics have completed
	SendSignaled  SendFlags = 1 << 1 // success generates a completion; failure always does
	SendSolicited SendFlags = 1 << 2 // raises an event at the peer if it has armed its queue for solicited completions
	SendInline    SendFlags = 1 << 3 // SGL is copied while posting, up to QPCap.MaxInlineData bytes, and needs no region
)

func (f SendFlags) String() string {
	return flagString(uint32(f), []string{
		"IBV_SEND_FENCE", "IBV_SEND_SIGNALED", "IBV_SEND_SOLICITED", "IBV_SEND_INLINE", "IBV_SEND_IP_CSUM",
	})
}

// An SGE is a buffer of a work request: a part of the region with the local key LKey, or any memory for SendInline. The
// buffer is Buf or, if that is nil, Length bytes at the region's address Addr: see [MR.SGE].
type SGE struct {
	Buf    []byte
	Addr   uint64
	Length uint32
	LKey   uint32
}

// span returns the address and the length of the buffer.
func (s *SGE) span() (addr uint64, length int) {
	if s.Buf != nil {
		return addrOf(s.Buf), len(s.Buf)
	}
	return s.Addr, int(s.Length)
}

// A SendWR is a work request for the send queue, see ibv_post_send(3).
type SendWR struct {
	ID         uint64 // returned in the completion
	Opcode     Opcode
	Flags      SendFlags
	SGL        []SGE
	Imm        uint32 // in host byte order, at both ends
	RKey       uint32 // of the peer's memory, or the key to invalidate
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	Bind       *MWBind
	To         *Destination // required for a datagram
	RemoteSRQ  uint32       // XRC only: the number of the queue that receives the message, see [SRQ.Num]
	TSO        *TSO
}

// A TSO describes how a long payload is split into Ethernet frames, see ibv_post_send(3).
type TSO struct {
	Header []byte // of each frame, up to QPInitAttr.MaxTSOHeader bytes; copied while posting
	MSS    uint16 // bytes of payload in each frame
}

// A Destination is where a datagram goes, see ibv_post_send(3).
type Destination struct {
	AH    *AH
	QPNum uint32 // MulticastQPNum for a group
	Qkey  uint32 // of the destination queue pair; if the highest bit is set, the sender's Qkey is used
}

// MulticastQPNum is the queue pair number that addresses all queue pairs of a multicast group.
const MulticastQPNum = 0xffffff

// An MWBind describes the bind of a window. [MW.NextRKey] returns the window's new key
// before the bind is posted, [MW.RKey] afterwards.
type MWBind struct {
	MW     *MW
	MR     *MR    // needs AccessMWBind, and for AccessRemoteWrite also AccessLocalWrite
	Buf    []byte // a part of the region's memory,
	Addr   uint64 // or without Buf: the address of a part of the region,
	Length uint64 // and its length
	Access Access // remote rights of the peer
}

// span returns the address and the length of the part of the region.
func (b *MWBind) span() (addr, length uint64) {
	if b.Buf != nil {
		return addrOf(b.Buf), uint64(len(b.Buf))
	}
	return b.Addr, b.Length
}

// A RecvWR is a work request for a receive queue, see ibv_post_recv(3).
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

// A PostError is the error of a list of work requests that was not posted as a whole. It unwraps to an errno: usually
// ENOMEM if the queue is full, and EINVAL for an invalid request.
type PostError struct {
	Call   string
	Device string
	Index  int // of the first request that was not posted; the requests before it were posted
	Err    error
}

func (e *PostError) Error() string {
	return fmt.Sprintf("ibv: %s on %s: work request %d of the list: %v", e.Call, e.Device, e.Index, e.Err)
}

func (e *PostError) Unwrap() error { return e.Err }

// A sendQueue converts lists of work requests for C. It reuses its memory for each list.
type sendQueue struct {
	typ QPType
	ops SendOps // not zero: the queue pair is extended

	// The library of rxe computes a wrong length for a list of several buffers that is posted by ibv_wr_set_sge_list or
	// ibv_wr_set_inline_data_list: it adds up the first buffer's length, or no length (seen in rdma-core 44). The wrong
	// bytes would be sent.
	oneBuffer bool

	mu    sync.Mutex
	wrs   []cgo.SendWR
	sges  []cgo.SGE
	bufs  []*byte // keeps inline data alive and off the stack; an address in an SGE does not
	binds []bind
	ahs   []*AH // of datagrams, entered until the datagrams are posted
}

// A bind is a bind in the list that is being posted.
type bind struct {
	MWBind
	index int
	rkey  uint32
}

// post posts a list and returns how many of its requests were posted.
func (q *sendQueue) post(lib cgo.Library, qp *cgo.QP, list []SendWR) (posted int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for posted < len(list) {
		wrong := q.gather(list[posted:])
		if wrong != nil && q.ops != 0 { // the whole list or none of it
			q.release(0)
			return posted, wrong
		}
		n, errno := q.flush(lib, qp)
		posted += n
		if errno != 0 {
			return posted, errno
		}
		if wrong != nil {
			return posted, wrong
		}
	}
	return posted, nil
}

// gather takes requests from the list up to its end, an invalid request, or the second bind of a window. The library
// reads the window's rkey while it posts, so the first bind must be posted before.
func (q *sendQueue) gather(list []SendWR) error {
	for i := range list {
		from := &list[i]
		to := cgo.SendWR{
			ID: from.ID, Opcode: uint32(from.Opcode), Flags: uint32(from.Flags), RKey: from.RKey, RemoteAddr: from.RemoteAddr,
			Arg1: from.CompareAdd, Arg2: from.Swap, FirstSGE: uint32(len(q.sges)), SRQNum: from.RemoteSRQ,
		}
		if q.ops != 0 && q.ops&from.Opcode.bit() == 0 {
			return syscall.EOPNOTSUPP
		}
		switch from.Opcode {
		case OpRDMAWriteWithImm:
			to.Imm = htonl(from.Imm)
		case OpSend, OpSendWithImm:
			to.Imm = htonl(from.Imm)
			if err := q.address(from.To, &to); err != nil {
				return err
			}
		case OpSendWithInv, OpLocalInv:
			to.Imm = from.RKey
		case OpTSO:
			if from.TSO == nil || q.typ != QPTypeRawPacket || len(from.TSO.Header) > math.MaxUint16 {
				return syscall.EINVAL
			}
			q.bufs = append(q.bufs, unsafe.SliceData(from.TSO.Header))
			to.Arg1, to.Arg2 = addrOf(from.TSO.Header), uint64(len(from.TSO.Header))<<32|uint64(from.TSO.MSS)
		case OpBindMW:
			if from.Bind == nil || from.Bind.MW == nil || from.Bind.MR == nil || from.Bind.MW.typ != MWType2 {
				return syscall.EINVAL
			}
			for j := range q.binds {
				if q.binds[j].MW == from.Bind.MW {
					return nil
				}
			}
			if err := q.bind(*from.Bind, i, &to); err != nil {
				return err
			}
		}
		var err error
		if q.sges, err = appendSGL(q.sges, from.SGL); err != nil {
			return err
		}
		to.NumSGE = uint32(len(q.sges)) - to.FirstSGE
		if q.oneBuffer && to.NumSGE > 1 {
			return syscall.EOPNOTSUPP
		}
		if from.Opcode == OpAtomicWrite && (to.NumSGE != 1 || q.sges[to.FirstSGE].Length != 8) {
			return syscall.EINVAL
		}
		if from.Flags&SendInline != 0 || from.Opcode == OpAtomicWrite {
			for _, sge := range from.SGL {
				q.bufs = append(q.bufs, unsafe.SliceData(sge.Buf))
			}
		}
		q.wrs = append(q.wrs, to)
	}
	return nil
}

// address fills in the destination of a datagram. The address handle stays entered until it has been posted. Libraries
// read the address of every datagram, and write the address of a message over other fields.
func (q *sendQueue) address(d *Destination, to *cgo.SendWR) error {
	to.RemoteAddr = 0 // C takes any other value for an address handle
	switch {
	case q.typ != QPTypeUD && d == nil:
		return nil
	case q.typ != QPTypeUD:
		return syscall.EISCONN
	case d == nil:
		return syscall.EDESTADDRREQ
	case d.AH == nil:
		return syscall.EINVAL
	}
	if err := d.AH.enter("ibv_post_send"); err != nil {
		return err
	}
	q.ahs = append(q.ahs, d.AH)
	to.RemoteAddr, to.Arg1 = d.AH.raw.Word(), uint64(d.QPNum)<<32|uint64(d.Qkey)
	return nil
}

// bind fills in a bind request. Window and region stay entered until it has been posted.
func (q *sendQueue) bind(b MWBind, index int, to *cgo.SendWR) error {
	if err := enterAll("ibv_post_send", &b.MW.life, &b.MR.life); err != nil {
		return err
	}
	rkey := cgo.IncRKey(b.MW.key())
	q.binds = append(q.binds, bind{b, index, rkey})
	to.MW, to.MR, to.RKey = b.MW.raw.Word(), b.MR.raw.Word(), rkey
	to.Arg1, to.Arg2 = b.span()
	to.BindAccess = uint32(b.Access)
	return nil
}

// flush posts the gathered requests and empties the queue.
func (q *sendQueue) flush(lib cgo.Library, qp *cgo.QP) (int, syscall.Errno) {
	var out cgo.Outcome
	if len(q.wrs) > 0 {
		var flags uint32
		if q.ops != 0 {
			flags = cgo.Extended
		}
		cgo.Progress(lib, qp, nil, nil, nil, nil, q.wrs, q.sges, nil, flags, &out)
	}
	q.release(int(out.Sends))
	return int(out.Sends), syscall.Errno(out.SendErr)
}

// release leaves the objects of the gathered requests, of which posted have been posted, and empties the queue.
func (q *sendQueue) release(posted int) {
	for i := range q.binds {
		b := &q.binds[i]
		if b.index < posted {
			b.MW.setKey(b.rkey)
		}
		leaveAll(&b.MW.life, &b.MR.life)
	}
	for _, ah := range q.ahs {
		ah.leave()
	}
	clear(q.ahs)
	clear(q.binds)
	clear(q.bufs)
	q.wrs, q.sges, q.bufs, q.binds, q.ahs = q.wrs[:0], q.sges[:0], q.bufs[:0], q.binds[:0], q.ahs[:0]
}

// A recvQueue converts lists of receives.
type recvQueue struct {
	mu   sync.Mutex
	wrs  []cgo.RecvWR
	sges []cgo.SGE
}

// post posts a list to srq, or to qp if srq is nil, and returns how many of its requests
// were posted.
func (q *recvQueue) post(lib cgo.Library, qp *cgo.QP, srq *cgo.SRQ, list []RecvWR) (posted int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	err = q.gather(list)
	var out cgo.Outcome
	if len(q.wrs) > 0 {
		cgo.Progress(lib, qp, srq, nil, nil, q.wrs, nil, q.sges, nil, 0, &out)
	}
	if out.RecvErr != 0 {
		err = syscall.Errno(out.RecvErr)
	}
	return int(out.Recvs), err
}

// gather converts the list up to its end or an invalid receive. The caller must hold mu.
func (q *recvQueue) gather(list []RecvWR) (err error) {
	q.wrs, q.sges = q.wrs[:0], q.sges[:0]
	for i := range list {
		first := uint32(len(q.sges))
		if q.sges, err = appendSGL(q.sges, list[i].SGL); err != nil {
			return err
		}
		q.wrs = append(q.wrs, cgo.RecvWR{ID: list[i].ID, FirstSGE: first, NumSGE: uint32(len(q.sges)) - first})
	}
	return nil
}

// appendSGL appends a gather or scatter list. It skips empty buffers, because a length of zero means 2 GiB to some
// devices.
func appendSGL(sges []cgo.SGE, list []SGE) ([]cgo.SGE, error) {
	for i := range list {
		addr, length := list[i].span()
		if uint64(length) > math.MaxUint32 {
			return sges, syscall.EINVAL
		}
		if length > 0 {
			sges = append(sges, cgo.SGE{Addr: addr, Length: uint32(length), LKey: list[i].LKey})
		}
	}
	return sges, nil
}

// htonl converts between host and network byte order.
func htonl(n uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return binary.NativeEndian.Uint32(b[:])
}
