package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// An export is a directory as a file system for the NFS server. Everything goes
// through an os.Root: no name and no symbolic link leads out of the directory,
// also while somebody exchanges files for links.
//
// NFS servers do not follow links, clients do. So every method here means the link
// itself, and opening one fails.
type export struct {
	root     *os.Root
	readOnly bool
	handles  *handleTable
	fsync    func(*os.File) error // (*os.File).Sync
}

// newExport opens dir.
func newExport(dir string, readOnly bool) (*export, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &export{root: root, readOnly: readOnly, handles: newHandleTable(maxHandles), fsync: (*os.File).Sync}, nil
}

func (e *export) Close() error { return e.root.Close() }

// A view is the export as one call at a time sees it: it keeps the error of the
// latest operation, which the server library replaces by a guess.
type view struct {
	*export
	err error
}

var (
	_ billy.Filesystem = (*view)(nil)
	_ billy.Change     = (*view)(nil)
	_ billy.Capable    = (*view)(nil)
)

// note is how every operation ends.
func note[T any](v *view, result T, err error) (T, error) {
	v.err = err
	return result, err
}

// change is how every operation that changes something begins.
func (v *view) change(f func() error) error {
	if v.readOnly {
		v.err = syscall.EROFS
	} else {
		v.err = f()
	}
	return v.err
}

// local is a path as os.Root wants it.
func local(name string) string {
	if name = strings.TrimLeft(path.Clean("/"+name), "/"); name != "" {
		return name
	}
	return "."
}

// split is the inverse of Join.
func split(name string) []string {
	if name = local(name); name != "." {
		return strings.Split(name, "/")
	}
	return nil
}

// Join makes a path of elements.
func (v *view) Join(elem ...string) string { return path.Join(elem...) }

// Capabilities tells the library whether anything may be changed.
func (v *view) Capabilities() billy.Capability {
	c := billy.ReadCapability | billy.SeekCapability
	if !v.readOnly {
		c |= billy.WriteCapability | billy.ReadAndWriteCapability | billy.TruncateCapability
	}
	return c
}

// Lstat tells what is at a path.
func (v *view) Lstat(name string) (fs.FileInfo, error) {
	info, err := v.root.Lstat(local(name))
	if err != nil {
		return note[fs.FileInfo](v, nil, err)
	}
	return note[fs.FileInfo](v, fileInfo{info}, nil)
}

// Stat is Lstat.
func (v *view) Stat(name string) (fs.FileInfo, error) { return v.Lstat(name) }

// A fileInfo has the mode bits of RFC 1813 section 2.5, mode3, where fs.FileMode
// has its own: the library sends what Mode returns.
type fileInfo struct{ fs.FileInfo }

func (i fileInfo) Mode() fs.FileMode {
	m := i.FileInfo.Mode()
	// The library asks IsDir for directories, and Mode for everything else.
	bits := m.Perm() | m.Type()&^fs.ModeDir
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// ReadDir lists a directory.
func (v *view) ReadDir(name string) ([]fs.FileInfo, error) {
	infos, err := v.readDir(local(name))
	return note(v, infos, err)
}

func (e *export) readDir(name string) ([]fs.FileInfo, error) {
	if info, err := e.root.Lstat(name); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, syscall.ENOTDIR
	}
	dir, err := e.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	infos := make([]fs.FileInfo, 0, len(names))
	for _, name := range names {
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, fileInfo{info})
	}
	return infos, nil
}

// open opens a regular file for reading or writing. Opening anything else can
// block, or do something to a device.
func (e *export) open(name string, flag int) (*os.File, error) {
	before, err := e.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if err := regular(before); err != nil {
		return nil, err
	}
	f, err := e.root.OpenFile(name, flag|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) && !e.readOnly {
		f, err = e.openAsOwner(name, flag, before)
	}
	if err != nil {
		return nil, err
	}
	// What has been opened is what was looked at, and no link was followed.
	if after, err := f.Stat(); err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, syscall.ESTALE
	}
	return f, nil
}

// openAsOwner opens a file whose permissions keep its owner out, which is us. A
// client that has made a file may write to it whatever its mode: RFC 1813 section
// 4.4. There is no open file that would remember this.
func (e *export) openAsOwner(name string, flag int, info fs.FileInfo) (*os.File, error) {
	refused := &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	if !ownFile(info) {
		return nil, refused
	}
	if err := e.root.Chmod(name, info.Mode()|0o600); err != nil {
		return nil, refused
	}
	f, err := e.root.OpenFile(name, flag|syscall.O_NONBLOCK, 0)
	if err := e.root.Chmod(name, info.Mode()); err != nil {
		f.Close()
		return nil, err
	}
	return f, err
}

// regular is nil for regular files, and tells why others cannot be opened.
func regular(info fs.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return syscall.EISDIR
	}
	return syscall.EINVAL
}

// Open opens a regular file for reading.
func (v *view) Open(name string) (billy.File, error) { return v.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile opens a regular file that exists: for reading, or else for writing.
func (v *view) OpenFile(name string, flag int, _ fs.FileMode) (billy.File, error) {
	mode := os.O_RDONLY
	if flag&(os.O_WRONLY|os.O_RDWR) != 0 {
		if mode = os.O_WRONLY; v.readOnly {
			return note[billy.File](v, nil, syscall.EROFS)
		}
	}
	f, err := v.open(local(name), mode)
	if err != nil {
		return note[billy.File](v, nil, err)
	}
	return note[billy.File](v, &file{File: f, v: v, name: name}, nil)
}

// Create makes a regular file, or opens the one that is there. It does not empty
// it: CREATE does so by a size of zero among the attributes, or not at all, RFC 1813
// section 3.3.8.
func (v *view) Create(name string) (billy.File, error) {
	var f *os.File
	err := v.change(func() (err error) {
		f, err = v.root.OpenFile(local(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			f, err = v.open(local(name), os.O_RDONLY)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &file{File: f, v: v, name: name}, nil
}

// A file is an open file.
type file struct {
	*os.File
	v    *view
	name string
}

// Name is the name that was opened.
func (f *file) Name() string { return f.name }

// The library does not close files whose operations have failed.

func (f *file) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, f.failed(err)
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	n, err := f.File.Seek(offset, whence)
	return n, f.failed(err)
}

func (f *file) Truncate(size int64) error { return f.failed(f.File.Truncate(size)) }

func (f *file) failed(err error) error {
	if err != nil {
		f.v.err = err
		f.File.Close()
	}
	return err
}

// Lock is not used by NFS.
func (f *file) Lock() error { return billy.ErrNotSupported }

// Unlock is not used by NFS.
func (f *file) Unlock() error { return billy.ErrNotSupported }

// MkdirAll makes one directory: the library has seen the one above.
func (v *view) MkdirAll(name string, perm fs.FileMode) error {
	if perm == 755 {
		perm = 0o755 // the library's default lacks a zero
	}
	return v.change(func() error { return v.root.Mkdir(local(name), perm&fs.ModePerm) })
}

// Symlink makes a link that says target, which can be anything.
func (v *view) Symlink(target, link string) error {
	return v.change(func() error { return v.root.Symlink(target, local(link)) })
}

// Readlink tells what a link says.
func (v *view) Readlink(link string) (string, error) {
	target, err := v.root.Readlink(local(link))
	return note(v, target, err)
}

// Remove removes a file, a link or an empty directory.
func (v *view) Remove(name string) error {
	return v.change(func() error {
		if len(split(name)) == 0 {
			return syscall.EBUSY
		}
		if err := v.root.Remove(local(name)); err != nil {
			return err
		}
		v.handles.removed(split(name))
		return nil
	})
}

// Rename renames whatever is at from.
func (v *view) Rename(from, to string) error {
	return v.change(func() error {
		if len(split(from)) == 0 || len(split(to)) == 0 {
			return syscall.EBUSY
		}
		if err := v.root.Rename(local(from), local(to)); err != nil {
			return err
		}
		v.handles.renamed(split(from), split(to))
		return nil
	})
}

// Chmod sets permissions. Those of a link mean nothing.
func (v *view) Chmod(name string, mode fs.FileMode) error {
	return v.change(v.unlessLink(name, func(name string) error { return v.root.Chmod(name, mode&fs.ModePerm) }))
}

// Chtimes sets times. A link keeps its own.
func (v *view) Chtimes(name string, atime, mtime time.Time) error {
	return v.change(v.unlessLink(name, func(name string) error { return v.root.Chtimes(name, atime, mtime) }))
}

func (v *view) unlessLink(name string, f func(string) error) func() error {
	return func() error {
		info, err := v.root.Lstat(local(name))
		if err != nil || info.Mode().Type() == fs.ModeSymlink {
			return err
		}
		return f(local(name))
	}
}

// Lchown sets owner and group.
func (v *view) Lchown(name string, uid, gid int) error {
	return v.change(func() error { return v.root.Lchown(local(name), uid, gid) })
}

// Chown is Lchown.
func (v *view) Chown(name string, uid, gid int) error { return v.Lchown(name, uid, gid) }

// TempFile is not used by NFS.
func (v *view) TempFile(string, string) (billy.File, error) { return nil, billy.ErrNotSupported }

// Chroot is not used by NFS.
func (v *view) Chroot(string) (billy.Filesystem, error) { return nil, billy.ErrNotSupported }

// Root is where the export's paths begin.
func (v *view) Root() string { return "/" }

// sync puts what has been written to a file on stable storage.
func (e *export) sync(name string) error {
	f, err := e.open(local(name), os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	return e.fsync(f)
}

// statusOf is the result that says what went wrong.
func statusOf(err error) nfs.Status {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		if errors.Is(err, fs.ErrNotExist) {
			return nfs.StatusNoEnt
		}
		return nfs.StatusAcces // such as a path through a link that leads out
	}
	switch errno {
	case syscall.EPERM:
		return nfs.StatusPerm
	case syscall.ENOENT:
		return nfs.StatusNoEnt
	case syscall.ENXIO:
		return nfs.StatusNXIO
	case syscall.EACCES, syscall.ELOOP, syscall.EBUSY:
		return nfs.StatusAcces
	case syscall.EEXIST:
		return nfs.StatusExist
	case syscall.EXDEV:
		return nfs.StatusXDev
	case syscall.ENODEV:
		return nfs.StatusNoDev
	case syscall.ENOTDIR:
		return nfs.StatusNotDir
	case syscall.EISDIR:
		return nfs.StatusIsDir
	case syscall.EINVAL:
		return nfs.StatusInval
	case syscall.EFBIG:
		return nfs.StatusFBig
	case syscall.ENOSPC:
		return nfs.StatusNoSpc
	case syscall.EROFS:
		return nfs.StatusROFS
	case syscall.EMLINK:
		return nfs.StatusMLink
	case syscall.ENAMETOOLONG:
		return nfs.StatusNameTooLong
	case syscall.ENOTEMPTY:
		return nfs.StatusNotEmpty
	case syscall.EDQUOT:
		return nfs.StatusDQuot
	case syscall.ESTALE:
		return nfs.StatusStale
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
		return nfs.StatusJukebox // which has clients try again
	}
	return nfs.StatusIO
}
