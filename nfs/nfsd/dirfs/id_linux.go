package dirfs

import (
	"crypto/sha256"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// id identifies an inode for all time: no other inode gets the same id. Ids are comparable, also as map keys. The zero
// id identifies no file.
//
//	0              8      10
//	+--------------+------+---------------------------------+
//	| inode number | type | of the kernel, at most 28 bytes |
//	+--------------+------+---------------------------------+
type id struct {
	ino  uint64
	typ  uint16 // type of the kernel's handle, typeBirth or typeHash
	size uint8
	b    [maxKernel]byte
}

const (
	idHead    = 10
	maxKernel = 28 // bytes of a kernel handle: ext4 uses 8, xfs 12, btrfs 20

	maxHandle = 128 // bytes: MAX_HANDLE_SZ

	// typeBirth is the type of an id with the time of birth in place of a handle. typeHash is that of an id with the
	// hash of a handle that is too long, as on overlayfs. The kernel has no such types.
	typeBirth = 0xfffe
	typeHash  = 0xfffd

	// typeGeneric is FILEID_INO64_GEN: inode number and generation. Linux makes such handles for file systems without
	// handles of their own. Their generation may always be 0.
	typeGeneric = 0x81

	// atHandleFID is AT_HANDLE_FID of Linux 6.5. It permits handles that cannot be opened.
	atHandleFID = 0x200
)

// append appends the bytes of the id to b.
func (i *id) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, i.ino)
	b = binary.BigEndian.AppendUint16(b, i.typ)
	return append(b, i.b[:i.size]...)
}

func parseID(b []byte) (i id, ok bool) {
	if len(b) < idHead || len(b) > idHead+maxKernel {
		return id{}, false
	}
	i.ino = binary.BigEndian.Uint64(b)
	i.typ = binary.BigEndian.Uint16(b[8:])
	i.size = uint8(copy(i.b[:], b[idHead:]))
	return i, true
}

// key returns the id without the parts that a kernel handle implies, so that the handle alone finds an object in a map.
func (i *id) key() id {
	k := *i
	if k.typ != typeBirth {
		k.ino = 0
	}
	return k
}

// identifier determines ids, in the best way that the file system supports.
type identifier struct {
	birth bool  // the file system has no handles
	weak  bool  // it has no times of birth either: only inode numbers
	flags int   // flags for name_to_handle_at
	mount int32 // mount ID, if the file system has handles
}

// newIdentifier determines what the file system of a directory supports.
func newIdentifier(fd int) identifier {
	var h kernelHandle
	for _, flags := range []int{0, atHandleFID} {
		mount, err := nameToHandle(fd, "", &h, unix.AT_EMPTY_PATH|flags)
		if err == nil && h.known() && (flags == 0 || !h.generic()) {
			return identifier{flags: flags, mount: mount}
		}
	}
	_, ok := birthOf(fd, "")
	return identifier{birth: true, weak: !ok}
}

// known reports whether the handle's type is one of the kernel's.
func (h *kernelHandle) known() bool { return h.typ >= 0 && h.typ < typeHash }

// generic reports whether the handle contains nothing but the inode number.
func (h *kernelHandle) generic() bool {
	return h.typ == typeGeneric && h.size == 12 && binary.NativeEndian.Uint32(h.b[8:]) == 0
}

// set stores a handle in the id, or its hash if it is too long. A handle of overlayfs is that of the file in the lower
// layer, and does not change when the file is copied up.
func (i *id) set(h *kernelHandle) {
	if h.size > maxKernel {
		sum := sha256.Sum256(h.b[:h.size])
		i.typ, i.size = typeHash, uint8(copy(i.b[:], sum[:]))
		return
	}
	i.typ, i.size = uint16(h.typ), uint8(copy(i.b[:h.size], h.b[:]))
}

// of returns the id of a name in a directory, or of the descriptor itself if the name is empty. st is its attributes.
func (f identifier) of(fd int, name string, st *unix.Stat_t) (i id, err error) {
	i.ino = st.Ino
	if f.birth {
		birth, _ := birthOf(fd, name)
		i.typ, i.size = typeBirth, uint8(copy(i.b[:], birth[:]))
		return i, nil
	}
	var h kernelHandle
	flags := f.flags
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if _, err := nameToHandle(fd, name, &h, flags); err != nil {
		return id{}, err
	}
	if !h.known() {
		return id{}, unix.EOVERFLOW
	}
	i.set(&h)
	return i, nil
}

// keyOf returns the key of a name in a directory. ok is false if that takes more than one system call, or if something
// is mounted there.
func (f identifier) keyOf(dir int, name string) (key id, ok bool) {
	if f.birth {
		return id{}, false
	}
	var h kernelHandle
	mount, err := nameToHandle(dir, name, &h, f.flags)
	if err != nil || mount != f.mount || !h.known() {
		return id{}, false
	}
	key.set(&h)
	return key, true
}

// open opens an inode by its id. ESTALE: the inode is gone.
func (f identifier) open(mount int, i *id, flags int) (fd int, err error) {
	if f.birth || f.flags != 0 || i.typ >= typeHash {
		return -1, unix.ESTALE
	}
	h := kernelHandle{size: uint32(i.size), typ: int32(i.typ)}
	copy(h.b[:], i.b[:i.size])
	for {
		r, _, errno := unix.Syscall(unix.SYS_OPEN_BY_HANDLE_AT, uintptr(mount), uintptr(unsafe.Pointer(&h)),
			uintptr(large(flags)|unix.O_NOFOLLOW|unix.O_CLOEXEC))
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		case unix.EINVAL, unix.ENOENT:
			return -1, unix.ESTALE // a handle of another file system
		default:
			return -1, errno
		}
	}
}

// kernelHandle is a struct file_handle with room for any handle: name_to_handle_at(2).
type kernelHandle struct {
	size uint32 // in bytes; before the call: capacity
	typ  int32
	b    [maxHandle]byte
}

// nameToHandle sets h, and returns the ID of the mount that the object is on.
func nameToHandle(dir int, name string, h *kernelHandle, flags int) (mount int32, err error) {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	h.size = maxHandle
	_, _, errno := unix.Syscall6(unix.SYS_NAME_TO_HANDLE_AT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(h)), uintptr(unsafe.Pointer(&mount)), uintptr(flags), 0)
	if errno != 0 {
		return 0, errno
	}
	return mount, nil
}

// birthOf returns the time of birth of an inode. ok is false if the file system does not record it.
func birthOf(fd int, name string) (b [12]byte, ok bool) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if err := unix.Statx(fd, name, flags, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return b, false
	}
	binary.BigEndian.PutUint64(b[:], uint64(st.Btime.Sec))
	binary.BigEndian.PutUint32(b[8:], st.Btime.Nsec)
	return b, true
}
