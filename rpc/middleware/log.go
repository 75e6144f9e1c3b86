package middleware

import (
	"context"
	"log/slog"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/rate"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A LogConfig configures Log. The zero value is usable.
type LogConfig struct {
	// Logger gets the records. Nil: slog.Default().
	Logger *slog.Logger

	// Level is the level of a call that was executed, and FailureLevel that of a call with any other status or a panic.
	// A slog.LevelVar can be changed while the server runs. Nil: slog.LevelInfo and slog.LevelWarn.
	Level, FailureLevel slog.Leveler

	// MaxFailures bounds the records of failures per second, because clients determine how many failures there are. The
	// next record counts those omitted. Zero is 10, negative means no limit.
	MaxFailures int
}

const defaultFailures = 10 // per second

// Log returns a wrapper that writes one record, "rpc", when a call has been executed or refused, before its reply is
// sent. Its attributes are
//
//	prog, vers, proc  the procedure
//	peer              the client's address
//	xid               of the call
//	flavor            of the credential; uid and gid are what one of AUTH_SYS claims
//	principal         proved by the flavor, and service, the protection of the call
//	certificate       the first name of the peer's certificate, if proved
//	process, user     the peer's, if the kernel vouches for it
//	status            in the RFC's spelling, such as SUCCESS or AUTH_TOOWEAK
//	took              the time since the call reached Log
//	in, out           bytes of the arguments and the results, items included
//	panic             true after a panic, which the transport logs
//	omitted           the number of failures before this one without a record
//
// Of the unproved data that a client sends, only numbers are logged. A call that is not logged costs two clock
// readings, and no allocation.
func Log(cfg LogConfig) rpc.Middleware {
	l := &logger{log: cfg.Logger, level: cfg.Level, failure: cfg.FailureLevel}
	if l.log == nil {
		l.log = slog.Default()
	}
	if l.level == nil {
		l.level = slog.LevelInfo
	}
	if l.failure == nil {
		l.failure = slog.LevelWarn
	}
	most := float64(max(cfg.MaxFailures, 0))
	if cfg.MaxFailures == 0 {
		most = defaultFailures
	}
	r, _ := rate.New(most, 0)
	l.gate = rate.NewGate(r)
	return func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			begun, in, panics := time.Now(), len(req.Args), true
			defer func() { l.tell(ctx, req, res, begun, in, panics) }() // the panic continues
			next.ServeRPC(ctx, req, res)
			panics = false
		})
	}
}

// A logger implements Log.
type logger struct {
	log            *slog.Logger
	level, failure slog.Leveler
	gate           *rate.Gate // of failures
}

// tell writes the record of a call, if it gets one.
func (l *logger) tell(ctx context.Context, req *rpc.Request, res *rpc.Response, begun time.Time, in int, panics bool) {
	h := res.Status()
	if panics {
		h = oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr}
	}
	failed := h.Stat != oncrpc.MsgAccepted || h.AcceptStat != oncrpc.Success
	level := l.level.Level()
	if failed {
		level = l.failure.Level()
	}
	if !l.log.Enabled(ctx, level) {
		return
	}
	omitted := 0
	if failed {
		ok := false
		if omitted, ok = l.gate.Pass(); !ok {
			return
		}
	}
	out := 0
	if !failed {
		results, items := res.Size()
		out = results + items
	}
	attrs := append(make([]slog.Attr, 0, 16),
		slog.Uint64("prog", uint64(req.Prog)), slog.Uint64("vers", uint64(req.Vers)), slog.Uint64("proc", uint64(req.Proc)),
		slog.String("peer", req.Conn().RemoteAddrPort().String()), slog.Uint64("xid", uint64(req.XID)),
		slog.String("flavor", req.Cred.Flavor.String()),
	)
	attrs = append(callerAttrs(attrs, req), slog.String("status", statusName(&h)), slog.Duration("took", time.Since(begun)),
		slog.Int("in", in), slog.Int("out", out))
	if panics {
		attrs = append(attrs, slog.Bool("panic", true))
	}
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	l.log.LogAttrs(ctx, level, "rpc", attrs...)
}

// callerAttrs appends what is known of the caller, proved or claimed.
func callerAttrs(attrs []slog.Attr, req *rpc.Request) []slog.Attr {
	peer := req.Peer()
	if sys := peer.Sys; sys != nil {
		attrs = append(attrs, slog.Uint64("uid", uint64(sys.UID)), slog.Uint64("gid", uint64(sys.GID)))
	}
	if p := peer.Principal; p != nil {
		attrs = append(attrs, slog.String("principal", p.Name), slog.String("service", p.Service.String()))
	}
	if len(peer.Certificate) > 0 {
		attrs = append(attrs, slog.String("certificate", peer.Certificate[0]))
	}
	if p := peer.Process; p != nil {
		attrs = append(attrs, slog.Int("process", p.PID), slog.Uint64("user", uint64(p.UID)))
	}
	return attrs
}

// statusName returns the name of the status that determines the outcome.
func statusName(h *oncrpc.ReplyHeader) string {
	switch {
	case h.Stat == oncrpc.MsgAccepted:
		return h.AcceptStat.String()
	case h.Stat == oncrpc.MsgDenied && h.RejectStat == oncrpc.AuthError:
		return h.AuthStat.String()
	case h.Stat == oncrpc.MsgDenied:
		return h.RejectStat.String()
	}
	return h.Stat.String()
}
