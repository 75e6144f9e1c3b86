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
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Config configures a Session. The zero value and a nil pointer mean the defaults. It is not
// modified.
type Config struct {
	// Transport configures the connections. The Session adds the callback program to its Callbacks, and wraps its
	// OnReconnect. Nil means the default configuration.
	Transport *transport.ClientConfig

	// Auth is the AUTH_SYS credential of every call. Nil means the credential of the process:
	// its effective user and group, and the host name.
	Auth *oncrpc.AuthSys

	// Security makes all calls use RPCSEC_GSS in place of Auth, for instance with Kerberos. Unless its Service is
	// rpc.ServiceNone, the credential is the machine credential of SP4_MACH_CRED (RFC 8881 section 2.10.8.3): the
	// server permits no other caller to replace, bind or destroy the client's sessions and id. Nil means Auth.
	Security *rpcsec.ClientConfig

	// Owner identifies the client (co_ownerid), in at most 1024 bytes. For a server, a second client
	// with the same owner is a restart of the first. Nil means the host name and random bytes.
	Owner []byte

	// CallbackProgram is the program number of callbacks. Zero means the constant
	// CallbackProgram.
	CallbackProgram uint32

	// CallbackSec lists the credentials that the server may use in its calls. Nil means the credential of Auth. The
	// credentials are not used for authentication: callbacks are accepted because they arrive on the connection to the
	// server.
	CallbackSec []CallbackSec

	// Callback executes the server's callbacks. If it is nil, operations other than
	// CB_SEQUENCE fail with NFS4ERR_NOTSUPP.
	Callback CallbackHandler

	// Fore and Back are the channel attributes to request, for calls of the client and of the server. Zero fields mean
	// 4000 bytes per message, which fits inline, 1024 bytes per cached reply, 16 operations and 16 slots.
	Fore, Back ChannelAttrs

	// NoBackchannel disables the backchannel.
	NoBackchannel bool

	// BackConn makes a second connection, used only for the backchannel.
	BackConn bool

	// Renew makes the Session renew its lease in the background, and restore the backchannel
	// when the server reports that it is down. Errors go to Logger.
	Renew bool

	// Logger receives a record when a session cannot be renewed or a connection cannot be bound to it. Nil logs
	// nothing.
	Logger *slog.Logger
}

// A Session is a client's NFS version 4.1 session with a server, over one connection or two. It outlives the
// connections: it is bound to the new one after a reconnect, and replaced if the server no longer knows it. Its methods
// may be called concurrently.
type Session struct {
	cfg      Config
	cred     oncrpc.Auth
	sec      *rpcsec.Client // for all calls; nil without Config.Security
	verifier Verifier
	fore     *transport.Client
	back     *transport.Client // may equal fore
	counters callbackCounters
	status   atomic.Uint32 // SeqFlags of the last SEQUENCE

	ctx    context.Context // canceled by Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines of the Session

	work chan struct{} // the token: held while a session is created, bound or destroyed

	mu      sync.Mutex
	closed  bool
	held    *held         // nil: no session
	pending chan struct{} // closed when the current CREATE_SESSION ends; nil if none exists

	// Protected by the token.
	clientID  ClientID
	sequence  uint32 // sequence id of the next CREATE_SESSION
	confirmed bool   // clientID was assigned by the server
	reclaimed bool
}

// held is a session that exists at the server.
type held struct {
	id      SessionID
	flags   uint32
	fore    ChannelAttrs
	back    ChannelAttrs
	calls   *requester
	replies *replySlots // Session.mu
}

// Channel defaults. A message of 4000 bytes fits inline if the inline threshold is 4096.
const (
	defaultMessage = 4000 // bytes
	defaultCached  = 1024 // bytes
	defaultOps     = 16
	defaultSlots   = 16
)

// Dial connects to the server at addr ("host:port") with provider p, and creates a session: EXCHANGE_ID,
// CREATE_SESSION, RECLAIM_COMPLETE. It registers the callback program before it sends the program's number to the
// server (RFC 8167 section 6). A nil cfg means the default configuration.
func Dial(ctx context.Context, p fabric.Provider, addr string, cfg *Config) (*Session, error) {
	s := &Session{work: make(chan struct{}, 1)}
	if cfg != nil {
		s.cfg = *cfg
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	var tc transport.ClientConfig
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
	// reconnected must wait until there is a session, so take the token first.
	s.work <- struct{}{}
	defer s.release()
	var err error
	if s.fore, err = transport.Dial(ctx, p, addr, &tc); err != nil {
		s.cancel()
		return nil, err
	}
	if s.cfg.Security != nil {
		s.sec = rpcsec.NewClient(s.fore, *s.cfg.Security)
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
		s.start(func() { s.renew(assumedLease) })
	}
	return s, nil
}

// prepare fills in defaults in the configuration.
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

// acquire acquires the token.
func (s *Session) acquire(ctx context.Context) error {
	select {
	case s.work <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) release() { <-s.work }

// start runs f on a new goroutine, unless the Session has been closed.
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

// known returns the session with the given id, or nil. The server may call before the reply to
// CREATE_SESSION has arrived, so known waits for that.
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

// caller returns the Caller for connection cl.
func (s *Session) caller(cl *transport.Client) rpc.Caller {
	if s.sec == nil {
		return cl
	}
	return s.sec.On(cl)
}

// call sends a COMPOUND of one operation that needs no session on connection cl, and repeats it on NFS4ERR_DELAY.
func (s *Session) call(ctx context.Context, cl *transport.Client, op Operation, again bool) error {
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		head := compoundArgs{Minor: Minor, Count: 1}
		ops := []Operation{op}
		call := rpc.Call{
			Prog: Program, Vers: Version, Proc: ProcCompound, Cred: s.cred,
			Args: appendOps(head.Append(nil), ops), NoResend: !again,
		}
		if op.Op == OpExchangeID {
			call.MaxResults = maxExchangeIDRes
		}
		if err := s.caller(cl).Call(ctx, &call); err != nil {
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

// hasStatus reports whether err is a failed operation with one of the statuses.
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

// establish creates a session, with the current client id or, if the server no longer knows that, a new one. The token
// is held.
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
		// STALE_CLIENTID: the server has restarted. SEQ_MISORDERED: a CREATE_SESSION was canceled and may have been
		// executed. In both cases start over as if the client had restarted.
		if !hasStatus(err, StatusStaleClientID, StatusSeqMisordered) {
			return err
		}
		s.confirmed = false
		rand.Read(s.verifier[:])
	}
	return &Error{OpName(OpCreateSession), StatusStaleClientID}
}

// maxAttempts bounds the client ids tried for a session.
const maxAttempts = 3

func (s *Session) exchangeID(ctx context.Context) error {
	args := exchangeIDArgs{
		Verifier: s.verifier, Owner: s.cfg.Owner, Flags: exchangeUseNonPNFS,
		Impl: []implID{{Domain: "github.com", Name: "rpcrdma"}},
	}
	if c := s.cfg.Security; c != nil && c.Service != rpc.ServiceNone {
		args.Protect = protectArgs{How: protectMachCred, Ops: protectOps{Enforce: protectedOps()}}
	}
	var res exchangeIDRes
	if err := s.call(ctx, s.fore, Operation{OpExchangeID, &args, &res}, true); err != nil {
		return err
	}
	if !args.Protect.grantedBy(&res.Protect) {
		return &BadReplyError{OpName(OpExchangeID), "does not protect the client's state as requested"}
	}
	s.reclaimed = s.reclaimed && s.clientID == res.ClientID
	s.clientID, s.sequence, s.confirmed = res.ClientID, res.Sequence, true
	return nil
}

// protectedOps returns the operations on the client's sessions and id.
func protectedOps() Bitmap {
	return Bits(OpBindConnToSession, OpExchangeID, OpCreateSession, OpDestroySession, OpDestroyClientID)
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
		err = &BadReplyError{OpName(OpCreateSession), "channels are of no use"}
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

// hold allocates the session's slots.
func (s *Session) hold(args *createSessionArgs, res *createSessionRes) *held {
	h := &held{
		id: res.Session, flags: res.Flags,
		// The server must not exceed the requested values, which bound the memory for slots.
		fore:    args.Fore.within(res.Fore),
		back:    args.Back.within(res.Back),
		replies: newReplySlots(int(res.Back.MaxRequests)),
	}
	caller := s.caller(s.fore)
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
		send: func(ctx context.Context, call *rpc.Call) error {
			call.Prog, call.Vers, call.Proc, call.Cred = Program, Version, ProcCompound, s.cred
			call.MaxResults = int(min(h.fore.MaxResponse, defaultMaxResponse))
			if n := oncrpc.MinCallSize + len(s.cred.Body) + len(call.Args); int64(n) > int64(h.fore.MaxRequest) {
				return &rpc.SizeError{What: "compound", Size: n, Limit: int(h.fore.MaxRequest)}
			}
			return caller.Call(ctx, call)
		},
	}
	return h
}

// defaultMaxResponse bounds the memory for a reply, in bytes, regardless of the configuration
// and the server.
const defaultMaxResponse = 1 << 20

// settle completes the setup of a new session. The token is held.
func (s *Session) settle(ctx context.Context) error {
	if s.cfg.BackConn && !s.cfg.NoBackchannel {
		if err := s.bind(ctx, s.back); err != nil {
			return err
		}
	}
	if s.reclaimed {
		return nil
	}
	// There is nothing to reclaim, but the client must tell the server so: RFC 8881 section 18.51.3.
	err := s.compound(ctx, s.current(), false, []Operation{{Op: OpReclaimComplete, Args: new(reclaimCompleteArgs)}})
	if err != nil && !hasStatus(err, StatusCompleteAlready) {
		return err
	}
	s.reclaimed = true
	return nil
}

// bind sends BIND_CONN_TO_SESSION on connection cl. It is never resent on another connection, because it applies to the
// connection on which it arrives. The token is held.
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
		return &BadReplyError{OpName(OpBindConnToSession), "is about another session"}
	}
	if res.Dir != want {
		return ErrNoBackchannel
	}
	return nil
}

// ErrNoBackchannel means that the server refused to use the connection as a backchannel.
var ErrNoBackchannel = errors.New("nfs41: server refuses the backchannel")

// gone reports whether err means that the server does not know the session, or that the session is unusable.
func gone(err error) bool {
	return hasStatus(err, StatusBadSession, StatusDeadSession, StatusStaleClientID, StatusSeqMisordered)
}

// reconnected is called after a reconnect: the client must tell the server again that it may use the connection for
// calls. RFC 8881 section 2.10.3.1, RFC 8167 section 6.
func (s *Session) reconnected() {
	s.start(func() {
		if err := s.Bind(s.ctx); err != nil {
			s.log("connection not bound to the session", err)
		}
	})
}

// Bind binds the connections to the session. The Session does this itself after a reconnect. If the server does not
// know the session, Bind replaces it.
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

// replace creates a new session if the current one is still old, which is unusable.
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

// again reports whether all operations may be executed twice.
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

// compound sends a COMPOUND in session h.
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

// Compound sends a COMPOUND of a SEQUENCE and ops, and decodes the results of those that succeed. Byte slices in
// results are not shared.
//
// It returns an *Error if an operation fails, including with NFS4ERR_DELAY, a *BadReplyError, or the errors of
// transport.Client.Call. If the server does not know the session, the session is replaced. If all ops only read, they
// are then sent in the new session. Otherwise Compound returns the error of SEQUENCE, and the ops may have been
// executed.
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

// Sequence sends a SEQUENCE alone, which renews the lease, and returns its status flags. Its errors are those of
// Compound.
func (s *Session) Sequence(ctx context.Context) (SeqFlags, error) {
	if err := s.Compound(ctx); err != nil {
		return 0, err
	}
	return s.Status(), nil
}

// Status returns the status flags of the latest SEQUENCE.
func (s *Session) Status() SeqFlags { return SeqFlags(s.status.Load()) }

// CallbackStats returns the counters of the server's calls.
func (s *Session) CallbackStats() CallbackStats { return s.counters.snapshot() }

// Info holds the negotiated parameters of a session.
type Info struct {
	ID         SessionID // zero: no session
	ClientID   ClientID
	Flags      uint32 // of CREATE_SESSION
	Fore, Back ChannelAttrs
}

// Info returns the parameters of the session. It waits while one is being created.
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

// Transport returns the connections for the calls of the client and of the server. Without
// Config.BackConn they are the same.
func (s *Session) Transport() (fore, back *transport.Client) { return s.fore, s.back }

// LeaseTime asks the server for its lease time, after which it may discard an idle client.
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
		return 0, &BadReplyError{OpName(OpGetAttr), err.Error()}
	}
	return time.Duration(a.LeaseTime) * time.Second, nil
}

// assumedLease is the shortest lease of the Linux server.
const assumedLease = 10 * time.Second

// renew renews the lease until the Session is closed. If the server does not return its lease time, renew assumes
// lease.
func (s *Session) renew(lease time.Duration) {
	for asked := false; ; {
		if !asked {
			l, err := s.LeaseTime(s.ctx)
			if asked = err == nil; asked {
				lease = max(l, time.Second)
			} else {
				s.log("lease time not known", err)
				// The root requires another flavor or other rights: asking again would not help.
				asked = hasStatus(err, StatusWrongSec, StatusAccess, StatusPerm)
			}
		}
		if pause(s.ctx, lease/3) != nil {
			return
		}
		s.tend()
	}
}

// tend renews the lease and fixes the problems that the server reports.
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

// Destroy ends the session gracefully: DESTROY_SESSION, DESTROY_CLIENTID, Close. It returns their first error.
func (s *Session) Destroy(ctx context.Context) error {
	err := s.destroy(ctx)
	if s.sec != nil {
		_ = s.sec.Close(ctx) // contexts that remain at the server expire
	}
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
	// A session that the server does not know need not be destroyed.
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

// Close closes the connections at once and stops the background work. The server keeps the session until the lease
// expires. Close may be called more than once.
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
