package nfs

import "github.com/rpcrdma/rpcrdma/proto/xdr"

// The arguments and results of every procedure, RFC 1813 section 3.3. Each type has Append,
// which appends it to b, and Decode, which decodes it and leaves its error in the Decoder. A
// result is one struct for both arms of the RFC's union: Status determines which of the other
// fields are encoded.
//
// Byte slices that Decode stores are views of the Decoder's input; strings are copies. Decode
// reuses the slices of its receiver.

// The arguments of GETATTR, READLINK, FSSTAT, FSINFO and PATHCONF are a FileHandle.

// GetAttrRes is GETATTR3res. RFC 1813 section 3.3.1.
type GetAttrRes struct {
	Status Status
	Attr   Attr // StatusOK
}

// Append appends the encoding to b.
func (r *GetAttrRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	if r.Status == StatusOK {
		b = r.Attr.Append(b)
	}
	return b
}

// Decode reads the results.
func (r *GetAttrRes) Decode(d *xdr.Decoder) {
	*r = GetAttrRes{Status: Status(d.Uint32())}
	if r.Status == StatusOK {
		r.Attr.Decode(d)
	}
}

// SetAttrArgs is SETATTR3args. RFC 1813 section 3.3.2.
type SetAttrArgs struct {
	Object FileHandle
	Attr   SetAttr

	// With Guard the server checks that the object's ctime is CTime (sattrguard3), and
	// otherwise returns StatusNotSync.
	Guard bool
	CTime Time
}

// Append appends the encoding to b.
func (a *SetAttrArgs) Append(b []byte) []byte {
	b = a.Object.Append(b)
	b = a.Attr.Append(b)
	b = xdr.AppendBool(b, a.Guard)
	if a.Guard {
		b = a.CTime.Append(b)
	}
	return b
}

// Decode reads the arguments.
func (a *SetAttrArgs) Decode(d *xdr.Decoder) {
	*a = SetAttrArgs{}
	a.Object.Decode(d)
	a.Attr.Decode(d)
	if a.Guard = d.Bool(); a.Guard {
		a.CTime.Decode(d)
	}
}

// WccRes is the results of SETATTR, REMOVE and RMDIR: SETATTR3res, REMOVE3res,
// RMDIR3res. RFC 1813 sections 3.3.2, 3.3.12 and 3.3.13.
type WccRes struct {
	Status Status
	Wcc    Wcc // of the object (SETATTR) or the directory
}

// Append appends the encoding to b.
func (r *WccRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	return r.Wcc.Append(b)
}

// Decode reads the results.
func (r *WccRes) Decode(d *xdr.Decoder) {
	r.Status = Status(d.Uint32())
	r.Wcc.Decode(d)
}

// LookupRes is LOOKUP3res; the arguments are a DirOpArgs. RFC 1813 section 3.3.3.
type LookupRes struct {
	Status  Status
	Object  FileHandle // StatusOK
	Attr    PostOpAttr // StatusOK
	DirAttr PostOpAttr
}

// Append appends the encoding to b.
func (r *LookupRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	if r.Status == StatusOK {
		b = r.Object.Append(b)
		b = r.Attr.Append(b)
	}
	return r.DirAttr.Append(b)
}

// Decode reads the results.
func (r *LookupRes) Decode(d *xdr.Decoder) {
	*r = LookupRes{Status: Status(d.Uint32())}
	if r.Status == StatusOK {
		r.Object.Decode(d)
		r.Attr.Decode(d)
	}
	r.DirAttr.Decode(d)
}

// Rights that ACCESS asks about, to be or-ed. RFC 1813 section 3.3.4.
const (
	AccessRead    uint32 = 0x01
	AccessLookup  uint32 = 0x02
	AccessModify  uint32 = 0x04
	AccessExtend  uint32 = 0x08
	AccessDelete  uint32 = 0x10
	AccessExecute uint32 = 0x20
)

// AccessArgs is ACCESS3args. RFC 1813 section 3.3.4.
type AccessArgs struct {
	Object FileHandle
	Access uint32
}

// Append appends the encoding to b.
func (a *AccessArgs) Append(b []byte) []byte {
	b = a.Object.Append(b)
	return xdr.AppendUint32(b, a.Access)
}

// Decode reads the arguments.
func (a *AccessArgs) Decode(d *xdr.Decoder) {
	a.Object.Decode(d)
	a.Access = d.Uint32()
}

// AccessRes is ACCESS3res. RFC 1813 section 3.3.4.
type AccessRes struct {
	Status Status
	Attr   PostOpAttr
	Access uint32 // StatusOK: the requested rights that are granted
}

// Append appends the encoding to b.
func (r *AccessRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	if r.Status == StatusOK {
		b = xdr.AppendUint32(b, r.Access)
	}
	return b
}

// Decode reads the results.
func (r *AccessRes) Decode(d *xdr.Decoder) {
	*r = AccessRes{Status: Status(d.Uint32())}
	r.Attr.Decode(d)
	if r.Status == StatusOK {
		r.Access = d.Uint32()
	}
}

// ReadLinkRes is READLINK3res. RFC 1813 section 3.3.5.
type ReadLinkRes struct {
	Status Status
	Attr   PostOpAttr
	Target []byte // StatusOK: the target of the link
}

// Append appends the encoding to b.
func (r *ReadLinkRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	if r.Status == StatusOK {
		b = xdr.AppendOpaque(b, r.Target)
	}
	return b
}

// Decode reads the results. Target is a view.
func (r *ReadLinkRes) Decode(d *xdr.Decoder) {
	if r.decodeHead(d); r.Status == StatusOK {
		r.Target = d.Opaque(MaxPath)
	}
}

// decodeHead reads everything before the length word of Target.
func (r *ReadLinkRes) decodeHead(d *xdr.Decoder) {
	*r = ReadLinkRes{Status: Status(d.Uint32())}
	r.Attr.Decode(d)
}

// ReadArgs is READ3args. RFC 1813 section 3.3.6.
type ReadArgs struct {
	File   FileHandle
	Offset uint64 // in bytes
	Count  uint32 // in bytes
}

// Append appends the encoding to b.
func (a *ReadArgs) Append(b []byte) []byte {
	b = a.File.Append(b)
	b = xdr.AppendUint64(b, a.Offset)
	return xdr.AppendUint32(b, a.Count)
}

// Decode reads the arguments.
func (a *ReadArgs) Decode(d *xdr.Decoder) {
	a.File.Decode(d)
	a.Offset = d.Uint64()
	a.Count = d.Uint32()
}

// ReadRes is READ3res. RFC 1813 section 3.3.6.
type ReadRes struct {
	Status Status
	Attr   PostOpAttr

	// The rest with StatusOK only.
	Count uint32 // bytes read
	EOF   bool   // the read reached the end of the file
	Data  []byte
}

// Append appends the encoding to b.
func (r *ReadRes) Append(b []byte) []byte {
	if b = r.appendHead(b); r.Status == StatusOK {
		b = xdr.AppendOpaque(b, r.Data)
	}
	return b
}

// appendHead appends everything before the length word of Data.
func (r *ReadRes) appendHead(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	if r.Status == StatusOK {
		b = xdr.AppendUint32(b, r.Count)
		b = xdr.AppendBool(b, r.EOF)
	}
	return b
}

// Decode reads the results. Data is a view.
func (r *ReadRes) Decode(d *xdr.Decoder) {
	if r.decodeHead(d); r.Status == StatusOK {
		r.Data = d.Opaque(maxData)
	}
}

// decodeHead decodes everything before the length word of Data.
func (r *ReadRes) decodeHead(d *xdr.Decoder) {
	*r = ReadRes{Status: Status(d.Uint32())}
	r.Attr.Decode(d)
	if r.Status == StatusOK {
		r.Count = d.Uint32()
		r.EOF = d.Bool()
	}
}

// Stable is stable_how: the stability of written data when the server replies. RFC 1813
// section 3.3.7.
type Stable uint32

// Levels of stability, in ascending order.
const (
	Unstable Stable = 0 // UNSTABLE: in the server's memory, until COMMIT
	DataSync Stable = 1 // DATA_SYNC: data on stable storage
	FileSync Stable = 2 // FILE_SYNC: data and attributes on stable storage
)

// WriteArgs is WRITE3args. RFC 1813 section 3.3.7.
type WriteArgs struct {
	File   FileHandle
	Offset uint64 // in bytes
	Count  uint32 // bytes to write
	Stable Stable
	Data   []byte
}

// Append appends the encoding to b.
func (a *WriteArgs) Append(b []byte) []byte {
	b = a.appendHead(b)
	return xdr.AppendOpaque(b, a.Data)
}

// appendHead appends everything before the length word of Data.
func (a *WriteArgs) appendHead(b []byte) []byte {
	b = a.File.Append(b)
	b = xdr.AppendUint64(b, a.Offset)
	b = xdr.AppendUint32(b, a.Count)
	return xdr.AppendUint32(b, uint32(a.Stable))
}

// Decode reads the arguments. Data is a view.
func (a *WriteArgs) Decode(d *xdr.Decoder) {
	a.File.Decode(d)
	a.Offset = d.Uint64()
	a.Count = d.Uint32()
	a.Stable = Stable(d.Uint32())
	a.Data = d.Opaque(maxData)
}

// WriteRes is WRITE3res. RFC 1813 section 3.3.7.
type WriteRes struct {
	Status Status
	Wcc    Wcc

	// The rest with StatusOK only.
	Count     uint32 // bytes written
	Committed Stable // at least the requested level
	Verf      Verf   // changes when the server may have lost unstable data
}

// Append appends the encoding to b.
func (r *WriteRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Wcc.Append(b)
	if r.Status == StatusOK {
		b = xdr.AppendUint32(b, r.Count)
		b = xdr.AppendUint32(b, uint32(r.Committed))
		b = r.Verf.Append(b)
	}
	return b
}

// Decode reads the results.
func (r *WriteRes) Decode(d *xdr.Decoder) {
	*r = WriteRes{Status: Status(d.Uint32())}
	r.Wcc.Decode(d)
	if r.Status == StatusOK {
		r.Count = d.Uint32()
		r.Committed = Stable(d.Uint32())
		r.Verf.Decode(d)
	}
}

// CreateMode is createmode3. RFC 1813 section 3.3.8.
type CreateMode uint32

// What CREATE does if the file exists.
const (
	Unchecked CreateMode = 0 // UNCHECKED: uses the existing file
	Guarded   CreateMode = 1 // GUARDED: fails with StatusExist
	Exclusive CreateMode = 2 // EXCLUSIVE: fails, unless it was created with the same verifier
)

// CreateArgs is CREATE3args. RFC 1813 section 3.3.8.
type CreateArgs struct {
	Where DirOpArgs
	Mode  CreateMode
	Attr  SetAttr // Unchecked, Guarded
	Verf  Verf    // Exclusive
}

// Append appends the encoding to b.
func (a *CreateArgs) Append(b []byte) []byte {
	b = a.Where.Append(b)
	b = xdr.AppendUint32(b, uint32(a.Mode))
	if a.Mode == Exclusive {
		return a.Verf.Append(b)
	}
	return a.Attr.Append(b)
}

// Decode reads the arguments.
func (a *CreateArgs) Decode(d *xdr.Decoder) {
	*a = CreateArgs{}
	a.Where.Decode(d)
	switch a.Mode = CreateMode(d.Uint32()); a.Mode {
	case Unchecked, Guarded:
		a.Attr.Decode(d)
	case Exclusive:
		a.Verf.Decode(d)
	default:
		// The union has no default arm: what follows is unknown.
		d.Fail("createmode3 is not one of 0 to 2")
	}
}

// MkdirArgs is MKDIR3args. RFC 1813 section 3.3.9.
type MkdirArgs struct {
	Where DirOpArgs
	Attr  SetAttr
}

// Append appends the encoding to b.
func (a *MkdirArgs) Append(b []byte) []byte {
	b = a.Where.Append(b)
	return a.Attr.Append(b)
}

// Decode reads the arguments.
func (a *MkdirArgs) Decode(d *xdr.Decoder) {
	a.Where.Decode(d)
	a.Attr.Decode(d)
}

// SymlinkArgs is SYMLINK3args. RFC 1813 section 3.3.10.
type SymlinkArgs struct {
	Where  DirOpArgs
	Attr   SetAttr
	Target []byte // what the link says
}

// Append appends the encoding to b.
func (a *SymlinkArgs) Append(b []byte) []byte {
	b = a.appendHead(b)
	return xdr.AppendOpaque(b, a.Target)
}

// appendHead appends everything before the length word of Target.
func (a *SymlinkArgs) appendHead(b []byte) []byte {
	b = a.Where.Append(b)
	return a.Attr.Append(b)
}

// Decode reads the arguments. Target is a view.
func (a *SymlinkArgs) Decode(d *xdr.Decoder) {
	a.Where.Decode(d)
	a.Attr.Decode(d)
	a.Target = d.Opaque(MaxPath)
}

// MknodArgs is MKNOD3args. RFC 1813 section 3.3.11.
type MknodArgs struct {
	Where DirOpArgs
	Type  FileType
	Attr  SetAttr // TypeChr, TypeBlk, TypeSock, TypeFIFO
	Spec  Device  // TypeChr, TypeBlk
}

// Append appends the encoding to b.
func (a *MknodArgs) Append(b []byte) []byte {
	b = a.Where.Append(b)
	b = xdr.AppendUint32(b, uint32(a.Type))
	switch a.Type {
	case TypeChr, TypeBlk:
		b = a.Attr.Append(b)
		b = a.Spec.Append(b)
	case TypeSock, TypeFIFO:
		b = a.Attr.Append(b)
	}
	return b
}

// Decode reads the arguments.
func (a *MknodArgs) Decode(d *xdr.Decoder) {
	*a = MknodArgs{}
	a.Where.Decode(d)
	switch a.Type = FileType(d.Uint32()); a.Type {
	case TypeChr, TypeBlk:
		a.Attr.Decode(d)
		a.Spec.Decode(d)
	case TypeSock, TypeFIFO:
		a.Attr.Decode(d)
	}
}

// CreateRes is the results of CREATE, MKDIR, SYMLINK and MKNOD: CREATE3res,
// MKDIR3res, SYMLINK3res, MKNOD3res. RFC 1813 sections 3.3.8 to 3.3.11.
type CreateRes struct {
	Status Status
	Object PostOpHandle // StatusOK
	Attr   PostOpAttr   // StatusOK
	DirWcc Wcc
}

// Append appends the encoding to b.
func (r *CreateRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	if r.Status == StatusOK {
		b = r.Object.Append(b)
		b = r.Attr.Append(b)
	}
	return r.DirWcc.Append(b)
}

// Decode reads the results.
func (r *CreateRes) Decode(d *xdr.Decoder) {
	*r = CreateRes{Status: Status(d.Uint32())}
	if r.Status == StatusOK {
		r.Object.Decode(d)
		r.Attr.Decode(d)
	}
	r.DirWcc.Decode(d)
}

// RenameArgs is RENAME3args. RFC 1813 section 3.3.14.
type RenameArgs struct {
	From, To DirOpArgs
}

// Append appends the encoding to b.
func (a *RenameArgs) Append(b []byte) []byte {
	b = a.From.Append(b)
	return a.To.Append(b)
}

// Decode reads the arguments.
func (a *RenameArgs) Decode(d *xdr.Decoder) {
	a.From.Decode(d)
	a.To.Decode(d)
}

// RenameRes is RENAME3res. RFC 1813 section 3.3.14.
type RenameRes struct {
	Status  Status
	FromWcc Wcc
	ToWcc   Wcc
}

// Append appends the encoding to b.
func (r *RenameRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.FromWcc.Append(b)
	return r.ToWcc.Append(b)
}

// Decode reads the results.
func (r *RenameRes) Decode(d *xdr.Decoder) {
	r.Status = Status(d.Uint32())
	r.FromWcc.Decode(d)
	r.ToWcc.Decode(d)
}

// LinkArgs is LINK3args. RFC 1813 section 3.3.15.
type LinkArgs struct {
	File FileHandle
	Link DirOpArgs
}

// Append appends the encoding to b.
func (a *LinkArgs) Append(b []byte) []byte {
	b = a.File.Append(b)
	return a.Link.Append(b)
}

// Decode reads the arguments.
func (a *LinkArgs) Decode(d *xdr.Decoder) {
	a.File.Decode(d)
	a.Link.Decode(d)
}

// LinkRes is LINK3res. RFC 1813 section 3.3.15.
type LinkRes struct {
	Status Status
	Attr   PostOpAttr
	DirWcc Wcc
}

// Append appends the encoding to b.
func (r *LinkRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	return r.DirWcc.Append(b)
}

// Decode reads the results.
func (r *LinkRes) Decode(d *xdr.Decoder) {
	r.Status = Status(d.Uint32())
	r.Attr.Decode(d)
	r.DirWcc.Decode(d)
}

// ReadDirArgs is READDIR3args. RFC 1813 section 3.3.16.
type ReadDirArgs struct {
	Dir    FileHandle
	Cookie uint64 // 0: from the start; else of the last entry seen
	Verf   Verf   // from the reply that gave the cookie
	Count  uint32 // largest READDIR3resok in bytes
}

// Append appends the encoding to b.
func (a *ReadDirArgs) Append(b []byte) []byte {
	b = a.Dir.Append(b)
	b = xdr.AppendUint64(b, a.Cookie)
	b = a.Verf.Append(b)
	return xdr.AppendUint32(b, a.Count)
}

// Decode reads the arguments.
func (a *ReadDirArgs) Decode(d *xdr.Decoder) {
	a.Dir.Decode(d)
	a.Cookie = d.Uint64()
	a.Verf.Decode(d)
	a.Count = d.Uint32()
}

// A DirEntry is entry3 or entryplus3, one name in a directory. What READDIR
// returns has neither Attr nor Handle. RFC 1813 sections 3.3.16 and 3.3.17.
type DirEntry struct {
	FileID uint64
	Name   string // from the server: see [ValidName]
	Cookie uint64
	Attr   PostOpAttr   // READDIRPLUS
	Handle PostOpHandle // READDIRPLUS
}

func (e *DirEntry) append(b []byte) []byte {
	b = xdr.AppendUint64(b, e.FileID)
	b = xdr.AppendString(b, e.Name)
	return xdr.AppendUint64(b, e.Cookie)
}

func (e *DirEntry) decode(d *xdr.Decoder) {
	e.FileID = d.Uint64()
	e.Name = d.String(MaxName)
	e.Cookie = d.Uint64()
}

// ReadDirRes is READDIR3res. RFC 1813 section 3.3.16.
type ReadDirRes struct {
	Status  Status
	DirAttr PostOpAttr

	// The rest with StatusOK only.
	Verf    Verf
	Entries []DirEntry
	EOF     bool // the last entry is the directory's last
}

// Append appends the encoding to b.
func (r *ReadDirRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.DirAttr.Append(b)
	if r.Status != StatusOK {
		return b
	}
	b = r.Verf.Append(b)
	for i := range r.Entries {
		b = xdr.AppendBool(b, true)
		b = r.Entries[i].append(b)
	}
	b = xdr.AppendBool(b, false)
	return xdr.AppendBool(b, r.EOF)
}

// Decode reads the results. Entries are appended to r.Entries[:0].
func (r *ReadDirRes) Decode(d *xdr.Decoder) {
	*r = ReadDirRes{Status: Status(d.Uint32()), Entries: r.Entries[:0]}
	r.DirAttr.Decode(d)
	if r.Status != StatusOK {
		return
	}
	r.Verf.Decode(d)
	for d.Optional() {
		var e DirEntry
		e.decode(d)
		r.Entries = append(r.Entries, e)
	}
	r.EOF = d.Bool()
}

// ReadDirPlusArgs is READDIRPLUS3args. RFC 1813 section 3.3.17.
type ReadDirPlusArgs struct {
	Dir      FileHandle
	Cookie   uint64 // 0: from the start; else of the last entry seen
	Verf     Verf   // from the reply that gave the cookie
	DirCount uint32 // bytes of file ids, names and cookies, at most
	MaxCount uint32 // largest READDIRPLUS3resok in bytes
}

// Append appends the encoding to b.
func (a *ReadDirPlusArgs) Append(b []byte) []byte {
	b = a.Dir.Append(b)
	b = xdr.AppendUint64(b, a.Cookie)
	b = a.Verf.Append(b)
	b = xdr.AppendUint32(b, a.DirCount)
	return xdr.AppendUint32(b, a.MaxCount)
}

// Decode reads the arguments.
func (a *ReadDirPlusArgs) Decode(d *xdr.Decoder) {
	a.Dir.Decode(d)
	a.Cookie = d.Uint64()
	a.Verf.Decode(d)
	a.DirCount = d.Uint32()
	a.MaxCount = d.Uint32()
}

// ReadDirPlusRes is READDIRPLUS3res. RFC 1813 section 3.3.17.
type ReadDirPlusRes struct {
	Status  Status
	DirAttr PostOpAttr

	// The rest with StatusOK only.
	Verf    Verf
	Entries []DirEntry
	EOF     bool // the last entry is the directory's last
}

// Append appends the encoding to b.
func (r *ReadDirPlusRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.DirAttr.Append(b)
	if r.Status != StatusOK {
		return b
	}
	b = r.Verf.Append(b)
	for i := range r.Entries {
		b = xdr.AppendBool(b, true)
		b = r.Entries[i].append(b)
		b = r.Entries[i].Attr.Append(b)
		b = r.Entries[i].Handle.Append(b)
	}
	b = xdr.AppendBool(b, false)
	return xdr.AppendBool(b, r.EOF)
}

// Decode reads the results. Entries are appended to r.Entries[:0].
func (r *ReadDirPlusRes) Decode(d *xdr.Decoder) {
	*r = ReadDirPlusRes{Status: Status(d.Uint32()), Entries: r.Entries[:0]}
	r.DirAttr.Decode(d)
	if r.Status != StatusOK {
		return
	}
	r.Verf.Decode(d)
	for d.Optional() {
		var e DirEntry
		e.decode(d)
		e.Attr.Decode(d)
		e.Handle.Decode(d)
		r.Entries = append(r.Entries, e)
	}
	r.EOF = d.Bool()
}

// FSStatRes is FSSTAT3res. RFC 1813 section 3.3.18.
type FSStatRes struct {
	Status Status
	Attr   PostOpAttr

	// The rest with StatusOK only.
	TotalBytes, FreeBytes, AvailBytes uint64 // tbytes, fbytes, abytes
	TotalFiles, FreeFiles, AvailFiles uint64 // tfiles, ffiles, afiles
	Invarsec                          uint32 // seconds for which they should be valid
}

// Append appends the encoding to b.
func (r *FSStatRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	if r.Status != StatusOK {
		return b
	}
	b = xdr.AppendUint64(b, r.TotalBytes)
	b = xdr.AppendUint64(b, r.FreeBytes)
	b = xdr.AppendUint64(b, r.AvailBytes)
	b = xdr.AppendUint64(b, r.TotalFiles)
	b = xdr.AppendUint64(b, r.FreeFiles)
	b = xdr.AppendUint64(b, r.AvailFiles)
	return xdr.AppendUint32(b, r.Invarsec)
}

// Decode reads the results.
func (r *FSStatRes) Decode(d *xdr.Decoder) {
	*r = FSStatRes{Status: Status(d.Uint32())}
	r.Attr.Decode(d)
	if r.Status != StatusOK {
		return
	}
	r.TotalBytes = d.Uint64()
	r.FreeBytes = d.Uint64()
	r.AvailBytes = d.Uint64()
	r.TotalFiles = d.Uint64()
	r.FreeFiles = d.Uint64()
	r.AvailFiles = d.Uint64()
	r.Invarsec = d.Uint32()
}

// Properties of a file system. RFC 1813 section 3.3.19.
const (
	FSFLink        uint32 = 0x01 // FSF3_LINK: hard links
	FSFSymlink     uint32 = 0x02 // FSF3_SYMLINK: symbolic links
	FSFHomogeneous uint32 = 0x08 // FSF3_HOMOGENEOUS: PATHCONF is the same everywhere
	FSFCanSetTime  uint32 = 0x10 // FSF3_CANSETTIME: times can be set
)

// FSInfoRes is FSINFO3res. RFC 1813 section 3.3.19.
type FSInfoRes struct {
	Status Status
	Attr   PostOpAttr

	// The rest with StatusOK only. Sizes are in bytes.
	RTMax, RTPref, RTMult uint32 // READ: largest, best, multiple
	WTMax, WTPref, WTMult uint32 // WRITE: the same
	DTPref                uint32 // READDIR: best count
	MaxFileSize           uint64
	TimeDelta             Time // granularity of times
	Properties            uint32
}

// Append appends the encoding to b.
func (r *FSInfoRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	if r.Status != StatusOK {
		return b
	}
	b = xdr.AppendUint32(b, r.RTMax)
	b = xdr.AppendUint32(b, r.RTPref)
	b = xdr.AppendUint32(b, r.RTMult)
	b = xdr.AppendUint32(b, r.WTMax)
	b = xdr.AppendUint32(b, r.WTPref)
	b = xdr.AppendUint32(b, r.WTMult)
	b = xdr.AppendUint32(b, r.DTPref)
	b = xdr.AppendUint64(b, r.MaxFileSize)
	b = r.TimeDelta.Append(b)
	return xdr.AppendUint32(b, r.Properties)
}

// Decode reads the results.
func (r *FSInfoRes) Decode(d *xdr.Decoder) {
	*r = FSInfoRes{Status: Status(d.Uint32())}
	r.Attr.Decode(d)
	if r.Status != StatusOK {
		return
	}
	r.RTMax = d.Uint32()
	r.RTPref = d.Uint32()
	r.RTMult = d.Uint32()
	r.WTMax = d.Uint32()
	r.WTPref = d.Uint32()
	r.WTMult = d.Uint32()
	r.DTPref = d.Uint32()
	r.MaxFileSize = d.Uint64()
	r.TimeDelta.Decode(d)
	r.Properties = d.Uint32()
}

// PathConfRes is PATHCONF3res. RFC 1813 section 3.3.20.
type PathConfRes struct {
	Status Status
	Attr   PostOpAttr

	// The rest with StatusOK only.
	LinkMax         uint32 // hard links to one object
	NameMax         uint32 // bytes in a name
	NoTrunc         bool   // longer names are refused, not cut
	ChownRestricted bool
	CaseInsensitive bool
	CasePreserving  bool
}

// Append appends the encoding to b.
func (r *PathConfRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Attr.Append(b)
	if r.Status != StatusOK {
		return b
	}
	b = xdr.AppendUint32(b, r.LinkMax)
	b = xdr.AppendUint32(b, r.NameMax)
	b = xdr.AppendBool(b, r.NoTrunc)
	b = xdr.AppendBool(b, r.ChownRestricted)
	b = xdr.AppendBool(b, r.CaseInsensitive)
	return xdr.AppendBool(b, r.CasePreserving)
}

// Decode reads the results.
func (r *PathConfRes) Decode(d *xdr.Decoder) {
	*r = PathConfRes{Status: Status(d.Uint32())}
	r.Attr.Decode(d)
	if r.Status != StatusOK {
		return
	}
	r.LinkMax = d.Uint32()
	r.NameMax = d.Uint32()
	r.NoTrunc = d.Bool()
	r.ChownRestricted = d.Bool()
	r.CaseInsensitive = d.Bool()
	r.CasePreserving = d.Bool()
}

// CommitArgs is COMMIT3args. RFC 1813 section 3.3.21.
type CommitArgs struct {
	File   FileHandle
	Offset uint64 // in bytes
	Count  uint32 // in bytes; 0: to the end of the file
}

// Append appends the encoding to b.
func (a *CommitArgs) Append(b []byte) []byte {
	b = a.File.Append(b)
	b = xdr.AppendUint64(b, a.Offset)
	return xdr.AppendUint32(b, a.Count)
}

// Decode reads the arguments.
func (a *CommitArgs) Decode(d *xdr.Decoder) {
	a.File.Decode(d)
	a.Offset = d.Uint64()
	a.Count = d.Uint32()
}

// CommitRes is COMMIT3res. RFC 1813 section 3.3.21.
type CommitRes struct {
	Status Status
	Wcc    Wcc
	Verf   Verf // StatusOK: compare it with that of the writes
}

// Append appends the encoding to b.
func (r *CommitRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	b = r.Wcc.Append(b)
	if r.Status == StatusOK {
		b = r.Verf.Append(b)
	}
	return b
}

// Decode reads the results.
func (r *CommitRes) Decode(d *xdr.Decoder) {
	*r = CommitRes{Status: Status(d.Uint32())}
	r.Wcc.Decode(d)
	if r.Status == StatusOK {
		r.Verf.Decode(d)
	}
}
