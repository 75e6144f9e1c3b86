package transport

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// An Observer is told what happens on the connections of a Client or a Server: see
// Config.Observer. Embed [NoObserver] in an implementation, which then goes on to compile when
// Observer gets another method.
//
// The methods are called by the goroutines that make calls and move connections, by many of them
// at once. They must not block, and must not call, close or wait for anything of the connections
// that they are told of; Conn.Info, Conn.Stats and Conn.RemoteAddr may be called. What an event
// points to is valid until the method returns, and belongs to the transport; for a call that has
// begun the pointer to its event stays the same until it has ended, so that it can be a key of a
// map. Nothing is allocated for an Observer in the steady state.
type Observer interface {
	// ConnBegan tells of a connection that has been set up.
	ConnBegan(e ConnEvent)
	// ConnEnded tells of its end, once for each ConnBegan. Calls that are executed on it may
	// end later.
	ConnEnded(e ConnEvent)
	// CallBegan tells of a call that is about to be made, or has been received whole and is
	// about to be executed. Calls that are refused before their procedure is known are a
	// Notice.
	CallBegan(e *CallEvent)
	// CallEnded tells that Call is about to return, or that the reply has been handed to the
	// adapter, or will never be. It comes once for each CallBegan.
	CallEnded(e *CallEvent)
	// Noticed tells of what an operator may want to know beside that.
	Noticed(n Notice)
}

// NoObserver is an Observer that does nothing.
type NoObserver struct{}

func (NoObserver) ConnBegan(ConnEvent)  {}
func (NoObserver) ConnEnded(ConnEvent)  {}
func (NoObserver) CallBegan(*CallEvent) {}
func (NoObserver) CallEnded(*CallEvent) {}
func (NoObserver) Noticed(Notice)       {}

// A ConnEvent is the beginning or the end of a connection.
type ConnEvent struct {
	Conn   *Conn
	Server bool      // the other end has opened it
	Began  time.Time // when it had been set up

	// Err is why it has ended: nil when this end or its peer has closed it in order.
	Err error
}

// Outcome is a word for how a connection has ended: "closed" in order, "stalled" with a
// *StallError, "protocol" because the peer has broken the protocol, "silent" because it did not
// answer in time, "reset" if the peer or what is between has cut it off, or "failed". There are
// no others, so that it can be a label of a metric.
func (e ConnEvent) Outcome() string {
	var ce *fabric.ConnError
	switch err := e.Err; {
	case err == nil:
		return "closed"
	case errors.As(err, new(*StallError)):
		return "stalled"
	case errors.As(err, new(*PeerError)), errors.As(err, new(*BadReplyError)), errors.As(err, new(*RDMAError)),
		errors.As(err, new(*VersionError)):
		return "protocol"
	case errors.Is(err, errSilent):
		return "silent"
	case errors.As(err, &ce) && ce.Remote:
		return "reset"
	}
	return "failed"
}

// A CallEvent is a call, at the end that makes it or at the end that executes it. What is known
// at the end alone is zero in CallBegan.
type CallEvent struct {
	Procedure

	// Conn is the connection. A call that is made has none before it has been sent, and then
	// the one that it was sent on last. It may be over TCP.
	Conn     *Conn
	Executed bool // at the end that executes it; false: at the end that makes it
	Backward bool // from a server to its client
	XID      uint32
	Began    time.Time // when Call was called, or the message was received

	// Total is the time from Began to CallEnded. Waited is the part of it before the call was
	// sent, the last time: for a connection and a credit; or before it was executed: for
	// memory, and for the Reads of its arguments. Wire is, at the end that makes the call,
	// the time from sending it to meeting its reply. Handler is, at the end that executes it,
	// the time in the Handler.
	Total, Waited, Wire, Handler time.Duration

	Request, Reply Transfer

	// Status is the header of the RPC reply. It means nothing if Err is not nil, but that an
	// *oncrpc.RPCError says the same at the end that makes the call.
	Status oncrpc.ReplyHeader

	// Err is what Call returns; and at the end that executes the call, why it has no RPC
	// reply: an *RDMAError that was sent in its place, a *ReplySizeError, or net.ErrClosed if
	// the connection ended first.
	Err error

	Resent   int  // how often it was sent again, on other connections
	Replayed bool // it was answered from the reply cache

	sent time.Time
	open bool
}

// Outcome is a word for what came of a call that has ended: "success", or the name of the RPC
// status in lower case ("prog_unavail", "garbage_args", "auth_error"), or for a call without
// an RPC reply "rdma_error", "bad_reply", "too_long", "lost", "closed", "timeout", "canceled" or
// "failed". There are no others than the RPC's and these, so that it can be a label of a metric.
func (e *CallEvent) Outcome() string {
	if e.Err == nil {
		return statusOutcome(&e.Status)
	}
	return errOutcome(e.Err)
}

func statusOutcome(h *oncrpc.ReplyHeader) string {
	// In tables, so that nothing is allocated.
	accepted := [...]string{"success", "prog_unavail", "prog_mismatch", "proc_unavail", "garbage_args", "system_err"}
	denied := [...]string{"rpc_mismatch", "auth_error"}
	switch {
	case h.Stat != oncrpc.MsgDenied && h.AcceptStat <= oncrpc.SystemErr:
		return accepted[h.AcceptStat]
	case h.Stat == oncrpc.MsgDenied && h.RejectStat <= oncrpc.AuthError:
		return denied[h.RejectStat]
	}
	return "failed"
}

// A Transfer says how an RPC message travelled.
type Transfer struct {
	Bytes  int // of the RPC message, with all data that was in chunks
	Chunks int // of these, those moved by RDMA Read or Write
	By     Ways
}

// Ways are the ways of the parts of a message.
type Ways uint8

const (
	// ByMessage: the message, or a part of it, was in the Send itself: inline. Over TCP
	// everything is.
	ByMessage Ways = 1 << iota
	// ByReadChunk: data was in read chunks.
	ByReadChunk
	// ByLongCall: the message as a whole was in a position-zero read chunk.
	ByLongCall
	// ByWriteChunk: results were placed in write chunks.
	ByWriteChunk
	// ByReplyChunk: the message as a whole was placed in the reply chunk.
	ByReplyChunk
)

// String names the ways, as "inline" or "read chunk+inline".
func (w Ways) String() string {
	switch w { // the usual ones, without an allocation
	case 0:
		return "none"
	case ByMessage:
		return "inline"
	case ByReplyChunk:
		return "reply chunk"
	case ByLongCall:
		return "long call"
	}
	var s []string
	for i, name := range []string{"inline", "read chunk", "long call", "write chunk", "reply chunk"} {
		if w&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return strings.Join(s, "+")
}

// A Notice is something that has happened beside calls.
type Notice struct {
	Kind NoticeKind
	Conn *Conn  // nil: there is none yet
	Peer string // address of the other end
	XID  uint32 // of a message, if it had one
	Err  error  // of a refusal

	// Bytes is the length of registered memory, or of what a call waits for.
	Bytes int
}

// A NoticeKind says what a Notice is about.
type NoticeKind uint8

const (
	// NoticeRefused: a message of the peer was malformed. It was refused or dropped, and Err
	// says why.
	NoticeRefused NoticeKind = iota
	// NoticeRejected: a connection was refused, or its set-up failed, at a server.
	NoticeRejected
	// NoticeCreditStall: a call waits for a credit.
	NoticeCreditStall
	// NoticeMemoryStall: a call that has been received waits for memory, for Bytes of it.
	NoticeMemoryStall
	// NoticeRegistered: Bytes of memory have been registered with the adapter.
	NoticeRegistered
)

// String names the kind, as "refused".
func (k NoticeKind) String() string {
	names := [...]string{"refused", "rejected", "credit stall", "memory stall", "registered"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("NoticeKind(%d)", uint8(k))
}

// Observers returns an Observer that passes everything on to all of list, in order. Those that
// are nil are left out; of none at all it returns nil.
func Observers(list ...Observer) Observer {
	var all observers
	for _, o := range list {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type observers []Observer

func (all observers) ConnBegan(e ConnEvent) {
	for _, o := range all {
		o.ConnBegan(e)
	}
}

func (all observers) ConnEnded(e ConnEvent) {
	for _, o := range all {
		o.ConnEnded(e)
	}
}

func (all observers) CallBegan(e *CallEvent) {
	for _, o := range all {
		o.CallBegan(e)
	}
}

func (all observers) CallEnded(e *CallEvent) {
	for _, o := range all {
		o.CallEnded(e)
	}
}

func (all observers) Noticed(n Notice) {
	for _, o := range all {
		o.Noticed(n)
	}
}

// ---- how the transport tells

// observation is an Observer at work. Nil: there is none, and nothing is measured.
type observation struct {
	Observer
	events sync.Pool // of *CallEvent
}

func observe(o Observer) *observation {
	if o == nil {
		return nil
	}
	return &observation{Observer: o, events: sync.Pool{New: func() any { return new(CallEvent) }}}
}

// begin tells that a call begins, as it is in init, and returns its event.
func (o *observation) begin(init CallEvent) *CallEvent {
	e := o.events.Get().(*CallEvent)
	*e = init
	e.open = true
	o.CallBegan(e)
	return e
}

// end tells that the call has ended. Nobody may have e any more.
func (o *observation) end(e *CallEvent) {
	e.open = false
	e.Total = time.Since(e.Began)
	o.CallEnded(e)
	*e = CallEvent{}
	o.events.Put(e)
}

// made makes a call with f, which finds the call's event in it, and tells of it.
func (o *observation) made(call *Call, backward bool, f func() error) error {
	call.event = o.begin(CallEvent{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc}, Backward: backward, Began: time.Now(),
	})
	err := f()
	e := call.event
	call.event = nil
	e.Err = err
	if err == nil || errors.As(err, new(*oncrpc.RPCError)) {
		e.Status = call.Reply
	}
	o.end(e)
	return err
}

// left notes that the call has been sent on c, with its request being so.
func (e *CallEvent) left(c *Conn, xid uint32, again bool, request Transfer) {
	e.sent = time.Now()
	e.Conn, e.XID, e.Request = c, xid, request
	e.Waited = e.sent.Sub(e.Began)
	e.Wire = 0
	if again {
		e.Resent++
	}
}

// met notes that the reply has come.
func (e *CallEvent) met() { e.Wire = time.Since(e.sent) }

// notice tells of n, if there is an Observer.
func (cn *Conn) notice(n Notice) {
	if o := cn.cfg.observation; o != nil {
		n.Conn, n.Peer = cn, cn.c.addr()
		o.Noticed(n)
	}
}

// refused tells that a message was malformed.
func (cn *Conn) refused(xid uint32, err error) {
	if cn.cfg.observation != nil {
		cn.notice(Notice{Kind: NoticeRefused, XID: xid, Err: err})
	}
}

// A watchedConn is a fabric's Conn whose registrations an Observer is told of.
type watchedConn struct {
	fabric.Conn
	cn *Conn
}

func (r watchedConn) RegMR(mem []byte, access fabric.Access) (fabric.MR, error) {
	mr, err := r.Conn.RegMR(mem, access)
	if err == nil {
		r.cn.notice(Notice{Kind: NoticeRegistered, Bytes: len(mem)})
	}
	return mr, err
}

// ---- connections

// A connLife is what an Observer is told of a connection as a whole.
type connLife struct {
	mu    sync.Mutex // held while the Observer is told, so that it hears of the end last
	began time.Time
	over  bool
}

// begun tells that the connection has been set up. It may have ended already.
func (cn *Conn) begun(server bool) {
	o := cn.cfg.observation
	if o == nil {
		return
	}
	cn.life.mu.Lock()
	cn.life.began, cn.server = time.Now(), server
	o.ConnBegan(ConnEvent{Conn: cn, Server: server, Began: cn.life.began})
	over := cn.life.over
	cn.life.mu.Unlock()
	if over {
		cn.tellEnd(o)
	}
}

// over tells that the connection has ended.
func (cn *Conn) over() {
	o := cn.cfg.observation
	if o == nil {
		return
	}
	cn.life.mu.Lock()
	first := !cn.life.over && !cn.life.began.IsZero()
	cn.life.over = true
	cn.life.mu.Unlock()
	if first {
		cn.tellEnd(o)
	}
}

func (cn *Conn) tellEnd(o *observation) {
	o.ConnEnded(ConnEvent{Conn: cn, Server: cn.server, Began: cn.life.began, Err: unorderly(cn.Err())})
}

// ---- calls over RDMA

// wayOf tells how a call with the header h travelled.
func wayOf(h *rpcrdma.Header) Ways {
	switch {
	case h.Proc == rpcrdma.ProcNomsg:
		return ByLongCall
	case len(h.Reads) > 0:
		return ByMessage | ByReadChunk
	}
	return ByMessage
}

// request is how the call of s travels.
func (s *slot) request() Transfer {
	t := Transfer{By: wayOf(&s.hdr)}
	for i := range s.hdr.Reads {
		t.Chunks += int(s.hdr.Reads[i].Length)
	}
	t.Bytes = t.Chunks + len(s.sge[0].Buf) - s.hdr.Size()
	return t
}

// replyTransfer is how a reply with the header h and n bytes behind it has come.
func replyTransfer(h *rpcrdma.Header, n int) Transfer {
	t := Transfer{Bytes: n}
	for i := range h.Writes {
		if k := int(h.Writes[i].Length()); k > 0 {
			t.Chunks += k
			t.By |= ByWriteChunk
		}
	}
	if h.HasReply {
		if k := int(h.Reply.Length()); k > 0 {
			t.Chunks += k
			t.By |= ByReplyChunk
		}
	}
	for i := range h.Reads {
		t.Chunks += int(h.Reads[i].Length)
		t.By |= ByReadChunk
	}
	if n > 0 {
		t.By |= ByMessage
	}
	t.Bytes += t.Chunks
	return t
}

// observeCall tells that the call of x, whose message is whole, begins.
func (x *exch) observeCall() {
	o := x.c.cfg.observation
	if o == nil {
		return
	}
	call := &x.call
	t := Transfer{Bytes: len(x.Msg), By: wayOf(&x.hdr)}
	for i := range x.hdr.Reads {
		t.Chunks += int(x.hdr.Reads[i].Length)
	}
	x.event = o.begin(CallEvent{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc}, Conn: &x.c.public, Executed: true,
		Backward: x.c.role == roleClient, XID: call.XID, Began: x.came, Waited: time.Since(x.came), Request: t,
	})
}

// observeEnd tells that the call of x has ended, if it has begun: err is why it has no reply.
func (x *exch) observeEnd(err error) {
	e := x.event
	if e == nil {
		return
	}
	x.event = nil
	if e.Err == nil {
		e.Err = err
	}
	x.c.cfg.observation.end(e)
}

// ---- calls over TCP

func (x *tcpExch) observeCall() {
	o := x.c.cfg.observation
	if o == nil {
		return
	}
	call := &x.call
	x.event = o.begin(CallEvent{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc}, Conn: &x.c.public, Executed: true,
		Backward: x.c.role == roleClient, XID: call.XID, Began: x.came, Request: Transfer{Bytes: len(x.msg), By: ByMessage},
	})
}

func (x *tcpExch) observeEnd(err error) {
	e := x.event
	if e == nil {
		return
	}
	x.event = nil
	if e.Err == nil {
		e.Err = err
	}
	x.c.cfg.observation.end(e)
}

// arrived notes when the call of x came.
func (x *tcpExch) arrived() {
	if x.c.cfg.observation != nil {
		x.came = time.Now()
	}
}

// observeReply notes how the reply in x.rec travels, and that the call has ended: who writes the
// reply may have x next.
func (x *tcpExch) observeReply() {
	e := x.event
	if e == nil {
		return
	}
	e.Reply = Transfer{Bytes: recordSize(x.rec.Parts), By: ByMessage}
	_, _ = oncrpc.ConsumeReply(x.head[oncrpc.RecordMarkSize:], &e.Status)
	x.observeEnd(nil)
}

// recordSize is the length of the message in a record.
func recordSize(parts [][]byte) int {
	n := -oncrpc.RecordMarkSize
	for _, p := range parts {
		n += len(p)
	}
	return n
}
