// Package transport carries ONC RPC over RDMA: version 1 of the protocol of RFC
// 5666 and RFC 8166, with the private data of RFC 8797, and version 2, in the form of
// draft-cel-nfsv4-rpcrdma-version-two-00, for either role and in both directions (RFC
// 8167).
//
// # Nouns
//
// A [Client] makes [Call]s, on one connection at a time; a [Server] executes the calls
// to its [Program]s on any number of connections. A [Conn] is a connection as a handler
// sees it, a [Backchannel] a server's way to one client, whatever its connection.
// Both work on a provider of package fabric, which the program names:
//
//	cl, err := transport.Dial(ctx, iwarp.New(nil), "server:20049", nil)
//	...
//	call := transport.Call{Prog: 100003, Vers: 3, Proc: 6, Args: args,
//		WriteItems: []transport.WriteItem{{Buf: buf}}, MaxResults: 128}
//	err = cl.Call(ctx, &call)
//
// Small messages travel inside Sends. Bulk data goes straight from memory to
// memory: arguments named in Call.ReadItems are read by the server's adapter,
// results for Call.WriteItems are written by it. Which data items of a protocol
// may do so is the word of its upper-layer binding; whether one does in a given
// call is decided here, by size. Messages that fit nowhere else go into a
// position-zero read chunk or the reply chunk as a whole.
//
// [Server.Bridge] and [NewRecordConn] hand out connections as net.Conn with the
// record marking of RFC 5531, for ONC RPC servers and clients written for TCP.
// Their [Binding] finds the bulk items.
//
// # Progress
//
// There is no goroutine between the wire and the caller. Who waits for a reply
// moves the connection, for itself and for the others that wait; with one call at
// a time nothing is handed from one goroutine to another. Progress.go has the
// rules.
//
// # Both directions
//
// A client may execute programs for its server, [Config.Callbacks], on the connection that
// it has made. A server calls it back in one line of a handler,
//
//	err := req.Conn().Call(ctx, &call)
//
// once Conn.AllowBackward has said that the upper layer knows the client to be ready; not
// before, since a client that is not loses its connection by it. Each direction has credits
// and xids of its own. Chunks go backward only between ends that both have PeerFull.
//
// # Connections that come back
//
// A client makes a lost connection again, with pauses that grow, and sends the calls without
// reply again, with the xids they had. A server remembers the replies to calls that are not
// Idempotent and does not execute those again: see [ReplyCache]. A call that must not take
// the risk at another server has NoResend. A server's calls wait in a [Backchannel] until
// their client is back. Config.NoReconnect ends a client with its connection.
//
// # Versions
//
// A client asks for version 2 when it connects, and speaks version 1 to servers that do not
// know it; a server answers both. [Config.Version] chooses one. Version 2 takes 4096 bytes
// inline where nothing else has been agreed on, and has optional operations: [Operation].
//
// # Cancellation
//
// A call ends when its context does, and then returns only when the peer cannot
// reach its memory any more. Its credit comes back with the late reply. If the
// server was moving the data just then, the refusal of the adapter ends the
// connection: that is how RDMA works. A context that has a deadline is watched
// from some 2 to 4 ms after the start of a wait; one that ends before that is noticed
// then.
//
// # Configuration
//
// Two ends agree on the sizes of messages while they connect, by private data (RFC
// 8797). Between ends that RFC 5666 alone has been read for, [Configure] does so with a
// call of its own, the Connection Configuration Protocol of its section 6: calls and
// replies inline beyond 1024 bytes, and the number of RDMA Reads at once. It is off
// unless both ends turn it on. [ConnInfo] has the outcome of either.
//
// # What RFC 8166 removed
//
// RDMA_MSGP, RDMA_DONE, read chunks in replies and the Connection Configuration Protocol
// are refused or ignored, unless Config.RFC5666 asks for them.
//
// # Ownership
//
//   - A Call and everything it points to belong to the transport from Client.Call's
//     start to its return, and Results stay valid until the Call is used again.
//   - A Request is valid until ServeRPC returns, and what is given to
//     Response.AddItem is the response's until its release function is called.
//   - All memory the peer can reach is exposed for one call, with one right, and
//     closed before that call returns. [Client.RegisterMemory] trades some of that for
//     speed, on adapters without memory windows.
//
// # Limits
//
// Everything a peer controls is bounded: header lists by Config.Limits, messages
// by MaxMessage, what calls hold at a server by MaxMemory and MaxTotalMemory, calls by
// the credits granted, connections by MaxConns, set-up by SetupTimeout, time without
// progress by StallTimeout.
//
// # Limitations
//
// A handler of a [Program] that names it Inline cannot make calls on its own connection.
// Bridges and [NewRecordConn] carry calls forward only, and end with their connection.
package transport
