package rpcsec

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

const (
	// maxOutstanding bounds the calls in flight in a context, however large a window the server offers.
	maxOutstanding = 1 << 16

	// early is how long before its expiry a context is replaced, so that it does not expire while a call is in flight.
	early = 5 * time.Second
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Initiator provides the credentials of the caller.
	Initiator Initiator

	// Service is the protection of arguments and results. Zero means rpc.ServicePrivacy.
	Service rpc.Service

	// Seal says whether to seal the items of calls with rpc.ServicePrivacy, so that they can still be sent as chunks.
	// It costs one extra call for each context.
	Seal Sealing
}

// A Client is a Caller that makes each call in a security context. It establishes a context for each program and
// version before the first call, by calls of procedure 0, and a new one when the context expires. Contexts outlive
// connections. While Call runs, it replaces the call's Cred, Verf and Sign.
type Client struct {
	next rpc.Caller
	cfg  ClientConfig
	free sync.Pool // of *outgoing

	mu       sync.Mutex
	programs map[program]*slot
	closed   bool
}

// A program has its own context, because servers may use a different mechanism for each program.
type program struct{ prog, vers uint32 }

// slot holds the context for a program.
type slot struct {
	program
	current  atomic.Pointer[session]
	lock     chan struct{} // held by the goroutine that establishes a context
	attempts atomic.Uint64 // finished attempts
	err      error         // of the last attempt; guarded by lock
}

// session is an established context.
type session struct {
	gss     Context
	seal    *sealKeys // nil: items are not sealed
	handle  []byte
	room    chan struct{} // semaphore: one element for each call in flight
	expires time.Time
	numbers
}

// NewClient returns a Client that calls next.
func NewClient(next rpc.Caller, cfg ClientConfig) *Client {
	if cfg.Service == 0 {
		cfg.Service = rpc.ServicePrivacy
	}
	return &Client{next: next, cfg: cfg, programs: make(map[program]*slot)}
}

// Call makes a call in a context, which it establishes if necessary. It returns the errors of the wrapped Caller, a
// *ContextError if no context could be established, and a *ReplyError if the reply cannot be verified.
//
// If the server refuses a call because it no longer knows the context, Call retries once in a new context. If the
// server may instead have seen too many later calls first, Call first retries in the same context. Such a refusal is
// not protected: an attacker can forge it for a call that has been executed. The retry therefore keeps its xid, by
// which a reply cache recognizes it (see rpc.Request.Once). A server without a reply cache then executes the call
// twice.
func (c *Client) Call(ctx context.Context, call *rpc.Call) error { return c.callOn(ctx, c.next, call) }

// On returns a Caller that behaves like Call and shares its contexts, but makes its calls with next: another connection
// to the same server.
func (c *Client) On(next rpc.Caller) rpc.Caller { return &onNext{c, next} }

type onNext struct {
	c    *Client
	next rpc.Caller
}

func (o *onNext) Call(ctx context.Context, call *rpc.Call) error {
	return o.c.callOn(ctx, o.next, call)
}

func (c *Client) callOn(ctx context.Context, next rpc.Caller, call *rpc.Call) error {
	if c.cfg.Service != rpc.ServiceNone {
		if err := refuseForeign(call); err != nil {
			return err
		}
	}
	sl, err := c.slot(call)
	if err != nil {
		return err
	}
	state := rpc.StateOf(call)
	// denied is set if the call itself was denied, rather than the setup of a context for it.
	for denied, again, late := false, false, false; ; {
		s, err := c.session(ctx, next, sl)
		if err == nil {
			state.Again = denied
			err = c.call(ctx, next, s, call, controlData)
			state.Again = false
		}
		if err == nil {
			return nil
		}
		stat := refusal(err)
		denied = denied || s != nil
		switch {
		case s != nil && stat == oncrpc.AuthGSSCtx && !late:
			late = true // presumably its number was below the window
		case !again && (stat == oncrpc.AuthGSSCred || stat == oncrpc.AuthGSSCtx):
			again = true
			if s != nil {
				sl.current.CompareAndSwap(s, nil)
			}
		default:
			return err
		}
	}
}

// refusal returns the reason for which a server refused a call.
func refusal(err error) oncrpc.AuthStat {
	var e *oncrpc.RPCError
	if errors.As(err, &e) {
		return e.AuthStat
	}
	return oncrpc.AuthOK
}

// Close destroys the contexts at the server, unless ctx ends before the server can be reached. Later calls fail. Close
// does not close the wrapped Caller.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	slots := c.programs
	c.programs = nil
	c.mu.Unlock()
	var errs []error
	for _, sl := range slots {
		select {
		case sl.lock <- struct{}{}: // after any attempt in progress; no other follows
		case <-ctx.Done():
			errs = append(errs, &ContextError{Err: ctx.Err()})
			continue
		}
		if s := sl.current.Swap(nil); s != nil {
			errs = append(errs, c.call(ctx, c.next, s, &rpc.Call{Prog: sl.prog, Vers: sl.vers}, controlDestroy))
		}
		<-sl.lock
	}
	return errors.Join(errs...)
}

func refuseForeign(call *rpc.Call) error {
	const reason = "the credential protects the message as a whole"
	for i := range call.ReadItems {
		if it := &call.ReadItems[i]; it.Foreign != nil {
			return &rpc.ForeignError{Index: i, Len: it.Len(), Reason: reason}
		}
	}
	for i := range call.WriteItems {
		if it := &call.WriteItems[i]; it.Foreign != nil {
			return &rpc.ForeignError{Result: true, Index: i, Len: it.Len(), Reason: reason}
		}
	}
	return nil
}

// ---- contexts

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *Client) slot(call *rpc.Call) (*slot, error) {
	p := program{call.Prog, call.Vers}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	sl := c.programs[p]
	if sl == nil {
		sl = &slot{program: p, lock: make(chan struct{}, 1)}
		c.programs[p] = sl
	}
	return sl, nil
}

// session returns the context for calls of a program. If none exists, one goroutine establishes it.
func (c *Client) session(ctx context.Context, next rpc.Caller, sl *slot) (*session, error) {
	if s := sl.current.Load(); s.usable() {
		return s, nil
	}
	if rpc.IsInline(ctx) {
		return nil, errInline
	}
	attempts := sl.attempts.Load()
	select {
	case sl.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, &ContextError{Err: ctx.Err()}
	}
	defer func() { <-sl.lock }()
	if s := sl.current.Load(); s.usable() {
		return s, nil
	}
	if sl.err != nil && sl.attempts.Load() != attempts {
		return nil, sl.err // of an attempt that failed while this goroutine waited
	}
	if c.isClosed() {
		return nil, errClosed
	}
	s, err := c.establish(ctx, next, sl.program)
	sl.attempts.Add(1)
	sl.err = err
	if ctx.Err() != nil {
		sl.err = nil // this error must not fail the other waiters
	}
	if err == nil {
		sl.current.Store(s)
	}
	return s, err
}

// usable reports whether s has sequence numbers and time left for another call.
func (s *session) usable() bool {
	return s != nil && s.last.Load() < maxSeq-maxOutstanding && (s.expires.IsZero() || time.Until(s.expires) > early)
}

// establish establishes a context. RFC 2203 section 5.2.
func (c *Client) establish(ctx context.Context, next rpc.Caller, p program) (*session, error) {
	gss, err := c.cfg.Initiator.Initiate(ctx)
	if err != nil {
		return nil, &ContextError{Err: err}
	}
	token, done, err := gss.Step(nil)
	if err != nil {
		return nil, &ContextError{Err: err}
	}
	cr := cred{control: controlInit, service: c.cfg.Service}
	for range maxSteps {
		call := rpc.Call{Prog: p.prog, Vers: p.vers, Cred: cr.auth(nil), Args: xdr.AppendOpaque(nil, token), MaxResults: maxInitResults}
		if err := next.Call(ctx, &call); err != nil {
			return nil, &ContextError{Err: err}
		}
		var res initResult
		if err := res.decode(call.Results); err != nil {
			return nil, &ContextError{Err: err}
		}
		status := Status(res.major)
		if status != Complete && status != ContinueNeeded {
			e := &ContextError{Refused: true, Status: status, Minor: res.minor}
			if x, ok := gss.(Explainer); ok {
				e.Err = x.Explain(res.minor)
			}
			return nil, e
		}
		token = nil
		if !done {
			if token, done, err = gss.Step(res.token); err != nil {
				return nil, &ContextError{Err: err}
			}
		}
		cr = cred{control: controlContinue, service: c.cfg.Service, handle: append([]byte(nil), res.handle...)}
		if status == ContinueNeeded {
			if len(token) == 0 {
				return nil, &ContextError{Err: errLate}
			}
			continue
		}
		if !done || len(token) > 0 {
			return nil, &ContextError{Err: errEarly}
		}
		// RFC 2203 section 5.2.3.1: the verifier signs the window, which proves that the server is the context's peer.
		if err := gss.VerifyMIC(binary.BigEndian.AppendUint32(nil, res.window), call.Reply.Verf.Body); err != nil {
			return nil, &ContextError{Err: &ReplyError{Err: err}}
		}
		window := min(max(res.window, 1), maxOutstanding)
		s := &session{gss: gss, handle: cr.handle, room: make(chan struct{}, window), expires: gss.Expires(), numbers: newNumbers(window)}
		if c.cfg.Service != rpc.ServicePrivacy || c.cfg.Seal == SealOff {
			return s, nil
		}
		if s.seal, err = c.agree(ctx, next, s, p); err == nil && s.seal == nil && c.cfg.Seal == SealRequired {
			err = ErrNotSealed
		}
		if err != nil {
			return nil, &ContextError{Err: err}
		}
		return s, nil
	}
	return nil, &ContextError{Err: errSteps}
}

// ---- calls

// numbers assigns the sequence numbers of a context. A server refuses a number below its window, or silently drops the
// call (RFC 2203 section 5.3.3.1). Until a call that has its number has been sent, calls with numbers that would move
// the window past it are held back.
type numbers struct {
	last atomic.Uint32 // last number assigned; changed with mu held

	mu    sync.Mutex
	low   uint32        // the calls with this number and all lower ones have been sent
	sent  []bool        // whether a number has been sent, indexed modulo the window
	moved chan struct{} // closed when low rises; nil: no waiter
}

func newNumbers(window uint32) numbers { return numbers{sent: make([]bool, window)} }

// take returns the next number, or a channel to wait on before trying again.
func (n *numbers) take() (seq uint32, wait <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last.Load()-n.low < uint32(len(n.sent)) {
		return n.last.Add(1), nil
	}
	if n.moved == nil {
		n.moved = make(chan struct{})
	}
	return 0, n.moved
}

// leaves records that the call with this number has been sent, or will not be made.
func (n *numbers) leaves(seq uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	size := uint32(len(n.sent))
	n.sent[seq%size] = true
	was := n.low
	for n.sent[(n.low+1)%size] {
		n.low++
		n.sent[n.low%size] = false
	}
	if n.low != was && n.moved != nil {
		close(n.moved)
		n.moved = nil
	}
}

// outgoing holds the state of a call beyond the caller's Call.
type outgoing struct {
	gss  Context
	num  [4]byte // sequence number
	cred []byte
	verf []byte
	args []byte
	sign func(header []byte) oncrpc.Auth // x.signs
	err  error                           // returned by sign

	numbers *numbers // holds seq until the call has been sent; then nil
	seq     uint32

	// For a call with sealed items:
	box
	mem    []byte // memory that the peer reads and writes
	reads  []rpc.ReadItem
	writes []rpc.WriteItem
}

func (x *outgoing) leave() {
	if n := x.numbers; n != nil {
		x.numbers = nil
		n.leaves(x.seq)
	}
}

func (x *outgoing) signs(header []byte) oncrpc.Auth {
	defer x.leave()
	var err error
	if x.verf, err = x.gss.AppendMIC(x.verf[:0], header); err != nil || len(x.verf) > oncrpc.MaxAuthBody {
		x.err, x.verf = err, x.verf[:0]
	}
	return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: x.verf}
}

// call makes call in the context s. Until it returns, the caller's fields of call are replaced.
func (c *Client) call(ctx context.Context, next rpc.Caller, s *session, call *rpc.Call, ctl control) error {
	select {
	case s.room <- struct{}{}:
	default:
		if rpc.IsInline(ctx) {
			return errInline
		}
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			return &ContextError{Err: ctx.Err()}
		}
	}
	defer func() { <-s.room }()
	seq, wait := s.take()
	for ; wait != nil; seq, wait = s.take() {
		if rpc.IsInline(ctx) {
			return errInline
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return &ContextError{Err: ctx.Err()}
		}
	}

	x, ok := c.free.Get().(*outgoing)
	if !ok {
		x = new(outgoing)
		x.sign = x.signs
	}
	defer c.free.Put(x)
	x.gss, x.err, x.numbers, x.seq = s.gss, nil, &s.numbers, seq
	binary.BigEndian.PutUint32(x.num[:], seq)
	cr := cred{control: ctl, seq: seq, service: c.cfg.Service, handle: s.handle}
	if s.seals(call) {
		cr.service = serviceSealed
	}
	x.cred = cr.append(x.cred[:0])

	was := *call
	call.Cred = oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: x.cred}
	call.Sign = x.sign
	var err error
	switch cr.service {
	case rpc.ServiceNone:
	case serviceSealed:
		err = x.sealCall(s, seq, call)
	default:
		err = c.protect(s.gss, seq, call, x)
	}
	if err == nil {
		err = next.Call(ctx, call)
	}
	x.leave()
	if err == nil {
		err = x.take(s, &cr, call, was.WriteItems)
	}
	call.Cred, call.Verf, call.Sign, call.Args, call.ReadItems, call.WriteItems, call.MaxResults =
		was.Cred, was.Verf, was.Sign, was.Args, was.ReadItems, was.WriteItems, was.MaxResults
	if x.err != nil {
		err = x.err
	}
	return err
}

// take stores the results of call. items are those that the caller offered.
func (x *outgoing) take(s *session, cr *cred, call *rpc.Call, items []rpc.WriteItem) (err error) {
	if err := s.gss.VerifyMIC(x.num[:], call.Reply.Verf.Body); err != nil {
		return &ReplyError{Err: err}
	}
	switch {
	case cr.service == rpc.ServiceNone || cr.control == controlDestroy: // there are no results, and libtirpc does not protect them
		return nil
	case cr.service == serviceSealed:
		call.Results, err = x.openReply(s, cr.seq, call, items)
	default:
		call.Results, err = open(s.gss, cr.service, cr.seq, call.Results)
	}
	if err != nil {
		return &ReplyError{Results: true, Err: err}
	}
	return nil
}

// protect replaces the arguments and items of call with protected ones.
func (c *Client) protect(gss Context, seq uint32, call *rpc.Call, x *outgoing) error {
	results := call.MaxResults
	for i := range call.WriteItems {
		call.WriteItems[i].Chunked, call.WriteItems[i].N = false, 0
		results += xdr.Padded(call.WriteItems[i].Len())
	}
	n := len(call.Args)
	for i := range call.ReadItems {
		n += xdr.Padded(call.ReadItems[i].Len())
	}
	if size := protectedSize(gss, c.cfg.Service, n); cap(x.args) < size {
		x.args = make([]byte, 0, size)
	}
	args, err := protect(gss, c.cfg.Service, seq, call.AppendArgs(x.args[:protectHead(gss, c.cfg.Service)]))
	if err != nil {
		return err
	}
	x.args = args
	call.Args, call.ReadItems, call.WriteItems = args, nil, nil
	call.MaxResults = protectedSize(gss, c.cfg.Service, results)
	return nil
}

// ---- sealed items

// seals reports whether the items of call are to be sealed.
func (s *session) seals(call *rpc.Call) bool {
	if s.seal == nil || max(len(call.ReadItems), len(call.WriteItems)) > oncrpc.MaxSealed {
		return false
	}
	for i := range call.ReadItems {
		if call.ReadItems[i].Len() >= sealLeast {
			return true
		}
	}
	for i := range call.WriteItems {
		if call.WriteItems[i].Len() >= sealLeast {
			return true
		}
	}
	return false
}

// sealCall replaces the arguments and items of call with sealed ones. The peer accesses only memory of x, never the
// caller's.
func (x *outgoing) sealCall(s *session, seq uint32, call *rpc.Call) error {
	x.number, x.rooms, x.items = uint64(seq), x.rooms[:0], x.items[:0]
	room := 0
	for i := range call.WriteItems {
		w := &call.WriteItems[i]
		w.Chunked, w.N = false, 0
		x.rooms = append(x.rooms, uint32(len(w.Buf)))
		room += len(w.Buf)
	}
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		x.items = append(x.items, sealedItem{uint32(it.Offset), uint32(len(it.Data))})
		room += len(it.Data)
	}
	if i := x.misplaced(call.Args); i >= 0 {
		it := &call.ReadItems[i]
		return &rpc.ItemError{Index: i, Offset: it.Offset, Len: len(it.Data)}
	}
	if cap(x.mem) < room {
		x.mem = make([]byte, room)
	}
	const words = 4 // a length word
	if size := protectedSize(s.gss, rpc.ServicePrivacy, x.size()+len(call.Args)) + words*len(x.items); cap(x.args) < size {
		x.args = make([]byte, 0, size)
	}
	args := append(x.append(x.args[:protectHead(s.gss, rpc.ServicePrivacy)]), call.Args...)
	x.begin(s.seal.args, call.Prog, call.Vers, call.Proc, false, seq)
	x.reads, x.writes = x.reads[:0], x.writes[:0]
	mem, tags := x.mem[:room], x.tags
	for i := range call.ReadItems {
		data := call.ReadItems[i].Data
		tags = x.box.seal(i, mem[:len(data)], data, tags)
		x.reads = append(x.reads, rpc.ReadItem{Data: mem[:len(data)]})
		mem = mem[len(data):]
	}
	args, err := protect(s.gss, rpc.ServicePrivacy, seq, args)
	if err != nil {
		return err
	}
	for i := range x.reads {
		args = xdr.AppendUint32(args, x.items[i].n)
		x.reads[i].Offset = len(args)
	}
	for i := range call.WriteItems {
		n := len(call.WriteItems[i].Buf)
		x.writes = append(x.writes, rpc.WriteItem{Buf: mem[:n]})
		mem = mem[n:]
	}
	x.args = args
	call.Args, call.ReadItems, call.WriteItems = args, x.reads, x.writes
	call.MaxResults = protectedSize(s.gss, rpc.ServicePrivacy, x.replySize()+call.MaxResults)
	return nil
}

// openReply opens the sealed results of call. items are those that the caller offered.
func (x *outgoing) openReply(s *session, seq uint32, call *rpc.Call, items []rpc.WriteItem) (results []byte, err error) {
	d := call.Decoder()
	body, err := sealedBody(s.gss, seq, d.Opaque(math.MaxUint32))
	if err != nil {
		return nil, err
	}
	if results, err = x.decode(body); err != nil {
		return nil, &SealError{Piece: -1, Err: err}
	}
	if len(x.items) > len(items) {
		return nil, &SealError{Piece: -1, Err: errManifest}
	}
	x.begin(s.seal.results, call.Prog, call.Vers, call.Proc, true, seq)
	for i, tags := 0, x.tags; i < len(x.items); i++ {
		w, n := &items[i], int(x.items[i].n)
		data := d.Item()
		if d.Err() != nil || len(data) != n {
			err = &SealError{Item: i, Piece: -1, Err: errItem}
			break
		}
		var bad *SealError
		if tags, bad = x.open(i, w.Buf[:n], data, tags); bad != nil {
			err = bad
			break
		}
		w.Chunked, w.N = n > 0, n
	}
	if err == nil && d.End() != nil {
		err = &SealError{Piece: -1, Err: errItem}
	}
	if err != nil {
		for i := range items {
			clear(items[i].Buf[:items[i].N])
			items[i].Chunked, items[i].N = false, 0
		}
		return nil, err
	}
	return results, nil
}
