package nfs41

import (
	"encoding/hex"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Arguments and results of the operations on sessions.

// Sizes in bytes, and counts. Those with names are from RFC 8881 section 3.1; the others are
// limits of this package.
const (
	sessionIDSize = 16   // NFS4_SESSIONID_SIZE
	verifierSize  = 8    // NFS4_VERIFIER_SIZE
	maxOwner      = 1024 // NFS4_OPAQUE_LIMIT: owners and scopes
	maxImplName   = 1024 // nii_domain, nii_name
	maxBitmap     = 8    // words of a bitmap4
	maxOID        = 256  // sec_oid4
	maxOIDs       = 16
	maxGSSHandle  = 1024
	maxSecParms   = 16 // csa_sec_parms
	maxReferLists = 16 // csa_referring_call_lists
	maxRefer      = 64 // calls in each
)

// A SessionID is sessionid4, which is opaque to clients.
type SessionID [sessionIDSize]byte

// String is the id in hexadecimal.
func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// Append appends the encoding to b. It is the whole of the arguments of
// DESTROY_SESSION.
func (id *SessionID) Append(b []byte) []byte { return xdr.AppendFixedOpaque(b, id[:]) }

// Decode reads the id.
func (id *SessionID) Decode(d *xdr.Decoder) {
	*id = SessionID{}
	copy(id[:], d.FixedOpaque(sessionIDSize))
}

// A Verifier is verifier4: eight bytes that are opaque to the receiver.
type Verifier [verifierSize]byte

// Append appends the encoding to b.
func (v *Verifier) Append(b []byte) []byte { return xdr.AppendFixedOpaque(b, v[:]) }

// Decode reads the verifier.
func (v *Verifier) Decode(d *xdr.Decoder) {
	*v = Verifier{}
	copy(v[:], d.FixedOpaque(verifierSize))
}

// A ClientID is clientid4, by which a server identifies a client until either restarts.
type ClientID uint64

// Append appends the encoding to b. It is the whole of the arguments of
// DESTROY_CLIENTID.
func (id *ClientID) Append(b []byte) []byte { return xdr.AppendUint64(b, uint64(*id)) }

// Decode reads the id.
func (id *ClientID) Decode(d *xdr.Decoder) { *id = ClientID(d.Uint64()) }

// A Time is nfstime4: seconds since the start of 1970, UTC, and nanoseconds. RFC 8881
// section 3.3.1.
type Time struct {
	Sec  int64
	Nsec uint32
}

// Append appends the encoding to b.
func (t *Time) Append(b []byte) []byte {
	b = xdr.AppendInt64(b, t.Sec)
	return xdr.AppendUint32(b, t.Nsec)
}

// Decode reads the time.
func (t *Time) Decode(d *xdr.Decoder) {
	t.Sec = d.Int64()
	t.Nsec = d.Uint32()
}

// A Bitmap is bitmap4: bit n is bit n%32 of word n/32. Missing words are zero. RFC 8881
// section 3.3.
type Bitmap []uint32

// Bits returns a Bitmap with the given bits.
func Bits(bits ...uint32) Bitmap {
	var m Bitmap
	for _, n := range bits {
		for int(n/32) >= len(m) {
			m = append(m, 0)
		}
		m[n/32] |= 1 << (n % 32)
	}
	return m
}

// Has reports whether bit n is set.
func (m Bitmap) Has(n uint32) bool { return int(n/32) < len(m) && m[n/32]>>(n%32)&1 != 0 }

// Append appends the encoding to b.
func (m *Bitmap) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(len(*m)))
	for _, w := range *m {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

// Decode reads the bitmap, of at most 8 words.
func (m *Bitmap) Decode(d *xdr.Decoder) {
	*m = (*m)[:0]
	for range d.Count(maxBitmap, xdr.Unit) {
		*m = append(*m, d.Uint32())
	}
}

// An implID is nfs_impl_id4: the implementation of a client or server, for statistics only.
// RFC 8881 section 3.3.
type implID struct {
	Domain, Name string // at most 1024 bytes each
	Date         Time
}

// appendImplID appends nfs_impl_id4<1>.
func appendImplID(b []byte, id *implID) []byte {
	if id == nil {
		return xdr.AppendUint32(b, 0)
	}
	b = xdr.AppendUint32(b, 1)
	b = xdr.AppendString(b, id.Domain)
	b = xdr.AppendString(b, id.Name)
	return id.Date.Append(b)
}

func decodeImplID(d *xdr.Decoder) *implID {
	if d.Count(1, 20) == 0 {
		return nil
	}
	id := &implID{Domain: d.String(maxImplName), Name: d.String(maxImplName)}
	id.Date.Decode(d)
	return id
}

// stateProtect is state_protect_how4. RFC 8881 section 18.35.3.
type stateProtect uint32

// Values of stateProtect.
const (
	protectNone     stateProtect = 0 // SP4_NONE
	protectMachCred stateProtect = 1 // SP4_MACH_CRED
	protectSSV      stateProtect = 2 // SP4_SSV
)

// exchangeIDArgs is EXCHANGE_ID4args. RFC 8881 section 18.35.
type exchangeIDArgs struct {
	Verifier Verifier // changes when the client restarts
	Owner    []byte   // co_ownerid; at most 1024 bytes
	Flags    uint32

	Protect       stateProtect
	Enforce       Bitmap // protectMachCred, protectSSV: operations
	Allow         Bitmap
	Hash, Encrypt [][]byte // protectSSV: OIDs of algorithms
	Window        uint32   // protectSSV
	Handles       uint32   // protectSSV

	Impl *implID // may be nil
}

// Append appends the encoding to b.
func (a *exchangeIDArgs) Append(b []byte) []byte {
	b = a.Verifier.Append(b)
	b = xdr.AppendOpaque(b, a.Owner)
	b = xdr.AppendUint32(b, a.Flags)
	b = xdr.AppendUint32(b, uint32(a.Protect))
	if a.Protect != protectNone {
		b = a.Enforce.Append(b)
		b = a.Allow.Append(b)
	}
	if a.Protect == protectSSV {
		b = appendOIDs(b, a.Hash)
		b = appendOIDs(b, a.Encrypt)
		b = xdr.AppendUint32(b, a.Window)
		b = xdr.AppendUint32(b, a.Handles)
	}
	return appendImplID(b, a.Impl)
}

// Decode reads the arguments.
func (a *exchangeIDArgs) Decode(d *xdr.Decoder) {
	*a = exchangeIDArgs{}
	a.Verifier.Decode(d)
	a.Owner = d.Opaque(maxOwner)
	a.Flags = d.Uint32()
	switch a.Protect = stateProtect(d.Uint32()); a.Protect {
	case protectNone:
	case protectMachCred, protectSSV:
		a.Enforce.Decode(d)
		a.Allow.Decode(d)
	default:
		d.Fail("unknown state_protect_how4")
	}
	if a.Protect == protectSSV {
		a.Hash = decodeOIDs(d)
		a.Encrypt = decodeOIDs(d)
		a.Window = d.Uint32()
		a.Handles = d.Uint32()
	}
	a.Impl = decodeImplID(d)
}

func appendOIDs(b []byte, oids [][]byte) []byte {
	b = xdr.AppendUint32(b, uint32(len(oids)))
	for _, oid := range oids {
		b = xdr.AppendOpaque(b, oid)
	}
	return b
}

func decodeOIDs(d *xdr.Decoder) (oids [][]byte) {
	for range d.Count(maxOIDs, xdr.Unit) {
		oids = append(oids, d.Opaque(maxOID))
	}
	return oids
}

// exchangeIDRes is EXCHANGE_ID4resok, without SP4_SSV, which this package does not request.
// RFC 8881 section 18.35.
type exchangeIDRes struct {
	ClientID ClientID
	Sequence uint32 // of the first CREATE_SESSION; undefined for a confirmed client
	Flags    uint32

	Protect        stateProtect // not protectSSV
	Enforce, Allow Bitmap       // protectMachCred

	MinorID uint64 // server_owner4
	MajorID []byte // at most 1024 bytes
	Scope   []byte // server_scope; at most 1024 bytes

	Impl *implID // may be nil
}

// maxExchangeIDRes is the longest reply to EXCHANGE_ID without state protection that decodes,
// in bytes, including the header of the COMPOUND.
const maxExchangeIDRes = 5*xdr.Unit + 8 + 3*xdr.Unit + 8 + 2*(xdr.Unit+maxOwner) + xdr.Unit + 2*(xdr.Unit+maxImplName) + 12

// Append appends the encoding to b.
func (r *exchangeIDRes) Append(b []byte) []byte {
	b = r.ClientID.Append(b)
	b = xdr.AppendUint32(b, r.Sequence)
	b = xdr.AppendUint32(b, r.Flags)
	b = xdr.AppendUint32(b, uint32(r.Protect))
	if r.Protect == protectMachCred {
		b = r.Enforce.Append(b)
		b = r.Allow.Append(b)
	}
	b = xdr.AppendUint64(b, r.MinorID)
	b = xdr.AppendOpaque(b, r.MajorID)
	b = xdr.AppendOpaque(b, r.Scope)
	return appendImplID(b, r.Impl)
}

// Decode reads the results.
func (r *exchangeIDRes) Decode(d *xdr.Decoder) {
	*r = exchangeIDRes{}
	r.ClientID.Decode(d)
	r.Sequence = d.Uint32()
	r.Flags = d.Uint32()
	switch r.Protect = stateProtect(d.Uint32()); r.Protect {
	case protectNone:
	case protectMachCred:
		r.Enforce.Decode(d)
		r.Allow.Decode(d)
	default:
		d.Fail("state_protect_how4 was not requested")
	}
	r.MinorID = d.Uint64()
	r.MajorID = d.Opaque(maxOwner)
	r.Scope = d.Opaque(maxOwner)
	r.Impl = decodeImplID(d)
}

// ChannelAttrs is channel_attrs4: the limits of calls in one direction. Sizes are in bytes, of
// whole RPC messages including headers. RFC 8881 section 18.36.
type ChannelAttrs struct {
	HeaderPad         uint32 // ca_headerpadsize
	MaxRequest        uint32 // ca_maxrequestsize
	MaxResponse       uint32 // ca_maxresponsesize
	MaxResponseCached uint32 // ca_maxresponsesize_cached
	MaxOps            uint32 // ca_maxoperations
	MaxRequests       uint32 // ca_maxrequests: slots

	// HasIRD reports that IRD, the number of concurrent RDMA Reads, is present.
	HasIRD bool
	IRD    uint32
}

// Append appends the encoding to b.
func (a *ChannelAttrs) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, a.HeaderPad)
	b = xdr.AppendUint32(b, a.MaxRequest)
	b = xdr.AppendUint32(b, a.MaxResponse)
	b = xdr.AppendUint32(b, a.MaxResponseCached)
	b = xdr.AppendUint32(b, a.MaxOps)
	b = xdr.AppendUint32(b, a.MaxRequests)
	if !a.HasIRD {
		return xdr.AppendUint32(b, 0)
	}
	b = xdr.AppendUint32(b, 1)
	return xdr.AppendUint32(b, a.IRD)
}

// Decode reads the attributes.
func (a *ChannelAttrs) Decode(d *xdr.Decoder) {
	*a = ChannelAttrs{
		HeaderPad: d.Uint32(), MaxRequest: d.Uint32(), MaxResponse: d.Uint32(),
		MaxResponseCached: d.Uint32(), MaxOps: d.Uint32(), MaxRequests: d.Uint32(),
	}
	if a.HasIRD = d.Count(1, xdr.Unit) == 1; a.HasIRD {
		a.IRD = d.Uint32()
	}
}

// or returns a, with zero fields replaced by those of d.
func (a ChannelAttrs) or(d ChannelAttrs) ChannelAttrs {
	for _, f := range []struct{ v, d *uint32 }{
		{&a.MaxRequest, &d.MaxRequest},
		{&a.MaxResponse, &d.MaxResponse},
		{&a.MaxResponseCached, &d.MaxResponseCached},
		{&a.MaxOps, &d.MaxOps},
		{&a.MaxRequests, &d.MaxRequests},
	} {
		if *f.v == 0 {
			*f.v = *f.d
		}
	}
	return a
}

// within returns the smaller of each limit of a and b.
func (a ChannelAttrs) within(b ChannelAttrs) ChannelAttrs {
	return ChannelAttrs{
		MaxRequest:        min(a.MaxRequest, b.MaxRequest),
		MaxResponse:       min(a.MaxResponse, b.MaxResponse),
		MaxResponseCached: min(a.MaxResponseCached, b.MaxResponseCached),
		MaxOps:            min(a.MaxOps, b.MaxOps),
		MaxRequests:       min(a.MaxRequests, b.MaxRequests),
	}
}

// minOps is the least number of operations of a usable channel: SEQUENCE and another one.
const minOps = 2

// CallbackSec is callback_sec_parms4: a credential that a server may use for callbacks. RFC
// 8881 section 18.36.
type CallbackSec struct {
	Flavor oncrpc.Flavor
	Sys    oncrpc.AuthSys // FlavorSys

	// With FlavorGSS: handles of RPCSEC_GSS contexts, and the service.
	GSSService             uint32
	FromServer, FromClient []byte // at most 1024 bytes each
}

// Append appends the encoding to b.
func (c *CallbackSec) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(c.Flavor))
	switch c.Flavor {
	case oncrpc.FlavorSys:
		b = oncrpc.AppendAuthSys(b, &c.Sys)
	case oncrpc.FlavorGSS:
		b = xdr.AppendUint32(b, c.GSSService)
		b = xdr.AppendOpaque(b, c.FromServer)
		b = xdr.AppendOpaque(b, c.FromClient)
	}
	return b
}

// Decode reads the parameters.
func (c *CallbackSec) Decode(d *xdr.Decoder) {
	*c = CallbackSec{Flavor: oncrpc.Flavor(d.Uint32())}
	switch c.Flavor {
	case oncrpc.FlavorNone:
	case oncrpc.FlavorSys:
		decodeAuthSys(d, &c.Sys)
	case oncrpc.FlavorGSS:
		c.GSSService = d.Uint32()
		c.FromServer = d.Opaque(maxGSSHandle)
		c.FromClient = d.Opaque(maxGSSHandle)
	default:
		d.Fail("invalid flavor of callbacks")
	}
}

// decodeAuthSys decodes authsys_parms, without a length word.
func decodeAuthSys(d *xdr.Decoder, a *oncrpc.AuthSys) {
	*a = oncrpc.AuthSys{Stamp: d.Uint32(), Machine: d.String(oncrpc.MaxMachineName), UID: d.Uint32(), GID: d.Uint32()}
	for range d.Count(oncrpc.MaxGIDs, xdr.Unit) {
		a.GIDs = append(a.GIDs, d.Uint32())
	}
}

// createSessionArgs is CREATE_SESSION4args. RFC 8881 section 18.36.
type createSessionArgs struct {
	ClientID        ClientID
	Sequence        uint32
	Flags           uint32
	Fore, Back      ChannelAttrs
	CallbackProgram uint32
	CallbackSec     []CallbackSec // at most 16
}

// Append appends the encoding to b.
func (a *createSessionArgs) Append(b []byte) []byte {
	b = a.ClientID.Append(b)
	b = xdr.AppendUint32(b, a.Sequence)
	b = xdr.AppendUint32(b, a.Flags)
	b = a.Fore.Append(b)
	b = a.Back.Append(b)
	b = xdr.AppendUint32(b, a.CallbackProgram)
	b = xdr.AppendUint32(b, uint32(len(a.CallbackSec)))
	for i := range a.CallbackSec {
		b = a.CallbackSec[i].Append(b)
	}
	return b
}

// Decode reads the arguments.
func (a *createSessionArgs) Decode(d *xdr.Decoder) {
	*a = createSessionArgs{}
	a.ClientID.Decode(d)
	a.Sequence = d.Uint32()
	a.Flags = d.Uint32()
	a.Fore.Decode(d)
	a.Back.Decode(d)
	a.CallbackProgram = d.Uint32()
	for range d.Count(maxSecParms, xdr.Unit) {
		var c CallbackSec
		c.Decode(d)
		a.CallbackSec = append(a.CallbackSec, c)
	}
}

// createSessionRes is CREATE_SESSION4resok. RFC 8881 section 18.36.
type createSessionRes struct {
	Session    SessionID
	Sequence   uint32
	Flags      uint32
	Fore, Back ChannelAttrs
}

// Append appends the encoding to b.
func (r *createSessionRes) Append(b []byte) []byte {
	b = r.Session.Append(b)
	b = xdr.AppendUint32(b, r.Sequence)
	b = xdr.AppendUint32(b, r.Flags)
	b = r.Fore.Append(b)
	return r.Back.Append(b)
}

// Decode reads the results.
func (r *createSessionRes) Decode(d *xdr.Decoder) {
	r.Session.Decode(d)
	r.Sequence = d.Uint32()
	r.Flags = d.Uint32()
	r.Fore.Decode(d)
	r.Back.Decode(d)
}

// bindConnArgs is BIND_CONN_TO_SESSION4args. RFC 8881 section 18.34.
type bindConnArgs struct {
	Session  SessionID
	Dir      uint32 // as in fromClientForeOrBoth
	RDMAMode bool   // bctsa_use_conn_in_rdma_mode: step up from TCP
}

// Append appends the encoding to b.
func (a *bindConnArgs) Append(b []byte) []byte {
	b = a.Session.Append(b)
	b = xdr.AppendUint32(b, a.Dir)
	return xdr.AppendBool(b, a.RDMAMode)
}

// Decode reads the arguments.
func (a *bindConnArgs) Decode(d *xdr.Decoder) {
	a.Session.Decode(d)
	a.Dir = d.Uint32()
	a.RDMAMode = d.Bool()
}

// bindConnRes is BIND_CONN_TO_SESSION4resok. RFC 8881 section 18.34.
type bindConnRes struct {
	Session  SessionID
	Dir      uint32 // as in fromServerBoth
	RDMAMode bool
}

// Append appends the encoding to b.
func (r *bindConnRes) Append(b []byte) []byte {
	b = r.Session.Append(b)
	b = xdr.AppendUint32(b, r.Dir)
	return xdr.AppendBool(b, r.RDMAMode)
}

// Decode reads the results.
func (r *bindConnRes) Decode(d *xdr.Decoder) {
	r.Session.Decode(d)
	r.Dir = d.Uint32()
	r.RDMAMode = d.Bool()
}

// sequenceArgs is SEQUENCE4args. RFC 8881 section 18.46.
type sequenceArgs struct {
	Session     SessionID
	Sequence    uint32
	Slot        uint32
	HighestSlot uint32 // in use by the client
	CacheThis   bool   // cache the whole reply
}

// Append appends the encoding to b.
func (a *sequenceArgs) Append(b []byte) []byte {
	b = a.Session.Append(b)
	b = xdr.AppendUint32(b, a.Sequence)
	b = xdr.AppendUint32(b, a.Slot)
	b = xdr.AppendUint32(b, a.HighestSlot)
	return xdr.AppendBool(b, a.CacheThis)
}

// Decode reads the arguments.
func (a *sequenceArgs) Decode(d *xdr.Decoder) {
	a.Session.Decode(d)
	a.Sequence = d.Uint32()
	a.Slot = d.Uint32()
	a.HighestSlot = d.Uint32()
	a.CacheThis = d.Bool()
}

// sequenceRes is SEQUENCE4resok. RFC 8881 section 18.46.
type sequenceRes struct {
	Session       SessionID
	Sequence      uint32
	Slot          uint32
	HighestSlot   uint32 // of the server
	TargetHighest uint32 // requested by the server
	Flags         SeqFlags
}

// Append appends the encoding to b.
func (r *sequenceRes) Append(b []byte) []byte {
	b = r.Session.Append(b)
	b = xdr.AppendUint32(b, r.Sequence)
	b = xdr.AppendUint32(b, r.Slot)
	b = xdr.AppendUint32(b, r.HighestSlot)
	b = xdr.AppendUint32(b, r.TargetHighest)
	return xdr.AppendUint32(b, uint32(r.Flags))
}

// Decode reads the results.
func (r *sequenceRes) Decode(d *xdr.Decoder) {
	r.Session.Decode(d)
	r.Sequence = d.Uint32()
	r.Slot = d.Uint32()
	r.HighestSlot = d.Uint32()
	r.TargetHighest = d.Uint32()
	r.Flags = SeqFlags(d.Uint32())
}

// reclaimCompleteArgs is RECLAIM_COMPLETE4args. RFC 8881 section 18.51.
type reclaimCompleteArgs struct {
	OneFS bool // only for the file system of the current file handle
}

// Append appends the encoding to b.
func (a *reclaimCompleteArgs) Append(b []byte) []byte { return xdr.AppendBool(b, a.OneFS) }

// Decode reads the arguments.
func (a *reclaimCompleteArgs) Decode(d *xdr.Decoder) { a.OneFS = d.Bool() }

// A referringCalls is referring_call_list4: calls of a session that a callback refers to, and
// whose replies may not have arrived. RFC 8881 section 20.9.
type referringCalls struct {
	Session SessionID
	Calls   []referringCall // at most 64
}

// A referringCall is referring_call4.
type referringCall struct {
	Sequence, Slot uint32
}

// cbSequenceArgs is CB_SEQUENCE4args. RFC 8881 section 20.9.
type cbSequenceArgs struct {
	sequenceArgs
	Referring []referringCalls // at most 16
}

// Append appends the encoding to b.
func (a *cbSequenceArgs) Append(b []byte) []byte {
	b = a.sequenceArgs.Append(b)
	b = xdr.AppendUint32(b, uint32(len(a.Referring)))
	for i := range a.Referring {
		l := &a.Referring[i]
		b = l.Session.Append(b)
		b = xdr.AppendUint32(b, uint32(len(l.Calls)))
		for _, c := range l.Calls {
			b = xdr.AppendUint32(b, c.Sequence)
			b = xdr.AppendUint32(b, c.Slot)
		}
	}
	return b
}

// Decode reads the arguments.
func (a *cbSequenceArgs) Decode(d *xdr.Decoder) {
	a.sequenceArgs.Decode(d)
	a.Referring = nil
	for range d.Count(maxReferLists, sessionIDSize+xdr.Unit) {
		var l referringCalls
		l.Session.Decode(d)
		for range d.Count(maxRefer, 2*xdr.Unit) {
			l.Calls = append(l.Calls, referringCall{d.Uint32(), d.Uint32()})
		}
		a.Referring = append(a.Referring, l)
	}
}

// cbSequenceRes is CB_SEQUENCE4resok. RFC 8881 section 20.9.
type cbSequenceRes struct {
	Session       SessionID
	Sequence      uint32
	Slot          uint32
	HighestSlot   uint32 // of the client
	TargetHighest uint32 // requested by the client
}

// Append appends the encoding to b.
func (r *cbSequenceRes) Append(b []byte) []byte {
	b = r.Session.Append(b)
	b = xdr.AppendUint32(b, r.Sequence)
	b = xdr.AppendUint32(b, r.Slot)
	b = xdr.AppendUint32(b, r.HighestSlot)
	return xdr.AppendUint32(b, r.TargetHighest)
}

// Decode reads the results.
func (r *cbSequenceRes) Decode(d *xdr.Decoder) {
	r.Session.Decode(d)
	r.Sequence = d.Uint32()
	r.Slot = d.Uint32()
	r.HighestSlot = d.Uint32()
	r.TargetHighest = d.Uint32()
}
