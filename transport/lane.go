package transport

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Calls without a goroutine each, on one connection: see Pipeline.

// A lane holds the calls of a [Pipeline] on one connection. The Pipeline's goroutine owns it.
type lane interface {
	// post sends calls in order, as far as credits allow, and returns how many it has taken. If no call of the lane is
	// in flight, it waits for a credit. The error is why the connection takes none, or ctx's.
	post(ctx context.Context, calls []*pendingCall) (taken int, err error)

	// reap appends the calls that have ended to list. If none has, it waits for one, unless no call is in flight. The
	// error is ctx's.
	reap(ctx context.Context, list []endedCall) ([]endedCall, error)

	// abandon cancels the calls that have not ended, and appends all calls to list. When it returns, the peer cannot
	// reach their memory.
	abandon(list []endedCall) []endedCall

	// busy returns the number of calls in flight: taken, and neither reaped nor abandoned.
	busy() int
}

// An endedCall is a call that has ended, and its error.
type endedCall struct {
	call *pendingCall
	err  error
}

// An rdmaLane has its calls in slots like those of other callers. But they share one waiter instead of having a
// goroutine each: the leader completes a call by appending its slot to ended.
type rdmaLane struct {
	waiter // the Pipeline's goroutine, when it waits for any call
	c      *conn
	under  int
	failed []endedCall // calls that could not be built or sent

	ended []*slot // guarded by the connection's state

	// Scratch.
	taken []*slot
	spare []*slot
	wrs   []fabric.SendWR
	wakes []*waiter
}

func (c *conn) openLane() lane {
	ln := &rdmaLane{c: c}
	ln.Init(&ln.waiter)
	return ln
}

func (ln *rdmaLane) busy() int { return ln.under }

// post builds as many messages as there are credits, and posts them with one doorbell.
func (ln *rdmaLane) post(ctx context.Context, calls []*pendingCall) (int, error) {
	if err := ln.take(ctx, len(calls)); err != nil {
		return 0, err
	}
	formed, n := ln.taken[:0], 0
	var err error
	for i, s := range ln.taken {
		if err != nil { // the connection has ended
			s.giveBack()
			continue
		}
		switch err = s.build(calls[i]); {
		case err == nil:
			formed = append(formed, s)
		case errors.Is(err, net.ErrClosed):
			s.unexpose()
			s.giveBack()
			continue
		default:
			ln.drop(s, calls[i], ln.c.unbuilt(ctx, calls[i], err))
			err = nil
		}
		n++
	}
	ln.under += n
	ln.launch(formed)
	if err != nil {
		// A call that was not taken waits for the next connection: the end of ctx is not its end.
		err = ln.c.unbuilt(ctx, calls[n], err)
	}
	return n, err
}

// take takes up to n slots, without overtaking callers that wait for one.
func (ln *rdmaLane) take(ctx context.Context, n int) error {
	c := ln.c
	ln.taken = ln.taken[:0]
	st := c.state.Lock()
	if err := st.refuse(); err != nil {
		c.state.Unlock()
		return err
	}
	for len(ln.taken) < n && st.calls.makeRoom() {
		w := st.calls.caller()
		s := st.calls.take(w)
		s.begin(w)
		ln.taken = append(ln.taken, s)
	}
	c.state.Unlock()
	if len(ln.taken) > 0 || ln.under > 0 {
		return nil
	}
	s, err := c.acquire(ctx, nil)
	if err == nil {
		ln.taken = append(ln.taken, s)
	}
	return err
}

// launch sends the messages that were built in the slots of list.
func (ln *rdmaLane) launch(list []*slot) {
	c := ln.c
	st := c.state.Lock()
	err := st.refuse()
	if err == nil {
		for _, s := range list {
			s.state, s.lane = slotPending, ln
		}
	}
	c.state.Unlock()
	wrs := ln.wrs[:0]
	for _, s := range list {
		if err != nil {
			ln.drop(s, s.call, err)
			continue
		}
		s.leaves()
		wrs = append(wrs, s.wrs...)
	}
	if len(wrs) > 0 {
		c.sends.post(wrs, false)
	}
	clear(wrs)
	ln.wrs = wrs
}

// drop ends a call that has not been sent.
func (ln *rdmaLane) drop(s *slot, call *pendingCall, err error) {
	s.unexpose()
	s.giveBack()
	ln.failed = append(ln.failed, endedCall{call, err})
}

// reap returns the slots of all calls that have ended at once.
func (ln *rdmaLane) reap(ctx context.Context, list []endedCall) ([]endedCall, error) {
	c := ln.c
	before := len(list)
	list = append(list, ln.failed...)
	clear(ln.failed)
	ln.failed = ln.failed[:0]
	c.state.Lock()
	if len(ln.ended) == 0 && len(list) == before && ln.under > 0 {
		ln.ready = false
		c.state.Unlock()
		if err := c.await(ctx, &ln.waiter); err != nil {
			return list, err
		}
		c.state.Lock()
	}
	ended := ln.ended
	ln.ended = ln.spare[:0]
	c.state.Unlock()
	for _, s := range ended {
		list = append(list, endedCall{s.call, s.finish()})
	}
	if len(ended) > 0 {
		st := c.state.Lock()
		for _, s := range ended {
			if w := st.release(s); w != nil {
				ln.wakes = append(ln.wakes, w)
			}
		}
		c.state.Unlock()
		for _, w := range ln.wakes {
			c.handOn(w)
		}
		clear(ln.wakes)
		ln.wakes = ln.wakes[:0]
	}
	clear(ended)
	ln.spare = ended
	ln.under -= len(list) - before
	return list, nil
}

// abandon turns the calls that have not ended into ordinary calls, and cancels them as such.
func (ln *rdmaLane) abandon(list []endedCall) []endedCall {
	c := ln.c
	ln.taken = ln.taken[:0]
	st := c.state.Lock()
	for _, s := range st.calls.all {
		if s.lane == ln && s.state != slotDone {
			s.lane = nil
			ln.taken = append(ln.taken, s)
		}
	}
	c.state.Unlock()
	for _, s := range ln.taken {
		call, err := s.call, context.Canceled
		if !s.cancel() {
			err = unfinished(s.finish(), c.addr(), true)
			s.giveBack()
		}
		list = append(list, endedCall{call, err})
	}
	ln.under -= len(ln.taken)
	list, _ = ln.reap(context.Background(), list) // does not block: all have ended
	return list
}

// unfinished returns the error of a call that was in flight when a lane was abandoned: another canceled call may have
// ended the connection, and with it this call before it was canceled itself.
func unfinished(err error, addr string, sent bool) error {
	if !errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) {
		return err
	}
	if lost, ok := err.(*rpc.LostError); ok { // from Client.Call, which knows more
		lost := *lost
		lost.Err = context.Canceled
		return &lost
	}
	return &rpc.LostError{Addr: addr, Sent: sent, Err: context.Canceled, Reason: err}
}

// A callLane has a goroutine for each call, for Callers that support nothing else.
type callLane struct {
	call   func(context.Context, *pendingCall) error
	addr   string          // of the peer; empty: unknown Caller
	ctx    context.Context // canceled when the calls are abandoned
	cancel context.CancelFunc
	under  int
	bell   chan struct{} // has capacity one

	mu    sync.Mutex // guards the following fields
	ended []endedCall
}

// mostCalling is the maximum number of goroutines of a callLane.
const mostCalling = 256

func newCallLane(call func(context.Context, *pendingCall) error, addr string) *callLane {
	ln := &callLane{call: call, addr: addr, bell: make(chan struct{}, 1)}
	ln.ctx, ln.cancel = context.WithCancel(context.Background())
	return ln
}

func (ln *callLane) busy() int { return ln.under }

func (ln *callLane) post(ctx context.Context, calls []*pendingCall) (int, error) {
	n := min(len(calls), mostCalling-ln.under)
	ln.under += n
	ctx = &callContext{ln.ctx, context.WithoutCancel(ctx)}
	for _, call := range calls[:n] {
		go ln.make(ctx, call)
	}
	return n, nil
}

// A callContext ends when its lane is abandoned, and has the values of the context with which the calls were posted.
type callContext struct {
	context.Context
	values context.Context
}

func (c *callContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

func (ln *callLane) make(ctx context.Context, call *pendingCall) {
	err := ln.call(ctx, call)
	ln.mu.Lock()
	ln.ended = append(ln.ended, endedCall{call, err})
	ln.mu.Unlock()
	select {
	case ln.bell <- struct{}{}:
	default:
	}
}

func (ln *callLane) reap(ctx context.Context, list []endedCall) ([]endedCall, error) {
	for before := len(list); ; {
		ln.mu.Lock()
		list = append(list, ln.ended...)
		clear(ln.ended)
		ln.ended = ln.ended[:0]
		ln.mu.Unlock()
		if n := len(list) - before; n > 0 || ln.under == 0 {
			ln.under -= n
			return list, nil
		}
		select {
		case <-ln.bell:
		case <-ctx.Done():
			return list, ctx.Err()
		}
	}
}

func (ln *callLane) abandon(list []endedCall) []endedCall {
	ln.mu.Lock()
	before := len(list) + len(ln.ended)
	ln.mu.Unlock()
	ln.cancel()
	for ln.under > 0 {
		list, _ = ln.reap(context.Background(), list)
	}
	for i := before; i < len(list); i++ {
		o := &list[i]
		o.err = unfinished(o.err, ln.addr, ln.addr == "" || o.call.sent)
	}
	ln.ctx, ln.cancel = context.WithCancel(context.Background())
	return list
}
