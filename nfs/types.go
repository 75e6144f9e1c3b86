package nfs

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -o nfs3_xdr.go nfs3.x

// Port is the port of NFS on RDMA: service nfsrdma, RFC 5666 section 12.
const Port = 20049

// ProcName returns the RFC's name of an NFS version 3 procedure, such as "READDIRPLUS". It returns the decimal number
// if unknown.
func ProcName(proc uint32) string {
	if name := nfsV3Names.Procedure(proc); name != "" {
		return name
	}
	return fmt.Sprintf("procedure %d", proc)
}

// Rights that ACCESS asks about, as a bit mask. RFC 1813 section 3.3.4.
const (
	AccessRead    uint32 = 0x01
	AccessLookup  uint32 = 0x02
	AccessModify  uint32 = 0x04
	AccessExtend  uint32 = 0x08
	AccessDelete  uint32 = 0x10
	AccessExecute uint32 = 0x20
)

// Properties of a file system. RFC 1813 section 3.3.19.
const (
	FSFLink        uint32 = 0x01 // FSF3_LINK: hard links
	FSFSymlink     uint32 = 0x02 // FSF3_SYMLINK: symbolic links
	FSFHomogeneous uint32 = 0x08 // FSF3_HOMOGENEOUS: PATHCONF is the same everywhere
	FSFCanSetTime  uint32 = 0x10 // FSF3_CANSETTIME: times can be set
)

// A FileHandle is nfs_fh3: up to 64 opaque bytes by which the server identifies an object. Handles are comparable and
// can be map keys. Equal handles identify the same object, but an object may have several handles. RFC 1813 section
// 2.5.
type FileHandle struct {
	n    uint8
	data [MaxHandle]byte
}

// NewFileHandle copies b into a handle; ok is false when b is longer than 64
// bytes.
func NewFileHandle(b []byte) (fh FileHandle, ok bool) {
	if len(b) > MaxHandle {
		return FileHandle{}, false
	}
	fh.n = uint8(copy(fh.data[:], b))
	return fh, true
}

// Bytes returns a copy of the handle.
func (fh FileHandle) Bytes() []byte { return append([]byte(nil), fh.data[:fh.n]...) }

// IsZero reports whether the handle is empty and identifies nothing.
func (fh FileHandle) IsZero() bool { return fh.n == 0 }

// String returns the handle in hexadecimal.
func (fh FileHandle) String() string { return hex.EncodeToString(fh.data[:fh.n]) }

// Append appends the encoding to b.
func (fh *FileHandle) Append(b []byte) []byte { return xdr.AppendOpaque(b, fh.data[:fh.n]) }

// Decode reads the handle.
func (fh *FileHandle) Decode(d *xdr.Decoder) {
	*fh = FileHandle{}
	fh.n = uint8(copy(fh.data[:], d.Opaque(MaxHandle)))
}

// Check returns nil, because a handle has no limits that it could exceed.
func (fh *FileHandle) Check() error { return nil }

// TimeOf converts t, and discards the bits that do not fit an nfstime3.
func TimeOf(t time.Time) Time { return Time{Sec: uint32(t.Unix()), Nsec: uint32(t.Nanosecond())} }

// Time converts to the standard library's type, in UTC.
func (t Time) Time() time.Time { return time.Unix(int64(t.Sec), int64(t.Nsec)).UTC() }

// FileMode converts the type and permission bits to the standard library's.
func (a *Attr) FileMode() fs.FileMode {
	m := fs.FileMode(a.Mode & 0o777)
	// The bits above the permissions: RFC 1813 section 2.5, mode3.
	if a.Mode&0x800 != 0 {
		m |= fs.ModeSetuid
	}
	if a.Mode&0x400 != 0 {
		m |= fs.ModeSetgid
	}
	if a.Mode&0x200 != 0 {
		m |= fs.ModeSticky
	}
	switch a.Type {
	case TypeReg:
	case TypeDir:
		m |= fs.ModeDir
	case TypeBlk:
		m |= fs.ModeDevice
	case TypeChr:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case TypeLnk:
		m |= fs.ModeSymlink
	case TypeSock:
		m |= fs.ModeSocket
	case TypeFIFO:
		m |= fs.ModeNamedPipe
	default:
		m |= fs.ModeIrregular
	}
	return m
}
