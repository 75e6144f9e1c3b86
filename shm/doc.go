// Package shm is an RDMA adapter between two processes on one Linux host. Its connections run over memory that both
// ends have mapped, without system calls while both are busy. A [Provider] is a fabric.Provider.
//
// The programs may be in different containers, as long as they share the directory of the socket, or the network
// namespace if its name is abstract. They need no privileges. Both ends may also be in one process.
//
// An address is the path of a Unix socket, or a name in the abstract namespace after an "@"; "@" alone selects a free
// one (unix(7)). A path on which nothing listens any longer is reused. To connect to a path, a program needs write
// permission on the socket. To connect to a name it needs no permission, but must be in the same network namespace.
//
// # Protection
//
// Neither end trusts the other. Each owns the memory that it writes: its ring, its positions in both rings, and the
// list of connections that the other end should look at. The other end maps that memory read-only, after it has
// verified by the file's seals that it cannot be truncated (F_SEAL_SHRINK, memfd_create(2)), so that reading it never
// raises SIGBUS. Data read there is copied once, and checked after that. A peer that violates the protocol ends only
// its own connection, with a *iwarp.ProtocolError or, if its positions are wrong, a *iwarp.BrokenError.
//
// The other end does not map memory of the program, with one exception: memory that a server gets from Response.Alloc
// of package rpc, up to Config.Arena bytes. The client of that connection, and no other process, can read it at any
// time, and copies results from there.
//
// A ring carries the segments of RFC 5041, and the engine of package iwarp places their data: the end that has the
// memory checks handles, bounds and rights. So invalidation and deregistration are exact fences, and
// Capabilities.WeakRevocation is false. Connections are Conns of package iwarp, and return its errors.
//
// The system vouches for the identity of the peer (SO_PEERCRED): Conn.RemoteAddr is an [Addr].
//
// # Waiting
//
// A goroutine in Conn.Wait polls for up to 200 microseconds where that has been faster than parking, as with devices,
// and then announces that it parks. The other end then writes the number of the connection to memory that all
// connections between two Providers share. One of the parked goroutines waits in Go's poller on a socket, and wakes the
// others. The other end writes to that socket only after that goroutine has announced that it waits. With one processor
// nothing polls.
//
// # The end
//
// The connections of a process end with it, however it ends: the Unix socket of the setup stays open until the system
// closes it. Data that the process has already written to its ring still arrives.
package shm
