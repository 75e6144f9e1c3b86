package nfs41

import "github.com/rpcrdma/rpcrdma/proto/xdr"

// Numbers of attributes. RFC 8881 sections 5.8 and 5.9, numbered as in RFC 5662.
const (
	AttrSupported       uint32 = 0
	AttrType            uint32 = 1
	AttrFHExpireType    uint32 = 2
	AttrChange          uint32 = 3
	AttrSize            uint32 = 4
	AttrLinkSupport     uint32 = 5
	AttrSymlinkSupport  uint32 = 6
	AttrNamedAttr       uint32 = 7
	AttrFSID            uint32 = 8
	AttrUniqueHandles   uint32 = 9
	AttrLeaseTime       uint32 = 10
	AttrRDAttrError     uint32 = 11
	AttrCaseInsensitive uint32 = 16
	AttrCasePreserving  uint32 = 17
	AttrFileHandle      uint32 = 19
	AttrFileID          uint32 = 20
	AttrFilesAvail      uint32 = 21
	AttrFilesFree       uint32 = 22
	AttrFilesTotal      uint32 = 23
	AttrMaxFileSize     uint32 = 27
	AttrMaxLink         uint32 = 28
	AttrMaxName         uint32 = 29
	AttrMaxRead         uint32 = 30
	AttrMaxWrite        uint32 = 31
	AttrMode            uint32 = 33
	AttrNumLinks        uint32 = 35
	AttrOwner           uint32 = 36
	AttrOwnerGroup      uint32 = 37
	AttrRawDev          uint32 = 41
	AttrSpaceAvail      uint32 = 42
	AttrSpaceFree       uint32 = 43
	AttrSpaceTotal      uint32 = 44
	AttrSpaceUsed       uint32 = 45
	AttrTimeAccess      uint32 = 47
	AttrTimeDelta       uint32 = 51
	AttrTimeMetadata    uint32 = 52
	AttrTimeModify      uint32 = 53
	AttrMountedOnFileID uint32 = 55
	AttrSuppExclCreate  uint32 = 75
)

// TypeDir is NF4DIR of nfs_ftype4. RFC 8881 section 3.3.
const TypeDir uint32 = 2

// Attrs are the attributes that this package knows. Which of them there are Mask says.
type Attrs struct {
	Mask Bitmap

	Supported       Bitmap
	Type            uint32 // as in TypeDir
	FHExpireType    uint32 // 0: handles stay valid
	Change          uint64
	Size            uint64 // in bytes
	LinkSupport     bool
	SymlinkSupport  bool
	NamedAttr       bool
	FSID            FSID
	UniqueHandles   bool
	LeaseTime       uint32 // in seconds
	RDAttrError     Status
	CaseInsensitive bool
	CasePreserving  bool
	FileHandle      FileHandle
	FileID          uint64
	FilesAvail      uint64
	FilesFree       uint64
	FilesTotal      uint64
	MaxFileSize     uint64 // in bytes
	MaxLink         uint32
	MaxName         uint32 // in bytes
	MaxRead         uint64 // in bytes
	MaxWrite        uint64 // in bytes
	Mode            uint32
	NumLinks        uint32
	Owner           string // "user@domain", or a number; at most 1024 bytes
	OwnerGroup      string // likewise
	RawDev          RawDev
	SpaceAvail      uint64 // in bytes
	SpaceFree       uint64 // in bytes
	SpaceTotal      uint64 // in bytes
	SpaceUsed       uint64 // in bytes
	TimeAccess      Time
	TimeDelta       Time // granularity of times
	TimeMetadata    Time
	TimeModify      Time
	MountedOnFileID uint64
	SuppExclCreate  Bitmap
}

// An FSID is fsid4. RFC 8881 section 5.8.1.9.
type FSID struct{ Major, Minor uint64 }

// Append appends the encoding to b.
func (f *FSID) Append(b []byte) []byte {
	return xdr.AppendUint64(xdr.AppendUint64(b, f.Major), f.Minor)
}

// Decode reads the id.
func (f *FSID) Decode(d *xdr.Decoder) { *f = FSID{d.Uint64(), d.Uint64()} }

// A RawDev is specdata4: the numbers of a character or block device. RFC 8881 section
// 3.3.
type RawDev struct{ Major, Minor uint32 }

// Append appends the encoding to b.
func (r *RawDev) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendUint32(b, r.Major), r.Minor)
}

// Decode reads the numbers.
func (r *RawDev) Decode(d *xdr.Decoder) { *r = RawDev{d.Uint32(), d.Uint32()} }

// field returns what the value of attribute n is read into and written from, or nil:
// a *bool, *uint32, *uint64, *string, *Status or Message.
func (a *Attrs) field(n uint32) any {
	switch n {
	case AttrSupported:
		return &a.Supported
	case AttrType:
		return &a.Type
	case AttrFHExpireType:
		return &a.FHExpireType
	case AttrChange:
		return &a.Change
	case AttrSize:
		return &a.Size
	case AttrLinkSupport:
		return &a.LinkSupport
	case AttrSymlinkSupport:
		return &a.SymlinkSupport
	case AttrNamedAttr:
		return &a.NamedAttr
	case AttrFSID:
		return &a.FSID
	case AttrUniqueHandles:
		return &a.UniqueHandles
	case AttrLeaseTime:
		return &a.LeaseTime
	case AttrRDAttrError:
		return (*uint32)(&a.RDAttrError)
	case AttrCaseInsensitive:
		return &a.CaseInsensitive
	case AttrCasePreserving:
		return &a.CasePreserving
	case AttrFileHandle:
		return &a.FileHandle
	case AttrFileID:
		return &a.FileID
	case AttrFilesAvail:
		return &a.FilesAvail
	case AttrFilesFree:
		return &a.FilesFree
	case AttrFilesTotal:
		return &a.FilesTotal
	case AttrMaxFileSize:
		return &a.MaxFileSize
	case AttrMaxLink:
		return &a.MaxLink
	case AttrMaxName:
		return &a.MaxName
	case AttrMaxRead:
		return &a.MaxRead
	case AttrMaxWrite:
		return &a.MaxWrite
	case AttrMode:
		return &a.Mode
	case AttrNumLinks:
		return &a.NumLinks
	case AttrOwner:
		return &a.Owner
	case AttrOwnerGroup:
		return &a.OwnerGroup
	case AttrRawDev:
		return &a.RawDev
	case AttrSpaceAvail:
		return &a.SpaceAvail
	case AttrSpaceFree:
		return &a.SpaceFree
	case AttrSpaceTotal:
		return &a.SpaceTotal
	case AttrSpaceUsed:
		return &a.SpaceUsed
	case AttrTimeAccess:
		return &a.TimeAccess
	case AttrTimeDelta:
		return &a.TimeDelta
	case AttrTimeMetadata:
		return &a.TimeMetadata
	case AttrTimeModify:
		return &a.TimeModify
	case AttrMountedOnFileID:
		return &a.MountedOnFileID
	case AttrSuppExclCreate:
		return &a.SuppExclCreate
	}
	return nil
}

// maxAttr is the first number that no attribute of this package has.
const maxAttr = AttrSuppExclCreate + 1

// KnownAttrs are the attributes that Attrs has.
func KnownAttrs() Bitmap {
	var a Attrs
	var bits []uint32
	for n := range maxAttr {
		if a.field(n) != nil {
			bits = append(bits, n)
		}
	}
	return Bits(bits...)
}

// Select returns the attributes in a that are in mask, too. Values is new memory.
func (a *Attrs) Select(mask Bitmap) RawAttrs {
	var raw RawAttrs
	var bits []uint32
	for n := range maxAttr {
		if !mask.Has(n) || !a.Mask.Has(n) {
			continue
		}
		bits = append(bits, n)
		switch f := a.field(n).(type) {
		case *bool:
			raw.Values = xdr.AppendBool(raw.Values, *f)
		case *uint32:
			raw.Values = xdr.AppendUint32(raw.Values, *f)
		case *uint64:
			raw.Values = xdr.AppendUint64(raw.Values, *f)
		case *string:
			raw.Values = xdr.AppendString(raw.Values, *f)
		case Message:
			raw.Values = f.Append(raw.Values)
		}
	}
	raw.Mask = Bits(bits...)
	return raw
}

// Attrs takes the values apart. An attribute that is not known makes those behind it
// unreadable, and is an error, a *xdr.DecodeError. FileHandle is a view of Values.
func (r *RawAttrs) Attrs() (Attrs, error) {
	a := Attrs{Mask: r.Mask}
	d := xdr.NewDecoder(r.Values)
	for n := range uint32(len(r.Mask)) * 32 {
		if !r.Mask.Has(n) {
			continue
		}
		switch f := a.field(n).(type) {
		case *bool:
			*f = d.Bool()
		case *uint32:
			*f = d.Uint32()
		case *uint64:
			*f = d.Uint64()
		case *string:
			*f = d.String(MaxName)
		case Message:
			f.Decode(&d)
		default:
			d.Fail("attribute that is not known")
		}
	}
	return a, d.End()
}
