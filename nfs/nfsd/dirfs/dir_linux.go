package dirfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// Lookup returns the object with a name in the directory.
func (n *node) Lookup(_ context.Context, who *nfsd.Caller, name string) (nfsd.Node, error) {
	if err := n.enter(who, mayEnter); err != nil {
		return nil, err
	}
	var child *node
	var err error
	switch name {
	case ".":
		n.fs.cache.use(n)
		child = n
	case "..":
		child, err = n.parent()
	default:
		child, err = n.child(who, name)
	}
	if err != nil {
		return nil, err
	}
	return child, nil
}

// child returns the object with a name other than "." and "..", with the rights of the process.
func (n *node) child(who *nfsd.Caller, name string) (*node, error) {
	if child := n.known(name); child != nil {
		if n.fs.places != nil {
			n.fs.places.note(&child.id, &n.id, name, who)
		}
		return child, nil
	}
	// ESTALE: the file was replaced or removed after it was opened.
	for range tries {
		fd, err := n.fs.at.open(n.path, name, unix.O_PATH)
		if err != nil {
			return nil, err
		}
		if n.fs.opened != nil {
			n.fs.opened(name)
		}
		if child, err := n.fs.adopt(fd, nil, n, name, who); err != unix.ESTALE {
			return child, err
		}
	}
	return nil, unix.EAGAIN
}

// tries is how often a name is looked up while others keep changing it.
const tries = 16

// known is child for objects in the cache: one system call instead of four. It returns nil if the object is not in the
// cache, if that cannot be determined, or if the name requires the checks of openat2. Other names do not: a mount point
// is recognized by its mount ID, and there is only one path element.
func (n *node) known(name string) *node {
	if name == "." || name == ".." || strings.Contains(name, "/") {
		return nil
	}
	key, ok := n.fs.ids.keyOf(n.path, name)
	if !ok {
		return nil
	}
	return n.fs.cache.get(&key)
}

const (
	// maxDepth bounds the depth of a directory.
	maxDepth = 4096

	// slowDepth is how many levels are climbed one at a time.
	slowDepth = 32
)

// parent returns the parent directory. A directory that was moved out of the export has none.
func (n *node) parent() (*node, error) {
	root := n.fs.root
	if n.id == root.id {
		n.fs.cache.use(root)
		return root, nil
	}
	first, err := n.fs.at.climb(n.path, 1)
	if err != nil {
		return nil, unix.ESTALE
	}
	if err := n.fs.inside(first); err != nil {
		unix.Close(first)
		return nil, err
	}
	return n.fs.adopt(first, nil, nil, "", nil)
}

// inside returns ESTALE unless a directory is the root or below it. It caches nothing, because the host may move any of
// the directories above at any time. The work is bounded: beyond slowDepth the kernel climbs many levels in one system
// call.
func (f *FS) inside(dir int) error {
	var top, st unix.Stat_t
	if err := fstat(f.root.path, &top); err != nil {
		return err
	}
	at, levels, err := f.at.rise(dir, slowDepth, &top)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	if err := fstat(at, &st); err != nil || same(&st, &top) {
		return err
	}
	// The walk up ended at another directory.
	if levels < slowDepth {
		return unix.ESTALE
	}
	// Count the levels above this directory and above the root. The root must be at the difference.
	end, above, err := f.at.rise(f.root.path, maxDepth, nil)
	if err != nil {
		return err
	}
	err = fstat(end, &st)
	unix.Close(end)
	if err != nil {
		return err
	}
	depth, err := f.at.depth(at, &st)
	if err != nil {
		return err
	}
	for left := depth - above; left > 0; left -= mostClimb {
		next, err := f.at.climb(at, min(left, mostClimb))
		if err != nil {
			return unix.ESTALE
		}
		unix.Close(at)
		at = next
	}
	if err := fstat(at, &st); err != nil || same(&st, &top) {
		return err
	}
	return unix.ESTALE
}

// ---- listing

// stream is a directory open for reading. Only one reader uses it at a time.
type stream struct {
	fd     int
	buf    [32 << 10]byte
	entry  nfsd.Entry
	handle [handleHead + idHead + maxKernel]byte
}

// takeStream returns a stream of the directory for the caller's exclusive use.
func (n *node) takeStream() (*stream, error) {
	if s := n.stream.Swap(nil); s != nil {
		return s, nil
	}
	fd, err := n.fs.at.open(n.path, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	n.fs.cache.opened(1)
	return &stream{fd: fd}, nil
}

// giveStream keeps a stream for the next reader.
func (n *node) giveStream(s *stream) {
	if old := n.stream.Swap(s); old != nil {
		unix.Close(old.fd)
		n.fs.cache.opened(-1)
	}
}

// ReadDir lists the directory. A cookie is the position that the underlying file system returns for the entry's
// successor.
func (n *node) ReadDir(_ context.Context, who *nfsd.Caller, cookie uint64, plus bool, emit func(*nfsd.Entry) bool) (eof bool, err error) {
	if err := n.enter(who, mayRead); err != nil {
		return false, err
	}
	plus = plus && n.enter(who, mayEnter) == nil
	s, err := n.takeStream()
	if err != nil {
		return false, err
	}
	defer n.giveStream(s)
	if _, err := unix.Seek(s.fd, int64(cookie), unix.SEEK_SET); err != nil {
		return false, err
	}
	for {
		var size int
		err := retry(func() (err error) {
			size, err = unix.Getdents(s.fd, s.buf[:])
			return err
		})
		if err != nil || size == 0 {
			return err == nil, err
		}
		for b := s.buf[:size]; len(b) > 0; {
			var d dirent
			if b = d.next(b); d.cookie == 0 {
				return false, unix.EIO // a listing could not continue after it
			}
			if !n.emit(who, s, &d, plus, emit) {
				return false, nil
			}
		}
	}
}

// emit passes an entry to the callback.
func (n *node) emit(who *nfsd.Caller, s *stream, d *dirent, plus bool, emit func(*nfsd.Entry) bool) bool {
	e := &s.entry
	*e = nfsd.Entry{Name: d.name, FileID: d.ino, Cookie: d.cookie}
	switch {
	case string(d.name) == ".." && n.id == n.fs.root.id:
		e.FileID = n.id.ino // ".." of the root is outside of the export
		if plus {
			n.describe(e, s, n.path, &n.id)
		}
	case !plus || string(d.name) == "..":
	case string(d.name) == ".":
		n.describe(e, s, n.path, &n.id)
	default:
		n.inspect(who, e, s)
	}
	return emit(e)
}

// inspect finds the handle and attributes of an entry. It leaves them empty if the entry was removed meanwhile, or if
// something is mounted on it.
func (n *node) inspect(who *nfsd.Caller, e *nfsd.Entry, s *stream) {
	name := string(e.Name)
	fd, err := n.fs.at.open(n.path, name, unix.O_PATH)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	n.describe(e, s, fd, nil)
	if i, ok := n.fs.parseHandle(e.Handle); ok && n.fs.places != nil {
		n.fs.places.note(&i, &n.id, name, who)
	}
}

// describe sets the handle and attributes of the object open at fd. known is its id, if known.
func (n *node) describe(e *nfsd.Entry, s *stream, fd int, known *id) {
	var st unix.Stat_t
	if fstat(fd, &st) != nil {
		return
	}
	if known == nil {
		i, err := n.fs.ids.of(fd, "", &st)
		if err != nil {
			return
		}
		known = &i
	}
	e.FileID = st.Ino
	e.Attr = n.fs.attrOf(&st)
	e.Handle = n.fs.appendHandle(s.handle[:0], known)
}

// dirent is an entry as returned by getdents64(2).
type dirent struct {
	ino    uint64
	cookie uint64 // position of the next entry
	typ    byte
	name   []byte // a view
}

// next decodes the entry at the start of b and returns the rest.
func (d *dirent) next(b []byte) []byte {
	const head = 8 + 8 + 2 + 1
	size := int(binary.NativeEndian.Uint16(b[16:]))
	d.ino = binary.NativeEndian.Uint64(b)
	d.cookie = binary.NativeEndian.Uint64(b[8:])
	d.typ = b[18]
	d.name = b[head:size]
	if end := bytes.IndexByte(d.name, 0); end >= 0 {
		d.name = d.name[:end]
	}
	return b[size:]
}

// entryOf returns the directory's entry for an inode, found by inode number. The error is ESTALE if none exists.
func (n *node) entryOf(want *id) (name string, err error) {
	s, err := n.takeStream()
	if err != nil {
		return "", err
	}
	defer n.giveStream(s)
	if _, err := unix.Seek(s.fd, 0, unix.SEEK_SET); err != nil {
		return "", err
	}
	for {
		size, err := unix.Getdents(s.fd, s.buf[:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return "", err
		case size == 0:
			return "", unix.ESTALE
		}
		for b := s.buf[:size]; len(b) > 0; {
			var d dirent
			if b = d.next(b); d.ino == want.ino && n.fs.isAt(s.fd, string(d.name), want) {
				return string(d.name), nil
			}
		}
	}
}

// isAt reports whether a name in a directory refers to an inode.
func (f *FS) isAt(dir int, name string, want *id) bool {
	if name == "." || name == ".." {
		return false
	}
	st := unix.Stat_t{Ino: want.ino} // identifier.of needs only that
	if f.ids.birth {
		if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
	}
	i, err := f.ids.of(dir, name, &st)
	return err == nil && i == *want
}
