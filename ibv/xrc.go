//go:build linux && cgo

package ibv

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// An XRCD is a domain of extended reliable connections: one connection between two processes reaches all shared receive
// queues of the domain, including those of other processes on the host. It must be closed after them and its queue
// pairs.
type XRCD struct {
	life
	raw *cgo.XRCD
	ctx *Context
}

// OpenXRCD opens the domain of a file. Processes that open the same file share it. With fd -1 and the flags
// syscall.O_CREAT the domain belongs only to this process; flags are those of open(2).
//
// Implements: struct ibv_xrcd *ibv_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *xrcd_init_attr)
func (c *Context) OpenXRCD(fd, flags int) (*XRCD, error) {
	d := &XRCD{ctx: c}
	err := c.made("ibv_open_xrcd", anXRCD, &d.life, func() (errno syscall.Errno) {
		d.raw, errno = c.lib.OpenXRCD(c.raw, fd, flags)
		return errno
	}, &c.life)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Close closes the domain.
//
// Implements: int ibv_close_xrcd(struct ibv_xrcd *xrcd)
func (d *XRCD) Close() error {
	return d.end("ibv_close_xrcd", func() syscall.Errno { return d.ctx.lib.CloseXRCD(d.raw) })
}

// CreateQP creates the receiving end of a connection, a queue pair of QPTypeXRCRecv. Its messages arrive in the
// domain's shared receive queues. It is connected like other queue pairs.
func (d *XRCD) CreateQP() (*QP, error) {
	attr := QPInitAttr{Type: QPTypeXRCRecv}
	return d.ctx.createQP("ibv_create_qp_ex", []*life{&d.life}, attr, func(init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
		init.Ex = &cgo.QPInitEx{XRCD: d.raw}
		return d.ctx.lib.CreateQPEx(d.ctx.raw, nil, init)
	}, d.ctx.lib.DestroyQP)
}

// OpenQP opens a receiving end that another process has created, and so keeps it alive: it is destroyed when the last
// process closes it.
//
// Implements: struct ibv_qp *ibv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *qp_open_attr)
func (d *XRCD) OpenQP(num uint32) (*QP, error) {
	attr := QPInitAttr{Type: QPTypeXRCRecv}
	return d.ctx.createQP("ibv_open_qp", []*life{&d.life}, attr, func(cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
		raw, errno := d.ctx.lib.OpenQP(d.ctx.raw, d.raw, num, int32(QPTypeXRCRecv))
		return raw, cgo.QPCap{}, errno
	}, d.ctx.lib.DestroyQP)
}

// An SRQType is a kind of shared receive queue, see ibv_create_srq_ex(3).
type SRQType int32

// Kinds of shared receive queues.
const (
	SRQTypeBasic SRQType = 0 // for connections and datagrams
	SRQTypeXRC   SRQType = 1 // of an XRC domain
	SRQTypeTM    SRQType = 2 // matches messages to receives by tag
)

func (t SRQType) String() string {
	return name([]string{"IBV_SRQT_BASIC", "IBV_SRQT_XRC", "IBV_SRQT_TM"}, int32(t), "ibv_srq_type")
}

// An SRQInitAttr holds the attributes of a new shared receive queue, see ibv_create_srq_ex(3).
type SRQInitAttr struct {
	SRQAttr
	Type    SRQType
	XRCD    *XRCD  // for SRQTypeXRC
	CQ      *CQ    // for SRQTypeXRC and SRQTypeTM
	MaxTags uint32 // for SRQTypeTM: entries in the list
	MaxOps  uint32 // for SRQTypeTM: concurrent changes of the list
}

// CreateSRQEx creates a shared receive queue of any kind.
//
// Implements: struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *srq_init_attr_ex)
func (pd *PD) CreateSRQEx(attr SRQInitAttr) (*SRQ, error) {
	init := cgo.SRQInit{
		Attr: cgo.SRQAttr{MaxWR: attr.MaxWR, MaxSGE: attr.MaxSGE}, Type: int32(attr.Type), PD: pd.raw, MaxTags: attr.MaxTags, MaxOps: attr.MaxOps,
	}
	parents := []*life{&pd.life}
	if attr.XRCD != nil {
		init.XRCD = attr.XRCD.raw
		parents = append(parents, &attr.XRCD.life)
	}
	if attr.CQ != nil {
		init.CQ = attr.CQ.raw
		parents = append(parents, &attr.CQ.life)
	}
	return pd.createSRQ("ibv_create_srq_ex", attr.SRQAttr, parents, func() (*cgo.SRQ, cgo.SRQAttr, syscall.Errno) {
		return pd.ctx.lib.CreateSRQEx(pd.ctx.raw, init)
	})
}

// Num returns the number of a queue of an XRC domain, for the peer's SendWR.RemoteSRQ.
//
// Implements: int ibv_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
func (srq *SRQ) Num() (num uint32, err error) {
	err = srq.ctx.do("ibv_get_srq_num", func() (errno syscall.Errno) {
		num, errno = srq.ctx.lib.SRQNum(srq.raw)
		return errno
	}, &srq.life)
	return num, err
}

// TagFlags are flags for changes of a list of tags, see ibv_post_srq_ops(3).
type TagFlags int32

// Flags of changes.
const (
	TagSignaled TagFlags = 1 << 0 // the change has a completion
	TagSync     TagFlags = 1 << 1 // Unexpected is valid
)

// A TagRecv is a receive for messages with a tag, see ibv_post_srq_ops(3).
type TagRecv struct {
	ID         uint64 // of the change's completion, with TagSignaled
	RecvID     uint64 // of the message's completions
	SGL        []SGE
	Tag, Mask  uint64 // the bits of the message's tag selected by Mask must equal those of Tag
	Unexpected uint32 // with TagSync: how many messages without a receive the program has polled
	Flags      TagFlags
}

// AddTag adds a receive to the list of a queue of SRQTypeTM, and returns its handle for DeleteTag.
//
// Implements: int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
func (srq *SRQ) AddTag(r TagRecv) (handle uint32, err error) {
	const add = 0
	sges, err := appendSGL(nil, r.SGL)
	if err != nil {
		return 0, &Error{Call: "ibv_post_srq_ops", Device: srq.device, Err: err}
	}
	op := cgo.SRQOp{ID: r.ID, Opcode: add, Flags: int32(r.Flags), Unexpected: r.Unexpected, RecvID: r.RecvID, Tag: r.Tag, Mask: r.Mask}
	err = srq.postOp(&op, sges)
	return op.Handle, err
}

// DeleteTag removes a receive from the list. If a message has already taken it, the completion reports the failure.
func (srq *SRQ) DeleteTag(id uint64, handle uint32, flags TagFlags) error {
	const del = 1
	return srq.postOp(&cgo.SRQOp{ID: id, Opcode: del, Flags: int32(flags), Handle: handle}, nil)
}

// SyncTags reports to the device how many messages without a receive the program has polled.
func (srq *SRQ) SyncTags(id uint64, unexpected uint32, flags TagFlags) error {
	const sync = 2
	return srq.postOp(&cgo.SRQOp{ID: id, Opcode: sync, Flags: int32(flags | TagSync), Unexpected: unexpected}, nil)
}

func (srq *SRQ) postOp(op *cgo.SRQOp, sges []cgo.SGE) error {
	return srq.ctx.do("ibv_post_srq_ops", func() syscall.Errno { return srq.ctx.lib.PostSRQOp(srq.raw, op, sges) }, &srq.life)
}
