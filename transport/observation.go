package transport

import (
	"errors"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// How connections notify their Observer.

// observation wraps an Observer. If it is nil, nothing is measured.
type observation struct {
	rpc.Observer
	events sync.Pool // of *callEvent
}

func observe(o rpc.Observer) *observation {
	if o == nil {
		return nil
	}
	return &observation{Observer: o, events: sync.Pool{New: func() any { return new(callEvent) }}}
}

// begin reports the beginning of a call, described by init, and returns its event.
func (o *observation) begin(init rpc.CallEvent) *callEvent {
	e := o.events.Get().(*callEvent)
	e.CallEvent = init
	o.CallBegan(&e.CallEvent)
	return e
}

// end reports the end of the call. e must no longer be in use.
func (o *observation) end(e *callEvent) {
	e.Total = time.Since(e.Began)
	o.CallEnded(&e.CallEvent)
	*e = callEvent{}
	o.events.Put(e)
}

// made runs f, which makes the call, and reports the call to the Observer.
func (o *observation) made(call *pendingCall, backward bool, f func() error) error {
	o.beginOf(call, backward)
	err := f()
	o.endOf(call, err)
	return err
}

// beginOf reports the beginning of a call, and sets its event.
func (o *observation) beginOf(call *pendingCall, backward bool) {
	call.event = o.begin(rpc.CallEvent{
		Procedure: call.ObservedAs(), Backward: backward, Began: time.Now(),
	})
}

// endOf reports the end of the call.
func (o *observation) endOf(call *pendingCall, err error) {
	e := call.event
	call.event = nil
	e.Err = err
	if err == nil || errors.As(err, new(*oncrpc.RPCError)) {
		e.Status = call.Reply
	}
	o.end(e)
}

// left records that the call was sent on c. request describes how.
func (e *callEvent) left(c *Conn, xid uint32, again bool, request rpc.Transfer) {
	e.sent = time.Now()
	e.Conn, e.XID, e.Request = c, xid, request
	e.Waited = e.sent.Sub(e.Began)
	e.Wire = 0
	if again {
		e.Resent++
	}
}

// met records the arrival of the reply.
func (e *callEvent) met() { e.Wire = time.Since(e.sent) }

// notice reports n, if there is an Observer.
func (cn *Conn) notice(n rpc.Notice) {
	if o := cn.cfg.observation; o != nil {
		n.Conn, n.Peer = cn, cn.c.addr()
		o.Noticed(n)
	}
}

// refused reports a malformed message.
func (cn *Conn) refused(xid uint32, err error) {
	if cn.cfg.observation != nil {
		cn.notice(rpc.Notice{Kind: rpc.NoticeRefused, XID: xid, Err: err})
	}
}

// registered reports that n bytes have been registered with the adapter.
func (cn *Conn) registered(n int) { cn.notice(rpc.Notice{Kind: rpc.NoticeRegistered, Bytes: n}) }

// ---- connections

// begun reports that the connection has been set up. It may have ended already.
func (cn *Conn) begun() {
	o := cn.cfg.observation
	if o == nil {
		return
	}
	cn.life.began = time.Now()
	o.ConnBegan(rpc.ConnEvent{Conn: cn, Server: cn.server, Began: cn.life.began})
	cn.life.mu.Lock()
	cn.life.known = true
	over := cn.life.over
	cn.life.mu.Unlock()
	if over {
		cn.tellEnd(o)
	}
}

// over reports the end of the connection. If the Observer does not know the connection yet, begun does that.
func (cn *Conn) over() {
	o := cn.cfg.observation
	if o == nil {
		return
	}
	cn.life.mu.Lock()
	first := !cn.life.over && cn.life.known
	cn.life.over = true
	cn.life.mu.Unlock()
	if first {
		cn.tellEnd(o)
	}
}

func (cn *Conn) tellEnd(o *observation) {
	o.ConnEnded(rpc.ConnEvent{Conn: cn, Server: cn.server, Began: cn.life.began, Err: unorderly(cn.Err())})
}

// ---- calls over RDMA

// wayOf returns how a call with the header h traveled.
func wayOf(h *rpcrdma.Header) rpc.Ways {
	switch {
	case h.Proc == rpcrdma.ProcNomsg:
		return rpc.ByLongCall
	case len(h.Reads) > 0:
		return rpc.ByMessage | rpc.ByReadChunk
	}
	return rpc.ByMessage
}

// request returns how the call of s travels.
func (s *slot) request() rpc.Transfer {
	t := rpc.Transfer{By: wayOf(&s.hdr)}
	for i := range s.hdr.Reads {
		t.Chunks += int(s.hdr.Reads[i].Length)
	}
	t.Bytes = t.Chunks + len(s.sge[0].Buf) - s.hdr.Size()
	return t
}

// replyTransfer describes the arrival of a reply with the header h and n bytes after it.
func replyTransfer(h *rpcrdma.Header, n int) rpc.Transfer {
	t := rpc.Transfer{Bytes: n}
	for i := range h.Writes {
		if k := int(h.Writes[i].Length()); k > 0 {
			t.Chunks += k
			t.By |= rpc.ByWriteChunk
		}
	}
	if h.HasReply {
		if k := int(h.Reply.Length()); k > 0 {
			t.Chunks += k
			t.By |= rpc.ByReplyChunk
		}
	}
	for i := range h.Reads {
		t.Chunks += int(h.Reads[i].Length)
		t.By |= rpc.ByReadChunk
	}
	if n > 0 {
		t.By |= rpc.ByMessage
	}
	t.Bytes += t.Chunks
	return t
}

// transfer describes the arrival of the call of x.
func (x *exch) transfer() rpc.Transfer {
	t := rpc.Transfer{Bytes: len(x.Msg), By: wayOf(x.hdr)}
	for i := range x.hdr.Reads {
		t.Chunks += int(x.hdr.Reads[i].Length)
	}
	return t
}
