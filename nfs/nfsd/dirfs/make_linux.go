package dirfs

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// Create creates a regular file.
func (n *node) Create(_ context.Context, who *nfsd.Caller, name string, how nfs.CreateMode, attr *nfs.SetAttr, verf nfs.Verf) (nfsd.Node, error) {
	set := n.fs.initial(who, attr)
	mode := uint32(0o600) // for exclusive creation: the client sets the mode afterwards
	if how == nfs.Exclusive {
		set = exclusive(verf)
	} else if set.SetMode {
		mode = set.Mode
	} else {
		mode = 0o666
	}
	// Another call may remove the existing file before it is examined.
	for range tries {
		child, err := n.create(who, name, mode, set, how == nfs.Exclusive)
		if err != unix.EEXIST || how == nfs.Guarded {
			return asNode(child, err)
		}
		if child, err = n.existing(who, name, how, attr, &set); err != unix.ENOENT {
			return asNode(child, err)
		}
	}
	return nil, unix.EEXIST
}

// asNode converts child to a Node, which is nil if there is an error.
func asNode(child *node, err error) (nfsd.Node, error) {
	if err != nil {
		return nil, err
	}
	return child, nil
}

// initial returns the part of attr to set on a new object: only user 0 may give files away. Linux's server ignores the
// owner too, because some clients send the owner that they expect.
func (f *FS) initial(who *nfsd.Caller, attr *nfs.SetAttr) (set nfs.SetAttr) {
	if attr != nil {
		set = *attr
	}
	if f.self == nil || who.UID != 0 {
		set.SetUID, set.SetGID = false, false
	}
	return set
}

// exclusive returns the attributes that identify a file created with a verifier: its times. The sign bits are cleared,
// because not all file systems can store them. RFC 1813 section 3.3.8 suggests this.
func exclusive(verf nfs.Verf) nfs.SetAttr {
	const most = 1<<31 - 1
	return nfs.SetAttr{
		ATimeHow: nfs.SetToClientTime, ATime: nfs.Time{Sec: binary.BigEndian.Uint32(verf[4:]) & most},
		MTimeHow: nfs.SetToClientTime, MTime: nfs.Time{Sec: binary.BigEndian.Uint32(verf[:]) & most},
	}
}

// create creates a regular file, or returns EEXIST. If exclusive is set, the file has the identifying times from the
// beginning, where the file system permits.
func (n *node) create(who *nfsd.Caller, name string, mode uint32, set nfs.SetAttr, exclusive bool) (*node, error) {
	var fd int
	err := n.fs.as(who, func() (err error) {
		if exclusive {
			if fd, err = n.createKnown(name, mode, &set); err == nil || err == unix.EEXIST {
				return err
			}
		}
		fd, err = n.fs.at.create(n.path, name, unix.O_RDWR, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	if n.fs.opened != nil {
		n.fs.opened(name)
	}
	child, err := n.fs.adopt(fd, nil, n, name, who)
	if err == unix.ESTALE { // already replaced
		return n.child(who, name)
	}
	if err != nil {
		return nil, err
	}
	if child.path == fd { // not already known through another call
		child.wr.CompareAndSwap(-1, int32(fd))
		child.rd.CompareAndSwap(-1, int32(fd))
	}
	if set.SetSize && set.Size == 0 {
		set.SetSize = false
	}
	return n.made(who, child, name, mode, &set)
}

// createKnown creates a file without a name, sets its times, and then links it to its name. If the server is killed,
// it leaves either nothing, or a file that the resent call recognizes. Between open(2) and utimensat(2), in contrast, it
// would leave a file that no call recognizes. createKnown removes the times from set.
func (n *node) createKnown(name string, mode uint32, set *nfs.SetAttr) (fd int, err error) {
	if fd, err = openat(n.path, ".", unix.O_TMPFILE|unix.O_RDWR, mode); err != nil {
		return -1, err
	}
	times := []unix.Timespec{timeArg(set.ATimeHow, set.ATime), timeArg(set.MTimeHow, set.MTime)}
	if err = unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), times, 0); err == nil {
		err = unix.Linkat(unix.AT_FDCWD, procPath(fd), n.path, name, unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	set.ATimeHow, set.MTimeHow = nfs.DontChange, nfs.DontChange
	return fd, nil
}

// made completes a new object. It takes over child and returns it, or the object that has replaced it meanwhile.
func (n *node) made(who *nfsd.Caller, child *node, name string, mode uint32, set *nfs.SetAttr) (*node, error) {
	var st unix.Stat_t
	err := child.stat(&st)
	set.SetMode = false
	// The umask is the process's, not the client's. It does not apply if the directory has a default ACL.
	const bits = 0o777
	if err == nil && child.typ != nfs.TypeLnk && st.Mode&bits != mode&bits && !n.hasDefaultACL() {
		err = n.fs.asMaker(who, child, &st, func() error {
			return child.chmod(st.Mode&0o7000 | mode&bits)
		})
	}
	if err == nil && set.SetSize && child.typ == nfs.TypeReg {
		err = child.truncate(who, &st, set.Size)
	}
	if err == nil && *set != (nfs.SetAttr{SetSize: set.SetSize, Size: set.Size, Mode: set.Mode}) {
		err = n.fs.as(who, func() error { return child.change(set) })
	}
	synced := false
	if err == nil {
		synced, err = child.syncs(who, &st)
	}
	if err == nil && !(synced && n.fs.joint) {
		err = n.sync(who, nil)
	}
	if err != nil {
		child.Release()
		if err == unix.ESTALE {
			return n.child(who, name)
		}
		return nil, err
	}
	return child, nil
}

// asMaker sets the mode of a new object. In a setgid directory, a chmod by a caller outside of the group would clear
// the setgid bit of a new directory, so the process does it. But the name may refer to another object by now: an object
// that does not belong to the caller is changed only as the caller.
func (f *FS) asMaker(who *nfsd.Caller, child *node, st *unix.Stat_t, chmod func() error) error {
	if child.typ == nfs.TypeDir && f.owns(who, st) {
		return chmod()
	}
	return f.as(who, chmod)
}

func (n *node) hasDefaultACL() bool {
	_, err := unix.Getxattr(procPath(n.path), "system.posix_acl_default", nil)
	return err == nil
}

// existing returns the existing file with the name of a new one, if the caller accepts it.
func (n *node) existing(who *nfsd.Caller, name string, how nfs.CreateMode, attr, set *nfs.SetAttr) (*node, error) {
	if err := n.enter(who, mayEnter); err != nil {
		return nil, err
	}
	child, err := n.child(who, name)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = child.stat(&st)
	switch {
	case err == unix.ESTALE:
		err = unix.ENOENT
	case err != nil:
	case child.typ != nfs.TypeReg:
		err = unix.EEXIST
	case how == nfs.Exclusive:
		if a := timeOf(st.Atim); a.Sec != set.ATime.Sec || timeOf(st.Mtim).Sec != set.MTime.Sec || st.Size != 0 {
			err = unix.EEXIST
		}
	case attr.SetSize:
		if err = child.truncate(who, &st, attr.Size); err == nil {
			err = child.sync(who, &st)
		}
	}
	if err != nil {
		child.Release()
		return nil, err
	}
	return child, nil
}

// Mkdir creates a directory.
func (n *node) Mkdir(_ context.Context, who *nfsd.Caller, name string, attr *nfs.SetAttr) (nfsd.Node, error) {
	mode := uint32(0o777)
	if attr.SetMode {
		mode = attr.Mode
	}
	return asNode(n.make(who, name, mode, attr, func() error { return unix.Mkdirat(n.path, name, mode) }))
}

// Symlink creates a symbolic link.
func (n *node) Symlink(_ context.Context, who *nfsd.Caller, name, target string, attr *nfs.SetAttr) (nfsd.Node, error) {
	return asNode(n.make(who, name, 0, attr, func() error { return unix.Symlinkat(target, n.path, name) }))
}

// Mknod creates a special file.
func (n *node) Mknod(_ context.Context, who *nfsd.Caller, name string, typ nfs.FileType, dev nfs.Device, attr *nfs.SetAttr) (nfsd.Node, error) {
	mode := uint32(0o666)
	if attr.SetMode {
		mode = attr.Mode
	}
	number, format := 0, uint32(0)
	switch typ {
	case nfs.TypeChr, nfs.TypeBlk:
		// mknod(2) would truncate larger numbers.
		if dev.Major >= 1<<12 || dev.Minor >= 1<<20 {
			return nil, unix.EINVAL
		}
		number = int(unix.Mkdev(dev.Major, dev.Minor))
		format = unix.S_IFCHR
		if typ == nfs.TypeBlk {
			format = unix.S_IFBLK
		}
	case nfs.TypeSock:
		format = unix.S_IFSOCK
	default:
		format = unix.S_IFIFO
	}
	return asNode(n.make(who, name, mode, attr, func() error { return unix.Mknodat(n.path, name, format|mode, number) }))
}

// make creates an object with f and returns it.
func (n *node) make(who *nfsd.Caller, name string, mode uint32, attr *nfs.SetAttr, f func() error) (*node, error) {
	if err := n.fs.as(who, func() error { return retry(f) }); err != nil {
		return nil, err
	}
	child, err := n.child(who, name)
	if err != nil {
		return nil, err
	}
	set := n.fs.initial(who, attr)
	set.SetSize = false
	return n.made(who, child, name, mode, &set)
}

// Remove removes anything but a directory.
func (n *node) Remove(_ context.Context, who *nfsd.Caller, name string) error {
	return n.unlink(who, name, 0)
}

// Rmdir removes an empty directory.
func (n *node) Rmdir(_ context.Context, who *nfsd.Caller, name string) error {
	return n.unlink(who, name, unix.AT_REMOVEDIR)
}

func (n *node) unlink(who *nfsd.Caller, name string, flags int) error {
	old := n.hold(name)
	defer old.close()
	if n.fs.opened != nil {
		n.fs.opened(name)
	}
	err := n.fs.as(who, func() error {
		return retry(func() error { return unix.Unlinkat(n.path, name, flags) })
	})
	if err != nil {
		return err
	}
	n.fs.forget(old, n, name)
	return n.sync(who, nil)
}

// held is the object of a name before the name is removed or replaced.
type held struct {
	node *node // the object if it is in the cache
	fd   int   // otherwise open for the object; -1: none exists
}

// hold returns the object of a name.
func (n *node) hold(name string) held {
	if child := n.known(name); child != nil {
		return held{node: child, fd: -1}
	}
	fd, err := n.fs.at.open(n.path, name, unix.O_PATH)
	if err != nil {
		return held{fd: -1}
	}
	return held{fd: fd}
}

func (h held) close() {
	switch {
	case h.node != nil:
		h.node.Release()
	case h.fd >= 0:
		unix.Close(h.fd)
	}
}

// stat returns the id and attributes of a held object. ok is false if they cannot be determined.
func (f *FS) stat(h held, st *unix.Stat_t) (i id, ok bool) {
	switch {
	case h.node != nil:
		return h.node.id, fstat(h.node.path, st) == nil
	case h.fd >= 0 && fstat(h.fd, st) == nil:
		i, err := f.ids.of(h.fd, "", st)
		return i, err == nil
	}
	return id{}, false
}

// forget updates the cache and the places after an object has lost a name.
func (f *FS) forget(old held, dir *node, name string) {
	f.cache.checkSoon()
	var st unix.Stat_t
	i, ok := f.stat(old, &st)
	if !ok {
		return
	}
	gone := st.Nlink == 0
	if gone {
		f.cache.drop(&i)
	}
	if f.places != nil {
		f.places.forget(&i, &dir.id, name)
		if gone {
			f.seeker.lost(&i)
		}
	}
}

// Rename gives an entry another name, in this directory or another.
func (n *node) Rename(_ context.Context, who *nfsd.Caller, name string, to nfsd.Node, newName string) error {
	dir := to.(*node)
	moved, old := n.hold(name), dir.hold(newName)
	defer moved.close()
	defer old.close()
	err := n.fs.as(who, func() error {
		return retry(func() error { return unix.Renameat(n.path, name, dir.path, newName) })
	})
	if err != nil {
		return err
	}
	n.fs.forget(old, dir, newName)
	n.fs.moved(moved, dir, newName, who)
	// Store the new name before the old one is gone: after a crash in between there are two names rather than none.
	if err := dir.sync(who, nil); err != nil || dir == n {
		return err
	}
	return n.sync(who, nil)
}

// moved records a new name in the places.
func (f *FS) moved(what held, dir *node, name string, who *nfsd.Caller) {
	if f.places == nil {
		return
	}
	var st unix.Stat_t
	if i, ok := f.stat(what, &st); ok {
		f.places.note(&i, &dir.id, name, who)
	}
}

// Link adds a name.
func (n *node) Link(_ context.Context, who *nfsd.Caller, to nfsd.Node, name string) error {
	dir := to.(*node)
	err := n.fs.as(who, func() error {
		// The path of the descriptor leads to the inode itself, even if it is a symbolic link.
		return retry(func() error {
			return unix.Linkat(unix.AT_FDCWD, procPath(n.path), dir.path, name, unix.AT_SYMLINK_FOLLOW)
		})
	})
	if err != nil {
		return err
	}
	if n.fs.places != nil {
		n.fs.places.note(&n.id, &dir.id, name, who)
	}
	return dir.sync(who, nil)
}
