package nfsd

import (
	"context"
	"net/netip"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// An FS is a file system that a server exports. Its methods, and those of its Nodes, are
// called by many goroutines at once.
type FS interface {
	// Root returns the root directory.
	Root(ctx context.Context) (Node, error)

	// Node returns the object with a handle that AppendHandle of one of the file system's nodes has
	// made, maybe before a restart of the process. syscall.ESTALE means that the object is gone.
	// handle is valid until Node returns.
	Node(ctx context.Context, handle []byte) (Node, error)
}

// A Node is an object of a file system: a file, a directory, a symbolic link or a special
// file. The server holds it for the time of a call. Methods that the type of the object has no
// meaning for are not called.
type Node interface {
	// AppendHandle appends the object's handle to b: 1 to MaxHandle bytes. An object has one
	// handle as long as it exists, whatever its names are, and no other object ever has it.
	AppendHandle(b []byte) []byte

	// Release ends the use of the Node.
	Release()

	// Attr returns the attributes.
	Attr(ctx context.Context, who *Caller) (nfs.Attr, error)

	// Lookup returns what a directory has under a name. The name is not checked, except that
	// it is not empty and has no slash and no zero byte; "." and ".." are the directory and
	// its parent, which for the root is the root.
	Lookup(ctx context.Context, who *Caller, name string) (Node, error)

	// ReadDir calls emit for the entries of a directory after the one with the cookie, 0: from the
	// start, until emit returns false or the directory ends: then eof is true. It includes "." and
	// "..". An entry for which emit returns false has not been taken. An entry that is neither added
	// nor removed comes exactly once in a listing that goes on with the cookie of the last entry
	// taken, whatever happens to other entries meanwhile. An impossible cookie is syscall.EINVAL. The
	// Entry belongs to ReadDir, which may use it again. emit may wait for other connections' turns:
	// ReadDir holds nothing meanwhile that other calls need.
	//
	// With plus, entries have attributes and handles as far as that is possible; see Entry.
	ReadDir(ctx context.Context, who *Caller, cookie uint64, plus bool, emit func(*Entry) bool) (eof bool, err error)

	// Open checks that the caller may read (nfs.AccessRead) or change (nfs.AccessModify) the data of a
	// regular file, and returns its attributes as they are before that. The owner may do both
	// whatever the mode says: RFC 1813 section 4.4. ReadAt and WriteAt follow, without a check
	// of their own.
	Open(ctx context.Context, who *Caller, rights uint32) (nfs.Attr, error)

	// ReadAt reads into b from offset off, which is not negative. A short count without an
	// error is the end of the file. If an error comes after a part of the data ReadAt returns both:
	// the client gets the part, and the error if that comes again when the client asks for the rest.
	ReadAt(ctx context.Context, who *Caller, b []byte, off int64) (n int, err error)
}

// MaxHandle is the largest handle of a Node in bytes: what of nfs.MaxHandle the server leaves.
const MaxHandle = nfs.MaxHandle - sealSize

// An Entry is an entry of a directory.
type Entry struct {
	Name   []byte // valid until emit returns
	FileID uint64
	Cookie uint64 // not 0

	// Handle is the object's handle, as of Node.AppendHandle, and Attr its attributes, if they
	// were asked for and are known. Handle is valid until emit returns; nil: both are not known.
	Handle []byte
	Attr   nfs.Attr
}

// A Caller is the user on whose behalf an operation is done.
type Caller struct {
	UID, GID uint32   // user and group, after Export.Squash
	GIDs     []uint32 // supplementary groups; valid until the operation returns

	// Host is the client's address. The zero Addr: it is not known.
	Host netip.Addr

	// Net is the client's host, as shares of hosts count it: see transport.Conn.Host. The zero
	// Prefix: it is not known.
	Net netip.Prefix

	lend func() // ends the turn of the call
}

// Wait runs f, which waits for a disk or another machine and hardly uses a processor: fsync(2), for
// example. Other calls that change something or look something up need not wait for it: see Fairness in
// the package comment. The goroutine that runs the operation calls it, before the operation returns.
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
	// SetAttr changes the attributes that set has. With guard it fails with nfs.StatusNotSync, unless
	// the object's ctime is guard; no other SetAttr comes in between. RFC 1813 section 3.3.2.
	SetAttr(ctx context.Context, who *Caller, set *nfs.SetAttr, guard *nfs.Time) error
}

// A Writer is a Node with data that can be changed, if it is a regular file.
type Writer interface {
	// WriteAt writes b at offset off; the end of b does not exceed 1<<63 - 1. The data is as
	// stable as committed says when it returns, which must be at least stable. An error concerns
	// b alone; see Verifier for one that concerns data of earlier calls.
	WriteAt(ctx context.Context, who *Caller, b []byte, off int64, stable nfs.Stable) (n int, committed nfs.Stable, err error)

	// Commit puts what has been written on stable storage: count bytes at offset off, 0: all
	// after it. After an error the server changes the write verifier of the export, so that
	// clients write their data again; see Verifier for errors that other methods come across.
	Commit(ctx context.Context, who *Caller, off uint64, count uint32) error
}

// A Creator is a Node that files can be made and removed in, if it is a directory. When a method
// returns without an error the change is on stable storage, unless the file system is configured
// otherwise. Names are as for Lookup, and never "." or "..".
type Creator interface {
	// Create makes a regular file. With nfs.Unchecked it may return the regular file that is
	// there, with its size set if attr has one; with nfs.Guarded it fails with syscall.EEXIST
	// then. With nfs.Exclusive attr is nil, and the file that is there is returned only if it was
	// made with the same verf. RFC 1813 section 3.3.8.
	Create(ctx context.Context, who *Caller, name string, how nfs.CreateMode, attr *nfs.SetAttr, verf nfs.Verf) (Node, error)

	// Mkdir makes a directory.
	Mkdir(ctx context.Context, who *Caller, name string, attr *nfs.SetAttr) (Node, error)

	// Remove removes anything but a directory.
	Remove(ctx context.Context, who *Caller, name string) error

	// Rmdir removes an empty directory.
	Rmdir(ctx context.Context, who *Caller, name string) error

	// Rename moves an entry to another name in directory to, which is of the same file system. An
	// existing entry of the new name is replaced, as rename(2) does. to belongs to the caller.
	Rename(ctx context.Context, who *Caller, name string, to Node, newName string) error
}

// A Symlinker is a Node that symbolic links can be made in, if it is a directory.
type Symlinker interface {
	// Symlink makes a link that says target, which is neither checked nor followed.
	Symlink(ctx context.Context, who *Caller, name, target string, attr *nfs.SetAttr) (Node, error)
}

// A LinkReader is a Node that can be a symbolic link.
type LinkReader interface {
	// ReadLink returns the target of the link.
	ReadLink(ctx context.Context, who *Caller) (string, error)
}

// A Linker is a Node that can have further names.
type Linker interface {
	// Link adds a name in directory dir, which is of the same file system and the caller's.
	Link(ctx context.Context, who *Caller, dir Node, name string) error
}

// A Mknoder is a Node that special files can be made in, if it is a directory.
type Mknoder interface {
	// Mknod makes a file of type TypeChr, TypeBlk, TypeSock or TypeFIFO.
	Mknod(ctx context.Context, who *Caller, name string, typ nfs.FileType, dev nfs.Device, attr *nfs.SetAttr) (Node, error)
}

// An Accesser is a Node that decides by more than its mode what a caller may do: ACLs, for example.
type Accesser interface {
	// Access returns the rights of want that the caller has. RFC 1813 section 3.3.4.
	Access(ctx context.Context, who *Caller, want uint32) (granted uint32, err error)
}

// A Spacer is an FS that knows how full it is.
type Spacer interface {
	// Space returns the sizes.
	Space(ctx context.Context, who *Caller) (Space, error)
}

// Space is how full a file system is. RFC 1813 section 3.3.18.
type Space struct {
	TotalBytes, FreeBytes, AvailBytes uint64 // available: to the caller
	TotalFiles, FreeFiles, AvailFiles uint64
}

// A Verifier is an FS that notices by itself when data may be lost that WriteAt has taken and that
// is not stable yet. An FS needs this that gets an error only once, by whichever call comes
// first: a WriteAt that is stable, a change of attributes, or one of several Commits at a time.
type Verifier interface {
	// Verifier returns a number that the write verifier is made of. RFC 1813 section 3.3.7. It is
	// random at first, and increased when data may be lost, before any Commit of the same file
	// returns without an error that does not find the error any more.
	Verifier() uint64
}

// A Limiter is an FS that knows its limits.
type Limiter interface {
	// Limits returns them. They do not change.
	Limits() Limits
}

// Limits are the static properties of a file system. RFC 1813 sections 3.3.19 and 3.3.20. The
// zero value is that of an FS that is no Limiter.
type Limits struct {
	MaxFileSize     uint64   // in bytes; 0: 1<<63 - 1
	TimeDelta       nfs.Time // granularity of times; 0: a nanosecond
	MaxLinks        uint32   // names of one object; 0: 1
	MaxName         uint32   // bytes in a name; 0: 255
	FreeChown       bool     // owners may give their files away
	CaseInsensitive bool
	CaseLost        bool // names are not kept as they are given
}

// ModeAccess returns the rights of want that the mode of an object gives, in the sense of POSIX:
// what ACCESS answers for a Node that is no Accesser. User 0 has them all, execution only where
// it is open.
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

// RightsOf translates permission bits of a mode, 4 to read, 2 to write and 1 to execute, to the
// rights of ACCESS that they give to an object of a type. RFC 1813 section 3.3.4.
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
