package nfs41

import (
	"encoding/hex"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Arguments and results of file operations that are not in nfs41.x: those that a mount needs, and those for
// delegations.

// maxFlavors bounds the entries of SECINFO4resok.
const maxFlavors = 16

// String returns the handle in hexadecimal.
func (fh FileHandle) String() string { return hex.EncodeToString(fh) }

// Rights that ACCESS asks about, as a bit mask. RFC 8881 section 18.1.
const (
	AccessRead    uint32 = 0x01
	AccessLookup  uint32 = 0x02
	AccessModify  uint32 = 0x04
	AccessExtend  uint32 = 0x08
	AccessDelete  uint32 = 0x10
	AccessExecute uint32 = 0x20
)

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

// Bits of OpenArgs.Access. RFC 8881 section 18.16.1.
const (
	OpenRead      uint32 = 1     // OPEN4_SHARE_ACCESS_READ
	WantReadDeleg uint32 = 0x100 // OPEN4_SHARE_ACCESS_WANT_READ_DELEG
)

// OpenArgs is the OPEN4args of an OPEN that does not create a file, for a name in the current directory: OPEN4_NOCREATE
// and CLAIM_NULL. RFC 8881 section 18.16.
type OpenArgs struct {
	Sequence     uint32 // used only by minor version 0
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
	Recall     bool    // DelegateRead: already being recalled
	ACE        ACE     // DelegateRead: principals that need not ask the server to open
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
