package nfsd

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// errno maps an error of the system to its status. RFC 1813 section 2.6.
type errno struct {
	err    syscall.Errno
	status nfs.Status
}

// errnos is sorted by frequency. Immutable.
var errnos = [...]errno{
	{syscall.ENOENT, nfs.StatusNoEnt},
	{syscall.EEXIST, nfs.StatusExist},
	{syscall.EACCES, nfs.StatusAcces},
	{syscall.EPERM, nfs.StatusPerm},
	{syscall.ENOTDIR, nfs.StatusNotDir},
	{syscall.EISDIR, nfs.StatusIsDir},
	{syscall.ENOTEMPTY, nfs.StatusNotEmpty},
	{syscall.EINVAL, nfs.StatusInval},
	{syscall.ESTALE, nfs.StatusStale},
	{syscall.ENAMETOOLONG, nfs.StatusNameTooLong},
	{syscall.ENOSPC, nfs.StatusNoSpc},
	{syscall.EDQUOT, nfs.StatusDQuot},
	{syscall.EROFS, nfs.StatusROFS},
	{syscall.EFBIG, nfs.StatusFBig},
	{syscall.EOVERFLOW, nfs.StatusFBig},
	{syscall.EMLINK, nfs.StatusMLink},
	{syscall.EXDEV, nfs.StatusXDev},
	{syscall.ELOOP, nfs.StatusInval}, // a link where none is permitted
	{syscall.ENXIO, nfs.StatusNXIO},
	{syscall.ENODEV, nfs.StatusNoDev},
	{syscall.EBUSY, nfs.StatusAcces}, // for example, something is mounted on the directory
	{syscall.ETXTBSY, nfs.StatusAcces},
	{syscall.EOPNOTSUPP, nfs.StatusNotSupp},
	{syscall.ENOSYS, nfs.StatusNotSupp},
	{syscall.EILSEQ, nfs.StatusInval}, // the file system cannot store such a name

	// Resources may soon be available again: clients retry.
	{syscall.EMFILE, nfs.StatusJukebox},
	{syscall.ENFILE, nfs.StatusJukebox},
	{syscall.ENOMEM, nfs.StatusJukebox},
	{syscall.EAGAIN, nfs.StatusJukebox},
}

// StatusOf returns the status for an error; for nil it is nfs.StatusOK. See the package comment for the errors of a
// file system.
func StatusOf(err error) nfs.Status {
	if err == nil {
		return nfs.StatusOK
	}
	var status *nfs.Error
	if errors.As(err, &status) && status.Status != nfs.StatusOK {
		return status.Status
	}
	var no syscall.Errno
	if errors.As(err, &no) {
		for i := range errnos {
			if errnos[i].err == no {
				return errnos[i].status
			}
		}
		return nfs.StatusIO
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nfs.StatusNoEnt
	case errors.Is(err, fs.ErrExist):
		return nfs.StatusExist
	case errors.Is(err, fs.ErrPermission):
		return nfs.StatusAcces
	case errors.Is(err, fs.ErrInvalid):
		return nfs.StatusInval
	case errors.Is(err, errors.ErrUnsupported):
		return nfs.StatusNotSupp
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nfs.StatusJukebox
	}
	return nfs.StatusIO
}

// fits replaces a status that has another meaning for the procedure than for the underlying system call. RFC 1813
// sections 3.3.1 to 3.3.21. For RENAME, NFS3ERR_EXIST covers everything that cannot be replaced, but the statuses with
// the specific reason, which programs know, are kept.
func fits(proc uint32, s nfs.Status) nfs.Status {
	switch proc {
	case nfs.ProcGetAttr, nfs.ProcSetAttr, nfs.ProcAccess, nfs.ProcReadLink, nfs.ProcRead, nfs.ProcWrite, nfs.ProcCommit,
		nfs.ProcReadDir, nfs.ProcReadDirPlus, nfs.ProcFSStat, nfs.ProcFSInfo, nfs.ProcPathConf:
		if s == nfs.StatusNoEnt {
			return nfs.StatusStale // there is no name that could be missing
		}
	case nfs.ProcLookup:
		if s == nfs.StatusXDev {
			return nfs.StatusAcces // something else is mounted there
		}
	}
	return s
}
