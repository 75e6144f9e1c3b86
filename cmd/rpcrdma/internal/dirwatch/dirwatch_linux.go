package dirwatch

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// keysFollow is set because a renamed directory keeps its key.
const keysFollow = true

// descriptors returns how many descriptors this process may have, but not more than 65536.
func descriptors() int {
	const most = 1 << 16
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, most))
}

// watchLimit returns how many directories may be watched. Each needs a descriptor, and most descriptors are left to
// connections and files.
func watchLimit() int { return min(MaxDirs, descriptors()/4) }

// slots allocates the descriptors of directories. inotify is given the descriptor, as a path below /proc, instead of
// the directory's own path, which could become a symbolic link meanwhile. That path is the directory's key in
// fsnotify's events. A descriptor is not reused soon, because late events of the previous directory would count as
// events of the next one.
type slots struct{ last int }

// keep moves f to a descriptor of its own, and returns the key for fsnotify. It takes over f, even if it fails.
func (s *slots) keep(f *os.File, _ string) (*os.File, string, error) {
	defer f.Close()
	all := descriptors()
	s.last = max(s.last+1, all/2)
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, s.last)
	if err != nil { // past the end, start over
		s.last = all / 2
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, s.last)
	}
	if err != nil {
		return nil, "", os.NewSyscallError("fcntl", err)
	}
	s.last = fd
	return os.NewFile(uintptr(fd), f.Name()), fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// open opens a directory again, wherever it is now: its path may have changed without the event having arrived.
func (w *Watcher) open(d *watched) (*os.Root, error) { return os.OpenRoot(d.key) }

// still checks nothing, because descriptors are watched.
func still(string, fs.FileInfo) error { return nil }

// fileID identifies a file.
type fileID struct{ dev, ino uint64 }

// idOf returns the ID of a file, if the system has one.
func idOf(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, true
}
