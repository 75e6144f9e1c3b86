// Package shm is an RDMA adapter between two processes of one Linux host: its connections run over memory
// that both ends have mapped, without system calls while both are busy. A [Provider] is a fabric.Provider.
//
// The programs may be in different containers, as long as they share the directory of the socket, or the
// network namespace if its name is abstract. They need no privileges. Two ends of one process work as well.
//
// An address is the path of a Unix socket, or a name in the abstract namespace after an "@"; "@" alone
// selects a free one (unix(7)). A path on which nothing listens any more is reused. To connect to a path, a
// program needs the right to write to the socket; to connect to a name, none, but it must be in the same
// network namespace.
//
// # Protection
//
// Neither end trusts the other. Each owns the memory that it writes: its ring, its positions in both rings, and
// the list of connections that the other end is to look at. The other end has mapped that read-only, after it has made sure by the file's seals that it cannot
// be truncated (F_SEAL_SHRINK, memfd_create(2)): reading it never raises SIGBUS. Whatever is read there is
// copied once, and checked after that. A peer that writes something else than the protocol ends its own
// connection, with a *iwarp.ProtocolError or, if its positions are wrong, a *iwarp.BrokenError, and nothing
// more.
//
// Memory of the program is not mapped by the other end, with one exception: what a server gets from
// Response.Alloc of package rpc is, as far as Config.Arena goes. The client of that connection, and no other
// process, can read it at any time, and copies results from there.
//
// A ring carries the segments of RFC 5041, and the engine of package iwarp places their data: handles, bounds
// and rights are checked by the end that has the memory. So invalidation and the end of a region are exact
// fences, and Capabilities.WeakRevocation is false. The errors of connections are those of package iwarp, and
// its Conn is theirs.
//
// The system vouches for the identity of the peer (SO_PEERCRED): Conn.RemoteAddr is an [Addr].
//
// # Waiting
//
// A goroutine in Conn.Wait polls for up to 200 microseconds where that has been faster than parking, as
// with devices, and then parks. The other end, if a goroutine has said that it parks, writes the number of the
// connection to memory that all connections between two Providers share. One of the goroutines that park there
// waits in Go's poller on a socket, and wakes the others. The other end writes to that socket only after this
// goroutine has said that it waits. With one processor nothing polls.
//
// # The end
//
// The end of a process is the end of its connections, by whatever it ends: the Unix socket of the
// set-up stays open, and is closed by the system. What the process has written to its ring before arrives.
package shm
