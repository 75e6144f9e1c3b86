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
// signs arguments and results, [rpc.ServicePrivacy] encrypts them. Unless it is sealed, no item of a call with these has a chunk of its own
// (RFC 8166 section 8.2.2): the call goes inline or as a whole in a read chunk, its reply inline or in the
// reply chunk.
//
// # Sealed items
//
// Two ends of this project can agree to seal the items of calls with [rpc.ServicePrivacy], which then keep their
// chunks: [ClientConfig].Seal and [ServerConfig].Seal. Each item of a call with one of 4 KiB or more is encrypted by itself,
// with AES-256-GCM, and its tags are in the encrypted body. Servers and mechanisms that do not seal get calls with
// plain privacy, unless the client requires it. The agreement is encrypted: an attacker cannot prevent it, only the call. ADR 39 has
// the details, and what each attack meets.
//
// # Calls that are sent again
//
// A client that has lost its connection sends its calls again: other clients with another sequence number and verifier
// (Linux does), this package's with the same ones. The Server knows both by caller, xid, procedure and arguments, and
// answers from the reply cache, with a reply that is protected for the number of the call: see [rpc.Request.Once].
//
// A call that the reply cache does not know, and with a sequence number that has been seen, is refused with
// RPCSEC_GSS_CTXPROBLEM, where RFC 2203 section 5.3.3.1 has it discarded: that would leave the caller without an
// answer for good, as RPC-over-RDMA does not lose messages. The Client then makes the call once more, with another
// number. It is an Idempotent one, or its reply was forgotten.
package rpcsec
