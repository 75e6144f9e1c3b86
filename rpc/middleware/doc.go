// Package middleware provides wrappers for the handlers of a [transport.Server]: access control, limits for each
// caller, and a log of the calls.
//
// # Who may call
//
// [Allow] turns an [Access] into a function for rpc.Program.Auth: lists of addresses, of flavors, of the users and
// groups of AUTH_SYS, reserved ports. It is called before everything else, for procedure 0 as well, and logs the first
// refused call of each host with the rule. [Require] calls such a function in the chain of wrappers instead, so that an
// outer [Log] sees refused callers. AUTH_SYS is a claim of the client: it keeps honest clients apart, and does not stop
// an attacker, who can send any claim. Addresses are as trustworthy as the network. Principals, names of certificates
// and users of processes have been proved: see [rpc.Peer]. [Identify] replaces the claim by the user that such a proof
// stands for.
//
// # Limits
//
// A [Limiter] bounds the calls in flight and the rate of each caller: a connection, a host, a user of a host, or a
// proved identity. RPC has no status for "busy". A call beyond its limit waits, up to Limits.Wait. Meanwhile it holds
// one of its connection's credits, which slows the client down, and as much memory as any other call. After that it is
// answered with SYSTEM_ERR, or by Limits.Refuse if the program has a status for this.
//
// # Logging
//
// [Log] writes a record for each call, and limits the records of failures per second. Wrappers do not see calls that
// the transport refuses before they reach a handler: an Observer does (transport.Config, field Observer). Panics need
// no wrapper: the transport recovers those of handlers and of wrappers, answers SYSTEM_ERR and logs the stack.
//
// # Bridged servers
//
// Servers written for TCP that run through transport.Server.Bridge have no Program: transport.Config.Middleware wraps
// them in the same way.
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
// For a call from a known caller that is allowed, within its limits, and not logged, no wrapper allocates memory.
package middleware
