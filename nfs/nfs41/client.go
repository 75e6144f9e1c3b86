package nfs41

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Config is what a Session can choose. The zero value and a nil pointer are the
// defaults. It is not modified.
type Config struct {
	// Transport configures the connections. The callback program is added to its
	// Callbacks, and its OnReconnect is called beside what the Session does there. Nil
	// is the default configuration.
	Transport *transport.Config

	// Auth is the AUTH_SYS credential of every call. Nil stands for the process: its
	// user and group, and the host's name.
	Auth *oncrpc.AuthSys

	// Owner tells clients apart (co_ownerid), at most 1024 bytes: a server takes two with
	// the same one for one that has restarted. Nil is made of the host's name and random
	// bytes.
	Owner []byte

	// CallbackProgram is the number under which the server calls. Zero is
	// CallbackProgram.
	CallbackProgram uint32

	// CallbackSec is what the server may say in its calls that it is. Nil is the
	// credential of Auth. Whatever it says, its calls come over the connection to it.
	CallbackSec []CallbackSec

	// Callback executes the server's callbacks. With nil they are answered with
	// NFS4ERR_NOTSUPP, but for the CB_SEQUENCE in front.
	Callback CallbackHandler

	// Fore and Back are what to ask for, for the client's calls and the server's: sizes
	// in bytes, operations and slots. Zero fields are 4000 bytes each way, which fit
	// inline, 1024 bytes of each reply kept, 16 operations and 16 slots.
	Fore, Back ChannelAttrs

	// NoBackchannel asks for none.
	NoBackchannel bool

	// BackConn makes a second connection, for the backchannel alone.
	BackConn bool

	// Renew makes the Session say something to the server often enough for its lease,
	// and mend its backchannel when the server says that it is down. Its errors go to
	// Logger.
	Renew bool

	// Logger gets one line when a session cannot be kept or its backchannel cannot be
	// bound. Nil logs nothing.
	Logger *slog.Logger
}

// A Session is a client's NFS version 4.1 session with a server, over one connection or
// two. It outlives them: on a new connection it is bound anew, and when the server does not
// know it any more, another session takes its place. Its methods may be called by many
// goroutines at once.
type Session struct {
	cfg      Config
	cred     oncrpc.Auth
	verifier Verifier
	fore     *transport.Client
	back     *transport.Client // may be fore
	counters callbackCounters
	status   atomic.Uint32 // SeqFlags of the last SEQUENCE

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines of ours

	work chan struct{} // holds a token while a session is made, bound or destroyed

	mu      sync.Mutex
	closed  bool
	held    *held         // nil: there is no session
	pending chan struct{} // closed when a CREATE_SESSION under way is over; nil: none is

	// Of whoever holds the token.
	clientID  ClientID
	sequence  uint32 // of the next CREATE_SESSION
	confirmed bool   // the server has told clientID
	reclaimed bool
}

// A held is a session that the server knows.
type held struct {
	id      SessionID
	flags   uint32
	fore    ChannelAttrs
	back    ChannelAttrs
	calls   *requester
	replies *replySlots // Session.mu
}

// Defaults of channels. A message of 4000 bytes fits into an inline one of 4096, whatever
// chunks there are.
const (
	defaultMessage = 4000 // bytes
	defaultCached  = 1024 // bytes
	defaultOps     = 16
	defaultSlots   = 16
)

// Dial connects to the server at addr ("host:port") with provider p, and makes a session:
// EXCHANGE_ID, CREATE_SESSION, RECLAIM_COMPLETE. The callback program is there before the
// server hears of it (RFC 8167 section 6). A nil cfg is the default configuration.
func Dial(ctx context.Context, p fabric.Provider, addr string, cfg *Config) (*Session, error) {
	s := &Session{work: make(chan struct{}, 1)}
	if cfg != nil {
		s.cfg = *cfg
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	var tc transport.Config
	if s.cfg.Transport != nil {
		tc = *s.cfg.Transport
	}
	user := tc.OnReconnect
	tc.OnReconnect = func(cl *transport.Client) {
		s.reconnected()
		if user != nil {
			user(cl)
		}
	}
	callbacks := append(tc.Callbacks[:len(tc.Callbacks):len(tc.Callbacks)], s.callbacks())
	if !s.cfg.NoBackchannel && !s.cfg.BackConn {
		tc.Callbacks = callbacks
	}
	// Nobody reconnects before there is a session.
	s.work <- struct{}{}
	defer s.release()
	var err error
	if s.fore, err = transport.Dial(ctx, p, addr, &tc); err != nil {
		s.cancel()
		return nil, err
	}
	s.back = s.fore
	if s.cfg.BackConn && !s.cfg.NoBackchannel {
		tc.Callbacks = callbacks
		back, err := transport.Dial(ctx, p, addr, &tc)
		if err != nil {
			s.cancel()
			s.fore.Close()
			return nil, err
		}
		s.back = back
	}
	if err := s.establish(ctx); err != nil {
		s.Close()
		return nil, err
	}
	if s.cfg.Renew {
		s.start(s.renew)
	}
	return s, nil
}

// prepare fills in what the configuration leaves open.
func (s *Session) prepare() error {
	c := &s.cfg
	if len(c.Owner) > maxOwner {
		return fmt.Errorf("nfs41: owner of %d bytes, more than %d", len(c.Owner), maxOwner)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	rand.Read(s.verifier[:]) // never fails
	host, _ := os.Hostname()
	auth := c.Auth
	if auth == nil {
		auth = &oncrpc.AuthSys{
			Machine: host[:min(len(host), oncrpc.MaxMachineName)],
			UID:     uint32(max(os.Geteuid(), 0)), GID: uint32(max(os.Getegid(), 0)),
		}
	}
	s.cred = auth.Auth()
	if c.Owner == nil {
		var unique [16]byte
		rand.Read(unique[:])
		c.Owner = fmt.Appendf(nil, "rpcrdma %s %x", host, unique)
	}
	if c.CallbackProgram == 0 {
		c.CallbackProgram = CallbackProgram
	}
	if c.CallbackSec == nil {
		c.CallbackSec = []CallbackSec{{Flavor: oncrpc.FlavorSys, Sys: *auth}}
	}
	dflt := ChannelAttrs{
		MaxRequest: defaultMessage, MaxResponse: defaultMessage, MaxResponseCached: defaultCached,
		MaxOps: defaultOps, MaxRequests: defaultSlots,
	}
	c.Fore, c.Back = c.Fore.or(dflt), c.Back.or(dflt)
	return nil
}

// acquire takes the token.
func (s *Session) acquire(ctx context.Context) error {
	select {
	case s.work <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) release() { <-s.work }

// start runs f on a goroutine of its own, unless the Session has been closed.
func (s *Session) start(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Go(f)
	}
}

func (s *Session) log(msg string, err error) {
	if s.cfg.Logger != nil && s.ctx.Err() == nil {
		s.cfg.Logger.Warn(msg, "err", err)
	}
}

// current returns the session, or nil.
func (s *Session) current() *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// known returns the session with an id, or nil. The server may call before the reply that
// tells the id is here.
func (s *Session) known(ctx context.Context, id SessionID) *held {
	for {
		s.mu.Lock()
		h, pending := s.held, s.pending
		s.mu.Unlock()
		if h != nil && h.id == id {
			return h
		}
		if pending == nil {
			return nil
		}
		select {
		case <-pending:
		case <-ctx.Done():
			return nil
		}
	}
}

// call makes a COMPOUND of one operation that needs no session, on connection cl, and
// asks again while the server says NFS4ERR_DELAY.
func (s *Session) call(ctx context.Context, cl *transport.Client, op Operation, again bool) error {
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		head := compoundArgs{Minor: Minor, Count: 1}
		ops := []Operation{op}
		call := transport.Call{
			Prog: Program, Vers: Version, Proc: ProcCompound, Cred: s.cred,
			Args: appendOps(head.Append(nil), ops), NoResend: !again,
		}
		if op.Op == OpExchangeID {
			call.MaxResults = maxExchangeIDRes
		}
		if err := cl.Call(ctx, &call); err != nil {
			return err
		}
		failed, err := decodeOps(call.Results, ops, OpName)
		switch {
		case err != nil:
			return err
		case failed.index < 0:
			return nil
		case failed.status != StatusDelay && failed.status != StatusBackChanBusy:
			return &Error{OpName(op.Op), failed.status}
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
}

// hasStatus tells whether err is a failed operation with the status.
func hasStatus(err error, status ...Status) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, s := range status {
		if e.Status == s {
			return true
		}
	}
	return false
}

// establish makes a session: with the client id that the server knows, and if it knows it
// no more, with another. The token is held.
func (s *Session) establish(ctx context.Context) error {
	for range maxAttempts {
		if !s.confirmed {
			if err := s.exchangeID(ctx); err != nil {
				return err
			}
		}
		err := s.createSession(ctx)
		if err == nil {
			return s.settle(ctx)
		}
		// STALE_CLIENTID: the server has restarted. SEQ_MISORDERED: a CREATE_SESSION was
		// given up, and nobody knows whether it was executed. In both cases we begin as
		// if we had restarted.
		if !hasStatus(err, StatusStaleClientID, StatusSeqMisordered) {
			return err
		}
		s.confirmed = false
		rand.Read(s.verifier[:])
	}
	return &Error{OpName(OpCreateSession), StatusStaleClientID}
}

// maxAttempts is how many client ids are tried for a session.
const maxAttempts = 3

func (s *Session) exchangeID(ctx context.Context) error {
	args := exchangeIDArgs{
		Verifier: s.verifier, Owner: s.cfg.Owner, Flags: exchangeUseNonPNFS,
		Impl: &implID{Domain: "github.com", Name: "rpcrdma"},
	}
	var res exchangeIDRes
	if err := s.call(ctx, s.fore, Operation{OpExchangeID, &args, &res}, true); err != nil {
		return err
	}
	s.reclaimed = s.reclaimed && s.clientID == res.ClientID
	s.clientID, s.sequence, s.confirmed = res.ClientID, res.Sequence, true
	return nil
}

func (s *Session) createSession(ctx context.Context) error {
	args := createSessionArgs{
		ClientID: s.clientID, Sequence: s.sequence,
		Fore: s.cfg.Fore, Back: s.cfg.Back,
		CallbackProgram: s.cfg.CallbackProgram, CallbackSec: s.cfg.CallbackSec,
	}
	if !s.cfg.NoBackchannel && !s.cfg.BackConn {
		args.Flags = SessionConnBackChan
	}
	pending := make(chan struct{})
	s.mu.Lock()
	s.held, s.pending = nil, pending
	s.mu.Unlock()
	var res createSessionRes
	err := s.call(ctx, s.fore, Operation{OpCreateSession, &args, &res}, true)
	if err == nil && (res.Fore.MaxRequests == 0 || res.Fore.MaxOps < minOps || res.Back.MaxRequests > s.cfg.Back.MaxRequests) {
		err = &ReplyError{OpName(OpCreateSession), "channels are of no use"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
	close(pending)
	if err != nil {
		return err
	}
	s.sequence++
	s.held = s.hold(&args, &res)
	return nil
}

// hold makes the session's slots.
func (s *Session) hold(args *createSessionArgs, res *createSessionRes) *held {
	h := &held{
		id: res.Session, flags: res.Flags,
		// A server may not raise what was asked for. Slots are memory.
		fore:    args.Fore.within(res.Fore),
		back:    args.Back.within(res.Back),
		replies: newReplySlots(int(res.Back.MaxRequests)),
	}
	h.calls = &requester{
		session: h.id,
		table:   newSlotTable(int(h.fore.MaxRequests)),
		name:    OpName,
		begin: func(b []byte, count int, args *sequenceArgs) []byte {
			head := compoundArgs{Minor: Minor, Count: uint32(count)}
			b = head.Append(b)
			b = xdr.AppendUint32(b, OpSequence)
			return args.Append(b)
		},
		first: func(res *sequenced) Operation { return Operation{Op: OpSequence, Result: &res.fore} },
		send: func(ctx context.Context, call *transport.Call) error {
			call.Prog, call.Vers, call.Proc, call.Cred = Program, Version, ProcCompound, s.cred
			call.MaxResults = int(min(h.fore.MaxResponse, defaultMaxResponse))
			if n := oncrpc.MinCallSize + len(s.cred.Body) + len(call.Args); int64(n) > int64(h.fore.MaxRequest) {
				return &transport.SizeError{What: "compound", Size: n, Limit: int(h.fore.MaxRequest)}
			}
			return s.fore.Call(ctx, call)
		},
	}
	return h
}

// defaultMaxResponse bounds the memory for a reply, in bytes, whatever the configuration
// and the server say.
const defaultMaxResponse = 1 << 20

// settle is what there is to do in a new session. The token is held.
func (s *Session) settle(ctx context.Context) error {
	if s.cfg.BackConn && !s.cfg.NoBackchannel {
		if err := s.bind(ctx, s.back); err != nil {
			return err
		}
	}
	if s.reclaimed {
		return nil
	}
	// There is nothing to reclaim, and the server wants to hear it: RFC 8881 section
	// 18.51.3.
	err := s.compound(ctx, s.current(), false, []Operation{{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)}})
	if err != nil && !hasStatus(err, StatusCompleteAlready) {
		return err
	}
	s.reclaimed = true
	return nil
}

// bind tells the server that connection cl is the session's: BIND_CONN_TO_SESSION. It is
// not sent again on another connection, which it would not be about. The token is held.
func (s *Session) bind(ctx context.Context, cl *transport.Client) error {
	h := s.current()
	if h == nil {
		return &Error{OpName(OpBindConnToSession), StatusBadSession}
	}
	args := bindConnArgs{Session: h.id, Dir: fromClientForeOrBoth}
	want := fromServerBoth
	switch {
	case s.cfg.NoBackchannel || cl != s.back:
		args.Dir, want = fromClientFore, fromServerFore
	case s.cfg.BackConn:
		args.Dir, want = fromClientBack, fromServerBack
	}
	var res bindConnRes
	if err := s.call(ctx, cl, Operation{OpBindConnToSession, &args, &res}, false); err != nil {
		return err
	}
	if res.Session != h.id {
		return &ReplyError{OpName(OpBindConnToSession), "is about another session"}
	}
	if res.Dir != want {
		return ErrNoBackchannel
	}
	return nil
}

// ErrNoBackchannel says that the server does not call over the connection, although it
// was asked to.
var ErrNoBackchannel = errors.New("nfs41: server refuses the backchannel")

// gone tells errors by which a server says that it does not know a session, or cannot go
// on with it.
func gone(err error) bool {
	return hasStatus(err, StatusBadSession, StatusDeadSession, StatusStaleClientID, StatusSeqMisordered)
}

// reconnected is called when a connection has been made again: the server has to hear
// that calls may come here. RFC 8881 section 2.10.3.1, RFC 8167 section 6.
func (s *Session) reconnected() {
	s.start(func() {
		if err := s.Bind(s.ctx); err != nil {
			s.log("connection not bound to the session", err)
		}
	})
}

// Bind tells the server that the connections are the session's, as it is done by itself on
// a new connection. If the server does not know the session another is made.
func (s *Session) Bind(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	err := s.bind(ctx, s.fore)
	if err == nil && s.back != s.fore {
		err = s.bind(ctx, s.back)
	}
	if gone(err) {
		err = s.establish(ctx)
	}
	return err
}

// replace makes another session if the current one is still old, which is of no use.
func (s *Session) replace(ctx context.Context, old *held) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	if s.current() != old {
		return nil
	}
	return s.establish(ctx)
}

// again tells operations that can be executed twice.
func again(ops []Operation) bool {
	for i := range ops {
		switch ops[i].Op {
		case OpAccess, OpGetAttr, OpGetFH, OpLookup, OpLookupP, OpPutFH, OpPutPubFH, OpPutRootFH,
			OpReadDir, OpRestoreFH, OpSaveFH, OpSecInfo, OpSecInfoNoName:
		default:
			return false
		}
	}
	return true
}

// compound makes a COMPOUND in session h.
func (s *Session) compound(ctx context.Context, h *held, twice bool, ops []Operation) error {
	if h == nil {
		return &Error{OpName(OpSequence), StatusBadSession}
	}
	if n := int64(len(ops)) + 1; n > int64(h.fore.MaxOps) {
		return &Error{OpName(OpSequence), StatusTooManyOps}
	}
	var res sequenced
	err := h.calls.compound(ctx, ops, !twice, twice, &res)
	if res.fore.Session == h.id {
		s.status.Store(uint32(res.fore.Flags))
	}
	return err
}

// Compound makes a COMPOUND of a SEQUENCE and ops behind it, and decodes the results of
// those that succeed. Byte slices in them are theirs.
//
// It fails with an *Error when an operation fails, NFS4ERR_DELAY among the reasons, with
// a *ReplyError, or as transport.Client.Call does. When the server does not know the session, another is
// made. Ops that only read are then executed in that; otherwise the error is that of
// SEQUENCE, and they may have been executed.
func (s *Session) Compound(ctx context.Context, ops ...Operation) error {
	twice := again(ops)
	for try := 0; ; try++ {
		h := s.current()
		err := s.compound(ctx, h, twice, ops)
		if !gone(err) || !isSequence(err) {
			return err
		}
		if err := s.replace(ctx, h); err != nil {
			return err
		}
		if !twice || try == maxAttempts {
			return err
		}
	}
}

func isSequence(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Op == OpName(OpSequence)
}

// Sequence makes a COMPOUND of SEQUENCE alone, which renews the lease, and returns what
// the server tells with it. It fails as Compound does.
func (s *Session) Sequence(ctx context.Context) (SeqFlags, error) {
	if err := s.Compound(ctx); err != nil {
		return 0, err
	}
	return s.Status(), nil
}

// Status is what the latest SEQUENCE has told.
func (s *Session) Status() SeqFlags { return SeqFlags(s.status.Load()) }

// CallbackStats returns the counters of what the server has called.
func (s *Session) CallbackStats() CallbackStats { return s.counters.snapshot() }

// Info is what a session's set-up agreed on.
type Info struct {
	ID         SessionID // zero: there is no session
	ClientID   ClientID
	Flags      uint32 // of CREATE_SESSION
	Fore, Back ChannelAttrs
}

// Info tells about the session. It waits while one is being made.
func (s *Session) Info(ctx context.Context) (Info, error) {
	if err := s.acquire(ctx); err != nil {
		return Info{}, err
	}
	defer s.release()
	info := Info{ClientID: s.clientID}
	if h := s.current(); h != nil {
		info.ID, info.Flags, info.Fore, info.Back = h.id, h.flags, h.fore, h.back
	}
	return info, nil
}

// Transport returns the connections for the client's calls and for the server's, which
// are one and the same without Config.BackConn.
func (s *Session) Transport() (fore, back *transport.Client) { return s.fore, s.back }

// LeaseTime asks the server for the time after which it may forget a client that says
// nothing.
func (s *Session) LeaseTime(ctx context.Context) (time.Duration, error) {
	mask := Bits(AttrLeaseTime)
	var raw RawAttrs
	if err := s.Compound(ctx, Operation{Op: OpPutRootFH}, Operation{OpGetAttr, &mask, &raw}); err != nil {
		return 0, err
	}
	a, err := raw.Attrs()
	if err == nil && !a.Mask.Has(AttrLeaseTime) {
		err = errors.New("no lease_time")
	}
	if err != nil {
		return 0, &ReplyError{OpName(OpGetAttr), err.Error()}
	}
	return time.Duration(a.LeaseTime) * time.Second, nil
}

// renew keeps the lease until the Session is closed.
func (s *Session) renew() {
	lease := time.Duration(0)
	for {
		if lease == 0 {
			l, err := s.LeaseTime(s.ctx)
			if err != nil {
				s.log("lease time not known", err)
				l = 3 * time.Second // and asked again
			} else {
				lease = max(l, time.Second)
			}
			if pause(s.ctx, max(l, time.Second)/3) != nil {
				return
			}
			continue
		}
		s.tend()
		if pause(s.ctx, lease/3) != nil {
			return
		}
	}
}

// tend renews the lease and mends what the server complains about.
func (s *Session) tend() {
	h := s.current()
	flags, err := s.Sequence(s.ctx)
	switch {
	case err != nil:
	case flags&SeqBackchannelFault != 0:
		err = s.replace(s.ctx, h)
	case flags&(SeqCBPathDown|SeqCBPathDownSession) != 0 && !s.cfg.NoBackchannel:
		err = s.Bind(s.ctx)
	}
	if err != nil {
		s.log("session not renewed", err)
	}
}

// Destroy ends the session in order: DESTROY_SESSION, DESTROY_CLIENTID, Close. The error is
// the first of these.
func (s *Session) Destroy(ctx context.Context) error {
	err := s.destroy(ctx)
	if closed := s.Close(); err == nil {
		err = closed
	}
	return err
}

func (s *Session) destroy(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	h := s.current()
	if h == nil {
		return nil
	}
	// What the server does not know is as good as destroyed.
	err := s.call(ctx, s.fore, Operation{Op: OpDestroySession, Args: &h.id}, true)
	if err != nil && !hasStatus(err, StatusBadSession) {
		return err
	}
	s.mu.Lock()
	s.held = nil
	s.mu.Unlock()
	err = s.call(ctx, s.fore, Operation{Op: OpDestroyClientID, Args: &s.clientID}, true)
	if hasStatus(err, StatusStaleClientID) {
		err = nil
	}
	return err
}

// Close ends the connections at once, and what the Session does by itself. The server keeps
// the session until it forgets the client. It may be called twice.
func (s *Session) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	err := s.fore.Close()
	if s.back != s.fore {
		err = errors.Join(err, s.back.Close())
	}
	s.tasks.Wait()
	return err
}
