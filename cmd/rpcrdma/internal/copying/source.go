package copying

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// source is a file to be copied to a server.
type source interface {
	io.ReaderAt
	io.Closer

	// version returns the current version of the file.
	version() (version, error)
}

// version identifies a version of a file's contents. Versions are compared with ==.
type version struct {
	FileID uint64   `json:"fileid"` // 0 if unknown
	Size   int64    `json:"size"`
	MTime  nfs.Time `json:"mtime"`
	CTime  nfs.Time `json:"ctime"` // zero if unknown
	mode   uint32   // ignored: see same
}

func (v version) same(w version) bool {
	v.mode, w.mode = 0, 0
	return v == w
}

// changedError reports that a file changed during its copy.
type changedError struct{ before, after version }

func (e *changedError) Error() string {
	return "it changed while it was copied" + e.how() + ": copy it again"
}

func (e *changedError) how() string {
	if e.before.Size != e.after.Size {
		return fmt.Sprintf(" (size %d, then %d)", e.before.Size, e.after.Size)
	}
	return ""
}

// isChanged reports whether err means that a file changed while it was copied.
func isChanged(err error) bool {
	if errors.Is(err, net.ErrClosed) { // a connection's error may look like the end of a file
		return false
	}
	_, reading := errors.AsType[*nfs.ChangedError](err)
	_, copying := errors.AsType[*changedError](err)
	return reading || copying || errors.Is(err, io.ErrUnexpectedEOF)
}

// shorterError reports that a file ended early.
type shorterError struct{ err error }

func (e *shorterError) Error() string { return "the file became shorter while it was copied" }

func (e *shorterError) Unwrap() error { return e.err }

func (e *shorterError) Explain() string { return e.Error() }

// shorter converts an error of Download or Upload to a *shorterError if it is about the end of the file. Errors of a
// connection may use the same words.
func shorter(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) && !errors.As(err, new(*remote.SourceError)) {
		return &shorterError{err}
	}
	return err
}

// versionOf returns the version described by a server's attributes.
func versionOf(a *nfs.Attr) (version, error) {
	if a.Size > 1<<62 {
		return version{}, &nfs.Error{Op: "READ", Status: nfs.StatusFBig}
	}
	return version{FileID: a.FileID, Size: int64(a.Size), MTime: a.MTime, CTime: a.CTime, mode: a.Mode & 0o777}, nil
}

// localFile is a source on this machine.
type localFile struct{ *os.File }

func (f localFile) version() (version, error) {
	info, err := f.Stat()
	if err != nil {
		return version{}, err
	}
	return localVersion(info), nil
}

// openLocal opens a regular file. By now it may be a fifo or a device, on which it must not wait or read.
func openLocal(root *os.Root, name string) (source, error) {
	info, err := root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = errNotFile
	}
	if err != nil {
		return nil, err
	}
	// It may have become one in the meantime.
	f, err := root.OpenFile(name, os.O_RDONLY|openWithoutWaiting, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = errNotFile
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return localFile{f}, nil
}

// openBelow is openLocal for a path.
func openBelow(from *folders, rel string) (source, error) {
	dir, err := from.enter(path.Dir(rel))
	if err != nil {
		return nil, err
	}
	defer from.leave(dir)
	return openLocal(dir.Root, path.Base(rel))
}

// errNotFile is the reason why something that was a file when it was found is not copied.
var errNotFile = errors.New("it is no longer a file")

func localVersion(info fs.FileInfo) version {
	v := version{Size: info.Size(), MTime: nfs.TimeOf(info.ModTime()), mode: uint32(info.Mode().Perm())}
	v.FileID, v.CTime = inodeOf(info)
	return v
}

// remoteFile is a source on a server.
type remoteFile struct {
	ctx    context.Context // of the copy
	from   *remote.Target
	fh     nfs.FileHandle
	forget func()
}

func openRemote(ctx context.Context, from *remote.Target, n *nfs.Node) source {
	return &remoteFile{ctx: ctx, from: from, fh: n.Handle, forget: from.Known.Add(n.Handle, n.Path)}
}

func (f *remoteFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.from.ReadAt(f.ctx, f.fh, p, off)
	return n, remote.ReadError(err)
}

func (f *remoteFile) version() (version, error) {
	a, err := f.from.GetAttr(f.ctx, f.fh)
	if err != nil {
		return version{}, remote.ReadError(err)
	}
	return versionOf(&a)
}

func (f *remoteFile) Close() error {
	f.forget()
	return nil
}
