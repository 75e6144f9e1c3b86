// Package transport carries ONC RPC over RDMA: version 1 of the protocol (RFC 5666, RFC 8166), with the private data of
// RFC 8797, and version 2 (draft-cel-nfsv4-rpcrdma-version-two-00), as client and as server, with calls in both
// directions (RFC 8167).
//
// # Nouns
//
// Programs are defined with package rpc; this package runs them. A [Client] makes calls, each an [rpc.Call], over one
// connection at a time. A [Server] executes calls to its programs, each an [rpc.Program], over any number of
// connections. A handler sees its connection as an [rpc.Conn]; a [Backchannel] is a server's way to one client over all
// its connections. A [Group] is several Clients of one server. Anything that makes calls is an [rpc.Caller]; a
// [Pipeline] makes many at once from one goroutine. Client and server use a provider of package fabric, which the
// program chooses:
//
//	cl, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "server:20049", nil)
//	...
//	call := rpc.Call{Prog: 100003, Vers: 3, Proc: 6, Args: args,
//		WriteItems: []rpc.WriteItem{{Buf: buf}}, MaxResults: 128}
//	err = cl.Call(ctx, &call)
//
// Small messages travel inside Sends. Bulk data goes directly from memory to memory: the server's adapter reads
// arguments named in Call.ReadItems, and writes results for Call.WriteItems. The upper-layer binding of a protocol
// determines which data items may be transferred in this way; for a given call the transport decides by size. Messages
// that fit nowhere else go whole into a position-zero read chunk or the reply chunk.
//
// [Server.Bridge] and [NewRecordConn] provide connections as net.Conn with the record marking of RFC 5531, for ONC RPC
// servers and clients written for TCP. Their [rpc.Binding] finds the bulk items. Config.Middleware also wraps the calls
// of such a server.
//
// # TCP
//
// [TCP] in place of a provider runs the same programs over plain TCP. [Server.ServeTCP] executes calls that arrive over
// TCP, with the record marking of RFC 5531, with the same handlers, and [DialTCP] returns a Client that makes them for
// the same callers, so a service can move to RDMA step by step. Over TCP all data goes inline; calls back to the
// client, reconnection and the reply cache work as over RDMA.
//
// # Progress
//
// Over RDMA, no goroutine stands between the wire and the caller. A goroutine that waits for a reply drives the
// connection, for itself and for the others that wait; with one call at a time there is no handoff between goroutines.
// See progress.go.
//
// # Both directions
//
// A client may execute programs for its server, ClientConfig.Callbacks, on the connection that it made. A server calls
// the client from a handler,
//
//	err := req.Conn().Call(ctx, &call)
//
// after Conn.AllowBackward has been called because the client is ready. A client that is not ready may drop the
// connection. Each direction has its own credits and xids. Calls from the server have chunks only if both ends have
// AllChunks.
//
// # Middleware
//
// Program.Auth decides who may call a program. An [rpc.Middleware] wraps its handler, or those of all programs
// (Config.Middleware): it sees the call and its outcome, and may refuse the call, or change arguments and results, as
// security flavors do. A client's middleware is a function from one [rpc.Caller] to another. Package middleware
// provides access lists, limits for each caller, and a log.
//
// # Reconnection
//
// A client reconnects after a lost connection, with growing pauses, and sends calls without a reply again, with the
// same xids. A server remembers the replies to calls that are not Idempotent and does not execute those calls again:
// see [ReplyCache]. Set NoResend for a call that must not be executed twice by a server without such a cache. A
// server's calls wait in a [Backchannel] until their client is back. ClientConfig.NoReconnect ends a client with its
// connection.
//
// # Versions
//
// A client asks for version 2 when it connects, and falls back to version 1 with servers that do not support it. A
// server answers both. Config.Version selects one of them. In version 2 messages may have 4096 bytes inline unless more
// was agreed on, and there are optional operations: see [Operation].
//
// # Cancellation
//
// When the context of a call ends, the call returns once the peer can no longer reach its memory. Its credit comes back
// with the late reply. If the server was moving the data at that moment, the adapter refuses the access, which ends the
// connection; RDMA has no milder consequence. The deadline of a context is watched from 2 to 4 ms after the start of a
// wait; an earlier deadline is noticed then.
//
// # Configuration
//
// The two ends agree on message sizes while they connect, by private data (RFC 8797). Ends that only implement RFC 5666
// can use [ConfigProtocol] instead, the Connection Configuration Protocol of section 6: a call that agrees on inline
// messages of more than 1024 bytes, and on the number of concurrent RDMA Reads. It is off unless both ends turn it on.
// [rpc.ConnInfo] has the outcome of either.
//
// # What RFC 8166 removed
//
// RDMA_MSGP, RDMA_DONE, read chunks in replies and the Connection Configuration Protocol are refused or ignored unless
// Config.RFC5666 turns them on.
//
// # Ownership
//
//   - The transport owns a Call and everything it points to during Client.Call. Results are valid until the Call is
//     used again.
//   - A Request is valid until ServeRPC returns. Memory passed to Response.AddItem belongs to the response until its
//     release function is called; Request.WhenReleased reports the same for all items.
//   - Memory that the peer can reach is exposed for one call, with one right, and fenced off before that call returns.
//     [Client.RegisterMemory] trades some of that for speed, on adapters without memory windows. Short items may be
//     copied through bounce buffers instead of being exposed: see Config.BounceMax.
//
// # Limits
//
// Everything that a peer controls is bounded: header lists by Config.Limits, messages by MaxMessage, memory of calls at
// a server by MaxMemory and MaxTotalMemory, calls by the credits granted, connections by MaxConns, set-up by
// SetupTimeout, and time without progress by StallTimeout.
//
// # Limitations
//
// An Inline handler (see [rpc.Program]) cannot make calls on its own connection. Bridges and [NewRecordConn] carry
// calls in the forward direction only, and end with their connection.
package transport
