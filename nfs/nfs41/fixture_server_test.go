package nfs41

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A ServerConfig configures a Server. The zero value and a nil pointer mean the defaults. It
// is not modified.
type ServerConfig struct {
	// Lease is the lease time, in whole seconds. A client with an expired lease is removed when
	// another client needs its place. Zero means 90 seconds.
	Lease time.Duration

	// MaxClients bounds the clients, and MaxSessions the sessions of each. Zero means 256 and
	// 4.
	MaxClients, MaxSessions int

	// Fore has the limits of the fore channel. Zero fields mean 1 MiB per message, 2048 bytes
	// per cached reply, 16 operations and 32 slots.
	Fore ChannelAttrs

	// NoBackchannel refuses backchannels.
	NoBackchannel bool

	// Root is what PUTROOTFH fails with.
	Root Status

	// OnSession, if not nil, is called on a new goroutine for each new session. ctx ends with
	// the session or the server.
	OnSession func(ctx context.Context, ss *ServerSession)
}

// MaxBackwardSlots bounds the slots that a server uses of a backchannel, and thus its
// concurrent calls.
const MaxBackwardSlots = 16

// A Server is an NFS version 4.1 server of one empty, read-only directory, for tests of sessions. It
// implements client ids, sessions, slots with their reply cache, and backchannels completely. Linux
// can mount it with vers=4.1,proto=rdma.
type Server struct {
	cfg   ServerConfig
	start time.Time
	boot  uint32 // upper half of client ids
	seed  maphash.Seed
	roots atomic.Int32 // times that the root was asked for

	mu       sync.Mutex
	owners   map[string]*owner // by co_ownerid
	clients  map[ClientID]*client
	sessions map[SessionID]*ServerSession
	lastID   uint32
	closed   bool
	hooks    sync.WaitGroup // OnSession
}

// An owner has the client records of one co_ownerid. A confirmed record stays until its
// successor is confirmed. RFC 8881 section 18.35.4.
type owner struct {
	confirmed, unconfirmed *client
}

// A client is a record of RFC 8881 section 18.35.4.
type client struct {
	id        ClientID
	owner     string
	verifier  Verifier
	principal principal
	confirmed bool
	renewed   time.Time
	reclaimed bool // RECLAIM_COMPLETE has been received

	// The slot of CREATE_SESSION, RFC 8881 section 18.36.4: the expected sequence id, and the
	// last results.
	sequence uint32
	last     *createSessionRes
	lastSum  uint64

	sessions map[SessionID]*ServerSession
}

// A principal is the caller according to AUTH_SYS.
type principal struct {
	flavor oncrpc.Flavor
	uid    uint32
}

func principalOf(cred oncrpc.Auth) principal {
	p := principal{flavor: cred.Flavor}
	var sys oncrpc.AuthSys
	if cred.Flavor == oncrpc.FlavorSys {
		if _, err := oncrpc.ConsumeAuthSys(cred.Body, &sys); err == nil {
			p.uid = sys.UID
		}
	}
	return p
}

// NewServer returns a server. A nil cfg means the default configuration.
func NewServer(cfg *ServerConfig) *Server {
	s := &Server{
		start:    time.Now(),
		seed:     maphash.MakeSeed(),
		owners:   make(map[string]*owner),
		clients:  make(map[ClientID]*client),
		sessions: make(map[SessionID]*ServerSession),
	}
	if cfg != nil {
		s.cfg = *cfg
	}
	var boot [4]byte
	rand.Read(boot[:]) // never fails
	s.boot = binary.BigEndian.Uint32(boot[:])
	c := &s.cfg
	if c.Lease < time.Second {
		c.Lease = 90 * time.Second
	}
	if c.MaxClients <= 0 {
		c.MaxClients = 256
	}
	if c.MaxSessions <= 0 {
		c.MaxSessions = 4
	}
	c.Fore = c.Fore.or(ChannelAttrs{MaxRequest: 1 << 20, MaxResponse: 1 << 20, MaxResponseCached: 2048, MaxOps: 16, MaxRequests: 32})
	return s
}

// Program returns the program for transport.Server.Register.
func (s *Server) Program() rpc.Program {
	return rpc.Program{
		Number: Program, Low: Version, High: Version,
		Handler: rpc.HandlerFunc(s.serve),
		// Sessions have their own reply cache. That of the transport would answer a
		// BIND_CONN_TO_SESSION that is resent on another connection without binding it.
		Idempotent: func(vers, proc uint32) bool { return true },
	}
}

// Sessions returns the current sessions.
func (s *Server) Sessions() []*ServerSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*ServerSession, 0, len(s.sessions))
	for _, ss := range s.sessions {
		list = append(list, ss)
	}
	return list
}

// Close ends the backchannels of all sessions: calls that wait for a connection fail. It waits
// for OnSession. It may be called twice.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, ss := range s.sessions {
		ss.close()
	}
	s.mu.Unlock()
	s.hooks.Wait()
	return nil
}

// serve executes a COMPOUND.
func (s *Server) serve(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc != ProcCompound {
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	c := compound{
		s: s, conn: req.Conn(), principal: principalOf(req.Cred), args: req.Args,
		size: oncrpc.MinCallSize + len(req.Cred.Body) + len(req.Verf.Body) + len(req.Args),
	}
	if !c.run(&res.Results) {
		res.Fail(oncrpc.GarbageArgs)
	}
}

// A compound is a COMPOUND being executed.
type compound struct {
	s         *Server
	conn      rpc.Conn
	principal principal
	args      []byte // as a whole
	size      int    // of the call, in bytes

	d     xdr.Decoder
	head  int    // bytes of the start of the reply
	count uint32 // of operations
	index uint32 // of the one being executed

	session *ServerSession // once SEQUENCE has been executed
	slot    uint32
	cache   bool       // the client wants the reply cached
	replay  *replySlot // the cached reply to a resent request
	current FileHandle // nil: none
	saved   FileHandle
}

// sizeSequence is the result of SEQUENCE with its number and status, in bytes.
const sizeSequence = 2*xdr.Unit + sessionIDSize + 5*xdr.Unit

// run executes the operations in order until one fails, and appends COMPOUND4res to *out. It
// returns false if the arguments' header does not decode. RFC 8881 section 16.2.
func (c *compound) run(out *[]byte) bool {
	c.d = xdr.NewDecoder(c.args)
	var head compoundArgs
	head.Decode(&c.d)
	if c.d.Err() != nil {
		return false
	}
	c.count = head.Count
	res := compoundRes{Tag: head.Tag}
	start := len(*out)
	b := res.Append(*out)
	body := len(b)
	c.head = body - start
	if head.Minor != Minor {
		res.Status = StatusMinorVersMismatch
		c.count = 0
	}
	sequence := 0 // end of the result of SEQUENCE
	for c.index = 0; c.index < c.count && res.Status == StatusOK; c.index++ {
		op := c.d.Uint32()
		at := len(b)
		b, res.Status = c.operation(b, op)
		if c.replay != nil {
			next := c.d.Uint32() // 0 at the end of the list; then the whole reply is cached
			*out = c.replay.replayed(b[:start], head.Tag, op, next)
			return true
		}
		if limit, status := c.limit(); int64(len(b)-start+replyHeader) > int64(limit) && c.session != nil {
			res.Status = status
			b = appendStatus(b[:at], op, status)
		}
		res.Count++
		if c.index == 0 {
			sequence = len(b)
		}
	}
	// The header has the same length, whatever the status.
	copy(b[start:body], res.Append(nil))
	if c.session != nil {
		reply, only := b[start:], !c.cache && c.count > 1
		if only {
			reply = b[body+2*xdr.Unit : sequence]
		}
		c.s.mu.Lock()
		c.session.fore.end(c.slot, reply, only)
		c.s.mu.Unlock()
	}
	*out = b
	return true
}

// limit returns the maximum length of the reply, and the status if it is exceeded.
func (c *compound) limit() (uint32, Status) {
	switch {
	case c.session == nil:
		return 0, StatusOK
	case c.cache:
		return c.session.attrs.MaxResponseCached, StatusRepTooBigToCache
	}
	return c.session.attrs.MaxResponse, StatusRepTooBig
}

// outside reports whether an operation needs no SEQUENCE before it. Without one it must be the
// only operation of its COMPOUND: RFC 8881 sections 18.34 to 18.37 and 18.50.
func outside(op uint32) bool {
	switch op {
	case OpSequence, OpExchangeID, OpCreateSession, OpBindConnToSession, OpDestroySession, OpDestroyClientID:
		return true
	}
	return false
}

// operation executes one operation and appends its result.
func (c *compound) operation(b []byte, op uint32) ([]byte, Status) {
	switch {
	case c.d.Err() != nil: // not even its number is there
		return appendStatus(b, OpIllegal, StatusBadXDR), StatusBadXDR
	case op < firstOp || op > lastOp:
		return appendStatus(b, OpIllegal, StatusOpIllegal), StatusOpIllegal
	}
	at := len(b)
	b = appendStatus(b, op, StatusOK)
	status := StatusOpNotInSession
	switch {
	case c.session == nil && outside(op) && op != OpSequence && c.count > 1:
		status = StatusNotOnlyOp
	case c.session != nil || outside(op):
		b, status = c.execute(b, op)
	}
	if status != StatusOK {
		return appendStatus(b[:at], op, status), status
	}
	return b, StatusOK
}

// execute executes an operation that may be where it is, and appends its result but for the status.
// Bytes appended by a failed operation do not count.
func (c *compound) execute(b []byte, op uint32) ([]byte, Status) {
	d := &c.d
	switch op {
	case OpSequence:
		return c.sequence(b)
	case OpExchangeID:
		return c.exchangeID(b)
	case OpCreateSession:
		return c.createSession(b)
	case OpBindConnToSession:
		return c.bindConn(b)
	case OpDestroySession:
		return b, c.destroySession()
	case OpDestroyClientID:
		return b, c.destroyClientID()
	case OpReclaimComplete:
		return b, c.reclaimComplete()
	case OpPutRootFH, OpPutPubFH:
		c.s.roots.Add(1)
		c.current = rootHandle()
		return b, c.s.cfg.Root
	case OpPutFH:
		var fh FileHandle
		if fh.Decode(d); d.Err() != nil {
			return b, StatusBadXDR
		}
		if !bytes.Equal(fh, rootHandle()) {
			return b, StatusStale
		}
		c.current = rootHandle()
		return b, StatusOK
	case OpRestoreFH:
		if c.saved == nil {
			return b, StatusNoFileHandle
		}
		c.current = c.saved
		return b, StatusOK
	case OpGetFH, OpSaveFH, OpLookupP, OpLookup, OpGetAttr, OpAccess, OpReadDir, OpSecInfo, OpSecInfoNoName:
		if c.current == nil {
			return b, StatusNoFileHandle
		}
		return c.onDirectory(b, op)
	}
	return b, StatusNotSupp
}

// exchangeID is EXCHANGE_ID. RFC 8881 section 18.35.4 has the cases.
func (c *compound) exchangeID(b []byte) ([]byte, Status) {
	var a exchangeIDArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	if a.Flags&^exchangeArgs != 0 || a.Protect.How == protectMachCred {
		return b, StatusInval // protection by RPCSEC_GSS is for calls that have it
	}
	if a.Protect.How == protectSSV {
		return b, StatusEncrAlgUnsupp
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owners[string(a.Owner)]
	var conf *client
	if o != nil {
		conf = o.confirmed
	}
	update := a.Flags&exchangeUpdConfirmedRecA != 0
	cl := conf
	switch {
	case update && conf == nil:
		return b, StatusNoEnt
	case update && conf.verifier != a.Verifier:
		return b, StatusNotSame
	case update && conf.principal != c.principal:
		return b, StatusPerm
	case conf != nil && conf.principal != c.principal && !s.expired(conf):
		return b, StatusClidInUse
	case conf != nil && conf.principal == c.principal && conf.verifier == a.Verifier:
		// The same client, or an update, of which nothing is kept.
	default:
		// A new client, or one that has restarted: what it had before goes when
		// CREATE_SESSION confirms this.
		if cl = s.newClient(&a, c.principal); cl == nil {
			return b, StatusDelay
		}
	}
	res := exchangeIDRes{
		ClientID: cl.id, Sequence: cl.sequence, Flags: exchangeUseNonPNFS,
		MajorID: s.name(), Scope: s.name(),
	}
	if cl.confirmed {
		res.Flags |= exchangeConfirmedR
		cl.renewed = time.Now()
	}
	return res.Append(b), StatusOK
}

// name is the server's owner and scope. It is unique, and changes when the server restarts,
// since no state survives that.
func (s *Server) name() []byte {
	return binary.BigEndian.AppendUint32([]byte("rpcrdma-nfs41-"), s.boot)
}

// newClient adds an unconfirmed client, in place of one with the same owner. It returns nil if
// there are too many. mu is held.
func (s *Server) newClient(a *exchangeIDArgs, p principal) *client {
	if o := s.owners[string(a.Owner)]; o != nil && o.unconfirmed != nil {
		s.forget(o.unconfirmed)
	}
	if len(s.clients) >= s.cfg.MaxClients {
		for _, cl := range s.clients {
			if s.expired(cl) {
				s.forget(cl)
			}
		}
		if len(s.clients) >= s.cfg.MaxClients {
			return nil
		}
	}
	s.lastID++
	cl := &client{
		id:    ClientID(uint64(s.boot)<<32 | uint64(s.lastID)),
		owner: string(a.Owner), verifier: a.Verifier, principal: p,
		renewed: time.Now(), sequence: 1,
		sessions: make(map[SessionID]*ServerSession),
	}
	s.clients[cl.id] = cl
	o := s.owners[cl.owner]
	if o == nil {
		o = new(owner)
		s.owners[cl.owner] = o
	}
	o.unconfirmed = cl
	return cl
}

// expired reports whether the lease of a client has expired.
func (s *Server) expired(cl *client) bool { return time.Since(cl.renewed) > s.cfg.Lease }

// forget removes a client with its sessions. mu is held.
func (s *Server) forget(cl *client) {
	for _, ss := range cl.sessions {
		s.drop(ss)
	}
	delete(s.clients, cl.id)
	o := s.owners[cl.owner]
	if o.confirmed == cl {
		o.confirmed = nil
	}
	if o.unconfirmed == cl {
		o.unconfirmed = nil
	}
	if o.confirmed == nil && o.unconfirmed == nil {
		delete(s.owners, cl.owner)
	}
}

// drop removes a session. mu is held.
func (s *Server) drop(ss *ServerSession) {
	delete(s.sessions, ss.id)
	delete(ss.client.sessions, ss.id)
	ss.close()
}

// minMessage is the least size of messages of a usable channel, in bytes.
const minMessage = 256

// backward has the limits of a backchannel.
var backward = ChannelAttrs{
	MaxRequest: math.MaxUint32, MaxResponse: math.MaxUint32, MaxResponseCached: math.MaxUint32,
	MaxOps: math.MaxUint32, MaxRequests: MaxBackwardSlots,
}

// createSession is CREATE_SESSION. RFC 8881 section 18.36.
func (c *compound) createSession(b []byte) ([]byte, Status) {
	var a createSessionArgs
	before := c.d.Offset()
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	cl := s.clients[a.ClientID]
	if cl == nil {
		return b, StatusStaleClientID
	}
	if cl.principal != c.principal {
		return b, StatusClidInUse
	}
	sum := maphash.Bytes(s.seed, c.args[before:c.d.Offset()])
	switch {
	case cl.last != nil && a.Sequence == cl.sequence-1 && sum == cl.lastSum:
		// Sent again, perhaps on another connection.
		if ss := s.sessions[cl.last.Session]; ss != nil && cl.last.Flags&SessionConnBackChan != 0 {
			ss.bind(c.conn)
		}
		return cl.last.Append(b), StatusOK
	case a.Sequence != cl.sequence:
		return b, StatusSeqMisordered
	}
	const flags = SessionPersist | SessionConnBackChan | SessionConnRDMA
	if a.Flags&^flags != 0 {
		return b, StatusInval
	}
	if a.Fore.MaxRequest < minMessage || a.Fore.MaxResponse < minMessage || a.Fore.MaxOps < minOps || a.Fore.MaxRequests == 0 {
		return b, StatusTooSmall
	}
	back := a.Flags&SessionConnBackChan != 0
	if back && (a.Back.MaxRequest < minMessage || a.Back.MaxResponse < minMessage || a.Back.MaxOps < minOps || a.Back.MaxRequests == 0) {
		return b, StatusTooSmall
	}
	if len(cl.sessions) >= s.cfg.MaxSessions || s.closed {
		return b, StatusDelay
	}
	cred, ok := callbackCred(a.CallbackSec)
	if !ok {
		return b, StatusEncrAlgUnsupp // as in Linux: RFC 8881 has no error for flavors
	}
	if !cl.confirmed {
		o := s.owners[cl.owner]
		if o.confirmed != nil {
			s.forget(o.confirmed)
		}
		o.confirmed, o.unconfirmed, cl.confirmed = cl, nil, true
	}
	ss := &ServerSession{
		s: s, client: cl,
		attrs: s.cfg.Fore.within(a.Fore), back: a.Back.within(backward),
		program: a.CallbackProgram, cred: cred,
	}
	rand.Read(ss.id[:])
	ss.init()
	s.sessions[ss.id] = ss
	cl.sessions[ss.id] = ss
	cl.renewed = time.Now()
	res := &createSessionRes{Session: ss.id, Sequence: a.Sequence, Fore: ss.attrs, Back: ss.back}
	if back && ss.bind(c.conn) {
		res.Flags |= SessionConnBackChan
	}
	cl.sequence++
	cl.last, cl.lastSum = res, sum
	if s.cfg.OnSession != nil {
		s.hooks.Go(func() { s.cfg.OnSession(ss.ctx, ss) })
	}
	return res.Append(b), StatusOK
}

// callbackCred selects the credential of callbacks: AUTH_SYS, which Linux wants, or AUTH_NONE.
func callbackCred(list []CallbackSec) (cred oncrpc.Auth, ok bool) {
	for i := range list {
		switch list[i].Flavor {
		case oncrpc.FlavorSys:
			return list[i].Sys.Auth(), true
		case oncrpc.FlavorNone:
			ok = true
		}
	}
	return oncrpc.Auth{}, ok || len(list) == 0
}

// sequence is SEQUENCE. RFC 8881 section 18.46.
func (c *compound) sequence(b []byte) ([]byte, Status) {
	var a sequenceArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	if c.index != 0 {
		return b, StatusSequencePos
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.sessions[a.Session]
	if ss == nil {
		return b, StatusBadSession
	}
	switch {
	case c.count > ss.attrs.MaxOps:
		return b, StatusTooManyOps
	case int64(c.size) > int64(ss.attrs.MaxRequest):
		return b, StatusReqTooBig
	}
	// A SEQUENCE that fails must not change the slot, so check first whether its own result
	// fits.
	switch size := uint32(replyHeader + c.head + sizeSequence); {
	case size > ss.attrs.MaxResponse:
		return b, StatusRepTooBig
	case a.CacheThis && size > ss.attrs.MaxResponseCached:
		return b, StatusRepTooBigToCache
	}
	replay, status := ss.fore.begin(&a, ss.fore.sum(c.args))
	if status != StatusOK {
		return b, status
	}
	ss.client.renewed = time.Now()
	ss.used()
	if c.replay = replay; replay != nil {
		return b, StatusOK
	}
	c.session, c.slot, c.cache = ss, a.Slot, a.CacheThis
	highest := ss.attrs.MaxRequests - 1
	res := sequenceRes{
		Session: a.Session, Sequence: a.Sequence, Slot: a.Slot,
		HighestSlot: highest, TargetHighest: highest, Flags: ss.flags(),
	}
	return res.Append(b), StatusOK
}

// bindConn is BIND_CONN_TO_SESSION. RFC 8881 section 18.34.
func (c *compound) bindConn(b []byte) ([]byte, Status) {
	var a bindConnArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	if c.count > 1 {
		return b, StatusNotOnlyOp
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	ss := c.s.sessions[a.Session]
	if ss == nil {
		return b, StatusBadSession
	}
	res := bindConnRes{Session: a.Session, Dir: fromServerFore}
	switch a.Dir {
	case fromClientFore:
	case fromClientBack:
		if !ss.bind(c.conn) {
			return b, StatusInval
		}
		res.Dir = fromServerBack
	case fromClientForeOrBoth, fromClientBackOrBoth:
		if ss.bind(c.conn) {
			res.Dir = fromServerBoth
		}
	default:
		return b, StatusInval
	}
	return res.Append(b), StatusOK
}

// destroySession is DESTROY_SESSION. RFC 8881 section 18.37.
func (c *compound) destroySession() Status {
	var id SessionID
	if id.Decode(&c.d); c.d.Err() != nil {
		return StatusBadXDR
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	ss := c.s.sessions[id]
	switch {
	case ss == nil:
		return StatusBadSession
	case ss == c.session && c.index != c.count-1:
		return StatusNotOnlyOp // operations after it could not be executed
	}
	c.s.drop(ss)
	return StatusOK
}

// destroyClientID is DESTROY_CLIENTID. RFC 8881 section 18.50.
func (c *compound) destroyClientID() Status {
	var id ClientID
	if id.Decode(&c.d); c.d.Err() != nil {
		return StatusBadXDR
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	cl := c.s.clients[id]
	switch {
	case cl == nil:
		return StatusStaleClientID
	case len(cl.sessions) > 0:
		return StatusClientIDBusy
	}
	c.s.forget(cl)
	return StatusOK
}

// reclaimComplete is RECLAIM_COMPLETE. There is nothing to reclaim. RFC 8881 section 18.51.
func (c *compound) reclaimComplete() Status {
	var a reclaimCompleteArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return StatusBadXDR
	}
	if a.OneFS {
		if c.current == nil {
			return StatusNoFileHandle
		}
		return StatusOK
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	cl := c.session.client
	if cl.reclaimed {
		return StatusCompleteAlready
	}
	cl.reclaimed = true
	return StatusOK
}
