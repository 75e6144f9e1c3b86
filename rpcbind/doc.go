// Package rpcbind asks and tells rpcbind, the directory that every machine with ONC
// RPC services keeps on port 111: which program is served at which address. It
// speaks versions 4 and 3 of the protocol, and version 2, the port mapper.
// RFC 1833.
//
// RPC over RDMA needs it wherever a program has no port of its own: 20049 belongs to
// NFS alone (RFC 5666 section 12).
//
// # Nouns
//
// A [Mapping] says that a version of a program is served at a universal address on
// the transports that a [Netid] names. Universal addresses are text; [ParseAddr] and
// [FormatAddr] turn them into addresses and back. A [Client] is where an rpcbind is
// and how to get there. It keeps no connection and no state, so it needs no Close and
// may be used by many goroutines at once.
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
// Every operation tries version 4, then 3, then 2, as long as rpcbind says that it
// has not got the one before. The port mapper knows "tcp" and "udp" alone: for
// another netid there is a [VersionError].
//
// # Registering
//
// As a rule rpcbind takes registrations from its own machine only. It refuses a
// second address for what is registered already, also when the first one's server
// was killed; only Unset makes room.
//
// # Errors
//
// What methods of Client return is an [OpError]: which rpcbind, which question. Below
// it, by whose fault: an [AddrError] is about what the caller gave, an
// [oncrpc.RPCError] or [ErrRefused] is rpcbind's refusal, a [ReplyError] is an answer
// that makes no sense, a net.Error keeps its errno, and the rest is the context's.
//
// # Cancellation
//
// Every operation ends when its context does. One whose context has no deadline ends
// after [Patience] all the same. Over UDP a question is asked again with the same
// xid, after half a second first and then after twice as long each time.
//
// # Trust
//
// Answers come from anybody who has taken port 111, over UDP from anybody who can
// forge an address. Only messages of the peer's address and with the question's xid
// are looked at, and lengths, lists and addresses are held against limits. That a
// server is where rpcbind says is not proved by anything: who connects to an address
// should keep the host that it wanted, and take the port.
//
// # Limitations
//
// CALLIT, BCAST, GETVERSADDR, GETADDRLIST, GETTIME and GETSTAT are left out. There is
// no socket in the file system ("local"), and no broadcast.
package rpcbind
