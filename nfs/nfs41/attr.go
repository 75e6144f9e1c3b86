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

// Attrs holds the attributes that this package supports. Mask says which of them are present.
type Attrs struct {
	Mask Bitmap

	Supported       Bitmap // attributes that the server supports
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
	OwnerGroup      string // as "group@domain" or a number
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

// fields returns pointers to the values, indexed by attribute number: a *bool, *uint32, *uint64, *string, or a Message.
// Numbers that this package does not know are nil.
func (a *Attrs) fields() [attrEnd]any {
	return [...]any{
		AttrSupported:       &a.Supported,
		AttrType:            &a.Type,
		AttrFHExpireType:    &a.FHExpireType,
		AttrChange:          &a.Change,
		AttrSize:            &a.Size,
		AttrLinkSupport:     &a.LinkSupport,
		AttrSymlinkSupport:  &a.SymlinkSupport,
		AttrNamedAttr:       &a.NamedAttr,
		AttrFSID:            &a.FSID,
		AttrUniqueHandles:   &a.UniqueHandles,
		AttrLeaseTime:       &a.LeaseTime,
		AttrRDAttrError:     (*uint32)(&a.RDAttrError),
		AttrCaseInsensitive: &a.CaseInsensitive,
		AttrCasePreserving:  &a.CasePreserving,
		AttrFileHandle:      &a.FileHandle,
		AttrFileID:          &a.FileID,
		AttrFilesAvail:      &a.FilesAvail,
		AttrFilesFree:       &a.FilesFree,
		AttrFilesTotal:      &a.FilesTotal,
		AttrMaxFileSize:     &a.MaxFileSize,
		AttrMaxLink:         &a.MaxLink,
		AttrMaxName:         &a.MaxName,
		AttrMaxRead:         &a.MaxRead,
		AttrMaxWrite:        &a.MaxWrite,
		AttrMode:            &a.Mode,
		AttrNumLinks:        &a.NumLinks,
		AttrOwner:           &a.Owner,
		AttrOwnerGroup:      &a.OwnerGroup,
		AttrRawDev:          &a.RawDev,
		AttrSpaceAvail:      &a.SpaceAvail,
		AttrSpaceFree:       &a.SpaceFree,
		AttrSpaceTotal:      &a.SpaceTotal,
		AttrSpaceUsed:       &a.SpaceUsed,
		AttrTimeAccess:      &a.TimeAccess,
		AttrTimeDelta:       &a.TimeDelta,
		AttrTimeMetadata:    &a.TimeMetadata,
		AttrTimeModify:      &a.TimeModify,
		AttrMountedOnFileID: &a.MountedOnFileID,
		AttrSuppExclCreate:  &a.SuppExclCreate,
	}
}

// attrEnd is one more than the highest number in fields.
const attrEnd = AttrSuppExclCreate + 1

// KnownAttrs returns the set of attributes in Attrs.
func KnownAttrs() Bitmap {
	var a Attrs
	var bits []uint32
	for n, f := range a.fields() {
		if f != nil {
			bits = append(bits, uint32(n))
		}
	}
	return Bits(bits...)
}

// Attrs decodes the values. An unknown attribute is an error, an *xdr.DecodeError, because the attributes after it
// cannot be decoded. FileHandle is a view of Values.
func (r *RawAttrs) Attrs() (Attrs, error) {
	a := Attrs{Mask: r.Mask}
	d := xdr.NewDecoder(r.Values)
	fields := a.fields()
	for n := range uint32(len(r.Mask)) * 32 {
		if !r.Mask.Has(n) {
			continue
		}
		var f any
		if n < attrEnd {
			f = fields[n]
		}
		switch f := f.(type) {
		case *bool:
			*f = d.Bool()
		case *uint32:
			*f = d.Uint32()
		case *uint64:
			*f = d.Uint64()
		case *string:
			*f = d.String(maxName)
		case Message:
			f.Decode(&d)
		default:
			d.Fail("unknown attribute")
		}
	}
	return a, d.End()
}
