// Package nfs41 implements the client side of NFS version 4.1 sessions and their backchannel (RFC 8881) on
// RPC-over-RDMA, with calls in both directions on one connection (RFC 8167).
//
// [Dial] creates a [Session] with a server. The Session answers the server's callbacks, renews its lease if configured
// to, and binds itself to the new connection after a reconnect. If the server no longer knows the session, for example
// after a restart, a new one replaces it. [Session.Compound] sends a COMPOUND of any operations for which the caller
// has types.
//
// # Usage
//
//	s, err := nfs41.Dial(ctx, provider, "server:20049", &nfs41.Config{Renew: true})
//	...
//	defer s.Destroy(ctx)
//	flags, err := s.Sequence(ctx)
//
// # Backchannel
//
// A server may call a client only on a connection on which the client has declared itself ready: with
// CREATE_SESSION4_FLAG_CONN_BACK_CHAN or with BIND_CONN_TO_SESSION, again for each new connection. A Session does so
// after it has registered its callback program and posted the receives. It grants up to Config.Back.MaxRequests
// callbacks at a time, and they must fit inline.
//
// # Errors
//
// An operation that fails is reported as an [*Error] with its status. A reply that does not decode, or that does not
// match its call, is a [*BadReplyError]. Errors of the connection are those of package transport.
//
// # Exactly-once semantics
//
// A request that was sent and has no reply is sent again on the next connection; the server's slot recognizes it (RFC
// 8881 section 2.10.6). If a call is canceled before its reply arrives, its slot is not reused until the server has
// been asked whether it received the request.
//
// # Trust
//
// Everything that a peer sends is bounded: sessions, slots, operations, and the bytes of requests, replies, cached
// replies and each item in them. Peers are not authenticated unless Config.Security is set, which authenticates both
// ends for the client's calls. Callbacks use AUTH_SYS, and are accepted because they arrive on the connection to the
// server.
//
// # Limitations
//
// RPCSEC_GSS for callbacks, state protection by SP4_SSV, persistent sessions, pNFS, trunking and minor version 0 are
// not supported. The client does not reclaim state after a server restart. The backchannel of a session uses the
// connection that was bound last. File operations have types only for what a mount needs, and for OPEN without
// creation, CLOSE and DELEGRETURN.
package nfs41
