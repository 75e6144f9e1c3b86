//go:build linux && cgo

package ibv

import (
	"testing"
	"time"
)

// everything is all that the peer may do in the tests.
const everything = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind

// An end is one of two connected queue pairs, with a completion queue and memory of
// its own.
type end struct {
	t   testing.TB
	qp  *QP
	cq  *CQ
	ch  *CompChannel
	mr  *MR
	buf []byte
}

// A pair is two queue pairs of one device, connected without rdma_cm.
type pair struct {
	c    *Context
	pd   *PD
	a, b *end
}

const endMemory = 64 << 10

// newPair connects two queue pairs of a RoCE device. The SRQ is b's, and may be
// nil.
func newPair(t testing.TB, c *Context, srq func(*PD) *SRQ) *pair {
	t.Helper()
	p := &pair{c: c, pd: must[*PD](t)(c.AllocPD())}
	var shared *SRQ
	if srq != nil {
		shared = srq(p.pd)
	}
	p.a, p.b = newEnd(t, p.pd, nil), newEnd(t, p.pd, shared)
	connect(t, p.a.qp, p.b.qp)
	connect(t, p.b.qp, p.a.qp)
	return p
}

// onQueues runs f on a pair of ordinary queues of rxe, and on one of extended queues.
func onQueues(t *testing.T, f func(t *testing.T, p *pair)) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		t.Run("ordinary", func(t *testing.T) { f(t, newPair(t, c, nil)) })
		t.Run("extended", func(t *testing.T) {
			p := &pair{c: c, pd: must[*PD](t)(c.AllocPD())}
			p.a, p.b = newExtendedEnd(t, p.pd, QPTypeRC), newExtendedEnd(t, p.pd, QPTypeRC)
			connect(t, p.a.qp, p.b.qp)
			connect(t, p.b.qp, p.a.qp)
			f(t, p)
		})
	})
}

// newExtendedEnd makes an end with extended queues.
func newExtendedEnd(t testing.TB, pd *PD, typ QPType) *end {
	t.Helper()
	ops := SendOpsOf(OpSend, OpSendWithImm)
	if typ != QPTypeUD {
		ops |= SendOpsOf(OpRDMAWrite, OpRDMAWriteWithImm)
	}
	if typ == QPTypeRC {
		ops |= SendOpsOf(OpRDMARead, OpAtomicCmpSwp, OpAtomicFetchAdd, OpLocalInv, OpBindMW, OpSendWithInv)
	}
	e := &end{t: t, buf: mmapped(t, endMemory)}
	e.mr = must[*MR](t)(pd.RegMR(e.buf, everything))
	e.ch = must[*CompChannel](t)(pd.ctx.CreateCompChannel())
	e.cq = must[*CQ](t)(pd.ctx.CreateCQEx(CQInitAttr{Entries: 512, Channel: e.ch, Fields: WCStandardFields}))
	e.qp = must[*QP](t)(pd.CreateQP(QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: typ, SendOps: ops,
		Cap: QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64},
	}))
	return e
}

func newEnd(t testing.TB, pd *PD, srq *SRQ) *end {
	t.Helper()
	return newTypedEnd(t, pd, srq, QPTypeRC)
}

func newTypedEnd(t testing.TB, pd *PD, srq *SRQ, typ QPType) *end {
	t.Helper()
	e := &end{t: t, buf: mmapped(t, endMemory)}
	e.mr = must[*MR](t)(pd.RegMR(e.buf, everything))
	e.ch = must[*CompChannel](t)(pd.ctx.CreateCompChannel())
	e.cq = must[*CQ](t)(pd.ctx.CreateCQ(512, e.ch, 0))
	e.qp = must[*QP](t)(pd.CreateQP(QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, SRQ: srq, Type: typ,
		Cap: QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64},
	}))
	return e
}

// connect moves a queue pair to RTS, with another one of the same device as its peer.
func connect(t testing.TB, qp, peer *QP) {
	t.Helper()
	path := PathAttr{Access: everything &^ (AccessLocalWrite | AccessMWBind), Depth: 16}
	local, err := qp.Addr(path, qp.Num())
	if err != nil {
		t.Fatal(err)
	}
	remote, err := peer.Addr(path, peer.Num())
	if err != nil {
		t.Fatal(err)
	}
	if err := qp.ConnectTo(local, remote, path); err != nil {
		t.Fatal(err)
	}
}

// sge is a part of the end's memory.
func (e *end) sge(from, to int) []SGE { return []SGE{{Buf: e.buf[from:to], LKey: e.mr.LKey()}} }

// post posts to the send queue. Everything is signaled.
func (e *end) post(wrs ...SendWR) {
	e.t.Helper()
	for i := range wrs {
		wrs[i].Flags |= SendSignaled
	}
	if err := e.qp.PostSend(wrs); err != nil {
		e.t.Fatal(err)
	}
}

// recv posts a receive for a part of the end's memory.
func (e *end) recv(id uint64, from, to int) {
	e.t.Helper()
	if err := e.qp.PostRecv([]RecvWR{{ID: id, SGL: e.sge(from, to)}}); err != nil {
		e.t.Fatal(err)
	}
}

// poll polls once, whatever the queue is.
func (e *end) poll(wcs []WC) (int, error) {
	if !e.cq.extended {
		return e.cq.Poll(wcs)
	}
	var ex [8]WCEx
	n, err := e.cq.PollEx(ex[:min(len(wcs), len(ex))])
	for i := range n {
		wcs[i] = ex[i].WC
	}
	return n, err
}

// next polls until there is a completion, whatever it says.
func (e *end) next() WC {
	e.t.Helper()
	var wcs [1]WC
	for end := time.Now().Add(patience); ; {
		n, err := e.poll(wcs[:])
		if err != nil {
			e.t.Fatal(err)
		}
		if n == 1 {
			return wcs[0]
		}
		if time.Now().After(end) {
			e.t.Fatal("no completion comes")
		}
	}
}

// done wants the next completion to be a success of the request with this ID.
func (e *end) done(id uint64, op WCOpcode) WC {
	e.t.Helper()
	wc := e.next()
	if err := wc.Err(); err != nil || wc.ID != id || wc.Opcode != op {
		e.t.Fatalf("completion of %#x, %v, %v; want %#x, %v", wc.ID, wc.Opcode, wc.Status, id, op)
	}
	return wc
}

// failed wants the next completion to be of the request with this ID, and not a
// success.
func (e *end) failed(id uint64, statuses ...WCStatus) {
	e.t.Helper()
	wc := e.next()
	for _, s := range statuses {
		if wc.Status == s && wc.ID == id {
			return
		}
	}
	e.t.Fatalf("completion of %#x, %v; want %#x, one of %v", wc.ID, wc.Status, id, statuses)
}
