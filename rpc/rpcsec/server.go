package rpcsec

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// ServerConfig configures a Server.
type ServerConfig struct {
	// Acceptor provides the credentials of the server.
	Acceptor Acceptor

	// Services are the services that calls may use. Calls with others are refused with AUTH_TOOWEAK. Nil permits all.
	Services []rpc.Service

	// Required makes the Server refuse calls of other flavors with AUTH_TOOWEAK, except procedure 0, which does
	// nothing. Otherwise such calls are passed to the inner handler, which can decide by Request.Cred.
	Required bool

	// Window is how many sequence numbers a context remembers. It limits how many calls a client may have in flight in
	// a context. 0 means 1024. It is rounded up to a multiple of 64.
	Window uint32

	// MaxContexts bounds the established contexts. 0 means 4096. A host may have a quarter of them. When a new context
	// exceeds the bound, the least recently used one is dropped: a context of the same host if the host has used up its
	// share, or else one of the host with the most. Contexts being set up are counted separately, with a 16th of both
	// bounds.
	MaxContexts int

	// Seal makes the Server seal the items of calls with rpc.ServicePrivacy for clients that ask for it, so that the
	// items can still be sent as chunks: see Sealing.
	Seal bool

	// Logger receives up to 10 records per second, for contexts that could not be established and for calls with a
	// *SealError. Nil means slog.Default().
	Logger *slog.Logger
}

// A Server executes calls with an RPCSEC_GSS credential. Its Wrap method is an rpc.Middleware. The wrapped programs
// must have Program.Null, because clients set contexts up with procedure 0. The Server answers its calls itself. One
// Server may wrap several programs, which then share contexts.
type Server struct {
	cfg   ServerConfig
	made  table     // established contexts
	half  table     // contexts being set up
	free  sync.Pool // of *scratch
	boxes sync.Pool // of *box

	mu     sync.Mutex
	logged struct {
		second int64
		n      int
	}
}

// NewServer returns a Server. It need not be closed.
func NewServer(cfg ServerConfig) *Server {
	cfg.Services = slices.Clone(cfg.Services)
	cfg.Window = min(cmp.Or(cfg.Window, 1024), maxOutstanding)
	cfg.MaxContexts = max(cmp.Or(cfg.MaxContexts, 4096), 16)
	s := &Server{cfg: cfg}
	s.made.init(cfg.MaxContexts)
	s.half.init(cfg.MaxContexts / 16)
	return s
}

// Contexts returns the number of established contexts.
func (s *Server) Contexts() int { return s.made.len() }

// Wrap returns a handler that verifies calls, passes them to next with their arguments in plain text, and protects the
// results. Request.Peer returns their Principal.
func (s *Server) Wrap(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		if req.Cred.Flavor != oncrpc.FlavorGSS {
			switch {
			case req.Proc == 0:
			case s.cfg.Required:
				res.Deny(oncrpc.AuthTooWeak)
			default:
				next.ServeRPC(ctx, req, res)
			}
			return
		}
		var cr cred
		stat := cr.decode(req.Cred.Body)
		switch {
		case stat != oncrpc.AuthOK:
			res.Deny(stat)
		case cr.control == controlData:
			s.execute(ctx, &cr, req, res, next)
		case req.Proc != 0: // RFC 2203 section 5.2.2: "the NULL procedure"
			res.Deny(oncrpc.AuthBadCred)
		case cr.control == controlDestroy:
			s.execute(ctx, &cr, req, res, nil)
		default:
			s.setUp(&cr, req, res)
		}
	})
}

// ---- setting up

// setUp performs a step of establishing a context. RFC 2203 section 5.2.
func (s *Server) setUp(cr *cred, req *rpc.Request, res *rpc.Response) {
	d := xdr.NewDecoder(req.Args)
	token := d.Opaque(maxToken)
	if d.End() != nil {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	var e *entry
	if cr.control == controlInit {
		gss, err := s.cfg.Acceptor.Accept()
		if err != nil {
			s.refuse(req, res, err)
			return
		}
		e = &entry{gss: gss}
	} else if e = s.half.take(cr.handle); e == nil { // so that no other call uses it meanwhile
		res.Deny(oncrpc.AuthGSSCred)
		return
	}
	out, done, err := e.gss.Step(token)
	e.steps++
	if err == nil && !done && e.steps == maxSteps {
		err = errSteps
	}
	if err != nil {
		s.refuse(req, res, err)
		return
	}
	result := initResult{window: s.cfg.Window, token: out}
	if !done {
		result.major = uint32(ContinueNeeded)
		s.half.add(e, req.Conn().Host())
		result.handle = e.handle[:]
		res.Results = result.append(res.Results)
		return
	}
	e.expires, e.window = e.gss.Expires(), newWindow(s.cfg.Window)
	e.caller = []byte(e.gss.Mechanism() + "\x00" + e.gss.Peer())
	for i := range e.principals {
		e.principals[i] = rpc.Principal{Mechanism: e.gss.Mechanism(), Name: e.gss.Peer(), Service: rpc.ServiceNone + rpc.Service(i)}
	}
	verf, err := e.gss.AppendMIC(nil, binary.BigEndian.AppendUint32(nil, s.cfg.Window))
	if err != nil || len(verf) > oncrpc.MaxAuthBody {
		s.refuse(req, res, err)
		return
	}
	s.made.add(e, req.Conn().Host())
	result.handle = e.handle[:]
	res.Verf = oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: verf}
	res.Results = result.append(res.Results)
}

// refuse replies to a step that failed. RFC 2203 section 5.2.3.1: "the handle ... NULL", and no verifier.
func (s *Server) refuse(req *rpc.Request, res *rpc.Response, err error) {
	result := initResult{major: uint32(Failure)}
	var status *StatusError
	if errors.As(err, &status) && status.Status != Complete && status.Status != ContinueNeeded {
		result.major, result.minor = uint32(status.Status), status.Minor
	}
	res.Results = result.append(res.Results)
	s.warn("security context refused", req, err)
}

func (s *Server) warn(what string, req *rpc.Request, err error) {
	if s.mayLog() {
		log := s.cfg.Logger
		if log == nil {
			log = slog.Default()
		}
		log.Warn(what, "client", req.RemoteAddr(), "error", err)
	}
}

func (s *Server) mayLog() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now().Unix(); now != s.logged.second {
		s.logged.second, s.logged.n = now, 0
	}
	s.logged.n++
	return s.logged.n <= 10
}

// ---- calls

// execute verifies a call and passes it to next. A nil next destroys the context. RFC 2203 section 5.3.3.
func (s *Server) execute(ctx context.Context, cr *cred, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
	e := s.made.use(cr.handle)
	if e == nil {
		res.Deny(oncrpc.AuthGSSCred)
		return
	}
	if stat := s.prove(e, cr, req); stat != oncrpc.AuthOK {
		res.Deny(stat)
		return
	}
	var x *box
	if cr.service == serviceSealed && e.seal.Load() != nil {
		cr.service, x = rpc.ServicePrivacy, s.box()
		defer s.boxes.Put(x)
	}
	if cr.service < rpc.ServiceNone || cr.service > rpc.ServicePrivacy || s.cfg.Services != nil && !slices.Contains(s.cfg.Services, cr.service) {
		res.Deny(oncrpc.AuthTooWeak)
		return
	}
	verf, err := s.sign(e, cr.seq)
	if err != nil {
		res.Fail(oncrpc.SystemErr)
		return
	}
	res.Verf = oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: verf}
	switch {
	case x != nil:
		if stat := s.openCall(x, e, cr, req, res); stat != oncrpc.Success {
			res.Fail(stat)
			return
		}
	case cr.service != rpc.ServiceNone:
		args, err := open(e.gss, cr.service, cr.seq, req.Args)
		if err != nil { // RFC 2203 section 5.3.3.4.2
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		req.SetArgs(args)
		res.Reserve(protectedSize(e.gss, cr.service, xdr.Unit))
	}
	switch {
	case next != nil && req.Proc != 0:
		req.SetPrincipal(&e.principals[cr.service-rpc.ServiceNone])
		// A retransmitted call has another number (RFC 2203 section 5.3.3.1), or the same one if this package's Client
		// sent it. The reply cache is therefore asked first, because a handler may be executing the same call with this
		// number. Whatever the result, the number is used up, so that no other call is executed with it.
		known := true
		req.Once(e.caller, res, func() {
			if known = false; e.take(cr.seq) {
				next.ServeRPC(ctx, req, res)
			} else {
				res.Deny(oncrpc.AuthGSSCtx)
			}
		})
		if known {
			e.take(cr.seq)
		}
	case !e.take(cr.seq):
		res.Deny(oncrpc.AuthGSSCtx)
	case next == nil:
		s.made.remove(e)
	case s.cfg.Seal && cr.service == rpc.ServicePrivacy:
		res.Results = e.agree(req.Args, res.Results)
	}
	h := res.Status()
	switch {
	case cr.service == rpc.ServiceNone || h.Err() != nil:
	case x != nil && x.sealReply(e, cr, req, res), x == nil && protectResults(e.gss, cr, res):
	default:
		res.Fail(oncrpc.SystemErr)
	}
}

// protectResults protects the results. It returns false if it fails.
func protectResults(gss Context, cr *cred, res *rpc.Response) bool {
	if !res.Join() {
		return false
	}
	b := shifted(res, protectHead(gss, cr.service), protectedSize(gss, cr.service, len(res.Results)))
	if b == nil {
		return false
	}
	b, err := protect(gss, cr.service, cr.seq, b)
	res.Results = b
	return err == nil
}

// shifted returns the results preceded by room bytes, in memory of size bytes. It returns nil if there is no such
// memory.
func shifted(res *rpc.Response, room, size int) []byte {
	b := res.Results
	if size > cap(b) {
		if b = res.Alloc(size); b == nil {
			return nil
		}
	}
	b = b[:room+len(res.Results)]
	copy(b[room:], res.Results)
	return b
}

// ---- sealed items

func (s *Server) box() *box {
	if x, ok := s.boxes.Get().(*box); ok {
		return x
	}
	return new(box)
}

// openCall opens the arguments of a call with sealed items.
func (s *Server) openCall(x *box, e *entry, cr *cred, req *rpc.Request, res *rpc.Response) oncrpc.AcceptStat {
	d := req.Decoder()
	body, err := sealedBody(e.gss, cr.seq, d.Opaque(math.MaxUint32))
	if err != nil {
		return oncrpc.GarbageArgs
	}
	refused := func(err *SealError) oncrpc.AcceptStat {
		s.warn("sealed call refused", req, err)
		return oncrpc.GarbageArgs
	}
	plain, err := x.decode(body)
	if err != nil {
		return refused(&SealError{Piece: -1, Err: err})
	}
	if len(x.items) > 0 {
		size := len(plain)
		for _, it := range x.items {
			size += xdr.Padded(int(it.n))
		}
		args := req.Alloc(size)
		if args == nil {
			return oncrpc.SystemErr
		}
		x.begin(e.seal.Load().args, req.Prog, req.Vers, req.Proc, false, cr.seq)
		from, to, tags := 0, 0, x.tags
		for i, it := range x.items {
			data, n := d.Opaque(math.MaxUint32), int(it.n)
			bad := &SealError{Item: i, Piece: -1, Err: errItem}
			if d.Err() == nil && len(data) == n {
				to += copy(args[to:], plain[from:it.at])
				from = int(it.at)
				tags, bad = x.open(i, args[to:to+n], data, tags)
			}
			if bad != nil {
				clear(args)
				return refused(bad)
			}
			to += n
			clear(args[to : to+xdr.Pad(n)])
			to += xdr.Pad(n)
		}
		copy(args[to:], plain[from:])
		plain = args
	}
	if d.End() != nil {
		clear(plain)
		return refused(&SealError{Piece: -1, Err: errItem})
	}
	req.SetArgs(plain)
	res.Reserve(protectedSize(e.gss, rpc.ServicePrivacy, xdr.Unit) + x.replySize())
	return oncrpc.Success
}

// sealReply seals the items for which the client offered memory and protects the rest of the results. It returns false
// if it fails.
func (x *box) sealReply(e *entry, cr *cred, req *rpc.Request, res *rpc.Response) bool {
	x.number, x.items, x.data = e.sealed.Add(1), x.items[:0], x.data[:0]
	res.TakeItems(len(x.rooms), func(at int, data []byte) {
		x.items, x.data = append(x.items, sealedItem{uint32(at), uint32(len(data))}), append(x.data, data)
	})
	defer clear(x.data)
	if !res.Join() {
		return false
	}
	head := protectHead(e.gss, rpc.ServicePrivacy)
	b := shifted(res, head+x.size(), protectedSize(e.gss, rpc.ServicePrivacy, x.size()+len(res.Results))+4*len(x.items))
	if b == nil {
		return false
	}
	x.append(b[:head])
	x.begin(e.seal.Load().results, req.Prog, req.Vers, req.Proc, true, cr.seq)
	tags := x.tags
	for i, data := range x.data {
		out := res.Alloc(len(data))
		if out == nil {
			return false
		}
		tags = x.seal(i, out, data, tags)
		x.data[i] = out
	}
	b, err := protect(e.gss, rpc.ServicePrivacy, cr.seq, b)
	if err != nil {
		return false
	}
	res.Results = b
	for _, data := range x.data {
		res.AddItem(data, nil)
	}
	return true
}

// entry is a context in a table.
type entry struct {
	handle  handle
	of      *share
	at      int64 // time of its last use, by the table's count
	gss     Context
	steps   int
	expires time.Time
	seal    atomic.Pointer[sealKeys] // nil: the client has not asked for sealing
	sealed  atomic.Uint64            // number of sealed replies

	principals [rpc.ServicePrivacy]rpc.Principal // of calls, by service
	caller     []byte                            // identifies the caller in the reply cache

	mu     sync.Mutex
	window window
}

// prove verifies that a call comes from the context's peer.
func (s *Server) prove(e *entry, cr *cred, req *rpc.Request) oncrpc.AuthStat {
	const verf = 8 // bytes of an empty verifier
	x := s.scratch()
	defer s.free.Put(x)
	x.header = oncrpc.AppendCall(x.header[:0], &oncrpc.CallHeader{
		XID: req.XID, RPCVers: oncrpc.Version, Prog: req.Prog, Vers: req.Vers, Proc: req.Proc, Cred: req.Cred,
	})
	switch {
	case req.Verf.Flavor != oncrpc.FlavorGSS || e.gss.VerifyMIC(x.header[:len(x.header)-verf], req.Verf.Body) != nil:
		return oncrpc.AuthGSSCred
	case cr.seq > maxSeq:
		return oncrpc.AuthGSSCtx
	}
	return oncrpc.AuthOK
}

// take claims a sequence number. It returns false if a call has used it before.
func (e *entry) take(seq uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.window.take(seq)
}

// sign returns the verifier of a reply: RFC 2203 section 5.3.3.2.
func (s *Server) sign(e *entry, seq uint32) ([]byte, error) {
	x := s.scratch()
	defer s.free.Put(x)
	binary.BigEndian.PutUint32(x.num[:], seq)
	return e.gss.AppendMIC(make([]byte, 0, e.gss.MICSize()), x.num[:])
}

// scratch is short-lived memory that would otherwise escape to the heap on each call, because mechanisms are
// interfaces.
type scratch struct {
	header []byte
	num    [4]byte
}

func (s *Server) scratch() *scratch {
	x, ok := s.free.Get().(*scratch)
	if !ok {
		x = new(scratch)
	}
	return x
}
