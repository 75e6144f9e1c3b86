package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A registry has the programs that one end executes, and the replies it remembers. The programs do not change once
// there are connections.
type registry struct {
	cfg      *config
	programs map[uint32]*rpc.Program
	others   func(x *exch) bool // processes calls to other programs; nil: every other program is unavailable
	cache    *replycache.Cache
	around   []rpc.Middleware // around all handlers
}

func newRegistry(cfg *config) *registry {
	return &registry{
		cfg: cfg, programs: make(map[uint32]*rpc.Program), cache: replycache.New(replycache.Limits(cfg.ReplyCache)),
		around: cfg.Middleware,
	}
}

func (r *registry) register(p rpc.Program) error {
	if p.Handler == nil || p.Low > p.High {
		return fmt.Errorf("transport: program %d has no handler or no versions", p.Number)
	}
	if r.programs[p.Number] != nil {
		return fmt.Errorf("transport: program %d is registered twice", p.Number)
	}
	for _, names := range p.Names {
		if err := r.cfg.fits(names); err != nil {
			return fmt.Errorf("transport: %w", err)
		}
	}
	if p.Handler = rpc.Chain(p.Handler, r.around...); p.Handler == nil {
		return fmt.Errorf("transport: middleware leaves program %d without a handler", p.Number)
	}
	r.programs[p.Number] = &p
	return nil
}

// names returns the description of a program version; at least its number is set.
func (r *registry) names(prog, vers uint32) *oncrpc.Program {
	if p := r.programs[prog]; p != nil {
		for _, names := range p.Names {
			if names.Vers == vers {
				return names
			}
		}
	}
	return &oncrpc.Program{Number: prog, Vers: vers}
}

// stop ends the contexts of handlers that have outlived their connections.
func (r *registry) stop() { r.cache.Close() }

// authorize asks p whether a call may be executed, and returns the reply if it may not. A panic and runtime.Goexit are
// handled as in serve.
func authorize(c *core, p *rpc.Program, req *rpc.Request, ended func()) (h oncrpc.ReplyHeader, ok bool) {
	returned := false
	defer func() {
		v := recover()
		if returned {
			return
		}
		h, ok = oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr}, false
		c.logPanic("handler", c.named(req.Procedure), v)
		if v == nil {
			ended()
		}
	}()
	stat := p.Auth(req)
	returned = true
	return oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat}, stat == oncrpc.AuthOK
}

// serve calls the handler to fill in res. A panic only affects the handler: the caller gets SYSTEM_ERR, and the
// connection and all others continue. runtime.Goexit has the same effect, but then serve does not return: ended is
// called instead, while the goroutine ends. e, which may be nil, gets the duration of the handler.
func serve(ctx context.Context, c *core, h rpc.Handler, req *rpc.Request, res *rpc.Response, e *callEvent, ended func()) {
	var start time.Time
	if e != nil {
		start = time.Now()
		e.Waited = start.Sub(e.Began)
	}
	returned := false
	defer func() {
		v := recover()
		if returned {
			return
		}
		if e != nil {
			e.Handler, e.Procedure = time.Since(start), req.Observed
		}
		res.Fail(oncrpc.SystemErr)
		if len(res.Verf.Body) > oncrpc.MaxAuthBody {
			res.Verf = oncrpc.Auth{}
		}
		c.logPanic("handler", c.named(req.Procedure), v)
		if v == nil {
			ended()
		}
	}()
	h.ServeRPC(ctx, req, res)
	if e != nil {
		e.Handler, e.Procedure = time.Since(start), req.Observed
	}
	if n := len(res.Verf.Body); n > oncrpc.MaxAuthBody {
		panic(fmt.Sprintf("transport: a verifier of %d bytes, limit is %d", n, oncrpc.MaxAuthBody))
	}
	returned = true
}
