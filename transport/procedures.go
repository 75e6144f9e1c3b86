package transport

import (
	"context"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// Procedures is a Handler with a function for each procedure, by its number. Calls of
// others are answered with PROC_UNAVAIL.
type Procedures map[uint32]HandlerFunc

// ServeRPC calls the function of the procedure.
func (p Procedures) ServeRPC(ctx context.Context, req *Request, res *Response) {
	if f := p[req.Proc]; f != nil {
		f(ctx, req, res)
	} else {
		res.Fail(oncrpc.ProcUnavail)
	}
}

// ListenAndServe listens on addr and serves the connections that come: see [Server.Listen]
// and [Server.Serve]. It returns when ctx ends, with ctx's error, or when the server is
// closed, with net.ErrClosed. Connections live on.
func (s *Server) ListenAndServe(ctx context.Context, p fabric.Provider, addr string) error {
	l, err := s.Listen(ctx, p, addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return ctx.Err()
}
