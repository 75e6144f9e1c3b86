package rpcsec

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

const (
	// maxOutstanding bounds the calls in flight in a context, whatever window a server offers.
	maxOutstanding = 1 << 16

	// early is how long before its end a context is replaced, so that calls are not refused on their way.
	early = 5 * time.Second
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Initiator has the credentials of the caller.
	Initiator Initiator

	// Service is what is done for arguments and results; zero is rpc.ServicePrivacy.
	Service rpc.Service
}

// A Client is a Caller that makes each call in a security context. It sets a context up, by calls of
// procedure 0, for each program and version before the first call, and again when it ends: contexts outlive
// connections. Cred, Verf and Sign of calls are replaced while Call runs.
type Client struct {
	next rpc.Caller
	cfg  ClientConfig
	free sync.Pool // of *sealed

	mu       sync.Mutex
	programs map[program]*slot
	closed   bool
}

// A program has contexts of its own: servers may have different mechanisms for each.
type program struct{ prog, vers uint32 }

// A slot has the context for a program.
type slot struct {
	program
	current  atomic.Pointer[session]
	lock     chan struct{} // of the goroutine that sets a context up
	attempts atomic.Uint64 // that have ended
	err      error         // of the last one; guarded by lock
}

// A session is an established context.
type session struct {
	gss     Context
	handle  []byte
	seq     atomic.Uint32
	room    chan struct{} // one element for each call in flight
	expires time.Time
}

// NewClient returns a Client that calls next.
func NewClient(next rpc.Caller, cfg ClientConfig) *Client {
	if cfg.Service == 0 {
		cfg.Service = rpc.ServicePrivacy
	}
	return &Client{next: next, cfg: cfg, programs: make(map[program]*slot)}
}

// Call makes a call in a context, in a new one if need be. Its errors are those of the wrapped
// Caller, *ContextError if there is no context for the call, and *ReplyError if its reply cannot be believed.
// A call that the server refuses because it does not know the context, any longer, is made once more in another one.
func (c *Client) Call(ctx context.Context, call *rpc.Call) error {
	if c.cfg.Service != rpc.ServiceNone {
		if err := refuseForeign(call); err != nil {
			return err
		}
	}
	sl, err := c.slot(call)
	if err != nil {
		return err
	}
	for again := false; ; again = true {
		s, err := c.session(ctx, sl)
		if err != nil {
			return err
		}
		err = c.call(ctx, s, call, controlData)
		var e *oncrpc.RPCError
		if again || !errors.As(err, &e) || e.AuthStat != oncrpc.AuthGSSCred && e.AuthStat != oncrpc.AuthGSSCtx {
			return err
		}
		sl.current.CompareAndSwap(s, nil)
	}
}

// Close destroys the contexts at the server, as far as it can be reached until ctx ends. Calls fail afterwards. It
// does not close the wrapped Caller.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	slots := c.programs
	c.programs = nil
	c.mu.Unlock()
	var errs []error
	for _, sl := range slots {
		if s := sl.current.Swap(nil); s != nil {
			errs = append(errs, c.call(ctx, s, &rpc.Call{Prog: sl.prog, Vers: sl.vers}, controlDestroy))
		}
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

// session returns the context for calls of a program, which one goroutine sets up if need be.
func (c *Client) session(ctx context.Context, sl *slot) (*session, error) {
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
		return nil, sl.err // of an attempt that ended while this goroutine waited
	}
	s, err := c.establish(ctx, sl.program)
	sl.attempts.Add(1)
	sl.err = err
	if ctx.Err() != nil {
		sl.err = nil // which is not the others' error
	}
	if err == nil {
		sl.current.Store(s)
	}
	return s, err
}

// usable reports whether s has numbers, and time, for another call.
func (s *session) usable() bool {
	return s != nil && s.seq.Load() < maxSeq-maxOutstanding && (s.expires.IsZero() || time.Until(s.expires) > early)
}

// establish sets a context up. RFC 2203 section 5.2.
func (c *Client) establish(ctx context.Context, p program) (*session, error) {
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
		if err := c.next.Call(ctx, &call); err != nil {
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
		// RFC 2203 section 5.2.3.1: the verifier signs the window, which shows that the server is the context's peer.
		if err := gss.VerifyMIC(binary.BigEndian.AppendUint32(nil, res.window), call.Reply.Verf.Body); err != nil {
			return nil, &ContextError{Err: &ReplyError{Err: err}}
		}
		return &session{gss: gss, handle: cr.handle, room: make(chan struct{}, min(max(res.window, 1), maxOutstanding)), expires: gss.Expires()}, nil
	}
	return nil, &ContextError{Err: errSteps}
}

// ---- calls

// A sealed is what a call needs beyond the caller's Call.
type sealed struct {
	gss  Context
	num  [4]byte // the sequence number
	cred []byte
	verf []byte
	args []byte
	sign func(header []byte) oncrpc.Auth // is signs
	err  error                           // of sign
}

func (x *sealed) signs(header []byte) oncrpc.Auth {
	var err error
	if x.verf, err = x.gss.AppendMIC(x.verf[:0], header); err != nil || len(x.verf) > oncrpc.MaxAuthBody {
		x.err, x.verf = err, x.verf[:0]
	}
	return oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: x.verf}
}

// call makes call in the context s. What the caller has put into call is replaced meanwhile.
func (c *Client) call(ctx context.Context, s *session, call *rpc.Call, ctl control) error {
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

	x, ok := c.free.Get().(*sealed)
	if !ok {
		x = new(sealed)
		x.sign = x.signs
	}
	defer c.free.Put(x)
	x.gss, x.err = s.gss, nil
	seq := s.seq.Add(1)
	binary.BigEndian.PutUint32(x.num[:], seq)
	cr := cred{control: ctl, seq: seq, service: c.cfg.Service, handle: s.handle}
	x.cred = cr.append(x.cred[:0])

	was := *call
	call.Cred = oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: x.cred}
	call.Sign = x.sign
	var err error
	if c.cfg.Service != rpc.ServiceNone {
		err = c.seal(s.gss, seq, call, x)
	}
	if err == nil {
		err = c.next.Call(ctx, call)
	}
	call.Cred, call.Verf, call.Sign, call.Args, call.ReadItems, call.WriteItems, call.MaxResults =
		was.Cred, was.Verf, was.Sign, was.Args, was.ReadItems, was.WriteItems, was.MaxResults
	if x.err != nil {
		err = x.err
	}
	if err != nil {
		return err
	}
	if err := s.gss.VerifyMIC(x.num[:], call.Reply.Verf.Body); err != nil {
		return &ReplyError{Err: err}
	}
	if c.cfg.Service != rpc.ServiceNone {
		results, err := open(s.gss, c.cfg.Service, seq, call.Results)
		if err != nil {
			call.Results = nil
			return &ReplyError{Results: true, Err: err}
		}
		call.Results = results
	}
	return nil
}

// seal replaces the arguments and items of call.
func (c *Client) seal(gss Context, seq uint32, call *rpc.Call, x *sealed) error {
	results := call.MaxResults
	for i := range call.WriteItems {
		call.WriteItems[i].Chunked, call.WriteItems[i].N = false, 0
		results += xdr.Padded(call.WriteItems[i].Len())
	}
	n := len(call.Args)
	for i := range call.ReadItems {
		n += xdr.Padded(call.ReadItems[i].Len())
	}
	if size := sealedSize(gss, c.cfg.Service, n); cap(x.args) < size {
		x.args = make([]byte, 0, size)
	}
	args, err := seal(gss, c.cfg.Service, seq, call.AppendArgs(x.args[:sealHead(gss, c.cfg.Service)]))
	if err != nil {
		return err
	}
	x.args = args
	call.Args, call.ReadItems, call.WriteItems = args, nil, nil
	call.MaxResults = sealedSize(gss, c.cfg.Service, results)
	return nil
}
