package nfsd

import (
	"context"
	"net/netip"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// An FS is a file system that a server exports. Its methods, and those of its Nodes, must be safe for concurrent use.
type FS interface {
	// Root returns the root directory.
	Root(ctx context.Context) (Node, error)

	// Node returns the object with a handle made by AppendHandle of one of the file system's nodes, perhaps before a
	// restart of the process. syscall.ESTALE means that the object is gone. handle is valid until Node returns.
	Node(ctx context.Context, handle []byte) (Node, error)
}

// A Node is an object of a file system: a file, a directory, a symbolic link or a special file. The server holds it for
// the duration of a call. Methods that have no meaning for the object's type are not called.
type Node interface {
	// AppendHandle appends the object's handle to b: 1 to MaxHandle bytes. An object keeps its handle as long as it
	// exists, whatever its names are, and no other object ever gets it.
	AppendHandle(b []byte) []byte

	// Release is called when the server no longer uses the Node.
	Release()

	// Attr returns the attributes.
	Attr(ctx context.Context, who *Caller) (nfs.Attr, error)

	// Lookup returns the object with a name in a directory. The name is not empty, and has no slash and no zero byte,
	// but is otherwise unchecked. "." and ".." are the directory and its parent; the parent of the root is the root.
	Lookup(ctx context.Context, who *Caller, name string) (Node, error)

	// ReadDir calls emit for the entries of a directory that follow the one with the given cookie (0: from the start)
	// until emit returns false or the directory ends. In the latter case eof is true. The entries include "." and "..".
	// An entry for which emit returns false has not been taken. An entry that is neither added nor removed appears
	// exactly once in a listing that continues with the cookie of the last entry taken, whatever happens to other
	// entries meanwhile. An impossible cookie is syscall.EINVAL. The Entry belongs to ReadDir, which may reuse it. emit
	// may wait for the turns of other connections, so ReadDir must not hold anything that other calls need while it
	// calls emit.
	//
	// With plus, entries have attributes and handles as far as possible; see Entry.
	ReadDir(ctx context.Context, who *Caller, cookie uint64, plus bool, emit func(*Entry) bool) (eof bool, err error)

	// Open checks that the caller may read (nfs.AccessRead) or change (nfs.AccessModify) the data of a regular file,
	// and returns its current attributes. The owner may do both, whatever the mode: RFC 1813 section 4.4. ReadAt and
	// WriteAt follow without a check of their own.
	Open(ctx context.Context, who *Caller, rights uint32) (nfs.Attr, error)

	// ReadAt reads into b from offset off, which is not negative. A short count without an error means the end of the
	// file. If an error occurs after a part of the data, ReadAt returns both: the client gets that part, and gets the
	// error if it recurs when the client asks for the rest.
	ReadAt(ctx context.Context, who *Caller, b []byte, off int64) (n int, err error)
}

// MaxHandle is the longest handle of a Node, in bytes: nfs.MaxHandle without the server's part.
const MaxHandle = nfs.MaxHandle - sealSize

// An Entry is an entry of a directory.
type Entry struct {
	Name   []byte // valid until emit returns
	FileID uint64
	Cookie uint64 // not 0

	// Handle is the object's handle, as of Node.AppendHandle, and Attr its attributes, if they were requested and are
	// known. Handle is valid until emit returns. A nil Handle means that neither is known.
	Handle []byte
	Attr   nfs.Attr
}

// A Caller is the user for which an operation is performed.
type Caller struct {
	UID, GID uint32   // after Export.Squash
	GIDs     []uint32 // supplementary groups; valid until the operation returns

	// Host is the client's address. The zero Addr means that it is unknown.
	Host netip.Addr

	// Net is the client's host as a unit for sharing resources: see transport.Conn.Host. The zero Prefix means that it
	// is unknown.
	Net netip.Prefix

	lend func() // ends the turn of the call
}

// Wait runs f, which waits for a disk or another machine and hardly uses a processor, such as fsync(2). Meanwhile other
// calls that change or look up something can run: see Fairness in the package comment. Wait must be called by the
// goroutine that runs the operation, before the operation returns.
func (c *Caller) Wait(f func() error) error {
	if c != nil && c.lend != nil {
		c.lend()
	}
	return f()
}

// Member reports whether the caller is in a group.
func (c *Caller) Member(gid uint32) bool {
	if c.GID == gid {
		return true
	}
	for _, g := range c.GIDs {
		if g == gid {
			return true
		}
	}
	return false
}

// A Setter is a Node with attributes that can be changed.
type Setter interface {
	// SetAttr changes the attributes that are present in set. If guard is not nil and differs from the object's ctime,
	// it fails with nfs.StatusNotSync; no other SetAttr may intervene. RFC 1813 section 3.3.2.
	SetAttr(ctx context.Context, who *Caller, set *nfs.SetAttr, guard *nfs.Time) error
}

// A Writer is a Node that, if it is a regular file, can be written.
type Writer interface {
	// WriteAt writes b at offset off; the end of b does not exceed 1<<63 - 1. When it returns, the data is as stable as
	// committed says, which must be at least stable. An error concerns only b; see Verifier for errors that concern
	// data of earlier calls.
	WriteAt(ctx context.Context, who *Caller, b []byte, off int64, stable nfs.Stable) (n int, committed nfs.Stable, err error)

	// Commit stores written data on stable storage: count bytes at offset off, or everything from off if count is 0.
	// After an error the server changes the write verifier of the export, so that clients write their data again. See
	// Verifier for errors that other methods encounter.
	Commit(ctx context.Context, who *Caller, off uint64, count uint32) error
}

// A Creator is a Node that, if it is a directory, supports creating and removing files. When a method returns without
// an error, the change is on stable storage, unless the file system is configured otherwise. Names are as for Lookup,
// but never "." or "..".
type Creator interface {
	// Create creates a regular file. With nfs.Unchecked it may return an existing regular file, after setting its size
	// if attr has one. With nfs.Guarded it fails with syscall.EEXIST if the name exists. With nfs.Exclusive attr is
	// nil, and an existing file is returned only if it was created with the same verf. RFC 1813 section 3.3.8.
	Create(ctx context.Context, who *Caller, name string, how nfs.CreateMode, attr *nfs.SetAttr, verf nfs.Verf) (Node, error)

	// Mkdir creates a directory.
	Mkdir(ctx context.Context, who *Caller, name string, attr *nfs.SetAttr) (Node, error)

	// Remove removes anything but a directory.
	Remove(ctx context.Context, who *Caller, name string) error

	// Rmdir removes an empty directory.
	Rmdir(ctx context.Context, who *Caller, name string) error

	// Rename moves an entry to another name in directory to, which is in the same file system. It replaces an existing
	// entry with the new name, like rename(2). The caller keeps owning to.
	Rename(ctx context.Context, who *Caller, name string, to Node, newName string) error
}

// A Symlinker is a Node that, if it is a directory, supports creating symbolic links.
type Symlinker interface {
	// Symlink creates a link to target, which is neither checked nor followed.
	Symlink(ctx context.Context, who *Caller, name, target string, attr *nfs.SetAttr) (Node, error)
}

// A LinkReader is a Node that may be a symbolic link.
type LinkReader interface {
	// ReadLink returns the target of the link.
	ReadLink(ctx context.Context, who *Caller) (string, error)
}

// A Linker is a Node that can have additional names.
type Linker interface {
	// Link adds a name in directory dir, which is in the same file system. The caller keeps owning dir.
	Link(ctx context.Context, who *Caller, dir Node, name string) error
}

// A Mknoder is a Node that, if it is a directory, supports creating special files.
type Mknoder interface {
	// Mknod creates a file of type TypeChr, TypeBlk, TypeSock or TypeFIFO.
	Mknod(ctx context.Context, who *Caller, name string, typ nfs.FileType, dev nfs.Device, attr *nfs.SetAttr) (Node, error)
}

// An Accesser is a Node with access rights that depend on more than its mode: on ACLs, for example.
type Accesser interface {
	// Access returns the rights in want that the caller has. RFC 1813 section 3.3.4.
	Access(ctx context.Context, who *Caller, want uint32) (granted uint32, err error)
}

// A Spacer is an FS that can report its usage.
type Spacer interface {
	// Space returns the usage.
	Space(ctx context.Context, who *Caller) (Space, error)
}

// Space is the usage of a file system. RFC 1813 section 3.3.18.
type Space struct {
	TotalBytes, FreeBytes, AvailBytes uint64 // available to the caller
	TotalFiles, FreeFiles, AvailFiles uint64
}

// A Verifier is an FS that can notice on its own that data written by WriteAt, but not yet stable, may be lost. An FS
// must implement it if it gets such an error only once, in whichever call comes first: a stable WriteAt, a change of
// attributes, or one of several concurrent Commits.
type Verifier interface {
	// Verifier returns a number that becomes part of the write verifier (RFC 1813 section 3.3.7). It is random at
	// first, and must increase when data may be lost. It must do so before any Commit of the same file returns without
	// an error because another call has already consumed it.
	Verifier() uint64
}

// A Limiter is an FS that can report its limits.
type Limiter interface {
	// Limits returns the limits. They do not change.
	Limits() Limits
}

// Limits are the static properties of a file system. RFC 1813 sections 3.3.19 and 3.3.20. The zero value applies to an
// FS that is not a Limiter.
type Limits struct {
	MaxFileSize     uint64   // in bytes; 0: 1<<63 - 1
	TimeDelta       nfs.Time // granularity of times; 0: a nanosecond
	MaxLinks        uint32   // names per object; 0: 1
	MaxName         uint32   // bytes in a name; 0: 255
	FreeChown       bool     // owners may give away their files
	CaseInsensitive bool
	CaseLost        bool // the case of names is not preserved
}

// ModeAccess returns the rights in want that the mode of an object grants, as in POSIX. ACCESS returns it for a Node
// that is not an Accesser. User 0 has all rights, except that it may execute only what someone may execute.
func ModeAccess(a *nfs.Attr, who *Caller, want uint32) uint32 {
	bits := a.Mode & 7
	switch {
	case who.UID == 0:
		bits = 6
		if a.Type == nfs.TypeDir || a.Mode&0o111 != 0 {
			bits = 7
		}
	case who.UID == a.UID:
		bits = a.Mode >> 6 & 7
	case who.Member(a.GID):
		bits = a.Mode >> 3 & 7
	}
	return want & RightsOf(a.Type, bits)
}

// RightsOf converts permission bits of a mode, 4 for reading, 2 for writing and 1 for executing, to the ACCESS rights
// that they grant for an object of this type. RFC 1813 section 3.3.4.
func RightsOf(typ nfs.FileType, bits uint32) (rights uint32) {
	if bits&4 != 0 {
		rights |= nfs.AccessRead
	}
	if bits&2 != 0 {
		rights |= nfs.AccessModify | nfs.AccessExtend
	}
	switch {
	case typ == nfs.TypeDir:
		if bits&1 != 0 {
			rights |= nfs.AccessLookup
		}
		if bits&3 == 3 {
			rights |= nfs.AccessDelete
		}
	case bits&1 != 0:
		rights |= nfs.AccessExecute
	}
	return rights
}
