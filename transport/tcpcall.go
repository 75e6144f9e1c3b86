package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// The calls that an end of a TCP connection makes.

// tcpCalls are those of a connection. They are part of its state.
type tcpCalls struct {
	*life       // of the connection; its inUse counts calls in flight, and those whose callers have left and that may be queued
	most    int // calls in flight
	pending map[uint32]*tcpCall
	free    []*tcpCall
	queue   baton.Line[tcpCall] // callers that wait for their turn, first come, first served

	// Calls in inUse whose callers have left. Their messages are queued, or being written,
	// and the peer may take its time: they count until one more write has ended than the
	// present one.
	left, leaving int
}

// A tcpCall is a call under way. It is its caller's, and in tcpCalls.pending until its reply
// has come or the caller leaves: who takes it out of there, under the connection's lock, and
// is not the caller, wakes the caller.
type tcpCall struct {
	baton.Waiter[tcpCall]
	call *Call
	xid  uint32
	most int // the longest reply, in bytes
	err  error

	leaving bool // its caller has left while its message may be queued

	rec   records.Record
	parts [][]byte
	head  []byte
	items []plan.Item // scratch
}

func (t *tcpCalls) init(c *tcpConn, lf *life) {
	t.life = lf
	t.pending = make(map[uint32]*tcpCall)
	if c.role == roleClient {
		t.most = c.cfg.Credits
	}
}

func (c *tcpConn) allow(n int) {
	if c.role == roleClient {
		return
	}
	if n <= 0 || n > c.cfg.BackwardCredits {
		n = c.cfg.BackwardCredits
	}
	t := &c.state.Lock().calls
	t.allowed, t.most = true, n
	t.next()
	c.state.Unlock()
}

func (c *tcpConn) load() load {
	defer c.state.Unlock()
	t := &c.state.Lock().calls
	return load{used: t.inUse, room: t.inUse < t.most, dead: t.inUse > 0 && len(t.pending) == 0}
}

func (c *tcpConn) credits() int { return c.cfg.Credits }

// call makes one call, or makes it again if it has been sent on another connection.
func (c *tcpConn) call(ctx context.Context, call *Call) error {
	if call.op != nil {
		return &OperationError{call.op.Type, "the connection is TCP"}
	}
	t, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	err = c.roundTrip(ctx, t, call)
	c.giveBack(t)
	return err
}

func (c *tcpConn) openLane() lane { return newCallLane(c.call, c.addr()) }

// roundTrip makes the call with t.
func (c *tcpConn) roundTrip(ctx context.Context, t *tcpCall, call *Call) error {
	if call.Sign != nil && !call.sent {
		cs := &c.state.Lock().calls
		call.xid = cs.nextXID()
		c.state.Unlock()
		call.sign(call.xid)
	}
	if err := t.build(call, c.cfg); err != nil {
		return err
	}
	if err := c.register(t); err != nil {
		return err
	}
	if call.sent {
		c.stats.resent.Add(1)
	}
	if e := call.event; e != nil {
		e.left(&c.public, t.xid, call.sent, Transfer{Bytes: recordSize(t.parts), By: ByMessage})
	}
	call.xid, call.sent = t.xid, true
	c.stats.calls.Add(1)
	c.stats.inline.Add(1)
	free := c.w.Write(&t.rec)
	c.w.Flush()
	_, woken := baton.SleepOn(ctx, t.Bell())
	left := !woken && c.leave(t)
	if !woken && !left {
		t.Sleep() // the reply has come at the same moment
	}
	if !free {
		c.w.Withdraw(&t.rec) // most often it has been written
	}
	switch {
	case left:
		return ctx.Err()
	case t.err != nil:
		return t.err
	}
	if e := call.event; e != nil {
		e.Reply = Transfer{Bytes: len(call.store), By: ByMessage}
	}
	return call.takeReply(t.xid)
}

// acquire takes a place for a call, or waits for one.
func (c *tcpConn) acquire(ctx context.Context) (*tcpCall, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	st := c.state.Lock()
	if err := st.refuse(); err != nil {
		c.state.Unlock()
		return nil, err
	}
	cs := &st.calls
	t := cs.take()
	if cs.inUse < cs.most && cs.queue.Empty() {
		cs.inUse++
		c.state.Unlock()
		return t, nil
	}
	cs.queue.Push(&t.Waiter)
	c.state.Unlock()
	c.public.notice(Notice{Kind: NoticeCreditStall})
	_, woken := baton.SleepOn(ctx, t.Bell())
	st = c.state.Lock()
	defer c.state.Unlock()
	if !woken {
		if t.Queued() {
			cs.queue.Remove(&t.Waiter)
		} else {
			t.Sleep() // sent under the lock
			cs.release()
		}
		cs.free = append(cs.free, t)
		return nil, ctx.Err()
	}
	if err := st.refuse(); err != nil {
		cs.release()
		cs.free = append(cs.free, t)
		return nil, err
	}
	return t, nil
}

func (cs *tcpCalls) take() *tcpCall {
	if n := len(cs.free); n > 0 {
		t := cs.free[n-1]
		cs.free = cs.free[:n-1]
		return t
	}
	t := new(tcpCall)
	t.Init(t)
	return t
}

// next lets callers go on as long as there is room.
func (cs *tcpCalls) next() {
	for cs.inUse < cs.most {
		w := cs.queue.Pop()
		if w == nil {
			return
		}
		cs.inUse++
		w.Wake(true)
	}
}

// release ends a call in flight.
func (cs *tcpCalls) release() {
	cs.inUse--
	cs.next()
	if cs.inUse == 0 {
		cs.drain()
	}
}

// giveBack gives back the place of a call that is over.
func (c *tcpConn) giveBack(t *tcpCall) {
	st := c.state.Lock()
	defer c.state.Unlock()
	cs := &st.calls
	if !t.leaving {
		cs.release()
	}
	t.leaving = false
	t.call, t.err = nil, nil
	clear(t.parts)
	t.rec.Parts = nil
	cs.free = append(cs.free, t)
}

// written ends the calls of callers who have left: what they had queued is out. rests tells
// that nothing is queued any more.
func (cs *tcpCalls) written(rests bool) {
	if cs.left+cs.leaving == 0 {
		return
	}
	gone := cs.left
	cs.left, cs.leaving = cs.leaving, 0
	if rests {
		gone, cs.left = gone+cs.left, 0
	}
	for range gone {
		cs.release()
	}
}

// register makes t known to the reader, with the xid that the call has, or a new one.
func (c *tcpConn) register(t *tcpCall) error {
	st := c.state.Lock()
	defer c.state.Unlock()
	if err := st.refuse(); err != nil {
		return err
	}
	cs := &st.calls
	keep, xid := t.call.keepsXID()
	switch {
	case t.call.Sign != nil:
		xid = t.call.xid // which is signed
	case !keep:
		xid = cs.nextXID()
	}
	if cs.pending[xid] != nil {
		return errSameXID
	}
	t.xid = xid
	binary.BigEndian.PutUint32(t.head[oncrpc.RecordMarkSize:], t.xid)
	cs.pending[t.xid] = t
	c.answers.callMade()
	return nil
}

// awaits returns how many calls wait for their replies.
func (c *tcpConn) awaits() int {
	defer c.state.Unlock()
	return len(c.state.Lock().calls.pending)
}

// nextXID is the xid of the next call.
func (cs *tcpCalls) nextXID() uint32 {
	for {
		if xid := cs.xids.next(); cs.pending[xid] == nil {
			return xid
		}
	}
}

// leave ends the wait of a caller whose context has ended. It returns false if the reply has
// come.
func (c *tcpConn) leave(t *tcpCall) bool {
	cs := &c.state.Lock().calls
	defer c.state.Unlock()
	if cs.pending[t.xid] != t {
		return false
	}
	delete(cs.pending, t.xid)
	if t.leaving = !c.w.Rests(); t.leaving {
		cs.leaving++
	}
	c.stats.cancelled.Add(1)
	return true
}

// fail ends all calls.
func (cs *tcpCalls) fail(err error) {
	for xid, t := range cs.pending {
		delete(cs.pending, xid)
		t.err = err
		t.Wake(true)
	}
	for w := cs.queue.Pop(); w != nil; w = cs.queue.Pop() {
		cs.inUse++ // which the caller releases
		w.Wake(true)
	}
}

// ---- the message

// build forms the record of a call, but for its xid.
func (t *tcpCall) build(call *Call, cfg *config) error {
	t.call = call
	items := t.items[:0]
	for i := range call.ReadItems {
		items = append(items, plan.Item{Offset: call.ReadItems[i].Offset, Len: len(call.ReadItems[i].Data)})
	}
	t.items = items
	pc := plan.Call{Args: len(call.Args), Items: items}
	h := oncrpc.CallHeader{
		RPCVers: oncrpc.Version, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Cred: call.Cred, Verf: call.Verf,
	}
	if call.raw != nil {
		pc.Args = len(call.raw)
	} else {
		pc.Header = h.Size()
	}
	if !pc.Ordered() {
		return errItemOrder
	}
	if err := call.checkLengths(); err != nil {
		return err
	}
	size := pc.Size()
	if size > cfg.MaxMessage {
		return &SizeError{What: "the call message, which Config.MaxMessage bounds,", Size: size, Limit: cfg.MaxMessage}
	}
	if err := t.bound(call, cfg); err != nil {
		return err
	}
	b := oncrpc.AppendRecordMark(t.head[:0], size, true)
	args, from := call.Args, 0
	if call.raw == nil {
		b = oncrpc.AppendCall(b, &h)
	} else {
		args, from = call.raw, 4
		b = append(b, 0, 0, 0, 0) // the xid
	}
	t.head = b
	t.parts = append(t.parts[:0], b)
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		t.parts = append(t.parts, args[from:it.Offset], it.Data, zeros[:xdr.Pad(len(it.Data))])
		from = it.Offset
	}
	t.parts = append(t.parts, args[from:])
	t.rec.Parts = t.parts
	return nil
}

// bound sets the length of the longest reply.
func (t *tcpCall) bound(call *Call, cfg *config) error {
	all := replyHead(&call.Cred) + call.MaxResults
	for i := range call.WriteItems {
		w := &call.WriteItems[i]
		w.Chunked, w.N = false, 0
		if len(w.Buf) == 0 {
			return errEmptyItem
		}
		all += xdr.Padded(len(w.Buf))
	}
	if all > cfg.MaxMessage {
		return &SizeError{What: "the largest reply, which Config.MaxMessage bounds,", Size: all, Limit: cfg.MaxMessage}
	}
	// As much as what would fit inline over RDMA the caller need not have thought of.
	t.most = max(all, cfg.InlineRecv)
	return nil
}

// ---- replies

// pending finds the call that a reply is for, and how long the reply may be.
func (c *tcpConn) pending(xid uint32) (most int, ok bool) {
	defer c.state.Unlock()
	t := c.state.Lock().calls.pending[xid]
	if t == nil {
		return 0, false
	}
	return t.most, true
}

// settle takes a call out of the pending ones; its caller waits until it is woken. It returns
// nil if nobody waits for the reply.
func (c *tcpConn) settle(xid uint32) *tcpCall {
	defer c.state.Unlock()
	cs := &c.state.Lock().calls
	t := cs.pending[xid]
	if t == nil {
		c.stats.dropped.Add(1)
		return nil
	}
	delete(cs.pending, xid)
	cs.answered = true
	cs.answers++
	c.stats.replies.Add(1)
	if e := t.call.event; e != nil {
		e.met()
	}
	return t
}

// tooLong is the error for a reply of which so many bytes have been announced.
func (t *tcpCall) tooLong(xid uint32, size int) error {
	return &BadReplyError{XID: xid, Reason: fmt.Sprintf("it has at least %d bytes, and MaxResults and WriteItems leave room for %d", size, t.most)}
}

// replyReceived takes a reply that is the reader's.
func (c *tcpConn) replyReceived(xid uint32, msg []byte) {
	t := c.settle(xid)
	if t == nil {
		return
	}
	if len(msg) <= t.most {
		t.call.store = append(t.call.store[:0], msg...)
	} else {
		t.err = t.tooLong(xid, len(msg))
	}
	t.Wake(true)
}

// takeLongReply reads a reply of which head has been read. It is read into memory of the
// connection, which is exchanged for memory of the call: its caller may leave meanwhile.
func (c *tcpConn) takeLongReply(xid uint32, head []byte) error {
	most, ok := c.pending(xid)
	if !ok {
		c.stats.dropped.Add(1)
		return c.r.Skip()
	}
	msg := append(c.spare[:0], head...)
	for {
		n, last, err := c.r.Rest()
		if err != nil {
			return err
		}
		if len(msg)+n > most {
			if err := c.r.Skip(); err != nil {
				return err
			}
			if t := c.settle(xid); t != nil {
				t.err = t.tooLong(xid, len(msg)+n)
				t.Wake(true)
			}
			return nil
		}
		from := len(msg)
		if cap(msg)-from < n {
			msg = append(make([]byte, 0, max(from+n, min(2*cap(msg), most))), msg...)
		}
		msg = msg[:from+n]
		c.spare = msg
		if _, err := io.ReadFull(c.r, msg[from:]); err != nil {
			return err
		}
		if last {
			break
		}
	}
	if t := c.settle(xid); t != nil {
		t.call.store, c.spare = msg, t.call.store[:0]
		t.Wake(true)
	}
	return nil
}
