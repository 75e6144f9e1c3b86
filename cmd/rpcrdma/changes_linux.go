package main

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// keysFollow: a directory is called the same after it has been renamed.
const keysFollow = true

// descriptors is how many this process may have, at most 65536.
func descriptors() int {
	const most = 1 << 16
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, most))
}

// watchLimit is how many directories may be watched. Each takes a descriptor, and
// connections need some, too.
func watchLimit() int { return min(maxWatched, descriptors()/4) }

// slots are the descriptors of directories. inotify is given the descriptor, as a path
// below /proc, and not the directory's own path, on which somebody could put a
// symbolic link meanwhile. That path is then how fsnotify calls the directory. So no
// descriptor is used again soon: what is still to be told of the one before would be
// told of another directory.
type slots struct{ last int }

// keep returns f at a descriptor of its own, and what fsnotify is to call it. f is
// taken over, also if it fails.
func (s *slots) keep(f *os.File, _ string) (*os.File, string, error) {
	defer f.Close()
	all := descriptors()
	s.last = max(s.last+1, all/2)
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, s.last)
	if err != nil { // beyond the last one
		s.last = all / 2
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, s.last)
	}
	if err != nil {
		return nil, "", os.NewSyscallError("fcntl", err)
	}
	s.last = fd
	return os.NewFile(uintptr(fd), f.Name()), fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// open opens a directory once more, wherever it is by now: the system and its events
// need not agree on that.
func (c *changes) open(d *watched) (*os.Root, error) { return os.OpenRoot(d.key) }

// still is for systems that watch paths.
func still(string, fs.FileInfo) error { return nil }

// A fileID is what makes a file that one.
type fileID struct{ dev, ino uint64 }

// idOf is the ID of a file, if there is one.
func idOf(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, true
}
