package rpc

import (
	"context"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// Procedures is a Handler with a function for each procedure number. Other procedures are answered with PROC_UNAVAIL.
type Procedures map[uint32]HandlerFunc

// ServeRPC calls the function of the procedure.
func (p Procedures) ServeRPC(ctx context.Context, req *Request, res *Response) {
	if f := p[req.Proc]; f != nil {
		f(ctx, req, res)
	} else {
		res.Fail(oncrpc.ProcUnavail)
	}
}
