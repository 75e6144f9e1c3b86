package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream/internal/wire"
)

// ProgramNumber is the number of the program through which servers send results, for tables of names.
const ProgramNumber = wire.StreamProg

// window is the number of results that a client has room for in each stream.
const window = 256

// closeTime is how long a client waits to notify the server that it has left a stream.
const closeTime = time.Second

// ErrNoStreams is the error of a stream if its client was made with a Caller without streams.
var ErrNoStreams = errors.New("stream: the client's Caller has no streams: it has to be a transport.Client or Group with ClientConfig.Streams")

// A GapError reports that results of a stream are missing. The stream continues.
type GapError struct {
	Dropped int   // results dropped by the server because the client had no room for them
	Cause   error // or why the connection was lost; the stream is open again, but the results in between are lost
}

func (e *GapError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("results of the stream may be missing: %v", e.Cause)
	}
	return fmt.Sprintf("%d results of the stream are missing: the server dropped them", e.Dropped)
}

// Unwrap returns Cause.
func (e *GapError) Unwrap() error { return e.Cause }

// An Opener is a Caller that supports streams.
type Opener interface {
	// OpenStream returns the Receiver for streams on the connections of the Caller, and the current connection, for
	// which it waits if necessary. call is the call that will open the stream; OpenStream does not make it. The error
	// is final, or that of ctx.
	OpenStream(ctx context.Context, call *rpc.Call) (*Receiver, rpc.Conn, error)
}

// A Receiver is the client's end of streams.
type Receiver struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]*receiving
}

// NewReceiver returns a Receiver without streams.
func NewReceiver() *Receiver { return &Receiver{open: make(map[uint64]*receiving)} }

// Program returns the program that servers call to send results. A client executes it as one of its callbacks.
func (r *Receiver) Program() rpc.Program { return wire.StreamV1Program(r) }

// receiving is a stream on one connection.
type receiving struct {
	r    *Receiver
	id   uint64
	conn rpc.Conn
	call *rpc.Call     // the arguments and credential that open it
	wake chan struct{} // has capacity one: there is an event

	mu     sync.Mutex
	events []wire.Event
	room   int // results that the server may send
	ended  bool
	err    error // of an ended stream; nil if it ended in order
}

// Receive returns the results of the stream that call opens. Generated clients use it. Each range over the results
// opens a stream. err is the error of the arguments, and decode decodes a result.
func Receive[T any](ctx context.Context, c rpc.Caller, call *rpc.Call, err error, decode func(d *xdr.Decoder) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		o, ok := c.(Opener)
		if err == nil && !ok {
			err = ErrNoStreams
		}
		if err != nil {
			yield(none, err)
			return
		}
		var lost error // why the previous connection ended
		for {
			s, err := begin(ctx, o, call)
			if err != nil {
				yield(none, err)
				return
			}
			if s == nil {
				continue // on the next connection
			}
			if lost != nil && !yield(none, &GapError{Cause: lost}) {
				s.close(ctx)
				return
			}
			if lost = deliver(ctx, s, decode, yield); lost == nil {
				return
			}
		}
	}
}

// begin opens a stream. It returns nil if the connection ended meanwhile.
func begin(ctx context.Context, o Opener, call *rpc.Call) (*receiving, error) {
	r, conn, err := o.OpenStream(ctx, call)
	if err != nil {
		return nil, err
	}
	s := &receiving{r: r, conn: conn, call: call, wake: make(chan struct{}, 1), room: window}
	r.mu.Lock()
	r.last++
	s.id = r.last
	r.open[s.id] = s
	r.mu.Unlock()
	err = s.request(ctx, wire.OpOpen, window)
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil {
		s.close(ctx) // the server may have opened it
		return nil, err
	}
	s.leave()
	if errors.Is(err, net.ErrClosed) {
		return nil, nil
	}
	return nil, err
}

// request calls the procedure of the stream.
func (s *receiving) request(ctx context.Context, op wire.Op, items int) error {
	from := s.call
	call := &rpc.Call{
		Prog: from.Prog, Vers: from.Vers, Proc: from.Proc, Names: from.Names, Cred: from.Cred, Verf: from.Verf, Sign: from.Sign, NoResend: true,
	}
	q := wire.Request{Op: op, Stream: s.id, Items: uint32(items)}
	call.Args = q.Append(nil)
	if op == wire.OpOpen {
		call.Args = append(call.Args, from.Args...)
	}
	return s.conn.Call(ctx, call)
}

// leave forgets the stream. Its events are answered with FALSE from now on.
func (s *receiving) leave() {
	s.r.mu.Lock()
	delete(s.r.open, s.id)
	s.r.mu.Unlock()
}

// close leaves a stream that is open at the server.
func (s *receiving) close(ctx context.Context) {
	s.leave()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	_ = s.request(ctx, wire.OpClose, 0) // otherwise the server learns of it with the next result
}

// deliver passes the results to the consumer until the stream ends. It returns why the connection was lost, or nil if
// the iteration is over.
func deliver[T any](ctx context.Context, s *receiving, decode func(d *xdr.Decoder) T, yield func(T, error) bool) (lost error) {
	var none T
	consumed := 0
	for {
		e, ok, err := s.next(ctx)
		switch {
		case ctx.Err() != nil:
			s.close(ctx)
			yield(none, ctx.Err())
			return nil
		case err != nil && s.conn.Err() != nil:
			s.leave()
			return err
		case err != nil:
			s.leave()
			yield(none, err)
			return nil
		case !ok:
			s.leave()
			return nil
		}
		var v T
		if e.Lost {
			err = &GapError{Dropped: int(e.Count)}
		} else {
			d := xdr.NewDecoder(e.Item)
			v = decode(&d)
			if err := d.End(); err != nil {
				s.close(ctx)
				yield(none, fmt.Errorf("%s: results: %w", s.call.Names.CallName(s.call.Proc), err))
				return nil
			}
		}
		if !yield(v, err) {
			s.close(ctx)
			return nil
		}
		if consumed++; consumed == window/2 {
			s.grant(ctx, consumed)
			consumed = 0
		}
	}
}

// grant permits the server n more results. It ignores the error, which is that of the connection or of ctx and will be
// seen again.
func (s *receiving) grant(ctx context.Context, n int) {
	s.mu.Lock()
	s.room += n
	s.mu.Unlock()
	_ = s.request(ctx, wire.OpGrant, n)
}

// next returns the next event. ok is false if the stream ended in order.
func (s *receiving) next(ctx context.Context) (e wire.Event, ok bool, err error) {
	for {
		over := s.conn.Err() // read before the events: none arrives after it
		s.mu.Lock()
		switch {
		case len(s.events) > 0:
			e, s.events = s.events[0], s.events[1:]
			s.mu.Unlock()
			return e, true, nil
		case s.ended:
			defer s.mu.Unlock()
			return e, false, s.err
		}
		s.mu.Unlock()
		if over != nil {
			return e, false, over
		}
		select {
		case <-s.wake:
		case <-s.conn.Done():
		case <-ctx.Done():
			return e, false, ctx.Err()
		}
	}
}

// Events receives results of a stream. It implements [wire.StreamV1Server], and is Inline.
func (r *Receiver) Events(_ context.Context, req *rpc.Request, args *wire.Events, res *bool) error {
	r.mu.Lock()
	s := r.open[args.Stream]
	r.mu.Unlock()
	if s == nil || s.conn != req.Conn() {
		return nil // which is FALSE
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	*res = true
	for _, e := range args.List {
		e.Item = slices.Clone(e.Item) // because the memory belongs to the transport
		s.events = append(s.events, e)
	}
	s.room -= len(args.List)
	switch {
	case s.room < 0:
		s.ended, s.err, *res = true, &rpc.PeerError{Reason: "it sent more results than a stream had room for"}, false
	case args.Ended:
		h := oncrpc.ReplyHeader{AcceptStat: oncrpc.AcceptStat(args.Stat)}
		s.ended, s.err = true, h.Err()
		if e, ok := s.err.(*oncrpc.RPCError); ok {
			e.Prog, e.Vers, e.Proc, e.Names = s.call.Prog, s.call.Vers, s.call.Proc, s.call.Names
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}
