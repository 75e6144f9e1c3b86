//go:build linux && cgo

package cgo

import (
	"slices"
	"syscall"
)

// A Library is libibverbs and librdmacm as packages ibv and rdmacm call them: [RDMACore], or in tests the fake of
// package cgotest. Each method is one library call, or one batch of calls, without logic. The methods of RDMACore
// document each call.
//
// Objects belong to the Library that made them: passing one to another Library is an error that nothing detects.
type Library interface {
	Verbs
	CM
}

// Verbs is libibverbs, grouped by object.
type Verbs interface {
	// Devices.
	GetDeviceList() (devices []*Device, free func(), errno syscall.Errno)
	DeviceInfo(*Device) DeviceInfo
	OpenDevice(*Device) (*Context, syscall.Errno)
	CloseDevice(*Context) syscall.Errno
	ContextDevice(*Context) *Device
	NumCompVectors(*Context) int
	QueryDevice(*Context) (DeviceAttr, syscall.Errno)
	QueryPort(ctx *Context, port uint8) (PortAttr, syscall.Errno)
	QueryGIDTable(ctx *Context, max int) ([]GIDEntry, syscall.Errno)
	QueryGID(ctx *Context, port uint8, index int) ([16]byte, syscall.Errno)
	QueryGIDEx(ctx *Context, port uint8, index int) (GIDEntry, syscall.Errno)
	QueryPkey(ctx *Context, port uint8, index int) (uint16, syscall.Errno)
	PkeyIndex(ctx *Context, port uint8, pkey uint16) (int, syscall.Errno)
	ResolveEthL2(ctx *Context, attr *AHAttr) (mac [6]byte, vlan uint16, errno syscall.Errno)
	AsyncFD(*Context) int
	GetAsyncEvent(ctx *Context, out *AsyncEvent) syscall.Errno
	QueryDeviceEx(*Context) (DeviceAttrEx, syscall.Errno)
	QueryRawClock(*Context) (uint64, syscall.Errno)

	// Protection domains, memory regions and windows, device memory.
	AllocPD(*Context) (*PD, syscall.Errno)
	DeallocPD(*PD) syscall.Errno
	RegMR(pd *PD, mem []byte, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno)
	RegMRIova(pd *PD, addr, length, iova uint64, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno)
	RegDmabufMR(pd *PD, offset, length, iova uint64, fd, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno)
	ReregMR(mr *MR, flags int, pd *PD, addr, length uint64, access int) (lkey, rkey uint32, code int32, errno syscall.Errno)
	AllocNullMR(*PD) (mr *MR, lkey uint32, errno syscall.Errno)
	AdviseMR(pd *PD, advice int, flags uint32, sges []SGE) syscall.Errno
	DeregMR(*MR) syscall.Errno
	AllocDM(ctx *Context, length uint64, logAlign uint32) (*DM, syscall.Errno)
	FreeDM(*DM) syscall.Errno
	MemcpyToDM(dm *DM, offset uint64, from []byte) syscall.Errno
	MemcpyFromDM(to []byte, dm *DM, offset uint64) syscall.Errno
	RegDMMR(pd *PD, dm *DM, offset, length uint64, access int) (mr *MR, lkey, rkey uint32, errno syscall.Errno)
	AllocMW(pd *PD, typ int) (mw *MW, rkey uint32, errno syscall.Errno)
	DeallocMW(*MW) syscall.Errno
	BindMW(qp *QP, mw *MW, id uint64, flags uint32, mr *MR, addr, length uint64, access uint32) (uint32, syscall.Errno)
	RKey(*MW) uint32
	SetRKey(mw *MW, rkey uint32)

	// Objects shared by several processes or threads.
	CommandFD(*Context) int
	PDHandle(*PD) uint32
	MRHandle(*MR) uint32
	DMHandle(*DM) uint32
	ImportDevice(fd int) (*Context, syscall.Errno)
	ImportPD(ctx *Context, handle uint32) (*PD, syscall.Errno)
	UnimportPD(*PD)
	ImportMR(pd *PD, handle uint32) (mr *MR, lkey, rkey uint32, errno syscall.Errno)
	UnimportMR(*MR)
	ImportDM(ctx *Context, handle uint32) (*DM, syscall.Errno)
	UnimportDM(*DM)
	AllocTD(*Context) (*TD, syscall.Errno)
	DeallocTD(*TD) syscall.Errno
	AllocParentDomain(ctx *Context, pd *PD, td *TD) (*PD, syscall.Errno)
	OpenXRCD(ctx *Context, fd, flags int) (*XRCD, syscall.Errno)
	CloseXRCD(*XRCD) syscall.Errno

	// Completion channels and queues.
	CreateCompChannel(*Context) (*CompChannel, syscall.Errno)
	CompChannelFD(*CompChannel) int
	DestroyCompChannel(*CompChannel) syscall.Errno
	GetCQEvent(*CompChannel) (*CQ, syscall.Errno)
	CreateCQ(ctx *Context, cqe int, channel *CompChannel, vector int) (*CQ, syscall.Errno)
	CQSize(*CQ) int
	ResizeCQ(cq *CQ, cqe int) syscall.Errno
	ReqNotifyCQ(cq *CQ, solicitedOnly bool) syscall.Errno
	AckCQEvents(cq *CQ, n uint32)
	DestroyCQ(*CQ) syscall.Errno
	CreateCQEx(ctx *Context, cqe int, channel *CompChannel, vector int, fields uint64, flags uint32) (*CQ, syscall.Errno)
	ModifyCQ(cq *CQ, count, period uint16) syscall.Errno

	// Shared receive queues and queue pairs.
	CreateSRQ(pd *PD, attr SRQAttr) (*SRQ, SRQAttr, syscall.Errno)
	ModifySRQ(srq *SRQ, attr SRQAttr, mask int) syscall.Errno
	QuerySRQ(*SRQ) (SRQAttr, syscall.Errno)
	DestroySRQ(*SRQ) syscall.Errno
	CreateSRQEx(ctx *Context, init SRQInit) (*SRQ, SRQAttr, syscall.Errno)
	SRQNum(*SRQ) (uint32, syscall.Errno)
	PostSRQOp(srq *SRQ, op *SRQOp, sges []SGE) syscall.Errno
	CreateQP(pd *PD, init QPInit) (*QP, QPCap, syscall.Errno)
	CreateQPEx(ctx *Context, pd *PD, init QPInit) (*QP, QPCap, syscall.Errno)
	QPNum(*QP) uint32
	ModifyQP(qp *QP, attr *QPAttr, mask int) syscall.Errno
	QueryQP(qp *QP, mask int) (QPAttr, QPCap, syscall.Errno)
	DestroyQP(*QP) syscall.Errno
	OpenQP(ctx *Context, xrcd *XRCD, num uint32, typ int32) (*QP, syscall.Errno)
	QPDataInOrder(qp *QP, opcode uint32) bool
	ModifyQPRateLimit(qp *QP, kbps, burst uint32, packet uint16) syscall.Errno
	SetECE(qp *QP, ece ECE) syscall.Errno
	QueryECE(*QP) (ECE, syscall.Errno)

	// Raw packets: work queues, and steering packets to them.
	CreateWQ(ctx *Context, pd *PD, cq *CQ, wr, sge, flags uint32) (wq *WQ, num, givenWR, givenSGE uint32, errno syscall.Errno)
	ModifyWQ(wq *WQ, mask uint32, state, current int32, flags, flagsMask uint32) syscall.Errno
	DestroyWQ(*WQ) syscall.Errno
	PostWQRecv(wq *WQ, recvs []RecvWR, sges []SGE) (posted int, errno syscall.Errno)
	CreateRWQIndTable(ctx *Context, wqs []*WQ) (table *RWQIndTable, num uint32, errno syscall.Errno)
	DestroyRWQIndTable(*RWQIndTable) syscall.Errno
	CreateFlow(qp *QP, attr FlowAttr, specs []byte) (*Flow, syscall.Errno)
	DestroyFlow(*Flow) syscall.Errno
	CreateCounters(*Context) (*Counters, syscall.Errno)
	DestroyCounters(*Counters) syscall.Errno
	AttachCounters(c *Counters, flow *Flow, desc int32, index uint32) syscall.Errno
	ReadCounters(c *Counters, values []uint64, flags uint32) syscall.Errno

	// Address handles and multicast.
	CreateAH(pd *PD, attr *AHAttr) (*AH, syscall.Errno)
	InitAHFromWC(ctx *Context, port uint8, wc *WC, grh *[40]byte) (AHAttr, syscall.Errno)
	DestroyAH(*AH) syscall.Errno
	AttachMcast(qp *QP, gid [16]byte, lid uint16) syscall.Errno
	DetachMcast(qp *QP, gid [16]byte, lid uint16) syscall.Errno

	// The data path. Call these through [Progress] and [PollEx].
	Progress(qp *QP, srq *SRQ, cq *CQ, channel *CompChannel, recvs []RecvWR, sends []SendWR, sges []SGE, wcs []WC, flags uint32, out *Outcome)
	PollEx(cq *CQ, fields uint64, wcs []WCEx) (n int, errno syscall.Errno)
}

// CM is librdmacm, grouped by object.
type CM interface {
	// Event channels.
	CreateEventChannel() (*EventChannel, syscall.Errno)
	EventChannelFD(*EventChannel) int
	DestroyEventChannel(*EventChannel)
	GetCMEvent(channel *EventChannel, out *CMEvent) syscall.Errno

	// IDs.
	CreateID(ch *EventChannel, context uint64, ps int32) (*CMID, syscall.Errno)
	SetContext(id *CMID, context uint64)
	SetOption(id *CMID, level, option int, value int32, size int) syscall.Errno
	MigrateID(id *CMID, ch *EventChannel) syscall.Errno
	IDVerbs(*CMID) *Context
	IDPort(*CMID) uint8
	LocalAddr(*CMID) Sockaddr
	PeerAddr(*CMID) Sockaddr
	DestroyID(*CMID) syscall.Errno

	// Setup and end of a connection.
	BindAddr(id *CMID, addr *Sockaddr) syscall.Errno
	Listen(id *CMID, backlog int) syscall.Errno
	ResolveAddr(id *CMID, src, dst *Sockaddr, timeout int) syscall.Errno
	ResolveRoute(id *CMID, timeout int) syscall.Errno
	CMCreateQP(id *CMID, pd *PD, init QPInit) (*QP, QPCap, syscall.Errno)
	CMCreateQPEx(id *CMID, pd *PD, init QPInit) (*QP, QPCap, syscall.Errno)
	InitQPAttr(id *CMID, state int32) (attr QPAttr, mask int, errno syscall.Errno)
	TakeQP(*CMID) *QP
	CMDestroyQP(*CMID)
	Connect(id *CMID, p *ConnParam) syscall.Errno
	Accept(id *CMID, p *ConnParam) syscall.Errno
	Reject(id *CMID, privateData []byte) syscall.Errno
	RejectECE(id *CMID, privateData []byte) syscall.Errno
	SetLocalECE(id *CMID, ece ECE) syscall.Errno
	RemoteECE(*CMID) (ECE, syscall.Errno)
	Establish(*CMID) syscall.Errno
	Disconnect(*CMID) syscall.Errno
	Notify(id *CMID, event int32) syscall.Errno

	// Multicast groups.
	JoinMulticast(id *CMID, addr *Sockaddr, flags uint32) syscall.Errno
	LeaveMulticast(id *CMID, addr *Sockaddr) syscall.Errno

	// Devices.
	GetDevices() (list **Context, n int, errno syscall.Errno)
	FreeDevices(list **Context)
}

// RDMACore is the Library of rdma-core itself.
type RDMACore struct{}

var _ Library = RDMACore{}

// Progress calls l.Progress, which posts, takes one event, polls and arms in one batch. It is the call of the data
// path: for [RDMACore] it is a static call, so none of its arguments escapes. Every other Library gets copies, since
// the arguments of an interface method escape.
func Progress(l Library, qp *QP, srq *SRQ, cq *CQ, channel *CompChannel, recvs []RecvWR, sends []SendWR, sges []SGE, wcs []WC, flags uint32, out *Outcome) {
	if core, ok := l.(RDMACore); ok {
		core.Progress(qp, srq, cq, channel, recvs, sends, sges, wcs, flags, out)
		return
	}
	stored, outcome := make([]WC, len(wcs)), new(Outcome)
	l.Progress(qp, srq, cq, channel, slices.Clone(recvs), slices.Clone(sends), slices.Clone(sges), stored, flags, outcome)
	copy(wcs, stored)
	*out = *outcome
}

// PollEx calls l.PollEx in the same way as Progress calls l.Progress.
func PollEx(l Library, cq *CQ, fields uint64, wcs []WCEx) (n int, errno syscall.Errno) {
	if core, ok := l.(RDMACore); ok {
		return core.PollEx(cq, fields, wcs)
	}
	stored := make([]WCEx, len(wcs))
	n, errno = l.PollEx(cq, fields, stored)
	copy(wcs, stored[:n])
	return n, errno
}
