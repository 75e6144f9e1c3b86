package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// The calls that an end of a TCP connection makes.

// tcpCalls are the calls of a connection. They are part of its state.
type tcpCalls struct {
	callTable[tcpCall]

	// Calls in use that their callers have left. Their messages are queued, or being written, and the peer may be slow:
	// they count until another write after the current one has ended.
	left, leaving int
}

// A tcpCall is a call in flight. Its caller owns it. While it is pending, the reader, or the end of the connection,
// sets its results and err. The goroutine that resets pending, under the connection's lock, wakes the caller unless it
// is the caller.
type tcpCall struct {
	*waiter
	pending bool // sent, or about to be, and not answered
	call    *pendingCall
	xid     uint32
	most    int // the longest reply, in bytes
	err     error

	rec   records.Record
	parts [][]byte
	head  []byte
	scratch
}

func newTCPCall(int) *tcpCall { return new(tcpCall) }

// opened permits a server's first calls.
func (c *tcpConn) opened(n int) {
	if c.answers.weak {
		return
	}
	c.state.Lock().calls.setGrant(n, n)
	c.state.Unlock()
}

// call makes one call, or makes it again if it has been sent on another connection.
func (c *tcpConn) call(ctx context.Context, call *pendingCall) error {
	if call.op != nil {
		return &OperationError{call.op.Type, "the connection is TCP"}
	}
	t, w, err := c.state.Lock().calls.acquire(ctx, nil)
	if err != nil {
		return err
	}
	t.waiter, t.xid, t.call = w, w.xid, call
	left, err := c.roundTrip(ctx, t)
	c.giveBack(t, left)
	return err
}

func (c *tcpConn) openLane() lane { return newCallLane(c.call, c.addr()) }

// roundTrip makes the call of t. left reports that the caller has left while its message may still be queued.
func (c *tcpConn) roundTrip(ctx context.Context, t *tcpCall) (left bool, err error) {
	call := t.call
	if call.Sign != nil && !call.sent {
		xid := t.xid
		if call.again {
			xid = call.xid
		}
		call.sign(xid)
	}
	if err := t.build(c.cfg); err != nil {
		return false, err
	}
	if err := c.register(t); err != nil {
		return false, err
	}
	if call.sent {
		inc(&c.stats.Resent)
	}
	if e := call.event; e != nil {
		e.left(&c.public, t.xid, call.sent, rpc.Transfer{Bytes: recordSize(t.parts), By: rpc.ByMessage})
	}
	call.xid, call.sent = t.xid, true
	inc(&c.stats.Calls)
	inc(&c.stats.Inline)
	free := c.w.Write(&t.rec)
	c.w.Flush()
	_, woken := baton.SleepOn(ctx, t.Bell())
	given := false
	if !woken {
		if given, left = c.giveUp(t); !given {
			t.Sleep() // the reply has arrived at the same moment
		}
	}
	if !free {
		c.w.Withdraw(&t.rec) // usually it has been written
	}
	switch {
	case given:
		return left, ctx.Err()
	case t.err != nil:
		return false, t.err
	}
	if e := call.event; e != nil {
		e.Reply = rpc.Transfer{Bytes: len(call.store), By: rpc.ByMessage}
	}
	return false, call.takeReply(t.xid)
}

// giveBack returns the place of a call that is over. left reports that its credit must be returned only when its
// message has been written.
func (c *tcpConn) giveBack(t *tcpCall, left bool) {
	cs := &c.state.Lock().calls
	defer c.state.Unlock()
	t.call, t.err = nil, nil
	clear(t.parts)
	t.rec.Parts = nil
	cs.put(t, t.xid, t.waiter)
	if !left {
		cs.leave().goOn()
	}
}

// written ends the calls that their callers have left and that have been written. rests reports that nothing is queued
// any longer.
func (cs *tcpCalls) written(rests bool) {
	if cs.left+cs.leaving == 0 {
		return
	}
	gone := cs.left
	cs.left, cs.leaving = cs.leaving, 0
	if rests {
		gone, cs.left = gone+cs.left, 0
	}
	cs.givenUp -= gone
	for range gone {
		cs.leave().goOn()
	}
}

// register lets the reader accept replies to t, with the existing xid of the call, or that of t.
func (c *tcpConn) register(t *tcpCall) error {
	st := c.state.Lock()
	defer c.state.Unlock()
	if err := st.refuse(); err != nil {
		return err
	}
	if keep, xid := t.call.keepsXID(); keep {
		if err := st.calls.renumber(t, t.waiter, xid); err != nil {
			return err
		}
		t.xid = xid
	}
	binary.BigEndian.PutUint32(t.head[oncrpc.RecordMarkSize:], t.xid)
	t.pending = true
	c.answers.callMade()
	return nil
}

// awaits returns how many calls wait for their replies.
func (c *tcpConn) awaits() (n int) {
	defer c.state.Unlock()
	for _, t := range c.state.Lock().calls.all {
		if t.pending {
			n++
		}
	}
	return n
}

// giveUp ends the wait of a caller after its context has ended. given is false if the reply has arrived. left is as in
// roundTrip.
func (c *tcpConn) giveUp(t *tcpCall) (given, left bool) {
	cs := &c.state.Lock().calls
	defer c.state.Unlock()
	if !t.pending {
		return false, false
	}
	t.pending = false
	if left = !c.w.Rests(); left {
		cs.leaving++
		cs.givenUp++
	}
	inc(&c.stats.Canceled)
	return true, left
}

// fail ends all calls.
func (cs *tcpCalls) fail(err error) {
	for _, t := range cs.all {
		if t.pending {
			t.pending, t.err = false, err
			t.Wake(true)
		}
	}
	cs.callTable.fail()
}

// find returns the call for a reply, or nil.
func (cs *tcpCalls) find(xid uint32) *tcpCall {
	if t := cs.underWay.Find(xid); t != nil && t.pending {
		return t
	}
	return nil
}

// ---- the message

// build builds the record of a call, except its xid.
func (t *tcpCall) build(cfg *config) error {
	call := t.call
	if err := cfg.fits(call.Names); err != nil {
		return err
	}
	pc, err := t.outline(call)
	if err != nil {
		return err
	}
	size := pc.Size()
	if size > cfg.MaxMessage {
		return &rpc.SizeError{What: "the call message, which Config.MaxMessage bounds,", Size: size, Limit: cfg.MaxMessage}
	}
	if err := t.bound(call, cfg); err != nil {
		return err
	}
	if err := call.refusesForeign(overTCP, overTCP); err != nil {
		return err
	}
	b := oncrpc.AppendRecordMark(t.head[:0], size, true)
	args, from := call.Args, 0
	if call.raw == nil {
		b = oncrpc.AppendCall(b, &oncrpc.CallHeader{
			RPCVers: oncrpc.Version, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Cred: call.Cred, Verf: call.Verf,
		})
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

const overTCP = "TCP has no chunks"

// bound sets the length of the longest reply.
func (t *tcpCall) bound(call *pendingCall, cfg *config) error {
	r, err := t.results(call)
	if err != nil {
		return err
	}
	all := r.Header + r.Max
	for _, n := range r.Items {
		all += xdr.Padded(n)
	}
	if all > cfg.MaxMessage {
		return &rpc.SizeError{What: "the largest reply, which Config.MaxMessage bounds,", Size: all, Limit: cfg.MaxMessage}
	}
	// The caller need not account for replies that would fit inline over RDMA.
	t.most = max(all, cfg.InlineRecv)
	return nil
}

// ---- replies

// pending finds the call for a reply, and the maximum length of the reply.
func (c *tcpConn) pending(xid uint32) (most int, ok bool) {
	defer c.state.Unlock()
	t := c.state.Lock().calls.find(xid)
	if t == nil {
		return 0, false
	}
	return t.most, true
}

// settle marks a call as answered; its caller waits until it is woken. It returns nil if no caller waits for the reply.
func (c *tcpConn) settle(xid uint32) *tcpCall {
	defer c.state.Unlock()
	cs := &c.state.Lock().calls
	t := cs.find(xid)
	if t == nil {
		inc(&c.stats.Dropped)
		return nil
	}
	t.pending = false
	cs.answered = true
	cs.answers++
	inc(&c.stats.Replies)
	if e := t.call.event; e != nil {
		e.met()
	}
	return t
}

// tooLong returns the error for a reply that has announced the given number of bytes.
func (t *tcpCall) tooLong(xid uint32, size int) error {
	return &rpc.BadReplyError{XID: xid, Reason: fmt.Sprintf("it has at least %d bytes, and MaxResults and WriteItems leave room for %d", size, t.most)}
}

// replyReceived processes a reply in memory that the reader owns.
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

// takeLongReply reads the rest of a reply that begins with head. It is read into memory of the connection, which is
// then exchanged for memory of the call: its caller may leave meanwhile.
func (c *tcpConn) takeLongReply(xid uint32, head []byte) error {
	most, ok := c.pending(xid)
	if !ok {
		inc(&c.stats.Dropped)
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
