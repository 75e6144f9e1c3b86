// Package nfs41 is what a client and a server of NFS version 4.1 need to call each other
// over one RDMA connection: sessions and their backchannel (RFC 8881), on the backward
// direction of RPC-over-RDMA (RFC 8167).
//
// A [Session] is the client's end. It makes a session with a server, answers the server's
// callbacks on the same connection, keeps the lease, and binds itself anew when the
// connection has been made again; when the server has forgotten it, another takes its
// place. [Session.Compound] makes any COMPOUND whose operations the caller has types for.
//
// A [Server] serves one empty directory that nobody can write to. What it has in full is
// what is around that: client ids, sessions, slots with their replies, the connections
// of backchannels, and the calls to clients ([ServerSession.Null],
// [ServerSession.Callback]). Linux mounts it with vers=4.1,proto=rdma.
//
// # Usage
//
//	s, err := nfs41.Dial(ctx, provider, "server:20049", &nfs41.Config{Renew: true})
//	...
//	defer s.Destroy(ctx)
//	flags, err := s.Sequence(ctx)
//	...
//	srv := nfs41.NewServer(nil)
//	err := transportServer.Register(srv.Program())
//	...
//	for _, ss := range srv.Sessions() {
//		err := ss.Null(ctx)
//		...
//	}
//
// # Who may call when
//
// A server calls nobody who has not said that he is ready for it: with
// CREATE_SESSION4_FLAG_CONN_BACK_CHAN, or with BIND_CONN_TO_SESSION, on the connection
// that the calls are to use, each time that there is a new one. A client says so when its
// callback program and the receives for the calls are there. Version 4.0, whose callbacks
// take a connection from the server to the client, is refused by both ends.
//
// Of the callbacks of a session no more are in flight than the client has slots, and no
// more than 16. They have to fit inline.
//
// # Errors
//
// An operation that fails is an [*Error] with its status. Replies that make no sense are
// a [*ReplyError]. Errors of the connection are those of package transport.
//
// # Exactly once
//
// A request that was sent and has no reply is sent again on the next connection, and the
// peer's slot knows it. When a call is given up before its reply, the slot is not used
// again before the peer has been asked whether it has seen it.
//
// # Trust
//
// Whatever a peer sends is bounded: clients, sessions, slots, operations, and the bytes of
// requests, replies, kept replies and each item in them. Nobody proves who he is:
// AUTH_SYS and AUTH_NONE are all there is.
//
// # Limitations
//
// RPCSEC_GSS, state protection (SP4_MACH_CRED, SP4_SSV), persistent sessions and pNFS
// are refused. There is no trunking. A client reclaims nothing when its server has
// restarted. The backchannel of a session uses the connection that was bound last. Of
// operations on files there are those that a mount of an empty directory takes, and OPEN
// without creation, CLOSE and DELEGRETURN at the client.
package nfs41
