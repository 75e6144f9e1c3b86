package nfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// ErrSymlinkLoop means that a path has more than 40 symbolic links. It is wrapped in an
// *fs.PathError.
var ErrSymlinkLoop = errors.New("too many symbolic links")

// ErrSymlinkEscape means that a path has a symbolic link that leaves the export. It is wrapped
// in an *fs.PathError.
var ErrSymlinkEscape = errors.New("symbolic link leaves the export")

// ErrNoExport means that no export of the server contains a path. It is wrapped in an *fs.PathError, and in a
// *NoExportError if the server lists its exports. It matches fs.ErrNotExist.
var ErrNoExport = fmt.Errorf("not in any export of the server: %w", fs.ErrNotExist)

// A NoExportError is ErrNoExport with the server's list of exports.
type NoExportError struct {
	Exports []Export // owned by the Client; must not be modified
}

func (e *NoExportError) Error() string { return ErrNoExport.Error() }

// Unwrap returns ErrNoExport.
func (e *NoExportError) Unwrap() error { return ErrNoExport }

// ErrDirectory means that a directory listing is endless: the server repeats cookies, nests a directory in itself,
// keeps sending empty pages, or sends more entries than Options allow. It is wrapped in an *fs.PathError.
var ErrDirectory = errors.New("endless directory")

// An Error is the error status of a procedure. It unwraps to fs.ErrNotExist, fs.ErrExist, fs.ErrPermission,
// fs.ErrInvalid or errors.ErrUnsupported if the status corresponds to one.
type Error struct {
	Op     string // the procedure, as in ProcName
	Path   string // empty if unknown
	Status Status
}

func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("nfs: %s: %v", e.Op, e.Status)
	}
	return fmt.Sprintf("nfs: %s %q: %v", e.Op, e.Path, e.Status)
}

// Unwrap returns the standard library's error for the status, or nil.
func (e *Error) Unwrap() error {
	switch e.Status {
	case StatusNoEnt:
		return fs.ErrNotExist
	case StatusExist:
		return fs.ErrExist
	case StatusPerm, StatusAcces:
		return fs.ErrPermission
	case StatusInval:
		return fs.ErrInvalid
	case StatusNotSupp:
		return errors.ErrUnsupported
	}
	return nil
}

// A MountError is the error status of a MOUNT procedure. It unwraps like Error.
type MountError struct {
	Dir    string // the directory asked for
	Status MountStatus
}

func (e *MountError) Error() string { return fmt.Sprintf("nfs: MNT %q: %v", e.Dir, e.Status) }

// Unwrap returns the standard library's error for the status, or nil.
func (e *MountError) Unwrap() error {
	// MOUNT uses the status numbers of NFS. RFC 1813 section 5.1.5.
	return (&Error{Status: Status(e.Status)}).Unwrap()
}

// A BadReplyError is a reply with invalid results. The procedure may have been executed.
type BadReplyError struct {
	Op     string // the procedure, as in ProcName
	Reason string
}

func (e *BadReplyError) Error() string { return fmt.Sprintf("nfs: %s: bad reply: %s", e.Op, e.Reason) }

// A ChangedError means that a file changed while it was downloaded: the data read may mix several versions of it.
type ChangedError struct {
	Before, After Attr // before the first and after the last byte was read
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("nfs: file changed while it was read (%s)", e.What())
}

// What describes the attributes that differ, such as "size 10, then 20; mtime".
func (e *ChangedError) What() string {
	var what []string
	b, a := &e.Before, &e.After
	if b.FileID != a.FileID {
		what = append(what, fmt.Sprintf("file id %d, then %d", b.FileID, a.FileID))
	}
	if b.Size != a.Size {
		what = append(what, fmt.Sprintf("size %d, then %d", b.Size, a.Size))
	}
	if b.MTime != a.MTime {
		what = append(what, "mtime")
	}
	if b.CTime != a.CTime {
		what = append(what, "ctime")
	}
	return strings.Join(what, "; ")
}

// A NameError is an invalid name of a directory entry. It matches fs.ErrInvalid.
type NameError struct {
	Name string
}

func (e *NameError) Error() string { return fmt.Sprintf("nfs: invalid file name %q", e.Name) }

// Unwrap returns fs.ErrInvalid.
func (e *NameError) Unwrap() error { return fs.ErrInvalid }

// A MountFallbackError means that the server does not offer MOUNT on the RDMA connection, and
// that MOUNT over TCP failed as well. It unwraps to both errors.
type MountFallbackError struct {
	RDMA, TCP error
}

func (e *MountFallbackError) Error() string {
	return fmt.Sprintf("nfs: no MOUNT on the NFS connection (%v), nor on one of its own: %v", e.RDMA, e.TCP)
}

// Unwrap returns both errors.
func (e *MountFallbackError) Unwrap() []error { return []error{e.RDMA, e.TCP} }

// withPath sets the path of an Error that has none.
func withPath(err error, path string) error {
	if e, ok := err.(*Error); ok && e.Path == "" {
		e.Path = path
	}
	return err
}

func isStatus(err error, s Status) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == s
}
