package nfs41

import (
	"encoding/hex"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Arguments and results of operations on files: those that a mount needs, and those for
// delegations.

// Limits in bytes. RFC 8881 section 3.1 where it has one.
const (
	maxHandle  = 128  // NFS4_FHSIZE
	maxName    = 1024 // longest component4 that is decoded
	maxAttrs   = 4096 // longest attrlist4 that is decoded
	maxFlavors = 16   // entries of SECINFO4resok
)

// A FileHandle is nfs_fh4: up to 128 opaque bytes by which the server identifies an object.
type FileHandle []byte

// String is the handle in hexadecimal.
func (fh FileHandle) String() string { return hex.EncodeToString(fh) }

// Append appends the encoding to b. It is the whole of the arguments of PUTFH and of
// the results of GETFH.
func (fh *FileHandle) Append(b []byte) []byte { return xdr.AppendOpaque(b, *fh) }

// Decode reads the handle, a view.
func (fh *FileHandle) Decode(d *xdr.Decoder) { *fh = d.Opaque(maxHandle) }

// A Name is component4: the arguments of LOOKUP and SECINFO. RFC 8881 sections 18.13
// and 18.29.
type Name string

// Append appends the encoding to b.
func (n *Name) Append(b []byte) []byte { return xdr.AppendString(b, string(*n)) }

// Decode reads the name.
func (n *Name) Decode(d *xdr.Decoder) { *n = Name(d.String(maxName)) }

// Rights that ACCESS asks about, to be or-ed. RFC 8881 section 18.1.
const (
	AccessRead    uint32 = 0x01
	AccessLookup  uint32 = 0x02
	AccessModify  uint32 = 0x04
	AccessExtend  uint32 = 0x08
	AccessDelete  uint32 = 0x10
	AccessExecute uint32 = 0x20
)

// AccessArgs is ACCESS4args. RFC 8881 section 18.1.
type AccessArgs struct{ Access uint32 }

// Append appends the encoding to b.
func (a *AccessArgs) Append(b []byte) []byte { return xdr.AppendUint32(b, a.Access) }

// Decode reads the arguments.
func (a *AccessArgs) Decode(d *xdr.Decoder) { a.Access = d.Uint32() }

// AccessRes is ACCESS4resok. RFC 8881 section 18.1.
type AccessRes struct {
	Supported uint32 // rights that the server can check
	Access    uint32 // rights that are granted
}

// Append appends the encoding to b.
func (r *AccessRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, r.Supported)
	return xdr.AppendUint32(b, r.Access)
}

// Decode reads the results.
func (r *AccessRes) Decode(d *xdr.Decoder) {
	r.Supported = d.Uint32()
	r.Access = d.Uint32()
}

// RawAttrs is fattr4: the encoded attributes in Mask, in the order of their numbers. It is the
// result of GETATTR, whose argument is a Bitmap. RFC 8881 sections 3.3 and 18.7.
type RawAttrs struct {
	Mask   Bitmap
	Values []byte // at most 4096 bytes
}

// Append appends the encoding to b.
func (a *RawAttrs) Append(b []byte) []byte {
	b = a.Mask.Append(b)
	return xdr.AppendOpaque(b, a.Values)
}

// Decode reads the attributes. Values is a view.
func (a *RawAttrs) Decode(d *xdr.Decoder) {
	a.Mask.Decode(d)
	a.Values = d.Opaque(maxAttrs)
}

// ReadDirArgs is READDIR4args. RFC 8881 section 18.23.
type ReadDirArgs struct {
	Cookie   uint64 // 0: from the start
	Verf     Verifier
	DirCount uint32 // bytes of names, a hint
	MaxCount uint32 // bytes of the results
	Attrs    Bitmap // wanted of each entry
}

// Append appends the encoding to b.
func (a *ReadDirArgs) Append(b []byte) []byte {
	b = xdr.AppendUint64(b, a.Cookie)
	b = a.Verf.Append(b)
	b = xdr.AppendUint32(b, a.DirCount)
	b = xdr.AppendUint32(b, a.MaxCount)
	return a.Attrs.Append(b)
}

// Decode reads the arguments.
func (a *ReadDirArgs) Decode(d *xdr.Decoder) {
	a.Cookie = d.Uint64()
	a.Verf.Decode(d)
	a.DirCount = d.Uint32()
	a.MaxCount = d.Uint32()
	a.Attrs.Decode(d)
}

// A DirEntry is entry4. RFC 8881 section 18.23.
type DirEntry struct {
	Cookie uint64 // to continue after the entry
	Name   string // at most 1024 bytes
	Attrs  RawAttrs
}

// ReadDirRes is READDIR4resok. RFC 8881 section 18.23.
type ReadDirRes struct {
	Verf    Verifier
	Entries []DirEntry
	EOF     bool
}

// Append appends the encoding to b.
func (r *ReadDirRes) Append(b []byte) []byte {
	b = r.Verf.Append(b)
	for i := range r.Entries {
		e := &r.Entries[i]
		b = xdr.AppendBool(b, true)
		b = xdr.AppendUint64(b, e.Cookie)
		b = xdr.AppendString(b, e.Name)
		b = e.Attrs.Append(b)
	}
	b = xdr.AppendBool(b, false)
	return xdr.AppendBool(b, r.EOF)
}

// Decode reads the results. The size of the message bounds the number of entries.
func (r *ReadDirRes) Decode(d *xdr.Decoder) {
	*r = ReadDirRes{}
	r.Verf.Decode(d)
	for d.Optional() {
		e := DirEntry{Cookie: d.Uint64(), Name: d.String(maxName)}
		e.Attrs.Decode(d)
		r.Entries = append(r.Entries, e)
	}
	r.EOF = d.Bool()
}

// SecInfoNoNameArgs is SECINFO_NO_NAME4args. RFC 8881 section 18.45.
type SecInfoNoNameArgs struct {
	Parent bool // SECINFO_STYLE4_PARENT, not SECINFO_STYLE4_CURRENT_FH
}

// Append appends the encoding to b.
func (a *SecInfoNoNameArgs) Append(b []byte) []byte { return xdr.AppendBool(b, a.Parent) }

// Decode reads the arguments.
func (a *SecInfoNoNameArgs) Decode(d *xdr.Decoder) { a.Parent = d.Bool() }

// SecInfoRes is SECINFO4resok: the security flavors that a server accepts, best first. RFC
// 8881 section 18.29.
type SecInfoRes struct{ Flavors []SecInfo }

// A SecInfo is secinfo4.
type SecInfo struct {
	Flavor uint32 // as in oncrpc.FlavorSys

	// With RPCSEC_GSS: rpcsec_gss_info.
	OID     []byte // at most 256 bytes
	QOP     uint32
	Service uint32
}

// flavorGSS is RPCSEC_GSS, RFC 2203.
const flavorGSS = 6

// Append appends the encoding to b.
func (r *SecInfoRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(len(r.Flavors)))
	for i := range r.Flavors {
		f := &r.Flavors[i]
		b = xdr.AppendUint32(b, f.Flavor)
		if f.Flavor == flavorGSS {
			b = xdr.AppendOpaque(b, f.OID)
			b = xdr.AppendUint32(b, f.QOP)
			b = xdr.AppendUint32(b, f.Service)
		}
	}
	return b
}

// Decode reads the results.
func (r *SecInfoRes) Decode(d *xdr.Decoder) {
	r.Flavors = nil
	for range d.Count(maxFlavors, xdr.Unit) {
		f := SecInfo{Flavor: d.Uint32()}
		if f.Flavor == flavorGSS {
			f.OID = d.Opaque(maxOID)
			f.QOP = d.Uint32()
			f.Service = d.Uint32()
		}
		r.Flavors = append(r.Flavors, f)
	}
}

// A StateID is stateid4: an open, a lock or a delegation. It is the whole of the
// arguments of DELEGRETURN and of the results of CLOSE. RFC 8881 section 3.3.12.
type StateID struct {
	Sequence uint32
	Other    [12]byte
}

// Append appends the encoding to b.
func (s *StateID) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, s.Sequence)
	return xdr.AppendFixedOpaque(b, s.Other[:])
}

// Decode reads the id.
func (s *StateID) Decode(d *xdr.Decoder) {
	*s = StateID{Sequence: d.Uint32()}
	copy(s.Other[:], d.FixedOpaque(len(s.Other)))
}

// CloseArgs is CLOSE4args. RFC 8881 section 18.2.
type CloseArgs struct {
	Sequence uint32 // of minor version 0
	StateID  StateID
}

// Append appends the encoding to b.
func (a *CloseArgs) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, a.Sequence)
	return a.StateID.Append(b)
}

// Decode reads the arguments.
func (a *CloseArgs) Decode(d *xdr.Decoder) {
	a.Sequence = d.Uint32()
	a.StateID.Decode(d)
}

// Bits of OpenArgs.Access. RFC 8881 section 18.16.1.
const (
	OpenRead      uint32 = 1     // OPEN4_SHARE_ACCESS_READ
	WantReadDeleg uint32 = 0x100 // OPEN4_SHARE_ACCESS_WANT_READ_DELEG
)

// OpenArgs is OPEN4args of an OPEN that creates nothing, of a name in the directory
// that is the current file handle: OPEN4_NOCREATE and CLAIM_NULL. RFC 8881 section 18.16.
type OpenArgs struct {
	Sequence     uint32 // of minor version 0
	Access, Deny uint32
	ClientID     ClientID
	Owner        []byte // at most 1024 bytes
	Name         string // at most 1024 bytes
}

const (
	openNoCreate = 0 // OPEN4_NOCREATE
	claimNull    = 0 // CLAIM_NULL
)

// Append appends the encoding to b.
func (a *OpenArgs) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, a.Sequence)
	b = xdr.AppendUint32(b, a.Access)
	b = xdr.AppendUint32(b, a.Deny)
	b = a.ClientID.Append(b)
	b = xdr.AppendOpaque(b, a.Owner)
	b = xdr.AppendUint32(b, openNoCreate)
	b = xdr.AppendUint32(b, claimNull)
	return xdr.AppendString(b, a.Name)
}

// Decode reads the arguments. Other kinds of OPEN are errors.
func (a *OpenArgs) Decode(d *xdr.Decoder) {
	*a = OpenArgs{Sequence: d.Uint32(), Access: d.Uint32(), Deny: d.Uint32()}
	a.ClientID.Decode(d)
	a.Owner = d.Opaque(maxOwner)
	if d.Uint32() != openNoCreate {
		d.Fail("OPEN that creates")
	}
	if d.Uint32() != claimNull {
		d.Fail("OPEN that is not of a name")
	}
	a.Name = d.String(maxName)
}

// Delegation is open_delegation_type4. RFC 8881 section 18.16.
type Delegation uint32

// Delegation types of OpenRes.
const (
	DelegateNone    Delegation = 0 // OPEN_DELEGATE_NONE
	DelegateRead    Delegation = 1 // OPEN_DELEGATE_READ
	DelegateNoneExt Delegation = 3 // OPEN_DELEGATE_NONE_EXT
)

// OpenRes is OPEN4resok, without write delegations. RFC 8881 section 18.16.
type OpenRes struct {
	StateID       StateID
	Atomic        bool // change_info4 of the directory
	Before, After uint64
	Flags         uint32
	AttrSet       Bitmap

	Delegation Delegation
	Deleg      StateID // DelegateRead
	Recall     bool    // DelegateRead: it is being recalled already
	ACE        ACE     // DelegateRead: principals that may open without asking
	Why        uint32  // DelegateNoneExt: why_no_delegation4
	WillPush   bool    // DelegateNoneExt, with whyContention
	WillSignal bool    // DelegateNoneExt, with whyResource
}

// An ACE is nfsace4. RFC 8881 section 6.2.1.
type ACE struct {
	Type, Flag, Mask uint32
	Who              string // at most 1024 bytes
}

const (
	whyContention = 1 // WND4_CONTENTION
	whyResource   = 2 // WND4_RESOURCE
)

// Append appends the encoding to b.
func (r *OpenRes) Append(b []byte) []byte {
	b = r.StateID.Append(b)
	b = xdr.AppendBool(b, r.Atomic)
	b = xdr.AppendUint64(b, r.Before)
	b = xdr.AppendUint64(b, r.After)
	b = xdr.AppendUint32(b, r.Flags)
	b = r.AttrSet.Append(b)
	b = xdr.AppendUint32(b, uint32(r.Delegation))
	switch r.Delegation {
	case DelegateRead:
		b = r.Deleg.Append(b)
		b = xdr.AppendBool(b, r.Recall)
		b = xdr.AppendUint32(b, r.ACE.Type)
		b = xdr.AppendUint32(b, r.ACE.Flag)
		b = xdr.AppendUint32(b, r.ACE.Mask)
		b = xdr.AppendString(b, r.ACE.Who)
	case DelegateNoneExt:
		b = xdr.AppendUint32(b, r.Why)
		switch r.Why {
		case whyContention:
			b = xdr.AppendBool(b, r.WillPush)
		case whyResource:
			b = xdr.AppendBool(b, r.WillSignal)
		}
	}
	return b
}

// Decode reads the results. A write delegation is an error.
func (r *OpenRes) Decode(d *xdr.Decoder) {
	*r = OpenRes{}
	r.StateID.Decode(d)
	r.Atomic = d.Bool()
	r.Before = d.Uint64()
	r.After = d.Uint64()
	r.Flags = d.Uint32()
	r.AttrSet.Decode(d)
	switch r.Delegation = Delegation(d.Uint32()); r.Delegation {
	case DelegateNone:
	case DelegateRead:
		r.Deleg.Decode(d)
		r.Recall = d.Bool()
		r.ACE = ACE{Type: d.Uint32(), Flag: d.Uint32(), Mask: d.Uint32(), Who: d.String(maxName)}
	case DelegateNoneExt:
		switch r.Why = d.Uint32(); r.Why {
		case whyContention:
			r.WillPush = d.Bool()
		case whyResource:
			r.WillSignal = d.Bool()
		}
	default:
		d.Fail("delegation type was not requested")
	}
}

// CBRecallArgs is CB_RECALL4args: the server wants a delegation back. RFC 8881 section
// 20.2.
type CBRecallArgs struct {
	StateID  StateID
	Truncate bool // the file is being truncated
	Handle   FileHandle
}

// Append appends the encoding to b.
func (a *CBRecallArgs) Append(b []byte) []byte {
	b = a.StateID.Append(b)
	b = xdr.AppendBool(b, a.Truncate)
	return a.Handle.Append(b)
}

// Decode reads the arguments.
func (a *CBRecallArgs) Decode(d *xdr.Decoder) {
	a.StateID.Decode(d)
	a.Truncate = d.Bool()
	a.Handle.Decode(d)
}

// CBRecallAnyArgs is CB_RECALL_ANY4args: the server asks the client to return some objects.
// RFC 8881 section 20.6.
type CBRecallAnyArgs struct {
	Keep uint32 // number of objects that the client may keep
	Mask Bitmap // types of objects
}

// Append appends the encoding to b.
func (a *CBRecallAnyArgs) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, a.Keep)
	return a.Mask.Append(b)
}

// Decode reads the arguments.
func (a *CBRecallAnyArgs) Decode(d *xdr.Decoder) {
	a.Keep = d.Uint32()
	a.Mask.Decode(d)
}
