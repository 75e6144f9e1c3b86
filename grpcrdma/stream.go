package grpcrdma

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A stream is one end of a gRPC stream.
//
// Each end lets the other send a window of bytes, which it opens again as messages are read. A message may be
// longer than that: it is sent when openEnough of the window is open. So what waits at an end that does not
// read is bounded by the window and one message.
type stream struct {
	link *link
	id   streamID

	header int // bytes of the metadata that the other end has opened it with

	sending sync.Mutex // held by SendMsg, one at a time
	scratch []byte     // for the body of a message that is sent

	mu     sync.Mutex
	inline bool          // mu is held by take, on the goroutine that moves the connection
	waits  [3]rpc.Waiter // of those that wait; nil: none has
	due    uint8         // those of waits that wakeDue wakes
	in     inbound
	credit int    // bytes that may be sent
	seq    uint64 // of the next frame that is sent
	nextIn uint64 // of the next that is taken
	opened uint64 // the call that opens the stream, if this end does
	over   bool   // nothing is sent or taken any more
	cancel context.CancelCauseFunc
}

// inbound is what has arrived.
type inbound struct {
	early      map[uint64]arrival // frames that have overtaken others, by seq
	earlyBytes int                // of them
	messages   []packed           // not read
	bytes      int                // in messages
	owed       int                // bytes read, and not granted again
	granted    int                // the window
	header     metadata.MD
	hasHeader  bool
	trailer    metadata.MD
	ended      error // how the messages end: io.EOF, or the status; nil: there may be more
}

// An arrival is a frame and its items.
type arrival struct {
	frame wire.Frame
	items [][]byte
	bytes int
}

// openEnough is how much of the window is open for a message of any length, in bytes.
const openEnough = leastWindow / 2

// directMin is how many bytes a message has that does not go with others, beside one with items.
const directMin = 64 << 10

// messageCost is what a message counts in a window beside its bytes.
const messageCost = 32

// maxEarlyFrames bounds the frames that wait for an earlier one, of a stream.
const maxEarlyFrames = 1024

func newStream(l *link, id streamID) *stream {
	return &stream{
		link: l, id: id, credit: leastWindow, in: inbound{granted: leastWindow},
	}
}

// A cause is what a goroutine waits for.
type cause int

const (
	aMessage cause = iota // or the end
	theHeader
	theWindow
)

// wake wakes the goroutines that wait for one of the causes: soon, if it is called by take. mu is held.
func (s *stream) wake(causes ...cause) {
	for _, c := range causes {
		w := s.waits[c]
		switch {
		case w == nil:
		case s.inline:
			s.due |= 1 << c
		default:
			w.Wake(false)
		}
	}
}

// wakeDue wakes the goroutines that take was to wake. It is called by the goroutine that moves the connection after
// the last frame of a call, so that a goroutine which waits for messages finds all of them.
func (s *stream) wakeDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, w := range s.waits {
		if s.due>>c&1 != 0 {
			w.Wake(true)
		}
	}
	s.due = 0
}

// ---- what arrives

// take applies a frame of the stream. It reports whether wakeDue is to be called, as it was not before.
func (s *stream) take(f *wire.Frame, items [][]byte) (due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.due
	s.inline = true
	s.arrive(f, items)
	s.inline = false
	return before == 0 && s.due != 0
}

// arrive applies a frame, now or after those that it has overtaken.
func (s *stream) arrive(f *wire.Frame, items [][]byte) {
	switch {
	case s.over:
	case f.Content.Kind == wire.KindGrant:
		s.credit = min(s.credit+int(f.Content.Bytes), maxCredit)
		s.wake(theWindow)
	case f.Content.Kind == wire.KindCancel:
		s.end(status.Error(codes.Canceled, "the stream has been canceled"))
	case f.Content.Kind == wire.KindReset:
		err := fromWire(&f.Content.Reset.Status)
		if err == nil {
			err = status.Error(codes.Internal, "grpcrdma: the stream has been reset without a reason")
		}
		s.end(err)
	case f.Seq != s.nextIn:
		s.keep(f, items)
	default:
		s.apply(f, items)
		for !s.over {
			a, ok := s.in.early[s.nextIn]
			if !ok {
				break
			}
			delete(s.in.early, s.nextIn)
			s.in.earlyBytes -= a.bytes
			s.link.unread.Add(-int64(a.bytes))
			s.apply(&a.frame, a.items)
		}
	}
}

const maxCredit = 1 << 30

// cost is what a frame counts in the window.
func cost(f *wire.Frame, items [][]byte) int {
	if f.Content.Kind != wire.KindMessage {
		return 0
	}
	return len(f.Content.Message.Body) + sumOf(items) + messageCost
}

// counts adds a message of that cost to those that wait, if there is room. Messages count in the order of seq, as
// the sender has counted them.
func (in *inbound) counts(n int) bool {
	waiting := in.bytes + in.owed
	if waiting+n > in.granted && waiting > in.granted-openEnough {
		return false
	}
	in.bytes += n
	return true
}

// keep keeps a frame that has come too early.
func (s *stream) keep(f *wire.Frame, items [][]byte) {
	in := &s.in
	if s.crowded() {
		return
	}
	if _, twice := in.early[f.Seq]; twice || f.Seq < s.nextIn || len(in.early) == maxEarlyFrames || in.earlyBytes > in.granted {
		s.breaks("frames of a stream that are out of order")
		return
	}
	if in.early == nil {
		in.early = make(map[uint64]arrival)
	}
	b := f.Append(nil) // a copy: the frame refers to memory of the transport
	a := arrival{items: items, bytes: len(b) + sumOf(items) + messageCost}
	d := xdr.NewDecoder(b)
	a.frame.Decode(&d)
	in.early[f.Seq] = a
	in.earlyBytes += a.bytes
	s.link.unread.Add(int64(a.bytes))
}

// apply takes the next frame.
func (s *stream) apply(f *wire.Frame, items [][]byte) {
	s.nextIn++
	in, c := &s.in, &f.Content
	switch {
	case in.ended != nil:
		s.breaks("frames after the end of a stream")
		return
	case c.Kind == wire.KindMessage && s.crowded():
		return
	case c.Kind == wire.KindMessage && !in.counts(cost(f, items)):
		s.breaks("it sends more than the window of a stream has room for")
		return
	case c.Kind == wire.KindMessage:
		s.link.unread.Add(int64(cost(f, items)))
		in.messages = append(in.messages, packed{layout: c.Message.Layout, body: c.Message.Body, items: items})
	case c.Kind == wire.KindHeader && s.id.own && !in.hasHeader && checkPairs(c.Header) == nil:
		in.header, in.hasHeader = given(fromPairs(c.Header)), true
	case c.Kind == wire.KindHalfClose && !s.id.own:
		in.ended = io.EOF
	case c.Kind == wire.KindStatus && s.id.own && checkPairs(c.End.Trailer) == nil:
		in.trailer, in.hasHeader = given(fromPairs(c.End.Trailer)), true
		if in.ended = fromWire(&c.End.Status); in.ended == nil {
			in.ended = io.EOF
		}
		s.leave()
	default:
		s.breaks("a frame that does not belong in a stream")
		return
	}
	s.wake(aMessage)
	if in.hasHeader {
		s.wake(theHeader)
	}
}

// crowded ends the stream if too much waits to be read on its connection.
func (s *stream) crowded() bool {
	if s.link.unread.Load() <= maxUnread {
		return false
	}
	s.reset(status.Errorf(codes.ResourceExhausted, "grpcrdma: more than %d bytes of the connection's streams wait to be read", maxUnread))
	return true
}

// breaks ends a stream in which the other end has broken the protocol.
func (s *stream) breaks(reason string) {
	err := status.Error(codes.Internal, "grpcrdma: the peer broke the protocol: "+reason)
	s.reset(err)
}

// reset ends the stream at both ends.
func (s *stream) reset(err error) {
	if s.over {
		return
	}
	if s.id.own {
		s.push(wire.Content{Kind: wire.KindCancel})
	} else {
		s.push(wire.Content{Kind: wire.KindReset, Reset: wire.End{Status: toWire(statusOf(err))}})
	}
	s.end(err)
}

// end ends the stream at this end: what has arrived and was not read is void.
func (s *stream) end(err error) {
	if s.over {
		return
	}
	in := &s.in
	s.drop()
	if in.ended == nil || in.ended == io.EOF && !s.id.own {
		in.ended = err
	}
	in.hasHeader = true
	s.leave()
	if s.cancel != nil {
		s.cancel(err)
	}
	s.wake(aMessage, theHeader)
}

// drop forgets the messages that have not been read.
func (s *stream) drop() {
	in := &s.in
	s.link.unread.Add(-int64(in.bytes + in.earlyBytes))
	in.messages, in.bytes = nil, 0
	in.early, in.earlyBytes = nil, 0
}

// leave has the stream forgotten: nothing is sent or taken any more.
func (s *stream) leave() {
	s.over = true
	s.link.remove(s)
	s.wake(theWindow)
}

// fail ends the stream, as its connection has.
func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(err)
}

// abandon ends a stream of which the caller has kept nothing, at both ends.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset(failure(context.Canceled))
}

// ---- reading

// next returns the next message, after waiting for it.
func (s *stream) next(ctx context.Context) (p packed, err error) {
	for {
		s.mu.Lock()
		in := &s.in
		switch {
		case len(in.messages) > 0:
			p = in.messages[0]
			in.messages[0] = packed{}
			if in.messages = in.messages[1:]; len(in.messages) == 0 {
				in.messages = nil
			}
			s.grant(p.size() + messageCost)
			s.mu.Unlock()
			return p, nil
		case in.ended != nil:
			defer s.mu.Unlock()
			return p, in.ended
		}
		if err := s.wait(ctx, aMessage); err != nil {
			return p, err
		}
	}
}

// wait waits until it is woken for c. It begins with mu held. The error is a status.
func (s *stream) wait(ctx context.Context, c cause) error {
	w := s.waits[c]
	if w == nil {
		w = s.link.conn.NewWaiter()
		s.waits[c] = w
	}
	s.mu.Unlock()
	err := w.Wait(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return s.canceled(ctx)
	}
	s.link.fail(err)
	return nil // which has woken it
}

// waitFor waits for ch. The error is a status.
func (s *stream) waitFor(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return s.canceled(ctx)
	case <-s.link.conn.Done():
		err := s.link.conn.Err()
		s.link.fail(err)
		return lost(err)
	}
}

// canceled ends the stream with its context.
func (s *stream) canceled(ctx context.Context) error {
	err := failure(ctx.Err())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in.ended != nil && s.in.ended != io.EOF {
		return s.in.ended // the reason why the context has ended
	}
	if s.id.own {
		s.reset(err)
	}
	return err
}

// grant notes that n bytes have been read, and opens the window again once that is worth a frame.
func (s *stream) grant(n int) {
	in := &s.in
	in.bytes -= n
	s.link.unread.Add(-int64(n))
	in.owed += n
	if more := s.link.end.cfg.window - in.granted; more > 0 { // the first message has been read: it is in use
		in.owed += more
		in.granted += more
	}
	if s.over || in.owed < in.granted/2 {
		return
	}
	s.push(wire.Content{Kind: wire.KindGrant, Bytes: uint32(in.owed)})
	in.owed = 0
}

// awaitHeader waits for the header of the other end.
func (s *stream) awaitHeader(ctx context.Context) (metadata.MD, error) {
	for {
		s.mu.Lock()
		ready, md, err := s.in.hasHeader, s.in.header, s.in.ended
		if ready {
			s.mu.Unlock()
			if err == io.EOF || md != nil {
				err = nil
			}
			return md, err
		}
		if err := s.wait(ctx, theHeader); err != nil {
			return nil, err
		}
	}
}

// ---- writing

// push queues a frame. mu is held.
func (s *stream) push(c wire.Content) (batch uint64) {
	f := wire.Frame{Id: s.id.id, Own: s.id.own, Content: c}
	if c.Kind < wire.KindGrant {
		f.Seq = s.seq
		s.seq++
	}
	return s.link.out.push(&f, s.inline)
}

// room waits until frames of any length may be queued, as a call holds all that gather. The error is a status.
func (s *stream) room(ctx context.Context) error {
	for full := s.link.out.full(); full != nil; full = s.link.out.full() {
		if err := s.waitFor(ctx, full); err != nil {
			return err
		}
	}
	return nil
}

// write queues a frame once there is room, unless the stream has ended.
func (s *stream) write(ctx context.Context, c wire.Content) error {
	if err := s.room(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return s.in.ended
	}
	batch := s.push(c)
	if c.Kind == wire.KindOpen {
		s.opened = batch
	}
	return nil
}

// maxUnread is how many bytes of messages of a connection wait to be read, in all of its streams, before another
// one ends its stream.
const maxUnread = 256 << 20

// maxScratch bounds the memory that a stream keeps for the next message, in bytes.
const maxScratch = 2 << 10

// sendMsg encodes a message and sends it. sent is what has been encoded, but for its body, which may change
// again. A message that cannot be encoded is a fault of the caller's.
func (s *stream) sendMsg(ctx context.Context, c *coding, m any, most int) (sent packed, fault, err error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	p, err := c.pack(s.scratch[:0], m, most)
	if err != nil {
		return p, err, nil
	}
	if cap(p.body) <= maxScratch {
		s.scratch = p.body
	}
	return p, nil, s.send(ctx, &p)
}

// send sends a message. It waits for the window, and until the other end has the items.
func (s *stream) send(ctx context.Context, p *packed) error {
	n := p.size() + messageCost
	for {
		s.mu.Lock()
		if s.over {
			defer s.mu.Unlock()
			return s.in.ended
		}
		full := s.link.out.full()
		if s.credit >= min(n, openEnough) && full == nil {
			break
		}
		if full == nil {
			if err := s.wait(ctx, theWindow); err != nil {
				return err
			}
			continue
		}
		s.mu.Unlock()
		if err := s.waitFor(ctx, full); err != nil {
			return err
		}
	}
	s.credit -= n
	if len(p.items) > 0 || n >= directMin {
		return s.direct(ctx, p)
	}
	s.push(wire.Content{Kind: wire.KindMessage, Message: wire.Text{Layout: p.layout, Body: p.body}})
	s.mu.Unlock()
	return nil
}

// direct makes a call with a message that is long, or has items. It returns when the other end has it, and
// begins with mu held.
func (s *stream) direct(ctx context.Context, p *packed) error {
	c := wire.Content{Kind: wire.KindMessage, Message: wire.Text{Layout: p.layout, Body: p.body}}
	f := wire.Frame{Id: s.id.id, Own: s.id.own, Seq: s.seq, Content: c}
	s.seq++
	s.mu.Unlock()
	if s.id.own {
		// It must not overtake the frame that makes the stream known.
		for ch := s.link.out.arrives(s.opened); ch != nil; ch = s.link.out.arrives(s.opened) {
			if err := s.waitFor(ctx, ch); err != nil {
				return err
			}
		}
	}
	body := f.Append(xdr.AppendUint32(nil, 1))
	var call rpc.Call
	sendCall(&call, wire.GrpcLong, p.items, body)
	patient, stop := withPatience(ctx)
	defer stop()
	if err := s.link.conn.Call(patient, &call); err != nil {
		return s.unsent(err)
	}
	return nil
}

// patience is how long a long message goes on after its context has ended: the other end takes it whether the
// stream lives or not, and to revoke the memory meanwhile may cost the connection.
const patience = time.Second

// withPatience returns a context that ends so much later than ctx.
func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(patience, cancel) })
	return late, func() {
		stop()
		cancel()
	}
}

// unsent ends the stream after a message could not be sent.
func (s *stream) unsent(err error) error {
	err = failure(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return s.in.ended
	}
	s.reset(err)
	return err
}
