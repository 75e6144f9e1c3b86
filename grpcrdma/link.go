package grpcrdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// endpoint is one end of the connections of a Server or ClientConn. It executes the program that both ends call.
type endpoint struct {
	srv *Server // the services, or nil
	cfg limits

	shapes shapes
	bytes  scraps // for frames and messages

	mu    sync.Mutex
	links map[rpc.Conn]*link
}

// scraps pools memory that busy streams no longer use. Pool k holds *[]byte with a capacity of at least 1<<k and less
// than 1<<(k+1) bytes, so that a short unread message does not pin a long buffer.
type scraps [32]sync.Pool

// get returns an empty slice with capacity for n bytes.
func (s *scraps) get(n int) []byte {
	k := bits.Len(uint(n - 1))
	if b, ok := s[k].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<k)
}

// put adds b to the pool unless it is short. Nothing may refer to b.
func (s *scraps) put(b []byte) {
	if cap(b) > maxRest {
		kept := b // only kept escapes to the heap
		s[bits.Len(uint(cap(b)))-1].Put(&kept)
	}
}

// limits holds the limits of one end.
type limits struct {
	recv    int // longest message received, in bytes
	send    int // longest message sent, in bytes
	window  int // unread bytes of a stream
	streams int // streams that the other end may have open on a connection
}

// Defaults of limits.
const (
	defaultRecv    = 4 << 20 // as in grpc-go
	defaultWindow  = 4 << 20
	defaultStreams = 100_000

	// leastWindow is the initial window of a stream, in bytes. The protocol fixes it.
	leastWindow = 64 << 10
)

// link returns the link of conn and creates it if none exists. If ended is not nil, it ends with the connection.
func (e *endpoint) link(conn rpc.Conn, ended context.Context) *link {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.links[conn]; l != nil {
		return l
	}
	if e.links == nil {
		e.links = make(map[rpc.Conn]*link)
	}
	l := &link{
		end: e, conn: conn, peer: peerOf(conn, conn.Peer()), streams: make(map[streamID]*stream),
		inline: math.MaxInt, // over TCP no call overtakes another
	}
	if n := conn.Info().InlineSend; n > 0 {
		l.inline = n - callHeaders
	}
	l.out.link = l
	l.out.room = make(chan struct{})
	e.links[conn] = l
	conn.AllowBackward(0) // no-op on a client
	if ended != nil {
		context.AfterFunc(ended, func() { e.forget(l) })
		return l
	}
	// Nothing reports when this connection ends. Remove links of connections that have ended.
	for c, l := range e.links {
		if c.Err() != nil && l.idle() {
			delete(e.links, c)
		}
	}
	return l
}

// forget removes the link of a connection that has ended, and ends its streams.
func (e *endpoint) forget(l *link) {
	e.mu.Lock()
	delete(e.links, l.conn)
	e.mu.Unlock()
	l.fail(l.conn.Err())
}

// flush waits until everything that streams have sent has arrived.
func (e *endpoint) flush() {
	e.mu.Lock()
	links := slices.Collect(maps.Values(e.links))
	e.mu.Unlock()
	for _, l := range links {
		l.out.flush()
	}
}

// ServeRPC executes a call of the program.
func (e *endpoint) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	switch req.Proc {
	case wire.GrpcUnary, wire.GrpcPlaced:
		e.srv.serveUnary(e, ctx, req, res)
	case wire.GrpcFetch:
		e.serveFetch(ctx, req, res)
	case wire.GrpcSend, wire.GrpcLong:
		e.serveSend(ctx, req, res)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

// streamID identifies a stream within a connection.
type streamID struct {
	id  uint64
	own bool // opened by this end
}

// link is a connection and its streams and calls.
type link struct {
	end    *endpoint
	conn   rpc.Conn
	peer   peer.Peer
	inline int // bytes of frames in a call that cannot be overtaken
	out    outbox

	mu      sync.Mutex
	last    uint64 // last id that this end assigned
	streams map[streamID]*stream
	opened  int                           // streams that the other end has open
	headers int                           // bytes of their metadata
	unary   map[uint64]context.CancelFunc // calls being executed, by id
	early   []uint64                      // calls that were canceled before they began
	parked  []parked                      // oldest first
	failed  error                         // why the connection ended
	unread  atomic.Int64                  // bytes of unread messages
	wide    atomic.Int64                  // bytes by which the windows of streams have grown
}

// callHeaders is the longest header of a call with frames, in bytes.
const callHeaders = 256

// mostWide bounds the sum by which the windows of a connection have grown, in bytes.
const mostWide = maxUnread / 2

// widen returns by how much a window may grow, but not more than more.
func (l *link) widen(more int) int {
	if more <= 0 {
		return 0
	}
	if l.wide.Add(int64(more)) > mostWide {
		l.wide.Add(-int64(more))
		return 0
	}
	return more
}

// maxHeaders bounds the metadata of all streams that the other end has open on a connection, in bytes.
const maxHeaders = 64 << 20

func (l *link) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams) == 0
}

// fail ends all streams because the connection has ended.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.failed == nil {
		l.failed = lost(err)
	}
	all := make([]*stream, 0, len(l.streams))
	for _, s := range l.streams {
		all = append(all, s)
	}
	l.parked = nil
	l.mu.Unlock()
	for _, s := range all {
		s.fail(l.failed)
	}
}

// lost returns the status of streams after their connection has ended.
func lost(err error) error {
	if err == nil {
		err = errors.New("the connection has ended")
	}
	return &callError{codes.Unavailable, err}
}

// nextID returns the id for a new call or stream of this end.
func (l *link) nextID() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	return l.last
}

// add registers a stream. It fails if the connection has ended.
func (l *link) add(s *stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failed != nil:
		return l.failed
	case l.streams[s.id] != nil:
		return status.Error(codes.Internal, "grpcrdma: a stream is opened twice")
	case !s.id.own && l.opened == l.end.cfg.streams:
		return status.Errorf(codes.ResourceExhausted, "grpcrdma: the connection has %d streams open already", l.opened)
	}
	if l.headers+s.header > maxHeaders {
		return status.Errorf(codes.ResourceExhausted, "grpcrdma: the metadata of the connection's streams has more than %d bytes", maxHeaders)
	}
	l.headers += s.header
	if !s.id.own {
		l.opened++
	}
	l.streams[s.id] = s
	return nil
}

// remove removes a stream.
func (l *link) remove(s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[s.id] != s {
		return
	}
	delete(l.streams, s.id)
	l.headers -= s.header
	if !s.id.own {
		l.opened--
	}
}

func (l *link) find(id streamID) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams[id]
}

// ---- what arrives

// serveSend processes the frames of a call. It runs on the goroutine that reads the connection, and never blocks.
func (e *endpoint) serveSend(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	l := e.link(req.Conn(), ctx)
	res.Linger()
	d := req.Decoder()
	items, body := takeBulk(&d)
	if err := d.End(); err != nil {
		res.FailArgs(req, err)
		return
	}
	var few [4]*stream
	due := few[:0]
	f := xdr.NewDecoder(body)
	total := f.Count(maxFrames, 24)
	var fr wire.Frame
	for range total {
		fr = wire.Frame{} // the frame just processed may refer to these slices
		fr.Decode(&f)
		var own [][]byte
		if text := &fr.Content.Message; fr.Content.Kind == wire.KindMessage {
			k := len(text.Layout.Places)
			if k > len(items) {
				f.Fail("a message with more items than the call has")
			} else {
				own, items = items[:k:k], items[k:]
			}
		}
		if f.Err() != nil {
			break
		}
		// A message should keep only its own memory alive: keep the call's memory only if this message is all that it
		// holds.
		kept := req.Kept() && total == 1 && len(items) == 0
		due = l.take(ctx, req, &fr, own, kept, due)
	}
	for _, s := range due {
		s.wakeDue()
	}
	if err := f.End(); err != nil {
		res.FailArgs(req, err)
	}
}

// maxFrames bounds the frames of a call.
const maxFrames = 1 << 16

// take processes a frame, and appends its stream to due if its goroutines are to be woken. A frame of a stream that has
// ended is late, which is no error.
func (l *link) take(ctx context.Context, req *rpc.Request, f *wire.Frame, items [][]byte, kept bool, due []*stream) []*stream {
	id := streamID{f.Id, !f.Own}
	s := l.find(id)
	switch {
	case s != nil:
		if s.take(f, items, kept) {
			due = append(due, s)
		}
	case f.Content.Kind == wire.KindOpen && f.Own && f.Seq == 0:
		l.opens(ctx, req, id, &f.Content.Open)
	case f.Content.Kind == wire.KindCancel && f.Own:
		l.cancelUnary(f.Id)
	}
	return due
}

// opens begins a stream that the other end opens.
func (l *link) opens(ctx context.Context, req *rpc.Request, id streamID, o *wire.Open) {
	s := newStream(l, id)
	s.nextIn = 1
	s.header = sizeOf(o.Header)
	err := checkPairs(o.Header)
	if err == nil {
		err = l.add(s)
	}
	if err != nil {
		l.refuse(id, err)
		return
	}
	if err := l.end.srv.serveStream(ctx, req, s, o); err != nil {
		l.remove(s)
		l.refuse(id, err)
	}
}

// refuse ends a stream that this end did not begin.
func (l *link) refuse(id streamID, err error) {
	l.out.push(&wire.Frame{Id: id.id, Own: id.own, Content: wire.Content{
		Kind: wire.KindStatus, End: wire.End{Status: toWire(statusOf(err))},
	}}, true)
}

// ---- unary calls of the other end

// maxEarly bounds the number of calls remembered that were canceled before they began.
const maxEarly = 64

// begin records that a unary call is being executed. cancel may be called at any time until finish.
func (l *link) begin(id uint64, cancel context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.early, id); i >= 0 {
		l.early = slices.Delete(l.early, i, i+1)
		cancel()
	}
	if l.unary == nil {
		l.unary = make(map[uint64]context.CancelFunc)
	}
	l.unary[id] = cancel
}

func (l *link) finish(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unary, id)
}

// cancelUnary ends the context of a call that is being executed, or will be.
func (l *link) cancelUnary(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cancel := l.unary[id]; cancel != nil {
		cancel()
		return
	}
	if len(l.early) == maxEarly {
		l.early = slices.Delete(l.early, 0, 1)
	}
	l.early = append(l.early, id)
}

// parked holds the results of a call that offered too little room for them.
type parked struct {
	id    uint64
	reply wire.Reply
	packed
}

// maxParked bounds the parked results of a connection, in bytes, not counting the latest.
const maxParked = 256 << 20

// park keeps results until the other end fetches them or later results need the room.
func (l *link) park(p parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked = append(l.parked, p)
	room := maxParked
	for i := len(l.parked) - 2; i >= 0; i-- {
		if room -= l.parked[i].size() + mostReply; room < 0 {
			l.parked = slices.Delete(l.parked, 0, i+1)
			break
		}
	}
}

// fetch returns parked results and removes them.
func (l *link) fetch(id uint64) (p parked, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.parked, func(p parked) bool { return p.id == id })
	if i < 0 {
		return p, false
	}
	p = l.parked[i]
	l.parked = slices.Delete(l.parked, i, i+1)
	return p, true
}

// ---- what is sent

// outbox sends the frames of a connection's streams. While few of its calls are in flight, each frame is sent at once
// in a call of its own, which no goroutine waits for. Otherwise frames gather until a goroutine that has a call in
// flight sends them. Once many have gathered, another goroutine sends them.
//
// Calls of two goroutines may overtake each other, and a call may overtake a longer one while its data is fetched. The
// other end ignores frames of unknown streams, because those may have ended. Therefore no frame is sent while a call
// that opens streams, and that may be overtaken, is in flight.
type outbox struct {
	link *link

	mu      sync.Mutex
	frames  []byte // marshalled, after four bytes for their count
	n       int
	tail    tail
	senders int           // goroutines that send
	room    chan struct{} // closed when the frames have been taken
	batch   uint64        // number of the call that will carry the frames
	under   []uint64      // numbers of the calls in flight
	after   chan struct{} // closed when one of them returns; nil: no waiter
	spare   []byte
	free    []*sending
	started int  // calls in flight that no goroutine waits for
	opens   bool // one of the frames opens a stream
	opening bool // a goroutine has a call in flight that opens a stream
}

// sending is a call that carries frames.
type sending struct {
	rpc.Call
	body  []byte
	batch uint64
	ended func(error) // o.ended
}

const (
	// outboxFull is how many bytes of frames may be queued before streams wait with their next message.
	outboxFull = 256 << 10
	// mostStarted is how many started calls may be in flight before frames gather. Their completions may be processed
	// late while no goroutine waits for something on the connection.
	mostStarted = 4
	// mostSenders is how many goroutines send gathered frames. While the other end processes some, the next are on
	// their way.
	mostSenders = 8
	// moreSenders is how many bytes of frames gather before another goroutine sends them.
	moreSenders = 32 << 10
)

// push queues a frame for the call with number batch. It marshals the frame at once. inline is set on the goroutine
// that reads the connection.
func (o *outbox) push(f *wire.Frame, inline bool) (batch uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.append(f)
	return o.leave(inline)
}

// append adds a frame. mu is held.
func (o *outbox) append(f *wire.Frame) {
	if o.n == 0 {
		o.begin()
	}
	o.frames = f.Append(o.frames)
	o.n++
	o.tail = tail{}
	o.opens = o.opens || f.Content.Kind == wire.KindOpen
}

// tail describes the last queued frame if it may take further messages.
type tail struct {
	s        *stream // nil: it may not
	seq      uint64
	subtype  string
	encoding string
	at       int // offset in frames of the length of the bodies
}

// pushMessage queues a message of s. It reports whether the message begins a frame, with number seq, or joined the last
// one.
func (o *outbox) pushMessage(s *stream, seq uint64, p *packed) (own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &o.tail
	if o.n == 0 || t.s != s || t.seq+1 != seq || t.subtype != p.layout.Subtype || t.encoding != p.layout.Encoding {
		f := wire.Frame{Id: s.id.id, Own: s.id.own, Seq: seq, Content: wire.Content{
			Kind: wire.KindMessage, Message: wire.Text{Layout: p.layout},
		}}
		o.append(&f)
		o.tail = tail{s, seq, p.layout.Subtype, p.layout.Encoding, len(o.frames) - xdr.Unit}
		own = true
	}
	n := int(binary.BigEndian.Uint32(o.frames[t.at:]))
	o.frames = appendBody(o.withRoom(o.frames[:t.at+xdr.Unit+n], 2*xdr.Unit+len(p.body)), p.body)
	n = len(o.frames) - t.at - xdr.Unit
	binary.BigEndian.PutUint32(o.frames[t.at:], uint32(n))
	o.frames = append(o.frames, make([]byte, xdr.Padded(n)-n)...)
	o.leave(false)
	return own
}

// withRoom returns b with room for n more bytes. If they are many, it makes room for a full outbox.
func (o *outbox) withRoom(b []byte, n int) []byte {
	if n += len(b); n <= cap(b) {
		return b
	}
	if n > maxRest {
		n = max(n, outboxFull)
	}
	long := append(o.link.end.bytes.get(n), b...)
	o.link.end.bytes.put(b)
	return long
}

// leave arranges for the queued frames to be sent, by the call with number batch. mu is held.
func (o *outbox) leave(inline bool) (batch uint64) {
	batch = o.batch
	switch {
	case o.senders == 0 && !inline && o.started < mostStarted && o.start():
	case o.senders == 0 || o.senders < mostSenders && !o.opening && len(o.frames) >= moreSenders:
		o.senders++
		go o.send()
	}
	return batch
}

// begin prepares memory for frames. mu is held.
func (o *outbox) begin() {
	if o.frames == nil {
		o.frames, o.spare = o.spare, nil
	}
	if o.frames == nil {
		o.frames = make([]byte, 0, 256)
	}
	o.frames = append(o.frames[:0], 0, 0, 0, 0)
}

// take moves the queued frames to a call. mu is held.
func (o *outbox) take() *sending {
	var c *sending
	if n := len(o.free); n > 0 {
		c, o.free = o.free[n-1], o.free[:n-1]
	} else {
		c = new(sending)
		c.ended = func(err error) { o.ended(c, err) }
	}
	c.body, c.batch = o.frames, o.batch
	binary.BigEndian.PutUint32(c.body, uint32(o.n))
	sendCall(&c.Call, wire.GrpcSend, nil, c.body)
	o.frames, o.n, o.tail, o.opens = nil, 0, tail{}, false
	o.under = append(o.under, o.batch)
	o.batch++
	return c
}

// start starts a call with the queued frames. It returns false if that would block, or if a later call could overtake
// it. mu is held.
func (o *outbox) start() bool {
	if o.opens && len(o.frames) > o.link.inline {
		return false
	}
	n, opens := o.n, o.opens
	c := o.take()
	if o.link.conn.Start(&c.Call, c.ended) {
		o.started++
		return true
	}
	o.frames, o.n, o.opens = c.body, n, opens
	o.batch--
	o.under = o.under[:len(o.under)-1]
	o.free = append(o.free, c)
	return false
}

// ended handles the completion of a call begun by start.
func (o *outbox) ended(c *sending, err error) {
	if err != nil {
		o.fails(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started--
	o.over(c)
}

// over recycles a call that has returned. mu is held.
func (o *outbox) over(c *sending) {
	i := slices.Index(o.under, c.batch)
	o.under = slices.Delete(o.under, i, i+1)
	if o.after != nil {
		close(o.after)
		o.after = nil
	}
	if o.spare == nil {
		o.spare = c.body
	} else {
		o.link.end.bytes.put(c.body)
	}
	c.body = nil
	o.free = append(o.free, c)
}

// arrives returns a channel to wait on before checking again, or nil if all calls up to number batch have returned.
func (o *outbox) arrives(batch uint64) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if batch < o.batch && !slices.ContainsFunc(o.under, func(b uint64) bool { return b <= batch }) {
		return nil
	}
	if o.after == nil {
		o.after = make(chan struct{})
	}
	return o.after
}

// flush waits until the queued frames have arrived, or the connection has ended.
func (o *outbox) flush() {
	o.mu.Lock()
	last := o.batch
	if o.n == 0 && last > 0 {
		last--
	}
	never := o.n == 0 && o.batch == 0
	o.mu.Unlock()
	if never {
		return
	}
	for ch := o.arrives(last); ch != nil; ch = o.arrives(last) {
		<-ch
	}
}

// full returns nil if there is room in the outbox, or else a channel that is closed when there may be.
func (o *outbox) full() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.frames) < outboxFull {
		return nil
	}
	return o.room
}

// send makes calls with queued frames until none is left, or until another sender opens a stream.
func (o *outbox) send() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.n > 0 && !o.opening {
		opens := o.opens
		o.opening = opens
		c := o.take()
		close(o.room)
		o.room = make(chan struct{})
		o.mu.Unlock()
		err := o.link.conn.Call(context.Background(), &c.Call)
		if err != nil {
			o.fails(err)
		}
		o.mu.Lock()
		o.over(c)
		if opens {
			o.opening = false
		}
	}
	if o.senders--; o.senders == 0 {
		o.rest()
	}
}

// maxRest bounds the memory of one buffer that an idle connection keeps, in bytes.
const maxRest = 4 << 10

// rest releases memory that only a busy connection needs. mu is held.
func (o *outbox) rest() {
	if cap(o.spare) > maxRest {
		o.link.end.bytes.put(o.spare)
		o.spare = nil
	}
	o.free = slices.DeleteFunc(o.free, func(c *sending) bool { return cap(c.Args) > maxRest })
}

// sendCall prepares call for SEND or LONG.
func sendCall(call *rpc.Call, proc uint32, items [][]byte, body []byte) {
	call.Prog, call.Vers, call.Proc, call.Names, call.NoResend = prog, vers, proc, names, true
	call.Args, call.ReadItems = call.Args[:0], call.ReadItems[:0]
	addBulk(call, items, body)
}

// fails ends the connection's streams because some frames could not be sent. It closes the connection too, because
// otherwise the other end's streams would wait for those frames.
func (o *outbox) fails(err error) {
	if o.link.conn.Err() == nil {
		err = fmt.Errorf("frames could not be sent: %w", err)
		o.link.conn.Close()
	}
	o.link.fail(err)
}
