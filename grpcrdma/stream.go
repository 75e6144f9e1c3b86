package grpcrdma

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// stream is one end of a gRPC stream.
//
// Each end grants the other a window of bytes, and reopens it as messages are read. A message may be longer than the
// window: it is sent as soon as openEnough of the window is open. Unread data is thus bounded by the window and one
// message.
type stream struct {
	link *link
	id   streamID

	header int // bytes of metadata in the opening frame from the other end

	sending sync.Mutex // serializes SendMsg
	scratch []byte     // for the body of an outgoing message

	mu     sync.Mutex
	inline bool          // mu is held by take, on the goroutine that moves the connection
	waits  [3]rpc.Waiter // indexed by cause; nil: never waited for
	due    uint8         // bit set of the waits for wakeDue to wake
	in     inbound
	credit int    // bytes that may be sent
	seq    uint64 // of the next frame sent
	nextIn uint64 // of the next frame processed
	opened uint64 // the call that opens the stream, if this end opened it
	over   bool   // nothing is sent or received any more
	cancel context.CancelCauseFunc

	taken taken
	void  atomic.Bool // discard what taken still holds
}

// inbound holds what has arrived.
type inbound struct {
	early      map[uint64]arrival // frames that overtook others, by seq
	earlyBytes int                // total size of early
	runs       []run              // not yet taken by the reading goroutine
	spare      []byte             // memory for the next short run
	bytes      int                // in unread messages
	owed       int                // bytes read but not granted again
	granted    int                // size of the window
	header     metadata.MD
	hasHeader  bool
	trailer    metadata.MD
	ended      error // final result of reading: io.EOF or a status; nil: more may come
}

// arrival is a frame and its items.
type arrival struct {
	frame wire.Frame
	items [][]byte
	bytes int
}

// taken holds the runs that the reading goroutine has taken from inbound. It takes all of them at once, to lock the
// stream only once for many messages.
type taken struct {
	runs  []run
	at    int    // index of the run with the next message
	read  int    // bytes not yet reported to the stream as read
	least int    // bytes read at which the window is reopened
	spare []byte // memory to return to inbound
}

// run is the messages of one frame: either one message, or several without items.
type run struct {
	layout wire.Layout
	bodies []byte // each preceded by its length
	items  [][]byte
	mem    []byte // memory of bodies, if from scraps
}

// openEnough is how much of the window must be open to send a message of any length, in bytes.
const openEnough = leastWindow / 2

// directMin is the length from which a message is sent in a call of its own, in bytes. A message with items always is.
const directMin = 64 << 10

// messageCost is what a message counts in a window in addition to its bytes.
const messageCost = 32

// earlyCost is the memory that an early frame uses in addition to its bytes.
const earlyCost = 512

// earlyWindows bounds the early frames of a stream, in windows. Short messages use up to three times the memory that
// they count in a window.
const earlyWindows = 4

func newStream(l *link, id streamID) *stream {
	return &stream{
		link: l, id: id, credit: leastWindow, in: inbound{granted: leastWindow},
	}
}

// cause is an event that a goroutine waits for.
type cause int

const (
	aMessage cause = iota // or the end of the stream
	theHeader
	theWindow
)

// wake wakes the goroutines that wait for one of the causes. Within take, it leaves that to wakeDue. mu is held.
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

// wakeDue wakes the goroutines that take marked. The goroutine that reads the connection calls it after the last frame
// of a call, so that a goroutine waiting for messages finds all of them.
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

// take processes a frame of the stream. It reports whether the caller must now arrange for wakeDue. Unless kept is set,
// the frame and the items refer to memory of the transport.
func (s *stream) take(f *wire.Frame, items [][]byte, kept bool) (due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.due
	s.inline = true
	s.arrive(f, items, kept)
	s.inline = false
	return before == 0 && s.due != 0
}

// arrive processes a frame, and then early frames that were waiting for it. It sets aside a frame that is itself early.
func (s *stream) arrive(f *wire.Frame, items [][]byte, kept bool) {
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
		s.keep(f, items, kept)
	default:
		s.apply(f, items, kept)
		for !s.over {
			a, ok := s.in.early[s.nextIn]
			if !ok {
				break
			}
			delete(s.in.early, s.nextIn)
			s.in.earlyBytes -= a.bytes
			s.link.unread.Add(-int64(a.bytes + earlyCost))
			s.apply(&a.frame, a.items, true)
		}
	}
}

const maxCredit = 1 << 30

// counts adds a message of cost n to the unread ones. It returns false if there is no room. Messages are counted in the
// order of seq, as the sender counts them.
func (in *inbound) counts(n int) bool {
	waiting := in.bytes + in.owed
	if waiting+n > in.granted && waiting > in.granted-openEnough {
		return false
	}
	in.bytes += n
	return true
}

// keep sets aside an early frame.
func (s *stream) keep(f *wire.Frame, items [][]byte, kept bool) {
	in := &s.in
	if s.crowded() {
		return
	}
	if _, twice := in.early[f.Seq]; twice || f.Seq < s.nextIn || in.earlyBytes > earlyWindows*in.granted {
		s.breaks("frames of a stream that are out of order")
		return
	}
	if in.early == nil {
		in.early = make(map[uint64]arrival)
	}
	if !kept {
		cloneAll(items)
	}
	b := f.Append(nil) // a copy
	a := arrival{items: items, bytes: len(b) + sumOf(items) + messageCost}
	d := xdr.NewDecoder(b)
	a.frame.Decode(&d)
	in.early[f.Seq] = a
	in.earlyBytes += a.bytes
	s.link.unread.Add(int64(a.bytes + earlyCost))
}

// apply processes the next frame in order.
func (s *stream) apply(f *wire.Frame, items [][]byte, kept bool) {
	s.nextIn++
	in, c := &s.in, &f.Content
	switch {
	case in.ended != nil:
		s.breaks("frames after the end of a stream")
		return
	case c.Kind == wire.KindMessage && s.crowded():
		return
	case c.Kind == wire.KindMessage:
		if !s.takeRun(run{layout: c.Message.Layout, bodies: c.Message.Bodies, items: items}, kept) {
			return
		}
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

// takeRun adds messages to the unread ones. It returns false if the other end has violated the protocol.
func (s *stream) takeRun(r run, kept bool) bool {
	in, total, messages := &s.in, 0, 0
	for b := r.bodies; messages == 0 || len(b) > 0; messages++ {
		body, rest, ok := cutBody(b)
		if !ok || messages > 0 && len(r.items) > 0 {
			s.breaks("messages of another length than they say")
			return false
		}
		n := len(body) + sumOf(r.items) + messageCost
		if !in.counts(n) {
			s.breaks("it sends more than the window of a stream has room for")
			return false
		}
		total += n
		b = rest
	}
	s.link.unread.Add(int64(total))
	if !kept {
		cloneAll(r.items)
		if r.mem, in.spare = in.spare, nil; cap(r.mem) < len(r.bodies) {
			r.mem = s.link.end.bytes.get(len(r.bodies))
		}
		r.bodies = append(r.mem, r.bodies...)
	}
	in.runs = append(in.runs, r)
	return true
}

// cutBody splits the bodies of a run into the first one and the rest.
func cutBody(b []byte) (body, rest []byte, ok bool) {
	if len(b) < xdr.Unit {
		return nil, nil, false
	}
	n, b := binary.BigEndian.Uint32(b), b[xdr.Unit:]
	if uint64(n) > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

func appendBody(b, body []byte) []byte {
	return append(xdr.AppendUint32(b, uint32(len(body))), body...)
}

// crowded ends the stream if its connection has too many unread messages, and reports whether it did.
func (s *stream) crowded() bool {
	if s.link.unread.Load() <= maxUnread {
		return false
	}
	s.reset(status.Errorf(codes.ResourceExhausted, "grpcrdma: more than %d bytes of the connection's streams wait to be read", maxUnread))
	return true
}

// breaks ends a stream because the other end has violated the protocol.
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

// end ends the stream at this end, and discards unread messages.
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

// drop discards unread messages.
func (s *stream) drop() {
	in := &s.in
	s.link.unread.Add(-int64(in.bytes + in.earlyBytes + earlyCost*len(in.early)))
	in.runs, in.bytes = nil, 0
	in.early, in.earlyBytes = nil, 0
	s.void.Store(true)
}

// leave unregisters the stream. Nothing is sent or received any more.
func (s *stream) leave() {
	s.over = true
	s.link.wide.Add(leastWindow - int64(s.in.granted))
	s.link.remove(s)
	s.wake(theWindow)
}

// fail ends the stream because its connection has ended.
func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(err)
}

// abandon ends the stream at both ends when the caller no longer refers to it.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset(failure(context.Canceled))
}

// ---- reading

// next waits for the next message and returns it. Its body may be overwritten by the next call.
func (s *stream) next(ctx context.Context) (p packed, err error) {
	t := &s.taken
	for {
		if r := t.run(&s.link.end.bytes); r != nil && !s.void.Load() {
			p.layout, p.items = r.layout, r.items
			p.body, r.bodies, _ = cutBody(r.bodies)
			if t.read += p.size() + messageCost; t.read >= t.least {
				s.mu.Lock()
				s.grant()
				s.mu.Unlock()
			}
			return p, nil
		}
		s.mu.Lock()
		in := &s.in
		if t.spare != nil {
			in.spare, t.spare = t.spare, nil
		}
		s.grant()
		switch {
		case len(in.runs) > 0:
			t.runs, in.runs, t.at = in.runs, t.runs[:0], 0
			s.mu.Unlock()
			continue
		case in.ended != nil:
			defer s.mu.Unlock()
			return p, in.ended
		}
		if cap(t.runs) > mostRuns {
			t.runs, t.at = nil, 0
		}
		if err := s.wait(ctx, aMessage); err != nil {
			return p, err
		}
	}
}

// run returns the first run with unread messages, or nil.
func (t *taken) run(done *scraps) *run {
	for ; t.at < len(t.runs); t.at++ {
		r := &t.runs[t.at]
		if len(r.bodies) > 0 {
			return r
		}
		if cap(r.mem) <= maxScratch {
			t.spare = r.mem[:0]
		} else {
			done.put(r.mem)
		}
		*r = run{}
	}
	return nil
}

// mostRuns bounds the memory kept by a stream that waits.
const mostRuns = 16

// wait waits until it is woken for c. mu must be held, and is released. The error is a status.
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
	return nil // fail has woken it
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

// canceled ends the stream because its context has ended.
func (s *stream) canceled(ctx context.Context) error {
	err := failure(ctx.Err())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in.ended != nil && s.in.ended != io.EOF {
		return s.in.ended // why the context has ended
	}
	if s.id.own {
		s.reset(err)
	}
	return err
}

// grant accounts for what has been read, and reopens the window once enough has been read to justify a frame. mu is
// held.
func (s *stream) grant() {
	in, t := &s.in, &s.taken
	if !s.void.Load() {
		in.bytes -= t.read
		s.link.unread.Add(-int64(t.read))
		in.owed += t.read
	}
	t.read = 0
	if in.owed >= in.granted/2 && !s.over {
		more := s.link.widen(min(windowGrowth*in.granted, s.link.end.cfg.window) - in.granted)
		in.owed += more
		in.granted += more
		s.push(wire.Content{Kind: wire.KindGrant, Bytes: uint32(in.owed)})
		in.owed = 0
	}
	t.least = in.granted/2 - in.owed
}

// windowGrowth is the factor by which the window grows each time half of it has been read.
const windowGrowth = 4

// awaitHeader waits for the header from the other end.
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

// room waits until a frame of any length may be queued. A call carries all queued frames. The error is a status.
func (s *stream) room(ctx context.Context) error {
	for full := s.link.out.full(); full != nil; full = s.link.out.full() {
		if err := s.waitFor(ctx, full); err != nil {
			return err
		}
	}
	return nil
}

// write queues a frame once there is room. It fails if the stream or ctx has ended.
func (s *stream) write(ctx context.Context, c wire.Content) error {
	if ctx.Err() != nil {
		return s.canceled(ctx)
	}
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

// maxUnread is how many bytes of messages may be unread in all streams of a connection. The next message ends its
// stream.
const maxUnread = 256 << 20

// maxScratch bounds the memory that a stream keeps for the next message, in either direction, in bytes.
const maxScratch = 2 << 10

// sendMsg encodes m and sends it. sent is the encoded message, but its body may be overwritten. fault is set if the
// message cannot be encoded, which is the caller's fault.
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

// send sends a message. It waits for the window, and until the items have arrived. It fails if the stream or ctx has
// ended.
func (s *stream) send(ctx context.Context, p *packed) error {
	if ctx.Err() != nil {
		return s.canceled(ctx)
	}
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
	if s.link.out.pushMessage(s, s.seq, p) {
		s.seq++
	}
	s.mu.Unlock()
	return nil
}

// direct sends a long message, or one with items, in a call of its own. It returns when the message has arrived. mu
// must be held, and is released.
func (s *stream) direct(ctx context.Context, p *packed) error {
	c := wire.Content{Kind: wire.KindMessage, Message: wire.Text{Layout: p.layout, Bodies: appendBody(nil, p.body)}}
	f := wire.Frame{Id: s.id.id, Own: s.id.own, Seq: s.seq, Content: c}
	s.seq++
	s.mu.Unlock()
	if s.id.own {
		// It must not overtake the frame that opens the stream.
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

// patience is how long sending a long message continues after its context has ended. The other end accepts the message
// even if the stream has ended, and revoking the memory early may break the connection.
const patience = time.Second

// withPatience returns a context that ends patience later than ctx.
func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(patience, cancel) })
	return late, func() {
		stop()
		cancel()
	}
}

// unsent ends the stream because a message could not be sent.
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
