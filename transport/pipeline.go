package transport

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Pipeline keeps many calls in flight from one goroutine. Start hands it calls, and Wait returns them one by one as
// they end, in any order. So one goroutine can keep 32 or 1000 calls in flight: messages are sent together, with one
// doorbell, and the replies that have arrived are processed in one pass.
//
//	p := transport.NewPipeline(client)
//	defer p.Close()
//	for i := range calls {
//		p.Start(&calls[i])
//	}
//	for p.Len() > 0 {
//		call, err := p.Wait(ctx)
//		if call == nil {
//			return err // of ctx
//		}
//		... // call has ended with err; it may be started again
//	}
//
// Calls are sent in the order of Start, as far as credits allow; the others wait in the Pipeline. A call that has ended
// keeps its credit until a later Wait, so call Wait often. Everything else is as with Call of the Caller: resending
// after the loss of a connection, errors, Observers.
//
// A Pipeline must be used by one goroutine at a time. A Caller may have several Pipelines, and other calls at the same
// time. Over TCP, and over Callers other than a [Client], [Conn] or [Backchannel], the Pipeline makes calls on its own
// goroutines, up to 256, and they are sent in any order. Their contexts have the values of the context of the Wait or
// Flush that begins them, but do not end with it.
type Pipeline struct {
	conns   *link           // of a Client or Backchannel; may be nil
	conn    *Conn           // of a Conn; may be nil
	note    func(*rpc.Call) // called with each call that is started; may be nil
	refuse  func() error    // returns why no call may be started; may be nil
	lane    lane            // that takes calls; nil: the next connection must be waited for
	at      connection      // of the lane, or of the previous one; nil: any will do
	old     []*oldLane      // with calls in flight on earlier connections
	queue   []*pendingCall  // started, not sent; first those that were on an earlier connection
	ended   []endedCall     // from next on: for Wait to return
	next    int
	n       int
	scratch []endedCall
}

// An oldLane has calls in flight on a connection that gets no further calls: a Backchannel has been bound elsewhere, or
// the connection is ending.
type oldLane struct {
	lane  lane
	at    connection
	ended []endedCall
}

// NewPipeline returns a Pipeline of calls to the peer of c. It must be closed.
func NewPipeline(c rpc.Caller) *Pipeline {
	switch c := c.(type) {
	case *Client:
		return &Pipeline{conns: &c.link, note: c.note}
	case *Backchannel:
		return &Pipeline{conns: &c.link, refuse: c.link.ended}
	case *Conn:
		return &Pipeline{conn: c, at: c.c, lane: c.c.openLane()}
	}
	return &Pipeline{lane: newCallLane(func(ctx context.Context, call *pendingCall) error { return c.Call(ctx, call.Call) }, "")}
}

// Start begins a call. It does not block, and sends nothing: Wait or Flush does. The Pipeline owns the Call, and
// everything it points to, until Wait returns it or Close has returned.
func (p *Pipeline) Start(call *rpc.Call) { p.start(pendingOf(call), nil) }

// StartFunc is Start for a call that Wait does not return: when it has ended, Wait calls ended, on its own goroutine.
// By then the caller owns the Call again, and ended may start it, or others. Generated clients use it.
func (p *Pipeline) StartFunc(call *rpc.Call, ended func(err error)) { p.start(pendingOf(call), ended) }

func (p *Pipeline) start(call *pendingCall, ended func(error)) {
	call.begin()
	call.ended = ended
	p.n++
	if p.note != nil {
		p.note(call.Call)
	}
	if p.refuse != nil {
		if err := p.refuse(); err != nil {
			p.ended = append(p.ended, endedCall{call, err})
			return
		}
	}
	if cn := p.public(); cn != nil && cn.cfg.observation != nil {
		cn.cfg.observation.beginOf(call, cn.server)
	}
	p.queue = append(p.queue, call)
}

// public returns the connection that reports the calls to its Observer; nil without an Observer, or if a wrapped Caller
// reports them.
func (p *Pipeline) public() *Conn {
	if p.conns != nil {
		return p.conns.cur.Load()
	}
	return p.conn
}

// Len returns the number of calls that have been started and neither been returned by Wait nor passed to their
// function.
func (p *Pipeline) Len() int { return p.n }

// Wait sends the started calls, and returns a call that has ended with the error that Call would have returned: see
// [Client.Call]. It waits for one if necessary. If ctx ends first, the returned call is nil, and the calls in flight
// continue: call Wait again, or Close. The error is ctx's, or a *LostError when calls wait for a connection; its Sent
// reports whether any of them was sent on an earlier one. Wait returns nil, nil if no call is left to return.
func (p *Pipeline) Wait(ctx context.Context) (*rpc.Call, error) {
	if rpc.IsInline(ctx) {
		return nil, errInline
	}
	for {
		if call, err := p.pop(); call != nil {
			return call, err
		}
		if p.n == 0 {
			return nil, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := p.post(ctx); err != nil {
			return nil, err
		}
		if p.next < len(p.ended) {
			continue
		}
		if err := p.beside(ctx, p.reap); err != nil {
			return nil, err
		}
	}
}

// reap takes calls of the lane that have ended, waiting for one if necessary.
func (p *Pipeline) reap(ctx context.Context) (err error) {
	switch {
	case len(p.old) > 0 && (p.lane == nil || p.lane.busy() == 0): // the others must end
		<-ctx.Done()
		return ctx.Err()
	case p.lane == nil:
		return nil
	}
	p.scratch, err = p.lane.reap(ctx, p.scratch[:0])
	p.settle(p.at, p.scratch)
	clear(p.scratch)
	return err
}

// beside calls do, which may block, and takes the calls that have ended on earlier connections. As soon as there are
// any, do need not wait any longer: its context ends.
func (p *Pipeline) beside(ctx context.Context, do func(context.Context) error) error {
	if len(p.old) == 0 {
		return do(ctx)
	}
	patience, enough := context.WithCancel(ctx)
	defer enough()
	var waits sync.WaitGroup
	for _, o := range p.old {
		waits.Go(func() {
			if o.ended, _ = o.lane.reap(patience, o.ended[:0]); len(o.ended) > 0 {
				enough()
			}
		})
	}
	err := do(patience)
	if patience.Err() != nil && ctx.Err() == nil {
		err = nil
	}
	enough()
	waits.Wait()
	for _, o := range p.old {
		p.settle(o.at, o.ended)
		clear(o.ended)
	}
	p.old = slices.DeleteFunc(p.old, func(o *oldLane) bool { return o.lane.busy() == 0 })
	return err
}

// leave arranges for the next calls to be made on another connection.
func (p *Pipeline) leave() {
	if p.lane != nil && p.lane.busy() > 0 {
		p.old = append(p.old, &oldLane{lane: p.lane, at: p.at})
	}
	p.lane = nil
}

// Flush sends the started calls, as far as credits allow, and returns. If none is in flight on the latest connection,
// it waits for a credit, or for a connection, until ctx or a call has ended. Where calls are made on goroutines, some
// may not have been sent yet when it returns.
func (p *Pipeline) Flush(ctx context.Context) error {
	if rpc.IsInline(ctx) {
		return errInline
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.post(ctx)
}

// Close cancels the calls that have not ended. When it returns, the peer can no longer reach their memory, and their
// owner has them back. They may have been executed. Functions of StartFunc are called; the error of a canceled call is,
// or wraps, context.Canceled. The Pipeline can be used again. Close does nothing if no call is left.
func (p *Pipeline) Close() {
	if p.lane != nil {
		p.scratch = p.lane.abandon(p.scratch[:0])
		p.settle(p.at, p.scratch)
		clear(p.scratch)
	}
	for _, o := range p.old {
		p.settle(o.at, o.lane.abandon(o.ended[:0]))
	}
	p.old = nil
	for _, call := range p.takeQueue() {
		err := context.Canceled
		if call.sent {
			err = &rpc.LostError{Addr: p.conns.addr(), Sent: true, Err: err, Reason: p.conns.trouble()}
		}
		p.end(call, err)
	}
	for p.next < len(p.ended) {
		p.pop()
	}
}

// pop removes a call that has ended and has no function. It calls the functions of others.
func (p *Pipeline) pop() (*rpc.Call, error) {
	for p.next < len(p.ended) {
		o := p.ended[p.next]
		p.ended[p.next] = endedCall{}
		p.next++
		p.n--
		ended := o.call.ended
		if ended == nil {
			return o.call.Call, o.err
		}
		o.call.ended = nil
		ended(o.err)
	}
	p.ended, p.next = p.ended[:0], 0
	return nil, nil
}

// post sends calls from the queue, as far as credits allow.
func (p *Pipeline) post(ctx context.Context) error {
	for len(p.queue) > 0 {
		if l := p.conns; l != nil && p.at != nil && l.latest() != p.at {
			if p.lane != nil && p.lane.busy() > 0 && !p.at.lives() {
				return nil // their errors may be the reason that no further connection is made
			}
			p.leave()
			p.at = nil // though it may become the latest again
		}
		var err error
		switch {
		case p.lane == nil:
			if err := p.connect(ctx); err != nil || p.lane == nil && p.next < len(p.ended) {
				return err
			}
			continue
		case p.lane.busy() > 0: // does not block
			err = p.send(ctx)
		default:
			err = p.beside(ctx, p.send)
		}
		switch {
		case err != nil && ctx.Err() != nil: // whichever came first, the calls continue
			return ctx.Err()
		case err != nil: // the connection accepts no calls
			for _, call := range p.takeQueue() {
				p.settle1(p.at, call, err)
			}
		case p.next < len(p.ended) || p.lane != nil && p.lane.busy() > 0:
			return nil
		}
	}
	return nil
}

// send passes calls from the queue to the lane, as far as credits allow.
func (p *Pipeline) send(ctx context.Context) error {
	n, err := p.lane.post(ctx, p.queue)
	p.queue = p.queue[:copy(p.queue, p.queue[n:])]
	return err
}

// takeQueue empties the queue, and returns its calls.
func (p *Pipeline) takeQueue() []*pendingCall {
	q := p.queue
	p.queue = nil
	return q
}

// connect moves on to the next connection.
func (p *Pipeline) connect(ctx context.Context) error {
	var c connection
	err := p.beside(ctx, func(ctx context.Context) (err error) {
		c, err = p.conns.await(ctx, p.at, p.queue[0])
		return err
	})
	if c != nil {
		p.at, p.lane = c, c.openLane()
		return nil
	}
	if err == nil {
		return nil
	}
	if lost := (*rpc.LostError)(nil); ctx.Err() != nil && errors.As(err, &lost) {
		lost.Sent = p.queue[0].sent // if any was sent, the first was
		return lost
	}
	for _, call := range p.takeQueue() {
		p.end(call, err)
	}
	return nil
}

// settle takes calls that have ended on a connection.
func (p *Pipeline) settle(at connection, list []endedCall) {
	for _, o := range list {
		p.settle1(at, o.call, o.err)
	}
}

// settle1 decides whether a call has ended, or is made again on the next connection: see link.try.
func (p *Pipeline) settle1(at connection, call *pendingCall, err error) {
	if l := p.conns; l != nil && err != nil {
		var again bool
		if again, err = l.again(at, call, err); again {
			if at == p.at {
				p.leave()
			}
			if err = l.over(at, call); err == nil {
				p.putBack(call)
				return
			}
		}
	}
	p.end(call, err)
}

// putBack queues a call that has lost its connection. One that was sent goes before those that were not, because they
// were started later.
func (p *Pipeline) putBack(call *pendingCall) {
	i := len(p.queue)
	if call.sent {
		if first := slices.IndexFunc(p.queue, func(c *pendingCall) bool { return !c.sent }); first >= 0 {
			i = first
		}
	}
	p.queue = slices.Insert(p.queue, i, call)
}

// end records that a call has ended.
func (p *Pipeline) end(call *pendingCall, err error) {
	if e := call.event; e != nil && p.public() != nil {
		p.public().cfg.observation.endOf(call, err)
	}
	p.ended = append(p.ended, endedCall{call, err})
}

// CallAll makes calls at once, from this goroutine, and waits until all have ended. It returns their errors in order,
// or nil if all succeeded. If ctx ends first, the calls that have not ended are canceled, with its error. [Pipeline]
// describes what such calls have in common.
func CallAll(ctx context.Context, c rpc.Caller, calls ...*rpc.Call) []error {
	p := NewPipeline(c)
	errs := make([]error, len(calls))
	failed := false
	for i, call := range calls {
		p.StartFunc(call, func(err error) {
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				err = ctx.Err()
			}
			errs[i] = err
			failed = failed || err != nil
		})
	}
	_, err := p.Wait(ctx)
	p.Close()
	if err != nil && ctx.Err() == nil { // the handler's own connection: nothing was sent
		for i := range errs {
			errs[i] = err
		}
	}
	if failed {
		return errs
	}
	return nil
}
