// Package nfs is NFS on RPC-over-RDMA: the upper-layer binding of NFS version 3,
// which tells the transport what may travel as chunks, the XDR of RFC 1813, and a
// small client.
//
// [Binding] names the data items that RFC 8267 allows to be chunks. A program that
// bridges an NFS server or client gives it to the transport.
//
// A [Client] has three layers. Its procedures ([Client.Lookup], [Client.Read], ...)
// are those of RFC 1813, one call each. Above them are paths ([Client.Open],
// [Client.Stat], [Client.ReadDir], [Client.Walk]), which begin with an export's as
// in a URL; the client mounts what they need. Transfers ([Client.Download],
// [Client.Upload], [Client.ReadAt], [Client.WriteAt]) keep many calls in flight.
//
// # Usage
//
//	u, err := nfs.ParseURL("nfs://server/srv/data/report.pdf")
//	...
//	c, err := nfs.Dial(ctx, provider, u.Addr(), nil)
//	...
//	defer c.Close()
//	f, err := c.Open(ctx, u.Path)
//	...
//	n, err := f.Download(ctx, local, nil)
//
// # MOUNT
//
// The root of an export comes from MOUNT version 3 (RFC 1813 section 5). It is
// asked for on the RDMA connection. A server that does not have it there, such as
// Linux's, is asked over TCP: on Options.MountPort, or on the port that its rpcbind
// tells. That connection comes from a port below 1024 if the process may bind one,
// since many servers want it to. The export is the longest one in the server's list
// that the path lies in; a server without a list is asked for the directories on
// the way, from the root down.
//
// # Errors
//
// What a server refuses is an [*Error] or a [*MountError] with its status; they are
// fs.ErrNotExist and the like where that fits. Results that make no sense are a
// [*ReplyError]. Errors of the connection are those of package transport, wrapped.
// That MOUNT is nowhere to be had is a [*MountFallbackError], in which a question to
// rpcbind that failed is a *rpcbind.OpError.
// JUKEBOX, a server's wish to be asked again later, is granted for half a minute.
//
// # Cancellation
//
// A call whose context ends returns once the server can no longer reach the
// caller's memory. Whether it was executed is not known. If the server is moving
// data of the call at that moment the connection ends, too. A transfer that fails
// for another reason lets the calls under way come to their end first.
//
// # Ownership
//
// Buffers given to Read, Write, ReadAt and WriteAt belong to the call until it
// returns; the data goes straight into them and out of them. Slices in decoded
// structs are views of what was decoded. Everything that a Client returns is the
// caller's.
//
// # Trust
//
// Nothing that a server sends is believed without a check: not counts, chunk
// lengths, cookies or handles. Names are the exception: they are what they are, and
// [ValidName] tells those that are safe to become part of a local path. Symbolic
// links are followed within the export only.
//
// # Limitations
//
// There is NFS version 3 only, with AUTH_SYS credentials. Nothing is cached but the
// roots of exports and the sizes from FSINFO. There are no locks (NLM), and no
// exclusive create above the procedure. A client whose connection ends is finished.
// MKNOD has types but no method.
package nfs
