package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream/internal/wire"
)

const (
	// maxStreams is the maximum number of open streams of one program version on a connection.
	maxStreams = 1024

	// backlog is the number of results that may wait at the server in each stream.
	backlog = 64

	// maxRoom bounds the grants of a client.
	maxRoom = 1 << 20

	// batch is the maximum number of bytes of results in one call, unless it has only one result. A call of this size
	// goes inline everywhere.
	batch = 768
)

var (
	// ErrClosed is the cause of a handler's context when the client has left the stream.
	ErrClosed = errors.New("stream: the client has closed it")

	// ErrDropped is the error of a result that was not sent because the client has no room for it.
	ErrDropped = errors.New("stream: a result was dropped, as the client has no room for it")
)

// errReturned is the error of a Sender after its handler has returned.
var errReturned = errors.New("stream: its handler has returned")

// A Sender sends the results of one stream. Its methods may be called by many goroutines at once. After the handler has
// returned they fail.
type Sender[T any] struct {
	s      *sending
	encode func(b []byte, v T) ([]byte, error)
}

// Send sends v, and does not retain it. It blocks while 64 results are waiting for the client to make room. The error
// is the cause of the end of the handler's context, or that of a value that Check refuses.
func (out *Sender[T]) Send(v T) error {
	b, err := out.encode(nil, v)
	if err != nil {
		return err
	}
	select {
	case out.s.slots <- struct{}{}:
		return out.s.push(b)
	case <-out.s.ctx.Done():
		return context.Cause(out.s.ctx)
	}
}

// Offer sends v, and does not retain it, if it can do so without blocking. Otherwise it drops v and returns
// [ErrDropped], and the client learns that a result is missing. Other errors are those of Send.
func (out *Sender[T]) Offer(v T) error {
	b, err := out.encode(nil, v)
	if err != nil {
		return err
	}
	select {
	case out.s.slots <- struct{}{}:
		return out.s.push(b)
	default:
		return out.s.drop()
	}
}

// Streams are the open streams of one program version at a server. The zero value is ready for use.
type Streams struct {
	mu   sync.Mutex
	open map[rpc.Conn]map[uint64]*sending
}

// sending is a stream, from when it is opened.
type sending struct {
	all    *Streams
	conn   rpc.Conn
	req    *rpc.Request // the call that opened it
	id     uint64
	client *wire.StreamV1Client
	ctx    context.Context // ends with the connection, or when the client leaves
	cancel context.CancelCauseFunc
	slots  chan struct{} // one slot for each result in queue

	mu    sync.Mutex
	queue []wire.Event
	room  int  // results that the client has room for
	busy  bool // a goroutine is sending
	ended bool // the handler has returned
	stat  oncrpc.AcceptStat
}

// An Opening is a call that opens a stream.
type Opening struct {
	all *Streams
	ctx context.Context
	req *rpc.Request
	res *rpc.Response
	q   wire.Request
}

// Accept processes a call of a streaming procedure. Generated servers use it. It returns nil if the call is about an
// open stream; otherwise d is at the arguments, and the caller calls [Start] next.
func (ss *Streams) Accept(ctx context.Context, req *rpc.Request, res *rpc.Response, d *xdr.Decoder) *Opening {
	o := &Opening{all: ss, ctx: ctx, req: req, res: res}
	o.q.Decode(d)
	if o.q.Op == wire.OpOpen && d.Err() == nil {
		return o
	}
	if err := d.End(); err != nil {
		res.FailArgs(req, err)
		return nil
	}
	ss.mu.Lock()
	s := ss.open[req.Conn()][o.q.Stream]
	ss.mu.Unlock()
	switch {
	case s == nil: // it ended meanwhile
	case o.q.Op == wire.OpClose:
		s.cancel(ErrClosed)
	default:
		s.grant(int(o.q.Items))
	}
	return nil
}

// Start opens the stream, and starts run on a new goroutine to send its results. The Request passed to run has no
// arguments, and no memory for a reply.
func Start[T any](o *Opening, encode func(b []byte, v T) ([]byte, error), run func(ctx context.Context, req *rpc.Request, out *Sender[T]) error) {
	s, err := o.all.add(o)
	if err != nil {
		o.res.FailWith(o.req, err)
		return
	}
	go func() {
		defer s.exit()
		s.end(run(s.ctx, s.req, &Sender[T]{s, encode}))
	}()
}

// add adds the stream of an Opening.
func (ss *Streams) add(o *Opening) (*sending, error) {
	conn := o.req.Conn()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	own := ss.open[conn]
	switch {
	case len(own) >= maxStreams:
		return nil, fmt.Errorf("stream: %v has %d streams open already", conn.RemoteAddr(), len(own))
	case own[o.q.Stream] != nil || o.q.Items == 0:
		return nil, oncrpc.GarbageArgs
	case own == nil:
		if ss.open == nil {
			ss.open = make(map[rpc.Conn]map[uint64]*sending)
		}
		own = make(map[uint64]*sending)
		ss.open[conn] = own
	}
	s := &sending{
		all: ss, conn: conn, req: o.req.Detach(), id: o.q.Stream, client: wire.NewStreamV1Client(conn), slots: make(chan struct{}, backlog),
		room: int(min(o.q.Items, maxRoom)),
	}
	s.ctx, s.cancel = context.WithCancelCause(o.ctx)
	own[s.id] = s
	conn.AllowBackward(0) // a client that opens a stream is ready for its results
	return s, nil
}

// over removes the stream.
func (s *sending) over(cause error) {
	s.cancel(cause)
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	own := s.all.open[s.conn]
	if delete(own, s.id); len(own) == 0 {
		delete(s.all.open, s.conn)
	}
}

// push queues a result. The caller has acquired its slot.
func (s *sending) push(item []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := context.Cause(s.ctx); err != nil || s.ended {
		<-s.slots
		return cmp.Or(err, errReturned)
	}
	s.queue = append(s.queue, wire.Event{Item: item})
	s.kick()
	return nil
}

// drop records that a result is missing after those in the queue.
func (s *sending) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := context.Cause(s.ctx); err != nil || s.ended {
		return cmp.Or(err, errReturned)
	}
	if n := len(s.queue); n > 0 && s.queue[n-1].Lost {
		s.queue[n-1].Count++
	} else {
		s.queue = append(s.queue, wire.Event{Lost: true, Count: 1})
		s.kick()
	}
	return ErrDropped
}

// grant records that the client has room for n more results.
func (s *sending) grant(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = min(s.room+n, maxRoom)
	s.kick()
}

// kick starts a goroutine that sends what can be sent, unless one is running. mu is held.
func (s *sending) kick() {
	if !s.busy {
		s.busy = true
		go s.send()
	}
}

// send sends what can be sent.
func (s *sending) send() {
	for {
		events, more := s.next()
		if !more {
			return
		}
		open, err := s.client.Events(s.ctx, events)
		switch {
		case err != nil:
			s.fail(err)
		case !open:
			s.over(ErrClosed)
		case events.Ended:
			s.over(nil)
		}
	}
}

// fail ends a stream with results that cannot be sent.
func (s *sending) fail(err error) {
	if s.ctx.Err() == nil && s.conn.Err() == nil { // most likely they are too long
		res := rpc.Answering(rpc.OriginOf(s.req), nil)
		res.FailWith(s.req, err)
		_, _ = s.client.Events(s.ctx, &wire.Events{Stream: s.id, Ended: true, Stat: uint32(oncrpc.SystemErr)})
	}
	s.over(err)
}

// next returns the next events, or none if the goroutine should end.
func (s *sending) next() (events *wire.Events, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, false // busy forever
	}
	n, size := 0, 0
	for ; n < len(s.queue) && n < wire.MaxEvents; n++ {
		e := &s.queue[n]
		if size += len(e.Item) + 12; s.room == 0 || n > 0 && size > batch {
			break
		}
		if s.room--; !e.Lost {
			<-s.slots
		}
	}
	events = &wire.Events{Stream: s.id, List: s.queue[:n:n], Ended: s.ended && n == len(s.queue), Stat: uint32(s.stat)}
	s.queue = s.queue[n:]
	s.busy = n > 0 || events.Ended
	return events, s.busy
}

// end records that the handler has returned. Results in the queue are still sent.
func (s *sending) end(err error) {
	stat := oncrpc.Success
	if err != nil && s.ctx.Err() == nil {
		res := rpc.Answering(rpc.OriginOf(s.req), nil)
		res.FailWith(s.req, err)
		if stat = res.Status().AcceptStat; stat == oncrpc.Success { // denied
			stat = oncrpc.SystemErr
		}
	}
	s.mu.Lock()
	s.ended, s.stat = true, stat
	gone := s.ctx.Err() != nil
	if !gone {
		s.kick()
	}
	s.mu.Unlock()
	if gone {
		s.over(nil)
	}
}

// exit ends the stream of a handler that did not return: it panicked, or called runtime.Goexit.
func (s *sending) exit() {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		return
	}
	if v := recover(); v != nil {
		s.end(fmt.Errorf("stream: the handler panicked: %v\n%s", v, debug.Stack()))
	} else {
		s.end(errors.New("stream: the handler called runtime.Goexit"))
	}
}
