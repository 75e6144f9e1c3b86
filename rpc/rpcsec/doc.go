// Package rpcsec implements RPCSEC_GSS (RFC 2203), the security flavor of ONC RPC in which client and server
// authenticate each other, and arguments and results are signed or encrypted. A [Client] wraps an rpc.Caller, and a
// [Server] wraps handlers.
//
// Both directions of a connection work the same way: the Client may wrap a server's [rpc.Conn], and the Server a
// program of the client.
//
// # Mechanisms
//
// The cryptography is that of a GSS-API mechanism (RFC 2743), which this package uses through the interfaces
// [Initiator], [Acceptor] and [Context].
//
// # Services
//
// [rpc.ServiceNone] signs the header of each call, including its credential, and the sequence number in each reply.
// Both ends are authenticated, but arguments and results are not. Bulk data keeps its chunks. [rpc.ServiceIntegrity]
// also signs arguments and results, and [rpc.ServicePrivacy] encrypts them. With either service, items that are
// not sealed have no chunks (RFC 8166 section 8.2.2): the call is sent inline or as a whole in a read chunk, and the
// reply inline or in the reply chunk.
//
// # Sealed items
//
// Two ends that use this package can agree to seal the items of calls with [rpc.ServicePrivacy], which then keep their
// chunks: [ClientConfig].Seal and [ServerConfig].Seal. If a call has an item of 4 KiB or more, each of its items is
// encrypted separately with AES-256-GCM, and the tags are sent in the encrypted body. For servers and mechanisms that
// do not support sealing, the client uses plain privacy, unless it requires sealing. The agreement is encrypted: an
// attacker can prevent the call, but not only the sealing. ADR 39 has the details and discusses each attack.
//
// # Retransmitted calls
//
// A client that has lost its connection sends its calls again. Other clients, such as Linux, do so with another
// sequence number and verifier; this package uses the same ones. The Server recognizes both by caller, xid, procedure
// and arguments. It answers from the reply cache, with a reply protected for the sequence number of the call: see
// [rpc.Request.Once].
//
// The Server refuses a call with RPCSEC_GSS_CTXPROBLEM if the reply cache does not know it and its sequence number has
// been seen. RFC 2203 section 5.3.3.1 has such a call discarded, but RPC-over-RDMA loses no messages, so the caller
// would wait forever. The Client then makes the call once more, with another number. Such a call is Idempotent, or the
// reply cache has forgotten its reply.
package rpcsec
