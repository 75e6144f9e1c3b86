// Package middleware has wrappers for the handlers of a [transport.Server]: who may call, how much a
// caller may have, and a log of the calls.
//
// # Who may call
//
// [Allow] makes a function for rpc.Program.Auth of an [Access]: lists of addresses, of flavors, of
// the users and groups of AUTH_SYS, reserved ports. It is called before everything else, for procedure 0
// as well, and logs the first refused call of each host with the rule. [Require] calls such a function
// in the chain of wrappers instead, inside a [Log] that is to see refused callers. AUTH_SYS is a claim
// of the client: it keeps honest clients apart, and does not stop an attacker, who can choose what is
// sent. Addresses can be trusted as far as the network can. Principals, names of certificates and users of
// processes have been proved: see [rpc.Peer]. [Identify] puts the user that such a proof stands for in place of the claim.
//
// # Limits
//
// A [Limiter] bounds the calls in flight and the rate of each caller: a connection, a host, a user
// of a host, or the identity that it has proved. RPC has no status for "busy". A call beyond its limit waits, up to Limits.Wait.
// Meanwhile it holds one of its connection's credits, which slows the client down, and as much memory
// as any other call. Then it is answered with SYSTEM_ERR, or by Limits.Refuse, where the program has
// a status for it.
//
// # Logging
//
// [Log] writes a record for each call, and limits the records of failures per second. Wrappers do not
// see calls that the transport refuses before a handler has them: an Observer does
// (transport.Config, field Observer). Panics need no wrapper: the transport recovers those of
// handlers and of wrappers, answers SYSTEM_ERR and logs the stack.
//
// # Bridged servers
//
// Servers that were written for TCP and run through transport.Server.Bridge have no Program:
// transport.Config.Middleware wraps them in the same way.
//
// # Order
//
// The first wrapper of a chain is the outermost:
//
//	cfg := &transport.ServerConfig{Config: transport.Config{Middleware: []rpc.Middleware{
//		middleware.Log(middleware.LogConfig{}), // sees what the inner ones refuse
//		middleware.Require(check),
//		limiter.Wrap,
//	}}}
//
// No wrapper allocates memory for a call that is allowed, within its limits, and not logged, once its
// caller is known.
package middleware
