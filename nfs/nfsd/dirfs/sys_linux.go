package dirfs

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// openAt opens a name in a directory: no symbolic link is followed, also not in place of the
// name, and nothing is entered that is mounted there. With O_PATH the name may be a link.
func openAt(dir int, name string, flags int) (fd int, err error) {
	return createAt(dir, name, flags, 0)
}

// createAt is openAt that may make the file.
func createAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		// EAGAIN: something was renamed meanwhile, and it could not be told that all is beneath.
		if fd, err = unix.Openat2(dir, name, &how); err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// openParent opens the directory above one, with O_PATH.
func openParent(dir int) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		if fd, err = unix.Openat2(dir, "..", &how); err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// procPath names what a descriptor is open for, for system calls that do not take O_PATH. It is
// that very inode, not its name.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func fstat(fd int, st *unix.Stat_t) error { return retry(func() error { return unix.Fstat(fd, st) }) }

// retry repeats f as long as a signal interrupts it: of Go's runtime, on a file system that
// lets it.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func typeOf(mode uint32) nfs.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return nfs.TypeDir
	case unix.S_IFBLK:
		return nfs.TypeBlk
	case unix.S_IFCHR:
		return nfs.TypeChr
	case unix.S_IFLNK:
		return nfs.TypeLnk
	case unix.S_IFSOCK:
		return nfs.TypeSock
	case unix.S_IFIFO:
		return nfs.TypeFIFO
	}
	return nfs.TypeReg
}

func timeOf(t unix.Timespec) nfs.Time { return nfs.Time{Sec: uint32(t.Sec), Nsec: uint32(t.Nsec)} }

// attrOf translates attributes.
func (f *FS) attrOf(st *unix.Stat_t) nfs.Attr {
	a := nfs.Attr{
		Type: typeOf(st.Mode), Mode: st.Mode & 0o7777, Nlink: uint32(st.Nlink),
		UID: st.Uid, GID: st.Gid,
		Size: uint64(st.Size), Used: uint64(st.Blocks) * 512,
		FSID: uint64(f.volume), FileID: st.Ino,
		ATime: timeOf(st.Atim), MTime: timeOf(st.Mtim), CTime: timeOf(st.Ctim),
	}
	if a.Type == nfs.TypeBlk || a.Type == nfs.TypeChr {
		a.Rdev = nfs.Device{Major: unix.Major(uint64(st.Rdev)), Minor: unix.Minor(uint64(st.Rdev))}
	}
	return a
}
