package copying

import (
	"io/fs"
	"syscall"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// inodeOf returns the inode number and the time of the last change of a local file.
func inodeOf(info fs.FileInfo) (id uint64, ctime nfs.Time) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, nfs.Time{}
	}
	return s.Ino, nfs.Time{Sec: uint32(s.Ctim.Sec), Nsec: uint32(s.Ctim.Nsec)}
}

// openWithoutWaiting makes open(2) not wait for the other end of a fifo.
const openWithoutWaiting = syscall.O_NONBLOCK
