package dirfs

import (
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// opener opens names in directories. It never follows symbolic links, including the last element, and never crosses
// into mounts. With O_PATH the name may be that of a link.
type opener struct {
	// plain is set if openat2(2) is missing, because the kernel is old or a system call filter does not know it. Names
	// are then opened one at a time, and a mount is recognized by its device, which does not detect another part of the
	// same file system.
	plain bool
	dev   uint64 // device of the export

	climbs *atomic.Int64 // test hook: counts calls of climb if not nil
}

// beneath holds the flags for openat2. Only climb uses "..".
const beneath = climbing | unix.RESOLVE_BENEATH

const climbing = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// open opens a name, or a path from the export's root, in a directory.
func (o opener) open(dir int, name string, flags int) (fd int, err error) {
	if o.plain {
		return o.walk(dir, name, flags)
	}
	return o.openat2(dir, name, flags, 0, beneath)
}

// create opens a new file.
func (o opener) create(dir int, name string, flags int, mode uint32) (fd int, err error) {
	flags |= unix.O_CREAT | unix.O_EXCL
	if o.plain {
		return openat(dir, name, flags, mode)
	}
	return o.openat2(dir, name, flags, mode, beneath)
}

// mostClimb is how many levels one system call climbs: a path must be shorter than 4096 bytes.
const mostClimb = 1024

// climb opens, with O_PATH, the directory that is the given number of levels up, 1 to mostClimb.
func (o opener) climb(dir, levels int) (fd int, err error) {
	if o.climbs != nil {
		o.climbs.Add(1)
	}
	path := ups[:3*levels-1]
	if o.plain {
		return o.step(dir, path, unix.O_PATH|unix.O_DIRECTORY)
	}
	return o.openat2(dir, path, unix.O_PATH|unix.O_DIRECTORY, 0, climbing)
}

// ups is a path that leads up. Immutable.
var ups = strings.Repeat("../", mostClimb)

// rise climbs one level at a time until it reaches the inode until, the top, or most levels.
func (o opener) rise(dir, most int, until *unix.Stat_t) (fd, levels int, err error) {
	var st, above unix.Stat_t
	if fd, err = o.open(dir, ".", unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return -1, 0, err
	}
	if err = fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	for ; levels < most && (until == nil || !same(&st, until)); levels++ {
		next, failed := o.climb(fd, 1)
		if failed != nil {
			return fd, levels, nil // the top of the mount, or inaccessible
		}
		unix.Close(fd)
		fd = next
		if err := fstat(fd, &above); err != nil {
			unix.Close(fd)
			return -1, 0, err
		}
		if same(&above, &st) {
			return fd, levels, nil // the top of the host's file system
		}
		st = above
	}
	return fd, levels, nil
}

// depth returns how many levels a directory is below top, where every way up ends, or at least maxDepth if it is
// deeper. It uses some 16 system calls, which climb up to 2*maxDepth levels.
func (o opener) depth(dir int, top *unix.Stat_t) (levels int, err error) {
	at := dir
	for step := mostClimb; step > 0 && levels < maxDepth; {
		next, failed := o.climb(at, step)
		if failed == nil {
			var st unix.Stat_t
			if err = fstat(next, &st); err == nil && !same(&st, top) {
				if at != dir {
					unix.Close(at)
				}
				at, levels = next, levels+step
				continue
			}
			unix.Close(next)
		}
		step /= 2
	}
	if at != dir {
		unix.Close(at)
	}
	return levels + 1, err
}

func (o opener) openat2(dir int, name string, flags int, mode uint32, rules uint64) (fd int, err error) {
	flags = large(flags)
	how := unix.OpenHow{Flags: uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: rules}
	for {
		// EAGAIN: something was renamed meanwhile, and it is unknown whether the path stays beneath.
		if fd, err = unix.Openat2(dir, name, &how); err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// large allows files of 2 GiB and more in a 32-bit process, as unix.Openat does. openat2 rejects that flag with O_PATH.
func large(flags int) int {
	if flags&unix.O_PATH != 0 {
		return flags
	}
	return flags | unix.O_LARGEFILE
}

// walk does what open does, one name at a time.
func (o opener) walk(dir int, path string, flags int) (fd int, err error) {
	at := dir
	for {
		name, rest, more := strings.Cut(path, "/")
		how := flags
		if more {
			how = unix.O_PATH | unix.O_DIRECTORY
		}
		fd, err = o.step(at, name, how)
		if at != dir {
			unix.Close(at)
		}
		if err != nil || !more {
			return fd, err
		}
		at, path = fd, rest
	}
}

// step opens a single name.
func (o opener) step(dir int, name string, flags int) (fd int, err error) {
	if fd, err = openat(dir, name, flags, 0); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = fstat(fd, &st); err == nil && uint64(st.Dev) != o.dev {
		err = unix.EXDEV
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// procPath returns a path for the object open at fd, for system calls that do not accept O_PATH. It leads to that inode
// itself, not to its name.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func fstat(fd int, st *unix.Stat_t) error { return retry(func() error { return unix.Fstat(fd, st) }) }

// same reports whether a and b are of the same inode. The inode number alone does not suffice: on btrfs the roots of
// all subvolumes have the same number, but different devices.
func same(a, b *unix.Stat_t) bool { return a.Ino == b.Ino && a.Dev == b.Dev }

// retry repeats f as long as a signal interrupts it: one of Go's runtime, on a file system that permits that.
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

// attrOf converts attributes.
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
