// Package nfs implements NFS on RPC-over-RDMA: the upper-layer binding of NFS version 3, which defines the data items
// that may be sent as chunks, the XDR of RFC 1813, and a small client.
//
// [Binding] implements RFC 8267. A program that bridges an NFS server or client passes it to the transport.
//
// A [Client] has three layers. Its procedures ([Client.Lookup], [Client.Read], ...) are those of RFC 1813, one call
// each. Above them are operations on paths ([Client.Open], [Client.Stat], [Client.ReadDir], [Client.Walk]), which begin
// with the path of an export as in a URL; the client mounts the exports. Transfers ([Client.Download], [Client.Upload],
// [Client.ReadAt], [Client.WriteAt]) keep many calls in flight.
//
// File servers use package nfsd. [NfsV3Server] and [MountV3Server] are the protocols below it.
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
// The root of an export comes from MOUNT version 3 (RFC 1813 section 5). The client tries the RDMA connection first. If
// the server does not offer MOUNT there, as Linux does not, the client uses TCP, with Options.MountPort or the port
// that the server's rpcbind returns. It binds a local port below 1024 if the process may, since many servers require
// that. The export is the longest one in the server's list that contains the path. If the server has no list, the
// client tries to mount each directory on the path, from the root down.
//
// # Errors
//
// A procedure that fails returns an [*Error] or a [*MountError] with its status; they match fs.ErrNotExist and the like
// where appropriate. Invalid results are reported as a [*BadReplyError]. Errors of the connection are those of package
// transport, wrapped. If MOUNT is available neither over RDMA nor over TCP, the error is a [*MountFallbackError]; a
// failed rpcbind operation in it is a [*rpcbind.OpError]. A call that fails with NFS3ERR_JUKEBOX is repeated for half a
// minute.
//
// # Cancellation
//
// When the context of a call ends, the call returns once the server can no longer access the caller's memory. The
// server may or may not have executed it. If the server is transferring data of the call at that moment, the connection
// is closed. A transfer that fails for another reason waits for its outstanding calls.
//
// # Ownership
//
// Buffers passed to Read, Write, ReadAt and WriteAt belong to the call until it returns; data is transferred directly
// to and from them. Byte slices in decoded messages are views of the decoded bytes, strings are copies, and Decode
// reuses the lists of its receiver. Everything that a Client returns belongs to the caller.
//
// # Trust
//
// Everything that a server sends is checked: counts, chunk lengths, cookies and handles. Names are the exception: call
// [ValidName] before using a name in a local path. Symbolic links are followed within the export only.
//
// # Limitations
//
// Only NFS version 3 is supported; for sessions of version 4.1 see package nfs41. Credentials are AUTH_SYS, or those of
// a mechanism of package rpcsec (Options.Security). Only the root handles of exports and the sizes from FSINFO are
// cached. There are no locks (NLM), and exclusive create exists only as a procedure.
package nfs
