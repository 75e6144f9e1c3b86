// Package nfsd implements an NFS version 3 server over package transport, with MOUNT version 3 (RFC 1813). It exports
// anything that implements [FS]: a directory of the host with package dirfs, or a file system of the program's own.
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
// [FS] and [Node] are what a file system must implement: objects that can be looked up, listed and read. Optional
// abilities are separate interfaces: [Setter], [Writer], [Creator], [Symlinker], [LinkReader], [Linker], [Mknoder],
// [Accesser], [Spacer], [Limiter] and [Verifier]. Calls that need a missing one fail with NFS3ERR_NOTSUPP, and FSINFO
// does not announce it. The server does the rest: arguments and results, unforgeable handles, the caller's identity,
// weak cache consistency data, the sizes of pages and transfers.
//
// Errors of a file system are an [*nfs.Error] with the status, a syscall.Errno, or one of the errors of package io/fs,
// wrapped or not. All others become NFS3ERR_IO.
//
// # Handles
//
// A file system identifies its objects by up to [MaxHandle] bytes. The server adds the export and signs both with
// Config.Key, so that a file system sees only handles that it has made. Handles remain valid as long as the key and the
// file system's own identifiers.
//
// # Identity
//
// Every operation of a file system has the [Caller] as an argument: the user and groups of the call's AUTH_SYS
// credential after Export.Squash, or the anonymous user if there is no credential. None of that is authenticated: a
// server trusts the machines that Export.Allow permits.
//
// With Kerberos callers are authenticated. An rpcsec.Server wraps the Handler of NFS, the first of [Server.Programs],
// with Null set. Export.Flavors lists the flavors that calls may use, and Export.Users maps principals to users.
//
// # Exports
//
// [Server.SetExports] replaces the exports of a running server. A client that an export does not allow is refused as by
// Linux's server: MNT returns MNT3ERR_ACCES, as it does for a directory that is not exported at all, and calls with a
// handle return NFS3ERR_STALE, however the client obtained it. If no export allows the client, all its NFS calls fail
// with AUTH_BADCRED. MOUNT reveals all exports, and their clients, to anyone.
//
// Config.Access receives every call, for a log or for statistics.
//
// # Ownership
//
// Memory passed to a Node, to read into or to write from, belongs to the Node until the method returns, and then to the
// transport. READ makes the file system fill registered memory from which the adapter sends, and WRITE passes it the
// memory into which the adapter has received. Neither is copied.
//
// # Fairness
//
// Calls of one connection run in parallel, up to Config.MaxConnCalls, and calls of all connections up to
// Config.MaxCalls. Waiting calls are admitted round-robin by host, and round-robin by connection within a host. A host
// (see transport.Conn.Host) gets at most a third of what the other hosts leave free, and a connection half of what is
// left to its host. There is thus room for another client even if the calls of many wait for a disk that never answers.
//
// Calls that only look something up, such as GETATTR and LOOKUP, calls that change names or attributes, and synchronous
// WRITEs each run on all processors but one at a time, unless they wait for a disk, which an FS declares with
// [Caller.Wait]. READDIR and READDIRPLUS take turns of half a millisecond, because pages of large directories take
// long. When a connection ends, its waiting calls are dropped, and a listing ends at its next turn.
//
// # Limitations
//
// There are no locks (NLM), and no WebNFS: the empty handle is refused. MOUNT does not support RPCSEC_GSS. AUTH_SYS has
// up to 16 groups.
package nfsd
