package dirfs

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// node is an open inode. Its descriptors do not change until it is no longer in use.
type node struct {
	fs   *FS
	id   id
	typ  nfs.FileType // the type of an inode never changes
	path int          // O_PATH, or the data descriptor of a new file

	// Data descriptors of a regular file, for reading or writing; -1: not open. Each changes once, with opening held.
	// The mode changes with opening held too, because opening may set another one temporarily.
	opening sync.Mutex
	rd, wr  atomic.Int32

	stream  atomic.Pointer[stream] // idle stream of a directory
	grants  [2]atomic.Pointer[grant]
	turn    atomic.Uint32 // index of the grant to replace next
	setting sync.Mutex    // held by SETATTR
	syncing syncing

	// Owned by the cache.
	refs       int
	dropped    bool // the object is gone
	used       time.Time
	prev, next *node
}

var (
	_ nfsd.Node       = (*node)(nil)
	_ nfsd.Setter     = (*node)(nil)
	_ nfsd.Writer     = (*node)(nil)
	_ nfsd.Creator    = (*node)(nil)
	_ nfsd.Symlinker  = (*node)(nil)
	_ nfsd.LinkReader = (*node)(nil)
	_ nfsd.Linker     = (*node)(nil)
	_ nfsd.Mknoder    = (*node)(nil)
	_ nfsd.Accesser   = (*node)(nil)
)

func newNode(f *FS, id id, typ nfs.FileType, path int) *node {
	n := &node{fs: f, id: id, typ: typ, path: path}
	n.rd.Store(-1)
	n.wr.Store(-1)
	return n
}

// descriptors returns the number of descriptors that the node has.
func (n *node) descriptors() int {
	count := 1
	for _, fd := range []int32{n.rd.Load(), n.wr.Load()} {
		if fd >= 0 && int(fd) != n.path {
			count++
		}
	}
	if n.stream.Load() != nil {
		count++
	}
	return count
}

// closeAll closes the descriptors of an unused node.
func (n *node) closeAll() {
	for _, fd := range []int32{n.rd.Load(), n.wr.Load()} {
		if fd >= 0 && int(fd) != n.path {
			unix.Close(int(fd))
		}
	}
	if s := n.stream.Load(); s != nil {
		unix.Close(s.fd)
	}
	unix.Close(n.path)
}

// AppendHandle appends the handle.
func (n *node) AppendHandle(b []byte) []byte { return n.fs.appendHandle(b, &n.id) }

// Release ends the use of the node.
func (n *node) Release() { n.fs.cache.release(n) }

// stat returns the attributes, or ESTALE if all names of the object have been removed.
func (n *node) stat(st *unix.Stat_t) error {
	if err := fstat(n.path, st); err != nil {
		return err
	}
	if st.Nlink == 0 {
		n.fs.cache.drop(&n.id)
		return unix.ESTALE
	}
	return nil
}

// Attr returns the attributes.
func (n *node) Attr(context.Context, *nfsd.Caller) (nfs.Attr, error) {
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return nfs.Attr{}, err
	}
	return n.fs.attrOf(&st), nil
}

// ---- permissions

// Permission bits, as in a mode and for access(2).
const (
	mayRead  = unix.R_OK
	mayWrite = unix.W_OK
	mayEnter = unix.X_OK
)

// grant is the kernel's answer about a caller's permissions. Immutable.
type grant struct {
	uid, gid uint32
	groups   []uint32

	mode, owner, group uint32 // of the object at that time

	asked, has uint32
	until      time.Time
}

// grantTime is how long a grant remains valid while mode and owner stay the same, because an ACL can change without
// them.
const grantTime = time.Second

// may returns which of the permissions in want the caller has to the object with attributes st.
func (n *node) may(who *nfsd.Caller, st *unix.Stat_t, want uint32) (uint32, error) {
	if n.fs.byMode {
		return n.fs.modeBits(who, st) & want, nil
	}
	now := time.Now()
	for i := range n.grants {
		g := n.grants[i].Load()
		if g != nil && g.mode == st.Mode && g.owner == st.Uid && g.group == st.Gid && g.asked&want == want &&
			now.Before(g.until) && (n.fs.self == nil || g.uid == who.UID && g.gid == who.GID && slices.Equal(g.groups, who.GIDs)) {
			return g.has & want, nil
		}
	}
	has, err := n.ask(who, want)
	if err != nil {
		return 0, err
	}
	g := &grant{
		uid: who.UID, gid: who.GID, groups: slices.Clone(who.GIDs), mode: st.Mode, owner: st.Uid, group: st.Gid,
		asked: want, has: has, until: now.Add(grantTime),
	}
	n.grants[n.turn.Add(1)%uint32(len(n.grants))].Store(g)
	return has, nil
}

// ask asks the kernel which of the permissions in want the caller has.
func (n *node) ask(who *nfsd.Caller, want uint32) (has uint32, err error) {
	check := func(bits uint32) error {
		return retry(func() error {
			return unix.Faccessat2(n.path, "", bits, unix.AT_EACCESS|unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
		})
	}
	err = n.fs.as(who, func() error {
		err := check(want)
		if err == nil {
			has = want
			return nil
		}
		for _, bit := range []uint32{mayRead, mayWrite, mayEnter} {
			if want&bit != 0 && want != bit && check(bit) == nil {
				has |= bit
			}
		}
		switch err {
		case unix.EACCES, unix.EROFS, unix.EPERM, unix.ETXTBSY:
			return nil
		}
		return err
	})
	return has, err
}

// modeBits returns the permissions that a mode grants.
func (f *FS) modeBits(who *nfsd.Caller, st *unix.Stat_t) uint32 {
	if f.self == nil {
		who = &f.process
	}
	switch {
	case who.UID == 0 && (st.Mode&0o111 != 0 || typeOf(st.Mode) == nfs.TypeDir):
		return mayRead | mayWrite | mayEnter
	case who.UID == 0:
		return mayRead | mayWrite
	case who.UID == st.Uid:
		return st.Mode >> 6 & 7
	case who.Member(st.Gid):
		return st.Mode >> 3 & 7
	}
	return st.Mode & 7
}

// enter checks that the caller may look up names in a directory, and also that it may list them if want says so.
func (n *node) enter(who *nfsd.Caller, want uint32) error {
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return err
	}
	has, err := n.may(who, &st, want)
	if err == nil && has != want {
		err = unix.EACCES
	}
	return err
}

// Access returns the rights in want that the caller has.
func (n *node) Access(_ context.Context, who *nfsd.Caller, want uint32) (granted uint32, err error) {
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return 0, err
	}
	var bits uint32
	if want&nfs.AccessRead != 0 {
		bits |= mayRead
	}
	if want&(nfs.AccessModify|nfs.AccessExtend|nfs.AccessDelete) != 0 {
		bits |= mayWrite
	}
	if want&(nfs.AccessLookup|nfs.AccessExecute|nfs.AccessDelete) != 0 {
		bits |= mayEnter
	}
	if bits == 0 || n.typ == nfs.TypeLnk {
		return want & nfs.AccessRead, nil // the mode of a link has no meaning
	}
	has, err := n.may(who, &st, bits)
	return want & nfsd.RightsOf(n.typ, has), err
}

// owns reports whether the caller is the owner, to which no mode denies access to the data. RFC 1813 section 4.4.
func (f *FS) owns(who *nfsd.Caller, st *unix.Stat_t) bool {
	if f.self == nil {
		return st.Uid == f.process.UID
	}
	return st.Uid == who.UID
}

// Open checks that the caller may read or write the file.
func (n *node) Open(_ context.Context, who *nfsd.Caller, rights uint32) (nfs.Attr, error) {
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return nfs.Attr{}, err
	}
	switch n.typ {
	case nfs.TypeReg:
	case nfs.TypeDir:
		return nfs.Attr{}, unix.EISDIR
	default:
		return nfs.Attr{}, unix.EINVAL
	}
	write := rights&nfs.AccessModify != 0
	if !n.fs.owns(who, &st) {
		if err := n.permit(who, &st, write); err != nil {
			return nfs.Attr{}, err
		}
	}
	if _, err := n.data(write, &st); err != nil {
		return nfs.Attr{}, err
	}
	return n.fs.attrOf(&st), nil
}

// permit checks the permissions of a caller that is not the owner. An executable file is also readable, because the
// client must read it to execute it. RFC 1813 section 4.4.
func (n *node) permit(who *nfsd.Caller, st *unix.Stat_t, write bool) error {
	want := uint32(mayRead)
	if write {
		want = mayWrite
	}
	has, err := n.may(who, st, want)
	if err == nil && has == 0 && !write {
		has, err = n.may(who, st, mayEnter)
	}
	if err == nil && has == 0 {
		err = unix.EACCES
	}
	return err
}

// ---- data

// data returns a descriptor for reading or writing the data of a regular file.
func (n *node) data(write bool, st *unix.Stat_t) (fd int, err error) {
	slot, flags := &n.rd, unix.O_RDONLY
	if write {
		slot, flags = &n.wr, unix.O_WRONLY
	}
	if fd := slot.Load(); fd >= 0 {
		return int(fd), nil
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	if fd := slot.Load(); fd >= 0 {
		return int(fd), nil
	}
	// Non-blocking: while another process has a lease on the file, clients retry.
	flags |= unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	open := func() (fd int, err error) {
		err = retry(func() (err error) {
			fd, err = unix.Open(procPath(n.path), flags, 0)
			return err
		})
		return fd, err
	}
	if n.fs.direct { // a shorter way to the same inode
		fd, err = n.fs.ids.open(n.fs.mount, &n.id, flags)
	}
	if !n.fs.direct || err != nil {
		fd, err = open()
	}
	if err == unix.EACCES && n.fs.self == nil && st.Uid == n.fs.process.UID {
		fd, err = n.asOwner(open)
	}
	if err != nil {
		return -1, err
	}
	slot.Store(int32(fd))
	n.fs.cache.opened(1)
	return fd, nil
}

// asOwner runs open while the mode permits access to the owner, which is this process. An unprivileged process has no
// other way to grant what NFS grants an owner. opening is held. The mode is read again, because it may have changed
// since the caller read it, perhaps by the same call.
func (n *node) asOwner(open func() (fd int, err error)) (fd int, err error) {
	var st unix.Stat_t
	if err := fstat(n.path, &st); err != nil {
		return -1, err
	}
	mode := st.Mode & 0o7777
	if err := n.fs.chmod(procPath(n.path), mode|0o600); err != nil {
		return -1, err
	}
	fd, err = open()
	if back := n.fs.chmod(procPath(n.path), mode); back != nil && err == nil {
		unix.Close(fd)
		return -1, back
	}
	return fd, err
}

// chmod sets the mode, but not while asOwner has changed it temporarily.
func (n *node) chmod(mode uint32) error {
	n.opening.Lock()
	defer n.opening.Unlock()
	return unix.Chmod(procPath(n.path), mode)
}

// ReadAt implements nfsd.Node. The kernel reads into b, from which the adapter sends.
func (n *node) ReadAt(_ context.Context, _ *nfsd.Caller, b []byte, off int64) (done int, err error) {
	fd := int(n.rd.Load())
	for done < len(b) {
		got, err := unix.Pread(fd, b[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || got == 0:
			return done, err
		}
		done += got
	}
	return done, nil
}

// WriteAt writes as the caller, so that it uses the caller's quota and clears the setuid and setgid bits.
func (n *node) WriteAt(_ context.Context, who *nfsd.Caller, b []byte, off int64, stable nfs.Stable) (done int, committed nfs.Stable, err error) {
	fd := int(n.wr.Load())
	failures, _ := n.syncing.failed()
	write := func() error {
		for done < len(b) {
			put, err := unix.Pwrite(fd, b[done:], off+int64(done))
			switch {
			case err == unix.EINTR:
				continue
			case err != nil && done == 0:
				return err
			case err != nil:
				return nil // the client sends the rest again and then gets the error
			}
			done += put
		}
		return nil
	}
	if n.fs.self == nil || who.UID == 0 {
		err = write()
	} else {
		err = n.fs.as(who, write)
	}
	switch {
	case err != nil:
		return 0, nfs.Unstable, err
	case n.fs.cfg.Async:
		return done, stable, nil
	case stable == nfs.DataSync:
		err = n.flush(who, fd, n.fs.fdatasync)
	case stable == nfs.FileSync:
		err = n.flush(who, fd, n.fs.fsync)
	}
	if now, failure := n.syncing.failed(); err == nil && stable != nfs.Unstable && now != failures {
		err = failure // the lost data may have been this data
	}
	return done, stable, err
}

// Commit stores the whole file, because other callers may have written the rest.
func (n *node) Commit(_ context.Context, who *nfsd.Caller, _ uint64, _ uint32) error {
	if n.fs.cfg.Async {
		return nil
	}
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return err
	}
	return n.sync(who, &st)
}

// sync stores a file or directory on the disk if it can be opened.
func (n *node) sync(who *nfsd.Caller, st *unix.Stat_t) error {
	_, err := n.syncs(who, st)
	return err
}

// syncs is sync, but also reports whether the object could be opened, or needed no flush.
func (n *node) syncs(who *nfsd.Caller, st *unix.Stat_t) (done bool, err error) {
	if n.fs.cfg.Async {
		return true, nil
	}
	var fd int
	switch n.typ {
	case nfs.TypeReg:
		if fd = int(n.wr.Load()); fd < 0 {
			if fd, err = n.data(false, st); err != nil {
				return false, err
			}
		}
	case nfs.TypeDir:
		s, err := n.takeStream()
		if err == unix.EACCES {
			return false, nil // inaccessible to this unprivileged process: stored with its directory
		}
		if err != nil {
			return false, err
		}
		defer n.giveStream(s)
		fd = s.fd
	default:
		// Opening it could have an effect on a device. Journaling file systems store it with the directory.
		return false, nil
	}
	if n.typ == nfs.TypeReg {
		return true, n.flush(who, fd, n.fs.fsync)
	}
	err = who.Wait(func() error { return retry(func() error { return n.fs.fsync(fd) }) })
	if err == unix.EINVAL {
		err = nil // the file system need not store anything for a directory
	}
	return true, err
}

// ReadLink returns the target of the link.
func (n *node) ReadLink(context.Context, *nfsd.Caller) (string, error) {
	b := make([]byte, nfs.MaxPath+1)
	var size int
	err := retry(func() (err error) {
		size, err = unix.Readlinkat(n.path, "", b)
		return err
	})
	if err != nil {
		return "", err
	}
	return string(b[:size]), nil
}

// ---- attributes

// SetAttr changes attributes.
func (n *node) SetAttr(_ context.Context, who *nfsd.Caller, set *nfs.SetAttr, guard *nfs.Time) error {
	n.setting.Lock()
	defer n.setting.Unlock()
	var st unix.Stat_t
	if err := n.stat(&st); err != nil {
		return err
	}
	if guard != nil && *guard != timeOf(st.Ctim) {
		return &nfs.Error{Status: nfs.StatusNotSync}
	}
	rest := *set
	if set.SetSize {
		if err := n.truncate(who, &st, set.Size); err != nil {
			return err
		}
		// Truncation has set the time, which requires only write permission: utimensat(2) of one time alone requires
		// ownership.
		if rest.MTimeHow == nfs.SetToServerTime {
			rest.MTimeHow = nfs.DontChange
		}
	}
	if err := n.fs.as(who, func() error { return n.change(&rest) }); err != nil {
		return err
	}
	return n.sync(who, &st)
}

// truncate sets the size, with the permission to write.
func (n *node) truncate(who *nfsd.Caller, st *unix.Stat_t, size uint64) error {
	if n.typ != nfs.TypeReg {
		return unix.EINVAL
	}
	if !n.fs.owns(who, st) {
		if err := n.permit(who, st, true); err != nil {
			return err
		}
	}
	fd, err := n.data(true, st)
	if err != nil {
		return err
	}
	return n.fs.as(who, func() error {
		return retry(func() error { return unix.Ftruncate(fd, int64(size)) })
	})
}

// change sets everything but the size. It sets the owner before the mode, because a change of the owner clears mode
// bits, and the times last, because all other changes set them.
func (n *node) change(set *nfs.SetAttr) error {
	if set.SetUID || set.SetGID {
		uid, gid := -1, -1
		if set.SetUID {
			uid = int(set.UID)
		}
		if set.SetGID {
			gid = int(set.GID)
		}
		if err := unix.Fchownat(n.path, "", uid, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if set.SetMode && n.typ != nfs.TypeLnk {
		if err := n.chmod(set.Mode & 0o7777); err != nil {
			return err
		}
	}
	if set.ATimeHow == nfs.DontChange && set.MTimeHow == nfs.DontChange {
		return nil
	}
	times := []unix.Timespec{timeArg(set.ATimeHow, set.ATime), timeArg(set.MTimeHow, set.MTime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(n.path), times, 0)
}

// timeArg returns a time as utimensat(2) expects it.
func timeArg(how nfs.TimeHow, t nfs.Time) unix.Timespec {
	switch how {
	case nfs.DontChange:
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	case nfs.SetToServerTime:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	}
	return unix.NsecToTimespec(int64(t.Sec)*1e9 + int64(t.Nsec))
}
