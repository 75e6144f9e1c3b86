package transport

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// The server's side of the bridge: see record.go. A bridge is the Handler of its programs, inside the middleware that
// wraps all handlers. It makes each call readable as a record on the connection's net.Conn, and waits for the record
// that answers it.
//
// Without middleware no goroutine waits: the leader makes the call readable, so that the calls of a connection are read
// in order of arrival, and the goroutine that writes the reply sends it.

// A bridge is a server's net.Listener for some programs. Each connection that calls one of them is accepted once, as a
// net.Conn.
type bridge struct {
	s      *Server
	progs  []uint32    // empty: all programs without a handler
	prog   rpc.Program // its handler is the bridge, wrapped by the middleware
	direct bool        // there is no middleware

	mu     sync.Mutex
	conns  map[connection]*serverRecords
	accept chan *serverRecords
	closed chan struct{}
	once   sync.Once
	err    error // returned by Accept once closed
}

// Bridge returns a listener for the calls to progs or, without progs, to all programs that are not registered. Each of
// the server's connections that makes such a call is accepted as a net.Conn, from which calls are read and to which
// replies are written as records (RFC 5531 section 11). Replies are matched by xid and may be written in any order. b
// decides which data may travel in chunks; with nil, no data does.
//
// Config.Middleware wraps the calls of the listener. It also sees procedure 0. It may refuse a call, which is then
// never read, and change its credential or its arguments. The response that it sees has the status and the verifier of
// the reply that was written, its results and its items. If the RPC header of a written reply cannot be decoded, the
// reply is SYSTEM_ERR. With middleware, concurrent calls are read in any order.
//
// Bridge must be called before Serve. Closing the listener leaves connections open; closing a net.Conn ends the
// underlying connection. If a Middleware returns no handler for the programs, Accept returns an error, and their calls
// get PROG_UNAVAIL.
func (s *Server) Bridge(b rpc.Binding, progs ...uint32) net.Listener {
	br := &bridge{
		s: s, progs: progs, direct: len(s.around) == 0,
		conns:  make(map[connection]*serverRecords),
		accept: make(chan *serverRecords, s.cfg.MaxConns),
		closed: make(chan struct{}),
		err:    net.ErrClosed,
	}
	br.prog = rpc.Program{High: math.MaxUint32, Handler: rpc.Chain(br, s.around...), Binding: b, Null: true}
	if br.prog.Handler == nil {
		br.err = errors.New("transport: middleware leaves the programs of a bridge without a handler")
		br.direct = true
		br.Close()
	}
	s.mu.Lock()
	s.bridges = append(s.bridges, br)
	s.mu.Unlock()
	return br
}

func (b *bridge) takes(prog uint32) bool {
	return len(b.progs) == 0 || slices.Contains(b.progs, prog)
}

// idempotent reports whether the reply to a call does not need to be remembered.
func (b *bridge) idempotent(call *oncrpc.CallHeader) bool {
	i, ok := b.prog.Binding.(rpc.Idempotence)
	return call.Proc == 0 || ok && i.Idempotent(rpc.Procedure{Prog: call.Prog, Vers: call.Vers, Proc: call.Proc})
}

func (b *bridge) Accept() (net.Conn, error) {
	select {
	case c := <-b.accept:
		return c, nil
	case <-b.closed:
		return nil, b.err
	}
}

func (b *bridge) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// Addr returns the address of the server's first listener.
func (b *bridge) Addr() net.Addr {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for l := range b.s.listeners {
		return l.Addr()
	}
	return bridgeAddr{}
}

type bridgeAddr struct{}

func (bridgeAddr) Network() string { return "rpcrdma" }
func (bridgeAddr) String() string  { return "bridge" }

// ---- a call

// execute starts the execution of a call. The exchange is detached from the leader.
func (b *bridge) execute(x *exch) {
	x.prog = &b.prog
	if !b.direct {
		go x.start()
		return
	}
	x.request()
	x.res = rpc.Answering(x, nil)
	if e := x.event; e != nil {
		e.Waited = time.Since(e.Began)
	}
	x.passed = passed{x: x}
	if b.pass(&x.req, &x.res, &x.passed) == nil {
		x.finish()
	}
}

// ServeRPC passes a call to the reader of a net.Conn and waits for its reply. If ctx ends first, a call that has not
// been read is not executed. The outcome of other calls is unknown, and their replies are not remembered.
func (b *bridge) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	p := &passed{x: rpc.OriginOf(req).(*exch), reply: make(chan []byte, 1)} // TCP has no bridges
	rc := b.pass(req, res, p)
	if rc == nil {
		return
	}
	var record []byte
	select {
	case record = <-p.reply:
		rc.Release(p.place) // it may be answered before it is read completely
	case <-ctx.Done():
		rc.giveUp(p)
	}
	rc.fill(p, res, record)
}

// pass makes a call readable. If it cannot, it returns nil, and res has the error for the caller.
func (b *bridge) pass(req *rpc.Request, res *rpc.Response, p *passed) *serverRecords {
	rc, stat := b.of(p.x)
	if rc != nil {
		stat = rc.pass(req, p)
	}
	if stat != oncrpc.Success {
		res.Fail(stat)
		return nil
	}
	return rc
}

// of returns the net.Conn of a call's connection, accepting it if it is new, or the reason that there is no net.Conn.
func (b *bridge) of(x *exch) (*serverRecords, oncrpc.AcceptStat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := x.c
	if rc := b.conns[c]; rc != nil {
		return rc, oncrpc.Success
	}
	select {
	case <-b.closed:
		return nil, oncrpc.ProgUnavail
	case <-c.done: // and forget may already have run
		x.forgo()
		return nil, oncrpc.SystemErr
	default:
	}
	rc := &serverRecords{
		Stream: records.NewStream(), c: c, binding: b.prog.Binding,
		pending: make(map[uint32]*passed), parser: records.Parser{Max: c.cfg.MaxMessage},
	}
	select {
	case b.accept <- rc:
	default: // MaxConns connections are already waiting to be accepted
		return nil, oncrpc.SystemErr
	}
	b.conns[c] = rc
	return rc, oncrpc.Success
}

// forget closes the net.Conn of a connection that has ended.
func (b *bridge) forget(c connection) {
	b.mu.Lock()
	rc := b.conns[c]
	delete(b.conns, c)
	b.mu.Unlock()
	if rc != nil {
		rc.end(c.endErr())
	}
}

// serverRecords is a server's connection as a net.Conn.
type serverRecords struct {
	*records.Stream
	c       *conn
	binding rpc.Binding

	pmu     sync.Mutex
	pending map[uint32]*passed // calls being read or to be read, by xid; nil after the end

	wmu    sync.Mutex
	parser records.Parser
}

func (rc *serverRecords) LocalAddr() net.Addr  { return rc.c.fc.LocalAddr() }
func (rc *serverRecords) RemoteAddr() net.Addr { return rc.c.fc.RemoteAddr() }

// pass makes a call readable: a header with the current state of req, and its arguments, which are not copied.
func (rc *serverRecords) pass(req *rpc.Request, p *passed) oncrpc.AcceptStat {
	h := oncrpc.CallHeader{
		XID: req.XID, RPCVers: oncrpc.Version, Prog: req.Prog, Vers: req.Vers, Proc: req.Proc,
		Cred: req.Cred, Verf: req.Verf,
	}
	size := h.Size()
	head := make([]byte, 0, oncrpc.RecordMarkSize+size)
	head = oncrpc.AppendCall(oncrpc.AppendRecordMark(head, size+len(req.Args), true), &h)
	rc.pmu.Lock()
	defer rc.pmu.Unlock()
	if p.xid = req.XID; rc.pending == nil || rc.pending[p.xid] != nil {
		// The connection has ended, or the client uses an xid twice at once.
		p.x.forgo()
		return oncrpc.SystemErr
	}
	rc.pending[p.xid] = p
	p.place = rc.Push(head, req.Args)
	return oncrpc.Success
}

// take removes and returns the call with an xid, which now has its reply, or returns nil.
func (rc *serverRecords) take(xid uint32) *passed {
	rc.pmu.Lock()
	defer rc.pmu.Unlock()
	p := rc.pending[xid]
	delete(rc.pending, xid)
	return p
}

// giveUp makes the reply to a call be ignored. The client gets its credit back and may make further calls, so a call
// that has not been read must not stay.
func (rc *serverRecords) giveUp(p *passed) {
	rc.Drop(p.place)
	rc.pmu.Lock()
	defer rc.pmu.Unlock()
	if rc.pending[p.xid] == p {
		delete(rc.pending, p.xid)
	}
}

// end drops the calls without a reply. It is not known whether they were executed: if they are sent again, they are
// executed again.
func (rc *serverRecords) end(err error) {
	rc.Fail(err)
	rc.pmu.Lock()
	pending := rc.pending
	rc.pending = nil
	rc.pmu.Unlock()
	for _, p := range pending {
		rc.answer(p, nil)
	}
}

// Close ends the connection underlying the net.Conn.
func (rc *serverRecords) Close() error {
	rc.c.close()
	rc.Fail(net.ErrClosed)
	return nil
}

// Write accepts replies as records, in pieces of any size.
func (rc *serverRecords) Write(b []byte) (int, error) {
	rc.wmu.Lock()
	defer rc.wmu.Unlock()
	if err := rc.Failed(); err != nil {
		return 0, err
	}
	if err := rc.parser.Write(b, rc.reply); err != nil {
		rc.Fail(err)
		rc.c.close()
		return 0, err
	}
	return len(b), nil
}

// reply finds the call that a record answers.
func (rc *serverRecords) reply(record []byte) error {
	xid, dir, ok := oncrpc.Peek(record)
	if !ok || dir != oncrpc.Reply {
		return errors.New("transport: a record written is not an RPC reply")
	}
	if p := rc.take(xid); p != nil { // otherwise it was already answered, or the connection has ended
		rc.answer(p, record)
	}
	return nil
}

// answer passes a call its reply, or nil.
func (rc *serverRecords) answer(p *passed, record []byte) {
	if p.reply != nil {
		p.reply <- record
		return
	}
	rc.Release(p.place)
	x := p.x
	rc.fill(p, &x.res, record)
	if e := x.event; e != nil {
		e.Handler = time.Since(e.Began) - e.Waited
	}
	x.finish()
}

// fill fills in the response from a record: its status and verifier, its results, and the items that the binding finds
// in them. Without a record there is nothing to remember.
func (rc *serverRecords) fill(p *passed, res *rpc.Response, record []byte) {
	x := p.x
	if record == nil {
		x.forgo()
		res.Fail(oncrpc.SystemErr)
		return
	}
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(record, &h)
	if err != nil {
		res.Fail(oncrpc.SystemErr)
		return
	}
	res.Verf = h.Verf
	if err := h.Err(); err != nil {
		var refused *oncrpc.RPCError
		errors.As(err, &refused)
		res.Reject(refused)
		return
	}
	results := record[n:]
	switch {
	case x.call.Cred.Sealed():
		x.ranges = sealedItems(results, x.ranges[:0])
		results = x.carve(results, x.ranges)
	case rc.binding != nil && !x.call.Cred.Protected():
		x.ranges = rc.binding.Reply(rpc.Procedure{Prog: x.call.Prog, Vers: x.call.Vers, Proc: x.call.Proc}, results, false, x.ranges[:0])
		results = x.carve(results, x.ranges)
	}
	res.Fail(oncrpc.Success)
	res.Results = results
}

// carve turns ranges of results into items, and returns the results without them. Items that are out of order or out of
// bounds stay in the results.
func (x *exch) carve(b []byte, items []rpc.Range) []byte {
	if !inOrder(items, len(b)) || len(items) == 0 {
		return b
	}
	// Without their items the results are short, so they are copied.
	size := len(b)
	for _, it := range items {
		size -= xdr.Padded(it.Length)
	}
	out := make([]byte, 0, size)
	from := 0
	for _, it := range items {
		out = append(out, b[from:it.Offset]...)
		x.AddItem(len(out), b[it.Offset:it.Offset+it.Length], nil)
		from = it.End()
	}
	return append(out, b[from:]...)
}
