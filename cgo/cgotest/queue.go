//go:build linux && cgo

package cgotest

import (
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

type channel struct {
	object
	signal *signal
	events []*CQ
}

func (ch *channel) handle() *cgo.CompChannel { return (*cgo.CompChannel)(unsafe.Pointer(ch)) }

func channelOf(h *cgo.CompChannel) *channel { return (*channel)(unsafe.Pointer(h)) }

// A CQ is a completion queue.
type CQ struct {
	object

	f       *Library
	ch      *channel
	size    int
	ex      bool   // it is an extended queue,
	fields  uint64 // with these fields
	wcs     []cgo.WCEx
	armed   bool
	unacked int // events taken but not acknowledged

	onArm, onPoll func()
}

func (cq *CQ) handle() *cgo.CQ { return (*cgo.CQ)(unsafe.Pointer(cq)) }

// CQ returns the completion queue for a handle.
func (f *Library) CQ(h *cgo.CQ) *CQ { return (*CQ)(unsafe.Pointer(h)) }

// OnArm arranges for f to be called once between the poll that finds nothing and the arming of the queue.
func (cq *CQ) OnArm(f func()) {
	cq.f.mu.Lock()
	defer cq.f.mu.Unlock()
	cq.onArm = f
}

// OnPoll arranges for f to be called once before the next poll.
func (cq *CQ) OnPoll(f func()) {
	cq.f.mu.Lock()
	defer cq.f.mu.Unlock()
	cq.onPoll = f
}

// Armed reports whether the next completion raises an event.
func (cq *CQ) Armed() bool {
	cq.f.mu.Lock()
	defer cq.f.mu.Unlock()
	return cq.armed
}

// Unacked returns the number of events that have been taken and not acknowledged.
func (cq *CQ) Unacked() int {
	cq.f.mu.Lock()
	defer cq.f.mu.Unlock()
	return cq.unacked
}

// Add adds a completion that the test makes up.
func (cq *CQ) Add(wc cgo.WC) { cq.AddEx(cgo.WCEx{WC: wc}) }

// AddEx is Add for a completion of an extended queue.
func (cq *CQ) AddEx(wc cgo.WCEx) {
	cq.f.mu.Lock()
	defer cq.f.mu.Unlock()
	cq.add(wc)
}

// add adds a completion and raises the requested event. The caller must hold mu.
func (cq *CQ) add(wc cgo.WCEx) {
	if len(cq.wcs) == cq.size {
		cq.f.wrong("a completion queue of %d entries has overrun", cq.size)
		return
	}
	cq.wcs = append(cq.wcs, wc)
	if cq.armed && cq.ch != nil {
		cq.armed = false
		cq.ch.events = append(cq.ch.events, cq)
		cq.ch.signal.raise()
	}
}

// poll removes completions. With the completion of a signaled send it also frees the slots in the send queue of all
// requests up to that send. The caller must hold mu.
func (cq *CQ) poll(max int) []cgo.WCEx {
	wcs := cq.wcs[:min(max, len(cq.wcs))]
	cq.wcs = cq.wcs[len(wcs):]
	for _, wc := range wcs {
		if qp := cq.f.qps[wc.QPNum]; qp != nil {
			for i, s := range qp.places {
				if s.ID == wc.ID {
					qp.places = qp.places[i+1:]
					break
				}
			}
		}
	}
	return wcs
}

// CreateCompChannel implements cgo.Verbs.
func (f *Library) CreateCompChannel(ctx *cgo.Context) (*cgo.CompChannel, syscall.Errno) {
	errno := f.enter("ibv_create_comp_channel")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	s, err := newSignal()
	if err != nil {
		return nil, syscall.EMFILE
	}
	ch := &channel{signal: s}
	f.begin(&ch.object, "channel", &contextOf(ctx).object)
	return ch.handle(), 0
}

// CompChannelFD implements cgo.Verbs.
func (f *Library) CompChannelFD(ch *cgo.CompChannel) int { return channelOf(ch).signal.fd }

// DestroyCompChannel implements cgo.Verbs.
func (f *Library) DestroyCompChannel(ch *cgo.CompChannel) syscall.Errno {
	errno := f.destroy("ibv_destroy_comp_channel", &channelOf(ch).object)
	if errno == 0 {
		channelOf(ch).signal.close()
	}
	return errno
}

// GetCQEvent implements cgo.Verbs.
func (f *Library) GetCQEvent(ch *cgo.CompChannel) (*cgo.CQ, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.takeEvent(channelOf(ch))
}

func (f *Library) takeEvent(ch *channel) (*cgo.CQ, syscall.Errno) {
	f.usable(&ch.object)
	if errno := f.failing("ibv_get_cq_event"); errno != 0 {
		return nil, errno
	}
	if !ch.signal.take() {
		return nil, syscall.EAGAIN
	}
	cq := ch.events[0]
	ch.events = ch.events[1:]
	cq.unacked++
	return cq.handle(), 0
}

// CreateCQ implements cgo.Verbs.
func (f *Library) CreateCQ(ctx *cgo.Context, cqe int, ch *cgo.CompChannel, vector int) (*cgo.CQ, syscall.Errno) {
	return f.createCQ("ibv_create_cq", ctx, cqe, ch)
}

func (f *Library) createCQ(call string, ctx *cgo.Context, cqe int, ch *cgo.CompChannel) (*cgo.CQ, syscall.Errno) {
	errno := f.enter(call)
	defer f.mu.Unlock()
	if errno == 0 && (cqe < 1 || cqe > int(contextOf(ctx).d.Attr.MaxCQE)) {
		errno = syscall.EINVAL
	}
	if errno != 0 {
		return nil, errno
	}
	cq := &CQ{f: f, ch: channelOf(ch), size: cqe}
	var parent *object
	if cq.ch != nil {
		parent = &cq.ch.object
	}
	f.begin(&cq.object, "cq", &contextOf(ctx).object, parent)
	return cq.handle(), 0
}

// CQSize implements cgo.Verbs.
func (f *Library) CQSize(cq *cgo.CQ) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.CQ(cq).size
}

// ResizeCQ implements cgo.Verbs.
func (f *Library) ResizeCQ(cq *cgo.CQ, cqe int) syscall.Errno {
	errno := f.enter("ibv_resize_cq")
	defer f.mu.Unlock()
	if errno == 0 {
		f.CQ(cq).size = cqe
	}
	return errno
}

// ReqNotifyCQ implements cgo.Verbs.
func (f *Library) ReqNotifyCQ(cq *cgo.CQ, solicitedOnly bool) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.arm(f.CQ(cq))
}

func (f *Library) arm(cq *CQ) syscall.Errno {
	f.usable(&cq.object)
	if errno := f.failing("ibv_req_notify_cq"); errno != 0 {
		return errno
	}
	cq.armed = true
	return 0
}

// AckCQEvents implements cgo.Verbs.
func (f *Library) AckCQEvents(cq *cgo.CQ, n uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.CQ(cq)
	f.usable(&q.object)
	if q.unacked -= int(n); q.unacked < 0 {
		f.wrong("%d events are acknowledged more than were taken", -q.unacked)
	}
	f.acked.Broadcast()
}

// DestroyCQ implements cgo.Verbs. It drops pending events of the queue.
func (f *Library) DestroyCQ(cq *cgo.CQ) syscall.Errno {
	errno := f.enter("ibv_destroy_cq")
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	q := f.CQ(cq)
	f.awaitAcks(q)
	if q.ch != nil {
		before := len(q.ch.events)
		q.ch.events = slices.DeleteFunc(q.ch.events, func(e *CQ) bool { return e == q })
		for range before - len(q.ch.events) {
			q.ch.signal.take()
		}
	}
	return f.end(&q.object)
}

// patience is how long the fake waits where the library waits forever.
const patience = 2 * time.Second

// awaitAcks waits until all taken events have been acknowledged. The caller must hold mu.
func (f *Library) awaitAcks(cq *CQ) {
	late := false
	timer := time.AfterFunc(patience, func() {
		f.mu.Lock()
		late = true
		f.mu.Unlock()
		f.acked.Broadcast()
	})
	defer timer.Stop()
	for cq.unacked > 0 && !late {
		f.acked.Wait()
	}
	if cq.unacked > 0 {
		f.wrong("ibv_destroy_cq waits for ever: %d events have not been acknowledged", cq.unacked)
	}
}

type sharedRecvs struct {
	object
	attr  cgo.SRQAttr
	recvs []*Recv
	tags  map[uint32]cgo.SRQOp
}

func srqOf(h *cgo.SRQ) *sharedRecvs { return (*sharedRecvs)(unsafe.Pointer(h)) }

// CreateSRQ implements cgo.Verbs.
func (f *Library) CreateSRQ(pd *cgo.PD, attr cgo.SRQAttr) (*cgo.SRQ, cgo.SRQAttr, syscall.Errno) {
	errno := f.enter("ibv_create_srq")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, cgo.SRQAttr{}, errno
	}
	s := &sharedRecvs{attr: attr}
	f.begin(&s.object, "srq", &domainOf(pd).object)
	return (*cgo.SRQ)(unsafe.Pointer(s)), attr, 0
}

// ModifySRQ implements cgo.Verbs.
func (f *Library) ModifySRQ(srq *cgo.SRQ, attr cgo.SRQAttr, mask int) syscall.Errno {
	errno := f.enter("ibv_modify_srq")
	defer f.mu.Unlock()
	if errno == 0 {
		srqOf(srq).attr.Limit = attr.Limit
	}
	return errno
}

// QuerySRQ implements cgo.Verbs.
func (f *Library) QuerySRQ(srq *cgo.SRQ) (cgo.SRQAttr, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return srqOf(srq).attr, f.failing("ibv_query_srq")
}

// DestroySRQ implements cgo.Verbs.
func (f *Library) DestroySRQ(srq *cgo.SRQ) syscall.Errno {
	return f.destroy("ibv_destroy_srq", &srqOf(srq).object)
}
