package middleware

import (
	"context"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Identify returns a wrapper that replaces the AUTH_SYS credential of a call, which is a claim, by the one that
// credential returns for the caller: by its certificate, for instance, with oncrpc.AuthSys.Auth for users that are known
// and AUTH_NONE, the zero value, for others. Handlers and inner wrappers see that one. Calls with other flavors are
// left as they are: those of AUTH_NONE claim nothing, and those of RPCSEC_GSS prove the caller. The credential that is returned
// must not change afterwards.
func Identify(credential func(rpc.Peer) oncrpc.Auth) rpc.Middleware {
	return func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			if req.Cred.Flavor == oncrpc.FlavorSys {
				req.SetCred(credential(req.Peer()))
			}
			next.ServeRPC(ctx, req, res)
		})
	}
}
