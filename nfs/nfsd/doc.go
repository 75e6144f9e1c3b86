// Package nfsd is an NFS version 3 server over package transport, with MOUNT version 3 (RFC
// 1813). It exports whatever implements [FS]: a directory of the host with package dirfs, or
// a file system of the program's own.
//
// # Usage
//
//	server, err := transport.NewServer(nil)
//	...
//	disk, err := dirfs.Open("/srv/data", nil)
//	...
//	defer disk.Close()
//	files, err := nfsd.New(&nfsd.Config{Exports: []nfsd.Export{{Name: "/data", FS: disk}}})
//	...
//	defer files.Shutdown(ctx)
//	for _, p := range files.Programs() {
//		err = server.Register(p)
//		...
//	}
//	...
//	defer server.Close()
//
// # File systems
//
// [FS] and [Node] are what a file system must have: objects that can be looked up, listed and read.
// Optional abilities are separate interfaces: [Setter], [Writer], [Creator], [Symlinker],
// [LinkReader], [Linker], [Mknoder], [Accesser], [Spacer], [Limiter] and [Verifier]; calls that need
// a missing one get NFS3ERR_NOTSUPP, and FSINFO does not promise it. The server does the rest:
// arguments and results, handles that cannot be forged, the caller's identity, weak cache consistency
// data, the sizes of pages and transfers.
//
// Errors of a file system are an [*nfs.Error] with the status, a syscall.Errno, or one of the
// errors of package io/fs, wrapped or not. All others are NFS3ERR_IO.
//
// # Handles
//
// A file system names its objects by up to [MaxHandle] bytes. The server adds the export, and signs
// both with Config.Key, so that a file system sees only handles that it has made. Handles live as
// long as the key and the file system's own names.
//
// # Identity
//
// Every operation of a file system has the [Caller] as an argument: the user and groups of the call's
// AUTH_SYS credential after Export.Squash, or the anonymous user without one. None of that is
// authenticated: a server trusts the machines that Export.Allow lets in.
//
// With Kerberos callers are authenticated. An rpcsec.Server wraps the Handler of NFS, the first of [Server.Programs], with
// Null set. Export.Flavors lists what calls may have, and Export.Users maps principals to users.
//
// # Exports
//
// [Server.SetExports] replaces the exports of a running server. A client that an export does not
// allow is refused as by Linux's server. MNT returns MNT3ERR_ACCES, which is also the answer for a
// directory that is not exported at all. A handle gets NFS3ERR_STALE, however the client obtained it.
// If no export allows the client, all its calls of NFS get AUTH_BADCRED. MOUNT reveals all exports,
// and their clients, to anyone.
//
// Config.Access sees every call, for a log or for statistics.
//
// # Ownership
//
// Memory passed to a Node, to read into or to write from, belongs to the Node until the method
// returns, and then to the transport. READ has the file system fill registered memory that the
// adapter sends from, and WRITE gives it the memory that the adapter has received into: neither is
// copied.
//
// # Fairness
//
// Calls of one connection run in parallel, up to Config.MaxConnCalls, and calls of all connections up
// to Config.MaxCalls. Waiting calls are admitted from the hosts in turn, and from the connections of
// a host in turn. A host (see transport.Conn.Host) gets at most a third of what the other hosts leave
// free, and a connection half of what is left to its host. So there is room for another client even
// if the calls of many wait for a disk that never answers.
//
// Procedures that only look, such as GETATTR and LOOKUP, those that change names or attributes, and
// synchronous WRITEs run on all processors but one at a time, unless they wait for a disk; an FS says
// so with [Caller.Wait]. READDIR and READDIRPLUS take turns of half a millisecond, because pages of
// large directories take long. When a connection ends, its waiting calls are dropped, and a listing
// ends at its next turn.
//
// # Limitations
//
// There are no locks (NLM), and no WebNFS: the empty handle is refused. MOUNT has no RPCSEC_GSS.
// AUTH_SYS has at most 16 groups.
package nfsd
