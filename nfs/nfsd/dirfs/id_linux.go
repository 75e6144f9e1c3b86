package dirfs

import (
	"crypto/sha256"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An id is an inode, forever: no other one will have the same. Ids can be compared, and be keys of a
// map. The zero id names no file.
//
//	0              8      10
//	+--------------+------+---------------------------------+
//	| inode number | type | of the kernel, at most 28 bytes |
//	+--------------+------+---------------------------------+
type id struct {
	ino  uint64
	typ  uint16 // that of the kernel's handle, typeBirth or typeHash
	size uint8
	b    [maxKernel]byte
}

const (
	idHead    = 10
	maxKernel = 28 // bytes of a kernel's handle: ext4 has 8, xfs 12, btrfs 20

	maxHandle = 128 // bytes: MAX_HANDLE_SZ

	// typeBirth is an id with the time of birth in place of a handle, and typeHash one with the hash of a
	// handle that is too long, such as those of overlayfs. The kernel has no such types.
	typeBirth = 0xfffe
	typeHash  = 0xfffd

	// typeGeneric is FILEID_INO64_GEN: inode number and generation. Linux makes such handles for file
	// systems without handles of their own; their generation may always be 0.
	typeGeneric = 0x81

	// atHandleFID is AT_HANDLE_FID of Linux 6.5: a handle that cannot be opened will do.
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

// key is the id without what a handle of the kernel says by itself, so that the handle is enough
// to find an object in a map.
func (i *id) key() id {
	k := *i
	if k.typ != typeBirth {
		k.ino = 0
	}
	return k
}

// An identifier finds out ids, in the best way that a file system has.
type identifier struct {
	birth bool  // it has no handles
	weak  bool  // nor times of birth: the inode number is all there is
	flags int   // of name_to_handle_at
	mount int32 // ID of the mount, if it has handles
}

// newIdentifier finds out which way works for the file system of a directory.
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

// known reports whether the type of the handle is one of the kernel's.
func (h *kernelHandle) known() bool { return h.typ >= 0 && h.typ < typeHash }

// generic reports whether the handle says nothing but the inode number.
func (h *kernelHandle) generic() bool {
	return h.typ == typeGeneric && h.size == 12 && binary.NativeEndian.Uint32(h.b[8:]) == 0
}

// set puts a handle into the id, or its hash if there is no room for it. A handle of overlayfs is that of
// the file in the lower layer, and stays the same when the file is copied up.
func (i *id) set(h *kernelHandle) {
	if h.size > maxKernel {
		sum := sha256.Sum256(h.b[:h.size])
		i.typ, i.size = typeHash, uint8(copy(i.b[:], sum[:]))
		return
	}
	i.typ, i.size = uint16(h.typ), uint8(copy(i.b[:h.size], h.b[:]))
}

// of returns the id of what a name in a directory is, or an empty name: the descriptor itself.
// st are its attributes.
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

// keyOf returns the key of what a name in a directory is, if that takes no more than a system call
// and nothing is mounted on it.
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

// open opens an inode by its id. ESTALE: it is gone.
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
			return -1, unix.ESTALE // not a handle of this file system
		default:
			return -1, errno
		}
	}
}

// A kernelHandle is a struct file_handle with room for all there are: name_to_handle_at(2).
type kernelHandle struct {
	size uint32 // in bytes; before the call: room
	typ  int32
	b    [maxHandle]byte
}

// nameToHandle fills in h, and returns the ID of the mount that the object is on.
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

// birthOf returns when an inode was made; ok is false if the file system does not know.
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
