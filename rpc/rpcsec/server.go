package rpcsec

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// ServerConfig configures a Server.
type ServerConfig struct {
	// Acceptor has the credentials of the server.
	Acceptor Acceptor

	// Services are those that calls may have; others are refused with AUTH_TOOWEAK. Nil: all.
	Services []rpc.Service

	// Required refuses calls of other flavors with AUTH_TOOWEAK, except those of procedure 0, which do nothing.
	// Otherwise the inner handler gets them, and decides by Request.Cred.
	Required bool

	// Window is how many sequence numbers a context remembers, and so how many calls a client may have in
	// flight in it; 0 is 1024. Rounded up to a multiple of 64.
	Window uint32

	// MaxContexts bounds the established contexts, 0: 4096. A host may have a quarter of them. The context that
	// was used least recently makes room for a new one: first one of the host itself, if it has its share, otherwise one of the
	// host with the most. Contexts that are being set up are counted apart, with a 16th of the bounds.
	MaxContexts int

	// Logger gets a record for a context that was not established, 10 per second. Nil is slog.Default().
	Logger *slog.Logger
}

// A Server executes calls with a credential of RPCSEC_GSS: Wrap is an rpc.Middleware. The programs
// it is for need Program.Null, as clients set their contexts up with procedure 0. The Server answers calls of that
// procedure itself. One Server may wrap several programs, which then share contexts.
type Server struct {
	cfg  ServerConfig
	made table // established contexts
	half table // contexts that are being set up

	mu     sync.Mutex
	logged struct {
		second int64
		n      int
	}
}

// NewServer returns a Server. It has nothing to close.
func NewServer(cfg ServerConfig) *Server {
	cfg.Services = slices.Clone(cfg.Services)
	cfg.Window = min(cmp.Or(cfg.Window, 1024), maxOutstanding)
	cfg.MaxContexts = max(cmp.Or(cfg.MaxContexts, 4096), 16)
	s := &Server{cfg: cfg}
	s.made.init(cfg.MaxContexts)
	s.half.init(cfg.MaxContexts / 16)
	return s
}

// Contexts returns how many contexts are established.
func (s *Server) Contexts() int { return s.made.len() }

// Wrap returns a handler that has next execute calls which are proved, with their arguments in plain text, and
// protects its results. Request.Peer has their Principal.
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

// setUp makes a step of a context. RFC 2203 section 5.2.
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
	} else if e = s.half.take(cr.handle); e == nil { // which no other call uses then
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

// refuse answers a step that has failed. RFC 2203 section 5.2.3.1: "the handle ... NULL", and no verifier.
func (s *Server) refuse(req *rpc.Request, res *rpc.Response, err error) {
	result := initResult{major: uint32(Failure)}
	var status *StatusError
	if errors.As(err, &status) && status.Status != Complete && status.Status != ContinueNeeded {
		result.major, result.minor = uint32(status.Status), status.Minor
	}
	res.Results = result.append(res.Results)
	if s.mayLog() {
		log := s.cfg.Logger
		if log == nil {
			log = slog.Default()
		}
		log.Warn("security context refused", "client", req.RemoteAddr(), "error", err)
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

// execute has next execute a call that is proved; nil destroys the context. RFC 2203 section 5.3.3.
func (s *Server) execute(ctx context.Context, cr *cred, req *rpc.Request, res *rpc.Response, next rpc.Handler) {
	e := s.made.use(cr.handle)
	if e == nil {
		res.Deny(oncrpc.AuthGSSCred)
		return
	}
	if stat := e.admit(cr, req); stat != oncrpc.AuthOK {
		res.Deny(stat)
		return
	}
	if cr.service < rpc.ServiceNone || cr.service > rpc.ServicePrivacy || s.cfg.Services != nil && !slices.Contains(s.cfg.Services, cr.service) {
		res.Deny(oncrpc.AuthTooWeak)
		return
	}
	verf, err := e.sign(cr.seq)
	if err != nil {
		res.Fail(oncrpc.SystemErr)
		return
	}
	res.Verf = oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: verf}
	if cr.service != rpc.ServiceNone {
		args, err := open(e.gss, cr.service, cr.seq, req.Args)
		if err != nil { // RFC 2203 section 5.3.3.4.2
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		req.SetArgs(args)
		res.Reserve(sealedSize(e.gss, cr.service, xdr.Unit))
	}
	switch {
	case next == nil:
		s.made.remove(e)
	case req.Proc == 0:
	default:
		req.SetPrincipal(&e.principals[cr.service-rpc.ServiceNone])
		next.ServeRPC(ctx, req, res)
	}
	if h := res.Status(); cr.service != rpc.ServiceNone && h.Err() == nil && !sealResults(e.gss, cr, res) {
		res.Fail(oncrpc.SystemErr)
	}
}

// sealResults protects the results, or returns false.
func sealResults(gss Context, cr *cred, res *rpc.Response) bool {
	if !res.Join() {
		return false
	}
	plain, head := res.Results, sealHead(gss, cr.service)
	b := plain
	if size := sealedSize(gss, cr.service, len(plain)); size <= cap(b) {
		b = b[:head+len(plain)]
	} else if b = res.Alloc(size); b != nil {
		b = b[:head+len(plain)]
	} else {
		return false
	}
	copy(b[head:], plain)
	b, err := seal(gss, cr.service, cr.seq, b)
	res.Results = b
	return err == nil
}

// An entry is a context of a table.
type entry struct {
	handle  handle
	of      *share
	at      int64 // of its last use, in the table's count
	gss     Context
	steps   int
	expires time.Time

	principals [rpc.ServicePrivacy]rpc.Principal // of the calls, by service

	mu     sync.Mutex
	window window
}

// admit reports whether a call is of the context's peer, and made for the first time.
func (e *entry) admit(cr *cred, req *rpc.Request) oncrpc.AuthStat {
	const verf = 8 // bytes of an empty one
	var space [512]byte
	header := oncrpc.AppendCall(space[:0], &oncrpc.CallHeader{
		XID: req.XID, RPCVers: oncrpc.Version, Prog: req.Prog, Vers: req.Vers, Proc: req.Proc, Cred: req.Cred,
	})
	switch {
	case req.Verf.Flavor != oncrpc.FlavorGSS || e.gss.VerifyMIC(header[:len(header)-verf], req.Verf.Body) != nil:
		return oncrpc.AuthGSSCred
	case cr.seq > maxSeq:
		return oncrpc.AuthGSSCtx
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.window.take(cr.seq) {
		return oncrpc.AuthGSSCtx
	}
	return oncrpc.AuthOK
}

// sign returns the verifier of a reply: RFC 2203 section 5.3.3.2.
func (e *entry) sign(seq uint32) ([]byte, error) {
	return e.gss.AppendMIC(make([]byte, 0, e.gss.MICSize()), binary.BigEndian.AppendUint32(nil, seq))
}
