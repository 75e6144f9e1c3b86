//go:build linux && cgo

package ibv

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// ackBatch is how many events are acknowledged at a time. Each acknowledgement locks a mutex of the library, and only
// destroying the queue requires it.
const ackBatch = 1024

// A CQ is a completion queue. It must be closed after its queue pairs and before its channel.
type CQ struct {
	life
	raw *cgo.CQ
	ctx *Context
	ch  *CompChannel

	sizeMu sync.Mutex // guards the size in raw

	extended bool
	fields   WCFields // of an extended queue

	eventMu sync.Mutex
	events  uint32 // taken but not acknowledged
	state   cqState
}

// A cqState determines how events are acknowledged.
type cqState uint8

const (
	cqLive   cqState = iota // acknowledge in bulk
	cqEnding                // acknowledge at once, because the library waits for it
	cqGone                  // do not acknowledge: the queue was destroyed
)

// CreateCQ creates a completion queue for at least cqe completions. Its events go to ch,
// which may be nil. vector is the completion vector that signals them, see
// [Context.NumCompVectors].
//
// Implements: struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector)
func (c *Context) CreateCQ(cqe int, ch *CompChannel, vector int) (*CQ, error) {
	return c.createCQ("ibv_create_cq", cqe, ch, func(ch *cgo.CompChannel) (*cgo.CQ, syscall.Errno) {
		return c.lib.CreateCQ(c.raw, cqe, ch, vector)
	})
}

func (c *Context) createCQ(call string, cqe int, ch *CompChannel, create func(*cgo.CompChannel) (*cgo.CQ, syscall.Errno)) (*CQ, error) {
	var rawCh *cgo.CompChannel
	var chLife *life
	if ch != nil {
		rawCh, chLife = ch.raw, &ch.life
	}
	if err := enterAll(call, &c.life, chLife); err != nil {
		return nil, err
	}
	defer leaveAll(&c.life, chLife)
	c.turnover.RLock()
	defer c.turnover.RUnlock()
	raw, errno := create(rawCh)
	if errno != 0 {
		return nil, c.memoryError(call, errno, cqBytes(cqe))
	}
	cq := &CQ{raw: raw, ctx: c, ch: ch}
	cq.begin(aCQ, c.device, &c.life, chLife)
	c.objects.Store(raw.Word(), cq)
	if ch != nil {
		ch.cqs.Store(raw, cq)
	}
	return cq, nil
}

// Raw returns the queue for package cgo, valid until Close.
func (cq *CQ) Raw() *cgo.CQ { return cq.raw }

// Poll takes up to len(wcs) completions and returns how many it has stored. It does not block and does not retain wcs.
//
// Implements: int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
func (cq *CQ) Poll(wcs []WC) (int, error) {
	const call = "ibv_poll_cq"
	if err := cq.enter(call); err != nil {
		return 0, err
	}
	var out cgo.Outcome
	cgo.Progress(cq.ctx.lib, nil, nil, cq.raw, nil, nil, nil, nil, unsafe.Slice((*cgo.WC)(unsafe.Pointer(unsafe.SliceData(wcs))), len(wcs)), 0, &out)
	cq.leave()
	if cq.ctx.rxe {
		for i := range wcs[:out.WCs] {
			wcs[i].Flags = userFlags(wcs[i].Flags)
		}
	}
	if out.PollErr != 0 {
		return int(out.WCs), &Error{Call: call, Device: cq.device, Err: syscall.Errno(out.PollErr)}
	}
	return int(out.WCs), nil
}

// Flags returns the flags of a completion that was polled by means other than Poll.
//
// The device rxe writes the kernel's flags into completions, in which the bit for an invalidated key differs: it is
// IBV_WC_IP_CSUM_OK in libibverbs, which reliable connections never have.
func (cq *CQ) Flags(wc *cgo.WC) WCFlags {
	if cq.ctx.rxe {
		return userFlags(WCFlags(wc.Flags))
	}
	return WCFlags(wc.Flags)
}

func userFlags(f WCFlags) WCFlags {
	const kernelWithInv = 1 << 2
	if f&kernelWithInv != 0 {
		f = f&^kernelWithInv | WCWithInv
	}
	return f
}

// Arm requests one event on the channel, with the next completion or, if solicitedOnly,
// the next one that is solicited or an error. Poll after Arm: earlier completions raise
// no event.
//
// Implements: int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
func (cq *CQ) Arm(solicitedOnly bool) error {
	const call = "ibv_req_notify_cq"
	if err := cq.enter(call); err != nil {
		return err
	}
	defer cq.leave()
	if errno := cq.ctx.lib.ReqNotifyCQ(cq.raw, solicitedOnly); errno != 0 {
		return &Error{Call: call, Device: cq.device, Err: errno}
	}
	return nil
}

// Resize changes the size of the queue to at least cqe completions. Not all devices support
// it.
//
// Implements: int ibv_resize_cq(struct ibv_cq *cq, int cqe)
func (cq *CQ) Resize(cqe int) error {
	const call = "ibv_resize_cq"
	if err := cq.enter(call); err != nil {
		return err
	}
	defer cq.leave()
	cq.sizeMu.Lock()
	defer cq.sizeMu.Unlock()
	if errno := cq.ctx.lib.ResizeCQ(cq.raw, cqe); errno != 0 {
		return cq.ctx.memoryError(call, errno, cqBytes(cqe))
	}
	return nil
}

// Size returns how many completions the queue holds, 0 if it is closed.
func (cq *CQ) Size() int {
	if cq.enter("") != nil {
		return 0
	}
	defer cq.leave()
	cq.sizeMu.Lock()
	defer cq.sizeMu.Unlock()
	return cq.ctx.lib.CQSize(cq.raw)
}

// AckEvents acknowledges n events that the caller has taken from the channel inside [CompChannel.Await], not those of
// [CompChannel.GetEvent]. They are passed on to the library in batches, the last one by Close, since destroying the
// queue blocks until all events are acknowledged.
//
// Implements: void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
func (cq *CQ) AckEvents(n uint32) { cq.count(n) }

// count records n taken events, and reports whether the queue is still open.
func (cq *CQ) count(n uint32) bool {
	cq.eventMu.Lock()
	defer cq.eventMu.Unlock()
	if cq.state != cqGone {
		cq.events += n
		if cq.events >= ackBatch || cq.state == cqEnding {
			cq.ctx.lib.AckCQEvents(cq.raw, cq.events)
			cq.events = 0
		}
	}
	return cq.state == cqLive
}

func (cq *CQ) become(s cqState) {
	cq.eventMu.Lock()
	defer cq.eventMu.Unlock()
	cq.state = s
}

// Close acknowledges the events that were taken and destroys the queue. Completions that
// have not been polled are dropped.
//
// Implements: int ibv_destroy_cq(struct ibv_cq *cq)
func (cq *CQ) Close() error {
	return cq.end("ibv_destroy_cq", func() syscall.Errno {
		cq.ctx.turnover.RLock()
		defer cq.ctx.turnover.RUnlock()
		// From here on GetEvent acknowledges each event at once.
		cq.become(cqEnding)
		cq.count(0)
		if errno := cq.ctx.lib.DestroyCQ(cq.raw); errno != 0 {
			cq.become(cqLive)
			return errno
		}
		cq.become(cqGone)
		// Another queue may already have this address.
		cq.ctx.objects.CompareAndDelete(cq.raw.Word(), cq)
		if cq.ch != nil {
			cq.ch.cqs.CompareAndDelete(cq.raw, cq)
		}
		return 0
	})
}
