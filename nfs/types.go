package nfs

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// RPC numbers of the NFS version 3 program and its port on RDMA.
const (
	Program uint32 = 100003 // RFC 1813 section 3
	Version uint32 = 3

	// Port is the port of NFS on RDMA: service nfsrdma, RFC 5666 section 12.
	Port = 20049
)

// Procedures of the NFS version 3 program. RFC 1813 section 3.
const (
	ProcNull uint32 = iota
	ProcGetAttr
	ProcSetAttr
	ProcLookup
	ProcAccess
	ProcReadLink
	ProcRead
	ProcWrite
	ProcCreate
	ProcMkdir
	ProcSymlink
	ProcMknod
	ProcRemove
	ProcRmdir
	ProcRename
	ProcLink
	ProcReadDir
	ProcReadDirPlus
	ProcFSStat
	ProcFSInfo
	ProcPathConf
	ProcCommit
)

// ProcName is the RFC's name of a procedure of the NFS version 3 program, such as
// "READDIRPLUS". Unknown numbers are printed as numbers.
func ProcName(proc uint32) string {
	if proc < uint32(len(procNames)) {
		return procNames[proc]
	}
	return fmt.Sprintf("procedure %d", proc)
}

var procNames = [...]string{
	"NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ",
	"WRITE", "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR",
	"RENAME", "LINK", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO",
	"PATHCONF", "COMMIT",
}

// Sizes in bytes. RFC 1813 section 2.4, except for names and paths, which it does not limit:
// those are limits of this package.
const (
	MaxHandle  = 64   // NFS3_FHSIZE
	VerfSize   = 8    // NFS3_COOKIEVERFSIZE, CREATEVERFSIZE, WRITEVERFSIZE
	MaxName    = 1024 // longest filename3 that is decoded
	MaxPath    = 4096 // longest nfspath3 that is decoded
	maxData    = 1<<32 - 1
	sizeAttr   = 84                          // fattr3
	sizePostOp = xdr.Unit + sizeAttr         // post_op_attr
	sizePreOp  = xdr.Unit + 24               // pre_op_attr
	sizeWcc    = sizePreOp + sizePostOp      // wcc_data
	sizeHandle = xdr.Unit + MaxHandle        // nfs_fh3
	sizePostFH = xdr.Unit + sizeHandle       // post_op_fh3
	minEntry   = xdr.Unit + 8 + xdr.Unit + 8 // entry3 with an empty name
)

// Status is nfsstat3, the result of a procedure. RFC 1813 section 2.6.
type Status uint32

// Results of procedures.
const (
	StatusOK          Status = 0
	StatusPerm        Status = 1
	StatusNoEnt       Status = 2
	StatusIO          Status = 5
	StatusNXIO        Status = 6
	StatusAcces       Status = 13
	StatusExist       Status = 17
	StatusXDev        Status = 18
	StatusNoDev       Status = 19
	StatusNotDir      Status = 20
	StatusIsDir       Status = 21
	StatusInval       Status = 22
	StatusFBig        Status = 27
	StatusNoSpc       Status = 28
	StatusROFS        Status = 30
	StatusMLink       Status = 31
	StatusNameTooLong Status = 63
	StatusNotEmpty    Status = 66
	StatusDQuot       Status = 69
	StatusStale       Status = 70
	StatusRemote      Status = 71
	StatusBadHandle   Status = 10001
	StatusNotSync     Status = 10002
	StatusBadCookie   Status = 10003
	StatusNotSupp     Status = 10004
	StatusTooSmall    Status = 10005
	StatusServerFault Status = 10006
	StatusBadType     Status = 10007
	StatusJukebox     Status = 10008
)

// String is the RFC's name, such as "NFS3ERR_NOENT".
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "NFS3_OK"
	case StatusPerm:
		return "NFS3ERR_PERM"
	case StatusNoEnt:
		return "NFS3ERR_NOENT"
	case StatusIO:
		return "NFS3ERR_IO"
	case StatusNXIO:
		return "NFS3ERR_NXIO"
	case StatusAcces:
		return "NFS3ERR_ACCES"
	case StatusExist:
		return "NFS3ERR_EXIST"
	case StatusXDev:
		return "NFS3ERR_XDEV"
	case StatusNoDev:
		return "NFS3ERR_NODEV"
	case StatusNotDir:
		return "NFS3ERR_NOTDIR"
	case StatusIsDir:
		return "NFS3ERR_ISDIR"
	case StatusInval:
		return "NFS3ERR_INVAL"
	case StatusFBig:
		return "NFS3ERR_FBIG"
	case StatusNoSpc:
		return "NFS3ERR_NOSPC"
	case StatusROFS:
		return "NFS3ERR_ROFS"
	case StatusMLink:
		return "NFS3ERR_MLINK"
	case StatusNameTooLong:
		return "NFS3ERR_NAMETOOLONG"
	case StatusNotEmpty:
		return "NFS3ERR_NOTEMPTY"
	case StatusDQuot:
		return "NFS3ERR_DQUOT"
	case StatusStale:
		return "NFS3ERR_STALE"
	case StatusRemote:
		return "NFS3ERR_REMOTE"
	case StatusBadHandle:
		return "NFS3ERR_BADHANDLE"
	case StatusNotSync:
		return "NFS3ERR_NOT_SYNC"
	case StatusBadCookie:
		return "NFS3ERR_BAD_COOKIE"
	case StatusNotSupp:
		return "NFS3ERR_NOTSUPP"
	case StatusTooSmall:
		return "NFS3ERR_TOOSMALL"
	case StatusServerFault:
		return "NFS3ERR_SERVERFAULT"
	case StatusBadType:
		return "NFS3ERR_BADTYPE"
	case StatusJukebox:
		return "NFS3ERR_JUKEBOX"
	}
	return fmt.Sprintf("nfsstat3 %d", uint32(s))
}

// FileType is ftype3. RFC 1813 section 2.5.
type FileType uint32

// Types of file system objects.
const (
	TypeReg  FileType = 1
	TypeDir  FileType = 2
	TypeBlk  FileType = 3
	TypeChr  FileType = 4
	TypeLnk  FileType = 5
	TypeSock FileType = 6
	TypeFIFO FileType = 7
)

// String is the RFC's name, such as "NF3REG".
func (t FileType) String() string {
	switch t {
	case TypeReg:
		return "NF3REG"
	case TypeDir:
		return "NF3DIR"
	case TypeBlk:
		return "NF3BLK"
	case TypeChr:
		return "NF3CHR"
	case TypeLnk:
		return "NF3LNK"
	case TypeSock:
		return "NF3SOCK"
	case TypeFIFO:
		return "NF3FIFO"
	}
	return fmt.Sprintf("ftype3 %d", uint32(t))
}

// A FileHandle is nfs_fh3: up to 64 opaque bytes by which the server identifies an object.
// Handles can be compared and used as map keys. Equal handles are the same object, but an
// object may have several handles. RFC 1813 section 2.5, nfs_fh3.
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

// String is the handle in hexadecimal.
func (fh FileHandle) String() string { return hex.EncodeToString(fh.data[:fh.n]) }

// Append appends the encoding to b.
func (fh *FileHandle) Append(b []byte) []byte { return xdr.AppendOpaque(b, fh.data[:fh.n]) }

// Decode reads the handle.
func (fh *FileHandle) Decode(d *xdr.Decoder) {
	*fh = FileHandle{}
	fh.n = uint8(copy(fh.data[:], d.Opaque(MaxHandle)))
}

// A Verf is a cookieverf3, createverf3 or writeverf3: eight bytes that are opaque to the
// receiver. RFC 1813 section 2.4.
type Verf [VerfSize]byte

// Append appends the encoding to b.
func (v *Verf) Append(b []byte) []byte { return xdr.AppendFixedOpaque(b, v[:]) }

// Decode reads the verifier.
func (v *Verf) Decode(d *xdr.Decoder) {
	*v = Verf{}
	copy(v[:], d.FixedOpaque(VerfSize))
}

// A Time is nfstime3: seconds and nanoseconds since the start of 1970, UTC.
// RFC 1813 section 2.5.
type Time struct {
	Sec, Nsec uint32
}

// TimeOf converts t, and discards the bits that do not fit an nfstime3.
func TimeOf(t time.Time) Time { return Time{Sec: uint32(t.Unix()), Nsec: uint32(t.Nanosecond())} }

// Time converts to the standard library's type, in UTC.
func (t Time) Time() time.Time { return time.Unix(int64(t.Sec), int64(t.Nsec)).UTC() }

// Append appends the encoding to b.
func (t *Time) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, t.Sec)
	return xdr.AppendUint32(b, t.Nsec)
}

// Decode reads the time.
func (t *Time) Decode(d *xdr.Decoder) {
	t.Sec = d.Uint32()
	t.Nsec = d.Uint32()
}

// A Device is specdata3: the numbers of a character or block device.
// RFC 1813 section 2.5.
type Device struct {
	Major, Minor uint32
}

// Append appends the encoding to b.
func (v *Device) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, v.Major)
	return xdr.AppendUint32(b, v.Minor)
}

// Decode reads the numbers.
func (v *Device) Decode(d *xdr.Decoder) {
	v.Major = d.Uint32()
	v.Minor = d.Uint32()
}

// Attr is fattr3, the attributes of an object. RFC 1813 section 2.5.
type Attr struct {
	Type   FileType
	Mode   uint32 // permission bits as in RFC 1813 section 2.5, mode3: 12 bits
	Nlink  uint32
	UID    uint32
	GID    uint32
	Size   uint64 // in bytes
	Used   uint64 // bytes of disk space
	Rdev   Device
	FSID   uint64
	FileID uint64 // the inode number
	ATime  Time
	MTime  Time
	CTime  Time // change of the attributes
}

// Append appends the encoding to b.
func (a *Attr) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(a.Type))
	b = xdr.AppendUint32(b, a.Mode)
	b = xdr.AppendUint32(b, a.Nlink)
	b = xdr.AppendUint32(b, a.UID)
	b = xdr.AppendUint32(b, a.GID)
	b = xdr.AppendUint64(b, a.Size)
	b = xdr.AppendUint64(b, a.Used)
	b = a.Rdev.Append(b)
	b = xdr.AppendUint64(b, a.FSID)
	b = xdr.AppendUint64(b, a.FileID)
	b = a.ATime.Append(b)
	b = a.MTime.Append(b)
	return a.CTime.Append(b)
}

// Decode reads the attributes.
func (a *Attr) Decode(d *xdr.Decoder) {
	a.Type = FileType(d.Uint32())
	a.Mode = d.Uint32()
	a.Nlink = d.Uint32()
	a.UID = d.Uint32()
	a.GID = d.Uint32()
	a.Size = d.Uint64()
	a.Used = d.Uint64()
	a.Rdev.Decode(d)
	a.FSID = d.Uint64()
	a.FileID = d.Uint64()
	a.ATime.Decode(d)
	a.MTime.Decode(d)
	a.CTime.Decode(d)
}

// FileMode converts type and permission bits to the standard library's.
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

// PostOpAttr is post_op_attr: attributes that a server may add to a result. RFC 1813 section
// 2.5.
type PostOpAttr struct {
	Present bool // Attr is valid
	Attr    Attr
}

// Append appends the encoding to b.
func (p *PostOpAttr) Append(b []byte) []byte {
	b = xdr.AppendBool(b, p.Present)
	if p.Present {
		b = p.Attr.Append(b)
	}
	return b
}

// Decode reads the attributes, if they are present.
func (p *PostOpAttr) Decode(d *xdr.Decoder) {
	*p = PostOpAttr{}
	if p.Present = d.Optional(); p.Present {
		p.Attr.Decode(d)
	}
}

// PostOpHandle is post_op_fh3: the handle of a new object, if the server gives it.
// RFC 1813 section 2.5.
type PostOpHandle struct {
	Present bool // Handle is valid
	Handle  FileHandle
}

// Append appends the encoding to b.
func (p *PostOpHandle) Append(b []byte) []byte {
	b = xdr.AppendBool(b, p.Present)
	if p.Present {
		b = p.Handle.Append(b)
	}
	return b
}

// Decode reads the handle, if it is present.
func (p *PostOpHandle) Decode(d *xdr.Decoder) {
	*p = PostOpHandle{}
	if p.Present = d.Optional(); p.Present {
		p.Handle.Decode(d)
	}
}

// PreOpAttr is pre_op_attr with the wcc_attr in it: attributes of an object before an
// operation. RFC 1813 section 2.5.
type PreOpAttr struct {
	Present bool // the other fields mean nothing without it
	Size    uint64
	MTime   Time
	CTime   Time
}

// Append appends the encoding to b.
func (p *PreOpAttr) Append(b []byte) []byte {
	b = xdr.AppendBool(b, p.Present)
	if p.Present {
		b = xdr.AppendUint64(b, p.Size)
		b = p.MTime.Append(b)
		b = p.CTime.Append(b)
	}
	return b
}

// Decode reads the attributes, if they are present.
func (p *PreOpAttr) Decode(d *xdr.Decoder) {
	*p = PreOpAttr{}
	if p.Present = d.Optional(); p.Present {
		p.Size = d.Uint64()
		p.MTime.Decode(d)
		p.CTime.Decode(d)
	}
}

// Wcc is wcc_data: an object before and after an operation, for weak cache
// consistency. RFC 1813 section 2.5.
type Wcc struct {
	Before PreOpAttr
	After  PostOpAttr
}

// Append appends the encoding to b.
func (w *Wcc) Append(b []byte) []byte {
	b = w.Before.Append(b)
	return w.After.Append(b)
}

// Decode reads both sides.
func (w *Wcc) Decode(d *xdr.Decoder) {
	w.Before.Decode(d)
	w.After.Decode(d)
}

// TimeHow is time_how: what a SetAttr does to a time. RFC 1813 section 2.5.
type TimeHow uint32

// Ways to set a time.
const (
	DontChange      TimeHow = 0
	SetToServerTime TimeHow = 1
	SetToClientTime TimeHow = 2
)

// SetAttr is sattr3: the attributes to set. The zero value changes nothing. RFC 1813 section
// 2.5.
type SetAttr struct {
	SetMode  bool
	Mode     uint32
	SetUID   bool
	UID      uint32
	SetGID   bool
	GID      uint32
	SetSize  bool
	Size     uint64 // in bytes
	ATimeHow TimeHow
	ATime    Time // with SetToClientTime
	MTimeHow TimeHow
	MTime    Time // with SetToClientTime
}

// Append appends the encoding to b.
func (s *SetAttr) Append(b []byte) []byte {
	b = appendOptional32(b, s.SetMode, s.Mode)
	b = appendOptional32(b, s.SetUID, s.UID)
	b = appendOptional32(b, s.SetGID, s.GID)
	b = xdr.AppendBool(b, s.SetSize)
	if s.SetSize {
		b = xdr.AppendUint64(b, s.Size)
	}
	b = appendTimeHow(b, s.ATimeHow, s.ATime)
	return appendTimeHow(b, s.MTimeHow, s.MTime)
}

func appendOptional32(b []byte, set bool, v uint32) []byte {
	b = xdr.AppendBool(b, set)
	if set {
		b = xdr.AppendUint32(b, v)
	}
	return b
}

func appendTimeHow(b []byte, how TimeHow, t Time) []byte {
	b = xdr.AppendUint32(b, uint32(how))
	if how == SetToClientTime {
		b = t.Append(b)
	}
	return b
}

// Decode reads the attributes.
func (s *SetAttr) Decode(d *xdr.Decoder) {
	*s = SetAttr{}
	if s.SetMode = d.Bool(); s.SetMode {
		s.Mode = d.Uint32()
	}
	if s.SetUID = d.Bool(); s.SetUID {
		s.UID = d.Uint32()
	}
	if s.SetGID = d.Bool(); s.SetGID {
		s.GID = d.Uint32()
	}
	if s.SetSize = d.Bool(); s.SetSize {
		s.Size = d.Uint64()
	}
	if s.ATimeHow = TimeHow(d.Uint32()); s.ATimeHow == SetToClientTime {
		s.ATime.Decode(d)
	}
	if s.MTimeHow = TimeHow(d.Uint32()); s.MTimeHow == SetToClientTime {
		s.MTime.Decode(d)
	}
}

// DirOpArgs is diropargs3: a name in a directory. RFC 1813 section 2.5.
type DirOpArgs struct {
	Dir  FileHandle
	Name string
}

// Append appends the encoding to b.
func (a *DirOpArgs) Append(b []byte) []byte {
	b = a.Dir.Append(b)
	return xdr.AppendString(b, a.Name)
}

// Decode reads handle and name; the name is a copy.
func (a *DirOpArgs) Decode(d *xdr.Decoder) {
	a.Dir.Decode(d)
	a.Name = d.String(MaxName)
}
