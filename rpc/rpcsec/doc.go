// Package rpcsec is RPCSEC_GSS (RFC 2203), the security flavor of ONC RPC in which client and server
// authenticate each other, and arguments and results are signed or encrypted. A [Client] wraps what makes calls, a
// [Server] what executes them.
//
// Both directions of a connection work alike: conn may be the [rpc.Conn] of a client, and the wrapped
// handler a program of the client.
//
// # Mechanisms
//
// The cryptography is that of a GSS-API mechanism (RFC 2743), which this package has as interfaces:
// [Initiator], [Acceptor] and [Context].
//
// # Services
//
// [rpc.ServiceNone] signs the header of each call, with its credential, and the sequence number in each reply:
// both ends are authenticated, what they say is not. Bulk data keeps its chunks. [rpc.ServiceIntegrity] also
// signs arguments and results, [rpc.ServicePrivacy] encrypts them. No item of a call with these has a chunk of its own
// (RFC 8166 section 8.2.2): the call goes inline or as a whole in a read chunk, its reply inline or in the
// reply chunk.
//
// # Calls that are sent again
//
// A call that the transport sends again, on another connection, has the same sequence number and
// verifier, and the reply cache of this project's server answers it. A call that reaches the [Server]
// with a sequence number that it has seen is refused with RPCSEC_GSS_CTXPROBLEM, where RFC 2203 section
// 5.3.3.1 has it discarded: that would leave the caller without an answer for good, as RPC-over-RDMA does not lose
// messages. The [Client] then makes the call once more, with another number.
package rpcsec
