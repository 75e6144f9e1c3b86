// Package transport carries ONC RPC over RDMA: version 1 of the protocol (RFC 5666, RFC
// 8166), with the private data of RFC 8797, and version 2
// (draft-cel-nfsv4-rpcrdma-version-two-00), as client and as server, with calls in both
// directions (RFC 8167).
//
// # Nouns
//
// Programs are written with package rpc; this package runs them. A [Client] makes calls, each an
// [rpc.Call], over one connection at a time. A [Server] executes calls to its programs, each an
// [rpc.Program], over any number of connections. A handler sees its connection as an [rpc.Conn]; a
// [Backchannel] is a server's way to one client over all its connections. A [Group] is several
// Clients of one server. Anything that makes calls is an [rpc.Caller]; a [Pipeline] makes many at
// once from one goroutine. Client and server use a provider of package fabric, which the program
// names:
//
//	cl, err := transport.Dial(ctx, iwarp.New(iwarp.Config{}), "server:20049", nil)
//	...
//	call := rpc.Call{Prog: 100003, Vers: 3, Proc: 6, Args: args,
//		WriteItems: []rpc.WriteItem{{Buf: buf}}, MaxResults: 128}
//	err = cl.Call(ctx, &call)
//
// Small messages travel inside Sends. Bulk data goes directly from memory to memory: the
// server's adapter reads arguments named in Call.ReadItems, and writes results for
// Call.WriteItems. Which data items of a protocol may be transferred so is decided by its
// upper-layer binding; whether an item of a given call is, the transport decides by size.
// Messages that fit nowhere else go whole into a position-zero read chunk or the reply
// chunk.
//
// [Server.Bridge] and [NewRecordConn] return connections as net.Conn with the record
// marking of RFC 5531, for ONC RPC servers and clients written for TCP. Their [rpc.Binding]
// finds the bulk items. Config.Middleware is around what such a server executes, too.
//
// # TCP
//
// [TCP] in place of a provider makes the same programs run over plain TCP.
// [Server.ServeTCP] executes calls that come over TCP, with the record marking of RFC 5531, by
// the same handlers, and [DialTCP] returns a Client that makes them, for the same callers:
// a service can move to RDMA step by step. All data goes inline then; calls back to the
// client, reconnection and the reply cache work as over RDMA.
//
// # Progress
//
// Over RDMA, no goroutine stands between the wire and the caller. A goroutine that waits for a reply
// moves the connection, for itself and for the others that wait; with one call at a time
// nothing is passed from one goroutine to another. See progress.go.
//
// # Both directions
//
// A client may execute programs for its server, ClientConfig.Callbacks, on the connection that
// it has made. A server calls it from a handler,
//
//	err := req.Conn().Call(ctx, &call)
//
// after Conn.AllowBackward has said that the client is ready. A client that is not ready
// may drop the connection. Each direction has its own credits and xids. Calls from the
// server have chunks only between ends that both have AllChunks.
//
// # Middleware
//
// Program.Auth decides who may call a program. An [rpc.Middleware] wraps its handler, or those of all
// programs (Config.Middleware): it sees the call and its outcome, and may refuse it, or change
// arguments and results, as a security flavor needs to. A client's middleware is a function from one
// [rpc.Caller] to another. Package middleware has access lists, limits for each caller, and a log.
//
// # Reconnection
//
// A client reconnects after a lost connection, with growing pauses, and sends calls
// without a reply again, with the same xids. A server remembers the replies to calls that
// are not Idempotent and does not execute these again: see [ReplyCache]. Set NoResend for
// a call that must not be executed twice by a server without such a cache. A server's
// calls wait in a [Backchannel] until their client is back. ClientConfig.NoReconnect ends a
// client with its connection.
//
// # Versions
//
// A client asks for version 2 when it connects, and speaks version 1 to servers that do
// not know it. A server answers both. Config.Version chooses one. Version 2 takes 4096
// bytes inline unless more was agreed on, and has optional operations: see [Operation].
//
// # Cancellation
//
// When the context of a call ends, the call returns once the peer can no longer reach its memory. Its
// credit comes back with the late reply. If the server was moving the data at that moment, the
// refusal of the adapter ends the connection; RDMA has no smaller consequence. The deadline of a
// context is watched from 2 to 4 ms after the start of a wait; an earlier one is noticed then.
//
// # Configuration
//
// The two ends agree on the sizes of messages while they connect, by private data (RFC
// 8797). Between ends that implement RFC 5666 alone, [ConfigProtocol] does so with a call, the
// Connection Configuration Protocol of section 6: inline messages of more than 1024 bytes,
// and the number of RDMA Reads at once. It is off unless both ends turn it on. [rpc.ConnInfo]
// has the outcome of either.
//
// # What RFC 8166 removed
//
// RDMA_MSGP, RDMA_DONE, read chunks in replies and the Connection Configuration Protocol
// are refused or ignored unless Config.RFC5666 turns them on.
//
// # Ownership
//
//   - A Call and everything it points to belong to the transport during Client.Call.
//     Results are valid until the Call is used again.
//   - A Request is valid until ServeRPC returns. Memory passed to Response.AddItem belongs to the
//     response until its release function is called; Request.WhenReleased reports the same for all
//     items.
//   - Memory that the peer can reach is exposed for one call, with one right, and closed
//     before that call returns. [Client.RegisterMemory] trades some of that for speed, on
//     adapters without memory windows. Short items may be copied through bounce buffers
//     instead of being exposed: see Config.BounceMax.
//
// # Limits
//
// Everything that a peer controls is bounded: header lists by Config.Limits, messages by
// MaxMessage, memory of calls at a server by MaxMemory and MaxTotalMemory, calls by the
// credits granted, connections by MaxConns, set-up by SetupTimeout, and time without
// progress by StallTimeout.
//
// # Limitations
//
// A handler that its [rpc.Program] names Inline cannot make calls on its own connection.
// Bridges and [NewRecordConn] carry calls in the forward direction only, and end with
// their connection.
package transport
