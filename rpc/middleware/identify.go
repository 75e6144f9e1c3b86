package middleware

import (
	"context"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Identify returns a wrapper that replaces the AUTH_SYS credential of a call, which is a claim, by the credential that
// the function returns for the peer. The function may map certificates to users, for instance: it returns
// oncrpc.AuthSys.Auth for known users, and AUTH_NONE, the zero value, for others. Handlers and inner wrappers see the
// new credential. Calls with other flavors are left alone: AUTH_NONE claims nothing, and RPCSEC_GSS proves the caller.
// The returned credential must not change afterwards.
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
