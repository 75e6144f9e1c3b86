package nfs

import (
	"errors"
	"fmt"
	"io/fs"
)

// ErrSymlinkLoop says that a path goes through more than 40 symbolic links. It
// comes wrapped in an *fs.PathError.
var ErrSymlinkLoop = errors.New("too many symbolic links")

// ErrSymlinkEscape says that a path goes through a symbolic link that leaves the
// export. It comes wrapped in an *fs.PathError.
var ErrSymlinkEscape = errors.New("symbolic link leaves the export")

// ErrNoExport says that the server exports nothing that contains a path. It comes
// wrapped in an *fs.PathError, and is an fs.ErrNotExist.
var ErrNoExport = fmt.Errorf("no export of the server contains it: %w", fs.ErrNotExist)

// ErrDirectory says that a directory listing does not come to an end: the server
// repeats its cookies, nests a directory in itself, sends page after page with nothing in
// it, or more entries than Options allow. It comes wrapped in an *fs.PathError.
var ErrDirectory = errors.New("endless directory")

// ErrUnstable says that the server kept losing data between WRITE and COMMIT,
// until the client gave up: the file's contents are not known.
var ErrUnstable = errors.New("nfs: server keeps losing written data before it is committed")

// An Error is a procedure that the server executed and that failed. Unwrap gives
// fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid or
// errors.ErrUnsupported where the status means that.
type Error struct {
	Op     string // the procedure, as in ProcName
	Path   string // as far as it is known; may be empty
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

// A MountError is a MOUNT procedure that the server executed and that failed.
// Unwrap works as for Error.
type MountError struct {
	Dir    string // the directory asked for
	Status MountStatus
}

func (e *MountError) Error() string { return fmt.Sprintf("nfs: MNT %q: %v", e.Dir, e.Status) }

// Unwrap returns the standard library's error for the status, or nil.
func (e *MountError) Unwrap() error {
	// The numbers that MOUNT has are those of NFS. RFC 1813 section 5.1.5.
	return (&Error{Status: Status(e.Status)}).Unwrap()
}

// A ReplyError is a reply whose results make no sense. The procedure may have been
// executed.
type ReplyError struct {
	Op     string // the procedure, as in ProcName
	Reason string
}

func (e *ReplyError) Error() string { return fmt.Sprintf("nfs: %s: bad reply: %s", e.Op, e.Reason) }

// A NameError is a name that no directory entry can have. It is an fs.ErrInvalid.
type NameError struct {
	Name string
}

func (e *NameError) Error() string { return fmt.Sprintf("nfs: invalid file name %q", e.Name) }

// Unwrap returns fs.ErrInvalid.
func (e *NameError) Unwrap() error { return fs.ErrInvalid }

// A MountFallbackError says that the server has no MOUNT on the RDMA connection,
// and that it could not be had over TCP either. It unwraps to both reasons.
type MountFallbackError struct {
	RDMA, TCP error
}

func (e *MountFallbackError) Error() string {
	return fmt.Sprintf("nfs: no MOUNT on the RDMA connection (%v), and over TCP: %v", e.RDMA, e.TCP)
}

// Unwrap returns both reasons.
func (e *MountFallbackError) Unwrap() []error { return []error{e.RDMA, e.TCP} }

// withPath names the path in an Error that has none yet.
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
