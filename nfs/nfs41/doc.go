// Package nfs41 is the client side of NFS version 4.1 sessions and their backchannel
// (RFC 8881) on RPC-over-RDMA: calls in both directions on one connection (RFC 8167).
//
// A [Session] is created with a server by [Dial]. It answers the server's callbacks, renews
// its lease if asked to, and binds itself to the new connection after a reconnect. If the
// server no longer knows the session, for example after a restart, it is replaced by a new
// one. [Session.Compound] sends a COMPOUND of any operations for which the caller has types.
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
// A server may call a client only on a connection on which the client has said that it is
// ready: with CREATE_SESSION4_FLAG_CONN_BACK_CHAN or with BIND_CONN_TO_SESSION, again for
// each new connection. A Session says so after it has registered its callback program and
// posted the receives. It grants at most Config.Back.MaxRequests callbacks at a time, and
// they have to fit inline.
//
// # Errors
//
// An operation that fails is an [*Error] with its status. A reply that does not decode, or
// that does not match its call, is a [*BadReplyError]. Errors of the connection are those of
// package transport.
//
// # Exactly-once semantics
//
// A request that was sent and has no reply is sent again on the next connection; the
// server's slot recognizes it (RFC 8881 section 2.10.6). If a call is canceled before its
// reply arrives, its slot is not reused until the server has been asked whether it received
// the request.
//
// # Trust
//
// Everything that a peer sends is bounded: sessions, slots, operations, and the bytes of
// requests, replies, cached replies and each item in them. Peers are not authenticated, unless
// Config.Security has both ends prove who they are. It protects the calls of the client. Callbacks have
// AUTH_SYS, and are accepted because they arrive on the connection.
//
// # Limitations
//
// RPCSEC_GSS for callbacks, state protection by SP4_SSV, persistent sessions, pNFS, trunking
// and minor version 0 are not supported. The client does not reclaim state after a server
// restart. The backchannel of a session uses the connection that was bound last. Of the
// operations on files there are types only for those that a mount needs, and for OPEN
// without creation, CLOSE and DELEGRETURN.
package nfs41
