// Package rpcbind is a client of rpcbind (RFC 1833), the directory of ONC RPC services on port
// 111, which maps programs to addresses. It supports versions 4 and 3 of the protocol, and
// version 2, the port mapper.
//
// RPC over RDMA needs it for programs without a fixed port: 20049 is reserved for NFS (RFC
// 5666 section 12).
//
// # Types
//
// A [Mapping] maps a version of a program and a transport, its [Netid], to a universal
// address. Universal addresses are text; [ParseAddr] and [FormatAddr] convert them. A [Client]
// has the address of an rpcbind. It keeps no connection and no state, so it needs no Close and
// is safe for concurrent use.
//
// # Usage
//
//	c := rpcbind.Client{Addr: "server:111"}
//	at, err := c.GetAddr(ctx, 100003, 3, rpcbind.RDMA)
//	if errors.Is(err, rpcbind.ErrNotRegistered) {
//		...
//	}
//
//	c = rpcbind.Client{Addr: "localhost:111"}
//	err = c.Set(ctx, rpcbind.Mapping{
//		Prog: 100003, Vers: 3, Netid: rpcbind.RDMA, Addr: rpcbind.FormatAddr(at),
//	})
//	...
//	err = c.Unset(ctx, 100003, 3, rpcbind.RDMA)
//
// # Versions
//
// Every operation tries version 4, then 3, then 2, until rpcbind supports the version. The
// port mapper supports "tcp" and "udp" only: for other netids the error is a [VersionError].
//
// # Registering
//
// Usually rpcbind accepts registrations from the local host only. It refuses to register a
// second address for the same mapping, even if the server that registered the first one was
// killed; call Unset first.
//
// # Errors
//
// Methods of Client return an [OpError]. It wraps an [AddrError] if an argument is invalid, an
// [oncrpc.RPCError] or [ErrRefused] if rpcbind refused the call, a [BadReplyError] if the reply
// is malformed, a net.Error, or the error of the context.
//
// # Cancellation
//
// Every operation ends with its context, or, if that has no deadline, after [Patience]. Over
// UDP a call is retransmitted with the same xid, first after half a second, then at intervals
// that double.
//
// # Trust
//
// Any process that owns port 111 can answer, over UDP any host that can forge the source address.
// Only messages from the peer's address with the xid of the call are accepted, and lengths,
// lists and addresses are checked against limits. The returned address is not authenticated: a
// client should use only its port, and connect to the host that it chose.
//
// # Limitations
//
// CALLIT, BCAST, GETVERSADDR, GETADDRLIST, GETTIME and GETSTAT are not supported, nor are Unix
// sockets ("local") and broadcast.
package rpcbind
