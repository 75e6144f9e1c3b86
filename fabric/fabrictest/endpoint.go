package fabrictest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

const (
	loopback       = "127.0.0.1:0"
	defaultTimeout = 20 * time.Second
)

// A Setup configures Pair. The zero value is a loopback connection with the provider's defaults and no private data.
type Setup struct {
	Addr           string // of the listener; "127.0.0.1:0" if empty
	Client, Server fabric.ConnAttr
	Request, Reply []byte // private data
	Timeout        time.Duration

	// BeforeConnect and BeforeAccept, if set, are called before Connect and Accept, for
	// example to post receives.
	BeforeConnect func(client fabric.Conn)
	BeforeAccept  func(server fabric.Conn)
}

// Pair returns two connected ends. Both are closed when the test ends.
func Pair(t testing.TB, p fabric.Provider, set Setup) (client, server fabric.Conn) {
	t.Helper()
	if set.Addr == "" {
		set.Addr = loopback
	}
	if set.Timeout == 0 {
		set.Timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), set.Timeout)
	defer cancel()
	l, err := p.Listen(ctx, set.Addr, set.Server)
	if err != nil {
		t.Fatalf("listen at %s: %v", set.Addr, err)
	}
	defer l.Close()
	client, server, err = join(ctx, p, l, set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// join connects over l, to which nothing else may be connecting.
func join(ctx context.Context, p fabric.Provider, l fabric.Listener, set Setup) (client, server fabric.Conn, err error) {
	for {
		client, server, err = joinOnce(ctx, p, l, set)
		// siw connects from a port that the connection manager has chosen. A TCP connection that ended a moment ago
		// may have used the same port.
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || ctx.Err() != nil {
			return client, server, err
		}
	}
}

func joinOnce(ctx context.Context, p fabric.Provider, l fabric.Listener, set Setup) (client, server fabric.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := p.Resolve(ctx, l.Addr().String(), set.Client)
	if err != nil {
		return nil, nil, fmt.Errorf("resolve %s: %w", l.Addr(), err)
	}
	if set.BeforeConnect != nil {
		set.BeforeConnect(c)
	}
	connected := make(chan error, 1)
	go func() {
		err := c.Connect(ctx, set.Request)
		if err != nil {
			cancel() // no request will arrive
		}
		connected <- err
	}()
	v, err := l.Accept(ctx)
	if err == nil {
		if set.BeforeAccept != nil {
			set.BeforeAccept(v)
		}
		err = v.Accept(ctx, set.Reply)
	}
	if err != nil {
		err = fmt.Errorf("accept: %w", err)
		cancel()
	}
	if cerr := <-connected; cerr != nil {
		err = fmt.Errorf("connect: %w", errors.Join(cerr, err))
	}
	if err != nil {
		c.Close()
		if v != nil {
			v.Close()
		}
		return nil, nil, err
	}
	return c, v, nil
}

// An Endpoint is one end of a connection in a test. It accounts for all requests: every request
// posted through it must complete once, in order, and with its opcode; violations are reported at the
// next expectation. Each expectation has a description, which failures print.
//
// Between Start and Stop a goroutine of the Endpoint drives the Conn. Methods that may end the
// test must be called on the test's goroutine.
type Endpoint struct {
	Conn    fabric.Conn
	Name    string        // in messages
	Timeout time.Duration // for each expectation

	t testing.TB

	posting sync.Mutex // serializes posts, so that the accounts are in queue order

	mu      sync.Mutex
	changed sync.Cond
	sq      []request     // sends posted, not completed yet
	rq      []request     // receives posted, not completed yet
	sent    []fabric.WC   // sends completed, not consumed by an expectation yet
	rcvd    []received    // receives completed, not consumed by an expectation yet
	end     error         // the last error of Poll
	wrong   []string      // violations
	sqError bool          // a send has failed: no later one may succeed
	rqError bool          // a receive has failed: no later one may succeed
	closed  bool          // this side has closed: outstanding requests may be lost
	wcs     [16]fabric.WC // scratch of Step
	nextID  uint64        // next ID for a request whose ID the Endpoint chooses
	stop    atomic.Bool   // the driver must return
	stopped chan struct{} // closed by the driver; nil if there is no driver
	in, out heap          // used only by the test's goroutine
}

// A request accounts for a posted work request.
type request struct {
	id       uint64
	op       fabric.WCOpcode
	signaled bool
	deferred bool
	asked    bool   // Post has not returned yet
	buf      []byte // the buffer of a receive
	foreign  bool   // the receive has foreign memory and no buf
}

// A received is a received message with its buffer.
type received struct {
	wc   fabric.WC
	data []byte
}

// NewEndpoint returns an Endpoint for c, which is closed at the end of the test. Until Start
// nothing drives it.
func NewEndpoint(t testing.TB, name string, c fabric.Conn) *Endpoint {
	e := &Endpoint{Conn: c, Name: name, Timeout: defaultTimeout, t: t, nextID: 1 << 32}
	e.changed.L = &e.mu
	t.Cleanup(func() {
		e.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.wrong) > 0 {
			t.Errorf("%s: %s", e.Name, strings.Join(e.wrong, "\n\t"))
		}
	})
	return e
}

// Start starts a goroutine that drives the Conn, which must be established.
func (e *Endpoint) Start() {
	e.stop.Store(false)
	e.stopped = make(chan struct{})
	go func() {
		defer close(e.stopped)
		e.drive()
	}()
}

// Stop stops the goroutine of Start, so that the test itself may call Poll, Wait or
// Disconnect.
func (e *Endpoint) Stop() {
	e.t.Helper()
	if e.stopped == nil {
		return
	}
	e.mu.Lock()
	ended := e.end != nil
	e.mu.Unlock()
	e.stop.Store(true)
	if !ended { // otherwise the driver returns by itself
		e.Conn.Wake()
	}
	if !returns(e.Timeout, func() { <-e.stopped }) {
		e.t.Fatalf("%s: Wait has not returned %v after Wake", e.Name, e.Timeout)
	}
	e.stopped = nil
}

// Close closes the Conn and waits for the driver to notice.
func (e *Endpoint) Close() {
	e.t.Helper()
	e.abandon()
	if !returns(e.Timeout, func() {
		if err := e.Conn.Close(); err != nil {
			e.fault("Close: %v", err)
		}
	}) {
		e.t.Errorf("%s: Close has not returned after %v", e.Name, e.Timeout)
		return
	}
	if e.stopped != nil && !returns(e.Timeout, func() { <-e.stopped }) {
		e.t.Errorf("%s: the driver is still in Poll or Wait %v after Close", e.Name, e.Timeout)
	}
}

// abandon records that this side closes: from then on completions may be lost.
func (e *Endpoint) abandon() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// drive drives the connection until it has ended or Stop is called.
func (e *Endpoint) drive() {
	for !e.stop.Load() {
		n, err := e.Step()
		if err != nil {
			return
		}
		if n > 0 {
			continue
		}
		if werr := e.Conn.Wait(); werr != nil {
			if n, err := e.Step(); err == nil && n == 0 {
				e.fault("Wait returned %v, and Poll after it nothing", werr)
				return
			}
		}
	}
}

// Step polls once and accounts for the completions. The driver calls it, or the test if it has
// not called Start.
func (e *Endpoint) Step() (int, error) {
	n, err := e.Conn.Poll(e.wcs[:])
	if n == 0 && err == nil {
		return 0, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, wc := range e.wcs[:n] {
		if wc.Op == fabric.WCRecv {
			e.countRecv(wc)
		} else {
			e.countSend(wc)
		}
	}
	if err != nil {
		e.countEnd(n, err)
	}
	e.changed.Broadcast()
	return n, err
}

// fault records a violation.
func (e *Endpoint) fault(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faultLocked(format, args...)
	e.changed.Broadcast()
}

func (e *Endpoint) faultLocked(format string, args ...any) {
	if len(e.wrong) < 5 { // one violation may cause others
		e.wrong = append(e.wrong, fmt.Sprintf(format, args...))
	}
}

// countRecv checks that receives complete in the order in which they were posted.
func (e *Endpoint) countRecv(wc fabric.WC) {
	if len(e.rq) == 0 {
		e.faultLocked("receive %d completed (%v) with none outstanding", wc.ID, wc.Status)
		return
	}
	r := e.rq[0]
	e.rq = slices.Delete(e.rq, 0, 1)
	if r.id != wc.ID {
		e.faultLocked("receive %d completed (%v) in the turn of receive %d", wc.ID, wc.Status, r.id)
	}
	m := received{wc: wc}
	switch {
	case wc.Status != fabric.WCSuccess:
		e.rqError = true
	case e.rqError:
		e.faultLocked("receive %d succeeded after one had failed", wc.ID)
	case !r.foreign:
		if int64(wc.Len) > int64(len(r.buf)) {
			e.faultLocked("receive %d of %d bytes holds %d", wc.ID, len(r.buf), wc.Len)
			wc.Len = uint32(len(r.buf))
		}
		m.data = r.buf[:wc.Len]
	}
	e.rcvd = append(e.rcvd, m)
}

func newRequest(wr *fabric.SendWR) request {
	signaled := wr.Flags&fabric.Signaled != 0
	return request{id: wr.ID, op: wr.Op.Completion(), signaled: signaled, deferred: !signaled && wr.Flags&fabric.Deferred != 0}
}

// completes reports whether wc can be the completion of r.
func (r *request) completes(wc *fabric.WC) bool {
	return r.signaled || r.id == wc.ID && (r.deferred || wc.Status != fabric.WCSuccess)
}

// untold returns the number of deferred requests in q.
func untold(q []request) (n int) {
	for i := range q {
		if q[i].deferred {
			n++
		}
	}
	return n
}

// countSend checks that the send queue completes in order. Requests that are neither signaled nor deferred have no
// completion unless they fail. At most MaxDeferred consecutive deferred requests have no completion. After a request has
// failed, all later requests fail with a completion.
func (e *Endpoint) countSend(wc fabric.WC) {
	at := slices.IndexFunc(e.sq, func(r request) bool { return r.completes(&wc) })
	if at >= 0 && wc.Status != fabric.WCSuccess && e.sq[at].id != wc.ID {
		e.faultLocked("request %d failed (%v) in the turn of request %d", wc.ID, wc.Status, e.sq[at].id)
	}
	if at < 0 {
		e.faultLocked("request %d completed (%v) with none outstanding that would", wc.ID, wc.Status)
		return
	}
	if at > 0 && e.sqError {
		e.faultLocked("request %d completed (%v) and request %d before it did not, after one had failed", wc.ID, wc.Status, e.sq[0].id)
	}
	if n := untold(e.sq[:at]); n > fabric.MaxDeferred {
		e.faultLocked("request %d completed (%v), and %d deferred ones before it did not", wc.ID, wc.Status, n)
	}
	r := e.sq[at]
	e.sq = slices.Delete(e.sq, 0, at+1)
	if wc.Status != fabric.WCSuccess {
		e.sqError = true
	} else {
		if r.id != wc.ID {
			e.faultLocked("request %d completed in the turn of request %d", wc.ID, r.id)
		}
		if r.op != wc.Op {
			e.faultLocked("request %d completed with opcode %d, want %d", wc.ID, wc.Op, r.op)
		}
		if e.sqError {
			e.faultLocked("request %d succeeded after one had failed", wc.ID)
		}
	}
	e.sent = append(e.sent, wc)
}

// countEnd checks that the end is reported after the last completion.
func (e *Endpoint) countEnd(n int, err error) {
	if n != 0 {
		e.faultLocked("Poll returned %d completions and %v at once", n, err)
	}
	var ce *fabric.ConnError
	if !errors.As(err, &ce) || !errors.Is(err, net.ErrClosed) {
		e.faultLocked("Poll ended with %T (%v), which is not a *fabric.ConnError that unwraps to net.ErrClosed", err, err)
	}
	if !e.closed {
		for _, r := range e.rq {
			if !r.asked {
				e.faultLocked("receive %d has not completed at the connection's end", r.id)
			}
		}
		for _, r := range e.sq {
			if (r.signaled || e.sqError) && !r.asked {
				e.faultLocked("request %d has not completed at the connection's end", r.id)
			}
		}
	}
	if e.end == nil {
		e.end = err
	}
}

// TryPost posts requests and returns the error of Post.
func (e *Endpoint) TryPost(wrs ...fabric.SendWR) error {
	e.posting.Lock()
	defer e.posting.Unlock()
	e.mu.Lock()
	for i := range wrs {
		r := newRequest(&wrs[i])
		r.asked = true
		e.sq = append(e.sq, r)
	}
	e.mu.Unlock()
	err := e.Conn.Post(wrs)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sq = e.settle(e.sq, err)
	return err
}

// TryPostRecv posts receives and returns the error of PostRecv.
func (e *Endpoint) TryPostRecv(wrs ...fabric.RecvWR) error {
	e.posting.Lock()
	defer e.posting.Unlock()
	e.mu.Lock()
	for i := range wrs {
		e.rq = append(e.rq, request{id: wrs[i].ID, op: fabric.WCRecv, signaled: true, buf: wrs[i].SGE.Buf, foreign: wrs[i].SGE.Foreign != nil, asked: true})
	}
	e.mu.Unlock()
	err := e.Conn.PostRecv(wrs)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rq = e.settle(e.rq, err)
	return err
}

// settle records in q whether the last requests have been posted. They are in q already, because they may have completed
// in the meantime.
func (e *Endpoint) settle(q []request, err error) []request {
	if err != nil {
		return slices.DeleteFunc(q, func(r request) bool { return r.asked })
	}
	for i := range q {
		if q[i].asked && q[i].signaled && e.end != nil && !e.closed {
			e.faultLocked("request %d was taken, and the connection's end came without its completion", q[i].id)
		}
		q[i].asked = false
	}
	return q
}

// Post posts requests, which must succeed.
func (e *Endpoint) Post(what string, wrs ...fabric.SendWR) {
	e.t.Helper()
	if err := e.TryPost(wrs...); err != nil {
		e.t.Fatalf("%s: post %s: %v", e.Name, what, err)
	}
}

// Region registers n bytes of new memory. It is deregistered when the Conn is closed, at the latest.
func (e *Endpoint) Region(n int, access fabric.Access) fabric.MR {
	e.t.Helper()
	mr, err := e.Conn.RegMR(make([]byte, n), access)
	if err != nil {
		e.t.Fatalf("%s: register %d bytes: %v", e.Name, n, err)
	}
	return mr
}

// Window allocates a memory window.
func (e *Endpoint) Window() fabric.MW {
	e.t.Helper()
	mw, err := e.Conn.AllocMW()
	if err != nil {
		e.t.Fatalf("%s: allocate a memory window: %v", e.Name, err)
	}
	return mw
}

// Receives posts n receives of size bytes each, in new memory.
func (e *Endpoint) Receives(n, size int) {
	e.t.Helper()
	wrs := make([]fabric.RecvWR, n)
	for i := range wrs {
		wrs[i] = fabric.RecvWR{ID: e.newID(), SGE: e.in.take(e, size, fabric.AccessLocalWrite)}
	}
	if err := e.TryPostRecv(wrs...); err != nil {
		e.t.Fatalf("%s: post %d receives: %v", e.Name, n, err)
	}
}

func (e *Endpoint) newID() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nextID++
	return e.nextID
}

// A heap allocates registered memory. It never frees any.
type heap struct {
	mr   fabric.MR
	free int // offset of the unused part
}

func (h *heap) take(e *Endpoint, n int, access fabric.Access) fabric.SGE {
	e.t.Helper()
	if h.mr == nil || len(h.mr.Bytes())-h.free < n {
		h.mr, h.free = e.Region(max(n, 1<<16), access), 0
	}
	sge := SGE(h.mr, h.free, n)
	h.free += n
	return sge
}

// SGE returns an SGE of n bytes of mr at offset off.
func SGE(mr fabric.MR, off, n int) fabric.SGE {
	return fabric.SGE{Buf: mr.Bytes()[off : off+n : off+n], LKey: mr.LKey()}
}

// Message returns a signaled Send of a registered copy of data.
func (e *Endpoint) Message(data []byte) fabric.SendWR {
	e.t.Helper()
	wr := fabric.SendWR{ID: e.newID(), Op: fabric.OpSend, Flags: fabric.Signaled}
	if len(data) > 0 {
		sge := e.out.take(e, len(data), 0)
		copy(sge.Buf, data)
		wr.SGL = []fabric.SGE{sge}
	}
	return wr
}

// Send sends a copy of data and waits for the completion.
func (e *Endpoint) Send(what string, data []byte) {
	e.t.Helper()
	wr := e.Message(data)
	e.Post(what, wr)
	e.WantSent(what, wr.ID)
}

// await waits until ready returns true, or until the timeout. It calls ready with e.mu held.
func (e *Endpoint) await(ready func() bool) (ok bool) {
	late := false
	timer := time.AfterFunc(e.Timeout, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		late = true
		e.changed.Broadcast()
	})
	defer timer.Stop()
	for !ready() {
		if late || len(e.wrong) > 0 {
			return false
		}
		e.changed.Wait()
	}
	return true
}

// state describes the outstanding requests. The caller holds e.mu.
func (e *Endpoint) state() string {
	s := fmt.Sprintf("%d sends and %d receives outstanding, %d and %d completed and not expected",
		len(e.sq), len(e.rq), len(e.sent), len(e.rcvd))
	if e.end != nil {
		s += fmt.Sprintf("; the connection has ended: %v", e.end)
	}
	for _, w := range e.wrong {
		s += "\n\t" + w
	}
	return s
}

// NextSend returns the next completion of the send queue, or an error if it does not arrive in time.
func (e *Endpoint) NextSend() (fabric.WC, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.await(func() bool { return len(e.sent) > 0 || e.end != nil })
	if len(e.sent) == 0 {
		return fabric.WC{}, e.none("send")
	}
	wc := e.sent[0]
	e.sent = slices.Delete(e.sent, 0, 1)
	return wc, nil
}

// NextRecv returns the next completion of a receive, and the bytes received.
func (e *Endpoint) NextRecv() (fabric.WC, []byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.await(func() bool { return len(e.rcvd) > 0 || e.end != nil })
	if len(e.rcvd) == 0 {
		return fabric.WC{}, nil, e.none("receive")
	}
	m := e.rcvd[0]
	e.rcvd = slices.Delete(e.rcvd, 0, 1)
	return m.wc, m.data, nil
}

func (e *Endpoint) none(what string) error {
	if e.end != nil {
		return e.end
	}
	return fmt.Errorf("no completion of a %s: %s", what, e.state())
}

// WantSent expects the next request of the send queue to succeed, and to have this ID.
func (e *Endpoint) WantSent(what string, id uint64) fabric.WC {
	e.t.Helper()
	wc, err := e.NextSend()
	if err != nil {
		e.t.Fatalf("%s: want completion of %s: %v", e.Name, what, err)
	}
	if wc.ID != id || wc.Status != fabric.WCSuccess {
		e.t.Fatalf("%s: want success of %s (%d), got %v of %d", e.Name, what, id, wc.Status, wc.ID)
	}
	return wc
}

// wantTold expects completions that stand for all but at most MaxDeferred of the deferred requests. It discards these
// completions.
func (e *Endpoint) wantTold(what string) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.await(func() bool { return untold(e.sq) <= fabric.MaxDeferred || e.end != nil })
	if n := untold(e.sq); n > fabric.MaxDeferred || e.end != nil || len(e.wrong) > 0 {
		e.t.Fatalf("%s: no completion stands for %d %s: %s", e.Name, n, what, e.state())
	}
	e.sent = e.sent[:0]
}

// WantFailed expects the next request of the send queue to have this ID, and to fail with one of the given statuses.
func (e *Endpoint) WantFailed(what string, id uint64, status ...fabric.WCStatus) fabric.WC {
	e.t.Helper()
	wc, err := e.NextSend()
	if err != nil {
		e.t.Fatalf("%s: want %s to fail: %v", e.Name, what, err)
	}
	if wc.ID != id || !slices.Contains(status, wc.Status) {
		e.t.Fatalf("%s: want %s (%d) to fail with %v, got %v of %d", e.Name, what, id, status, wc.Status, wc.ID)
	}
	return wc
}

// WantRecv expects a message, and returns its completion and its bytes.
func (e *Endpoint) WantRecv(what string) (fabric.WC, []byte) {
	e.t.Helper()
	wc, data, err := e.NextRecv()
	if err != nil {
		e.t.Fatalf("%s: want %s: %v", e.Name, what, err)
	}
	if wc.Status != fabric.WCSuccess {
		e.t.Fatalf("%s: want %s, got %v", e.Name, what, wc.Status)
	}
	return wc, data
}

// WantMessage expects a message with these bytes.
func (e *Endpoint) WantMessage(what string, want []byte) fabric.WC {
	e.t.Helper()
	wc, got := e.WantRecv(what)
	if !bytes.Equal(got, want) {
		e.t.Fatalf("%s: %s is %s, want %s", e.Name, what, brief(got), brief(want))
	}
	return wc
}

// WantNothing expects that no completion is left. Call it after an expectation of a later event.
func (e *Endpoint) WantNothing(what string) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.sent) > 0 || len(e.rcvd) > 0 || e.end != nil || len(e.wrong) > 0 {
		e.t.Fatalf("%s: want nothing more %s: %s", e.Name, what, e.state())
	}
}

// WantEnd expects the connection to end, after every outstanding request has been flushed. Messages that still arrive
// are ignored.
func (e *Endpoint) WantEnd(what string) *fabric.ConnError {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.await(func() bool { return e.end != nil })
	var ce *fabric.ConnError
	if len(e.wrong) > 0 || !errors.As(e.end, &ce) {
		e.t.Fatalf("%s: want the connection to end %s: %s", e.Name, what, e.state())
	}
	return ce
}

// brief prints the beginning of a message.
func brief(b []byte) string {
	const most = 24
	if len(b) <= most {
		return fmt.Sprintf("%d bytes %x", len(b), b)
	}
	return fmt.Sprintf("%d bytes %x...", len(b), b[:most])
}

// Fill fills b with bytes that depend on seed and on their offset, so that stale and shifted
// copies differ.
func Fill(b []byte, seed uint64) {
	fill(b, seed)
	copy(b, b) // for the race detector: one access to all of it
}

// fill is excluded from the race detector, because the checks would spend most of their time in it.
//
//go:norace
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	next := func() uint64 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return x
	}
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, next())
	}
	if len(b) > 0 {
		var rest [8]byte
		binary.LittleEndian.PutUint64(rest[:], next())
		copy(b, rest[:])
	}
}

// Pattern returns n bytes filled by Fill.
func Pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	Fill(b, seed)
	return b
}
