package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// ErrInjected is the default error of a Fault. The ConnError of a connection that a Fault has
// broken unwraps to it.
var ErrInjected = errors.New("fabrictest: injected fault")

// A Point is where a Fault occurs.
type Point uint8

const (
	AtResolve    Point = iota // Provider.Resolve
	AtListen                  // Provider.Listen
	AtTake                    // Listener.Accept
	AtConnect                 // Conn.Connect
	AtAccept                  // Conn.Accept
	AtRegMR                   // Conn.RegMR, Conn.RegForeign
	AtAllocMW                 // Conn.AllocMW
	AtPost                    // Conn.Post, counted in calls
	AtPostRecv                // Conn.PostRecv
	AtCompletion              // a completion that Poll returns
	AtRequest                 // Conn.Post, counted in requests
	points
)

func (p Point) String() string {
	names := [points]string{"Resolve", "Listen", "Listener.Accept", "Connect", "Accept",
		"RegMR", "AllocMW", "Post", "PostRecv", "completion", "request"}
	if p < points {
		return names[p]
	}
	return fmt.Sprintf("point %d", uint8(p))
}

// An Action is the effect of a Fault.
type Action uint8

const (
	// Fail makes the call fail without effect. At a completion it replaces the status with that of the Fault, and the
	// connection ends as after any failed request.
	Fail Action = iota
	// Break lets the call or the completion succeed, and then ends the connection: outstanding requests are flushed,
	// and the peer sees the end. At a request, the following ones in the list are flushed without having been posted.
	Break
	// Cut ends the connection before the call, which then fails, or before the completion,
	// which then does not happen. At a request, the preceding ones in the list have been
	// posted. At Resolve, Listen and Listener.Accept, where there is no connection yet, it is
	// like Fail.
	Cut
)

func (a Action) String() string {
	switch a {
	case Break:
		return "break"
	case Cut:
		return "cut"
	}
	return "fail"
}

// A Side selects the Conns of a Fault.
type Side uint8

const (
	BothSides Side = iota
	Dialed         // made by Resolve
	Taken          // made by a listener
)

// A Fault occurs once, or repeatedly.
type Fault struct {
	At    Point  // where
	Do    Action // what happens
	Side  Side   // Resolve belongs to Dialed, Listen and Listener.Accept to Taken
	N     int    // at the N-th passage of the point on that side, counted over all Conns; 0 means 1
	Every bool   // at every N-th passage

	// Match, if not nil, selects the passages that count. Calls are serialized. It must not
	// use the provider, and must not keep references from the Passage.
	Match func(Passage) bool

	// Err is the error of the call, and the Cause of the connection's end. Default:
	// ErrInjected.
	Err error

	// Status is the status of a failed completion. Default: WCGeneralErr.
	Status fabric.WCStatus
}

// A Passage is an event at the Point of a Fault.
type Passage struct {
	Conn int // number of the Conn, in the order of creation; 0: not created yet

	// AtRequest: the list that contains the request.
	List []fabric.SendWR
	N    int

	// AtCompletion: the completion.
	WC *fabric.WC

	// Message is the message of a Send at AtRequest, if it has a single SGE, or the received
	// message at AtCompletion.
	Message []byte
}

// A Plan has the faults to inject. They count independently; if several are due at once, the
// first in the list occurs.
type Plan []Fault

// A FaultyProvider injects the faults of a Plan into a provider. It neither delays nor
// reorders anything else.
type FaultyProvider struct {
	inner fabric.Provider

	mu     sync.Mutex
	faults []countedFault
	conns  int
}

type countedFault struct {
	Fault
	seen, struck int
}

// Faulty wraps p. With an empty plan the wrapper changes nothing.
func Faulty(p fabric.Provider, plan Plan) *FaultyProvider {
	f := &FaultyProvider{inner: p}
	for _, fault := range plan {
		if fault.N <= 0 {
			fault.N = 1
		}
		if fault.Err == nil {
			fault.Err = ErrInjected
		}
		if fault.Status == fabric.WCSuccess {
			fault.Status = fabric.WCGeneralErr
		}
		f.faults = append(f.faults, countedFault{Fault: fault})
	}
	return f
}

// Struck returns how often the i-th fault of the plan has occurred.
func (f *FaultyProvider) Struck(i int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults[i].struck
}

// pass counts a passage, and returns the fault that is due.
func (f *FaultyProvider) pass(at Point, side Side, p Passage) (Fault, bool) {
	if len(f.faults) == 0 {
		return Fault{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	hit := -1
	for i := range f.faults {
		c := &f.faults[i]
		if c.At != at || c.Side != BothSides && c.Side != side || c.Match != nil && !c.Match(p) {
			continue
		}
		c.seen++
		if c.seen == c.N || c.Every && c.seen%c.N == 0 {
			if hit < 0 {
				hit = i
			}
		}
	}
	if hit < 0 {
		return Fault{}, false
	}
	f.faults[hit].struck++
	return f.faults[hit].Fault, true
}

// Name implements fabric.Provider.
func (f *FaultyProvider) Name() string { return f.inner.Name() }

// Close implements fabric.Provider.
func (f *FaultyProvider) Close() error { return f.inner.Close() }

// Resolve implements fabric.Provider.
func (f *FaultyProvider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	fault, hit := f.pass(AtResolve, Dialed, Passage{})
	if hit && fault.Do != Break {
		return nil, fault.Err
	}
	inner, err := f.inner.Resolve(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	c := f.conn(inner, Dialed)
	c.after(fault, hit)
	return c, nil
}

// Listen implements fabric.Provider.
func (f *FaultyProvider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	fault, hit := f.pass(AtListen, Taken, Passage{})
	if hit && fault.Do != Break {
		return nil, fault.Err
	}
	inner, err := f.inner.Listen(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	if hit {
		inner.Close()
	}
	return &faultyListener{inner, f}, nil
}

type faultyListener struct {
	fabric.Listener
	p *FaultyProvider
}

func (l *faultyListener) Accept(ctx context.Context) (fabric.Conn, error) {
	fault, hit := l.p.pass(AtTake, Taken, Passage{})
	if hit && fault.Do != Break {
		return nil, fault.Err
	}
	inner, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	c := l.p.conn(inner, Taken)
	c.after(fault, hit)
	return c, nil
}

func (f *FaultyProvider) conn(inner fabric.Conn, side Side) *faultyConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns++
	return &faultyConn{Conn: inner, p: f, side: side, no: f.conns}
}

// A faultyConn accounts for posted requests, so that it can flush them.
type faultyConn struct {
	fabric.Conn
	p    *FaultyProvider
	side Side
	no   int

	// mu is held while posting and while processing completions, so that the accounts match the adapter's queues. It is
	// acquired before the adapter's locks, and is not held while the adapter waits.
	mu     sync.Mutex
	broken *fabric.ConnError
	sq     []request
	rq     []fabric.RecvWR
}

// after applies a Fault after a successful call.
func (c *faultyConn) after(fault Fault, hit bool) {
	if !hit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ruin(fault)
}

// ruin ends the connection. The caller holds c.mu.
func (c *faultyConn) ruin(fault Fault) {
	if c.broken != nil {
		return
	}
	c.broken = &fabric.ConnError{Provider: c.p.Name(), Cause: fault.Err}
	c.Conn.Close() // the memory belongs to the caller again, and Wait returns
}

// before applies a Fault before a call, and returns the error of the call.
func (c *faultyConn) before(at Point) (fault Fault, hit bool, err error) {
	fault, hit = c.p.pass(at, c.side, Passage{Conn: c.no})
	switch {
	case hit && fault.Do == Fail:
		err = fault.Err
	case hit && fault.Do == Cut:
		c.after(fault, hit)
		err = c.end()
	}
	return fault, hit, err
}

// call wraps a method that has no list of requests.
func (c *faultyConn) call(at Point, do func() error) error {
	fault, hit, err := c.before(at)
	if err != nil {
		return err
	}
	if err := c.end(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	c.after(fault, hit)
	return nil
}

// end returns the error with which a fault has ended the connection, or nil.
func (c *faultyConn) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	return nil
}

func (c *faultyConn) Connect(ctx context.Context, privateData []byte) error {
	return c.call(AtConnect, func() error { return c.Conn.Connect(ctx, privateData) })
}

func (c *faultyConn) Accept(ctx context.Context, privateData []byte) error {
	return c.call(AtAccept, func() error { return c.Conn.Accept(ctx, privateData) })
}

func (c *faultyConn) RegMR(buf []byte, access fabric.Access) (mr fabric.MR, err error) {
	err = c.call(AtRegMR, func() (err error) {
		mr, err = c.Conn.RegMR(buf, access)
		return err
	})
	return mr, err
}

func (c *faultyConn) RegForeign(mem fabric.Foreign, access fabric.Access) (mr fabric.MR, err error) {
	err = c.call(AtRegMR, func() (err error) {
		mr, err = c.Conn.RegForeign(mem, access)
		return err
	})
	return mr, err
}

func (c *faultyConn) AllocMW() (mw fabric.MW, err error) {
	err = c.call(AtAllocMW, func() (err error) {
		mw, err = c.Conn.AllocMW()
		return err
	})
	return mw, err
}

func (c *faultyConn) Post(wrs []fabric.SendWR) error {
	fault, hit, err := c.before(AtPost)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	all := wrs
	for i := range all {
		at, strikes := c.p.pass(AtRequest, c.side, Passage{Conn: c.no, List: all, N: i, Message: message(&all[i])})
		if !strikes {
			continue
		}
		if at.Do == Fail {
			return at.Err
		}
		fault, hit = at, true
		if wrs = all[:i]; at.Do == Break {
			wrs = all[:i+1]
		}
		break
	}
	if len(wrs) == 0 && len(all) > 0 {
		c.ruin(fault)
		return c.broken
	}
	if err := c.Conn.Post(wrs); err != nil {
		return err
	}
	if hit {
		c.ruin(fault)
	}
	for i := range all {
		c.sq = append(c.sq, newRequest(&all[i]))
	}
	return nil
}

// message returns the message of a request.
func message(wr *fabric.SendWR) []byte {
	if wr.Op != fabric.OpSend && wr.Op != fabric.OpSendInv || len(wr.SGL) != 1 {
		return nil
	}
	return wr.SGL[0].Buf
}

func (c *faultyConn) PostRecv(wrs []fabric.RecvWR) error {
	fault, hit, err := c.before(AtPostRecv)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	if err := c.Conn.PostRecv(wrs); err != nil {
		return err
	}
	c.rq = append(c.rq, wrs...)
	if hit {
		c.ruin(fault)
	}
	return nil
}

func (c *faultyConn) Poll(wc []fabric.WC) (int, error) {
	if c.end() == nil {
		n, err := c.Conn.Poll(wc)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.broken == nil {
			return c.look(wc[:n]), err
		}
		// The connection broke in the meantime. Report what has completed, and flush the rest.
		if n > 0 {
			for i := range wc[:n] {
				c.settled(&wc[i])
			}
			return n, nil
		}
	} else {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	return c.flush(wc)
}

// look returns the number of completions to pass on: those up to the one at which a fault occurs. The action of the
// fault determines whether that one is included. The others are discarded, and their requests are flushed later.
func (c *faultyConn) look(wc []fabric.WC) int {
	for i := range wc {
		p := Passage{Conn: c.no, WC: &wc[i]}
		if wc[i].Op == fabric.WCRecv && wc[i].Status == fabric.WCSuccess && len(c.rq) > 0 && c.rq[0].SGE.Foreign == nil {
			p.Message = c.rq[0].SGE.Buf[:wc[i].Len]
		}
		fault, hit := c.p.pass(AtCompletion, c.side, p)
		if hit && fault.Do == Cut {
			c.ruin(fault)
			return i
		}
		c.settled(&wc[i])
		if !hit {
			continue
		}
		if fault.Do == Fail {
			wc[i].Status = fault.Status
		}
		c.ruin(fault)
		return i + 1
	}
	return len(wc)
}

// settled removes the request of wc from the accounts.
func (c *faultyConn) settled(wc *fabric.WC) {
	if wc.Op == fabric.WCRecv {
		c.rq = slices.Delete(c.rq, 0, min(1, len(c.rq)))
		return
	}
	at := slices.IndexFunc(c.sq, func(r request) bool { return r.completes(wc) })
	c.sq = slices.Delete(c.sq, 0, at+1)
}

// flush flushes the outstanding requests of a connection that a fault has broken. Then it reports the end.
func (c *faultyConn) flush(wc []fabric.WC) (n int, err error) {
	for ; n < len(wc) && len(c.sq) > 0; n++ {
		wc[n] = fabric.WC{ID: c.sq[0].id, Op: c.sq[0].op, Status: fabric.WCFlushErr}
		c.sq = slices.Delete(c.sq, 0, 1)
	}
	for ; n < len(wc) && len(c.rq) > 0; n++ {
		wc[n] = fabric.WC{ID: c.rq[0].ID, Op: fabric.WCRecv, Status: fabric.WCFlushErr}
		c.rq = slices.Delete(c.rq, 0, 1)
	}
	if n == 0 && len(c.sq) == 0 && len(c.rq) == 0 {
		return 0, c.broken
	}
	return n, nil
}

func (c *faultyConn) Wait() error {
	if c.end() == nil {
		err := c.Conn.Wait()
		if c.end() == nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sq) == 0 && len(c.rq) == 0 {
		return c.broken
	}
	return nil
}

func (c *faultyConn) Disconnect(ctx context.Context) error {
	if err := c.end(); err != nil {
		return err
	}
	return c.Conn.Disconnect(ctx)
}

func (c *faultyConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sq, c.rq = nil, nil
	return err
}
