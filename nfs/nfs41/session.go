package nfs41

import (
	"encoding/hex"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen -types -o nfs41_xdr.go nfs41.x

// Arguments and results of session operations that are not in nfs41.x.

// Limits of this package in addition to those in nfs41.x: bytes and elements.
const (
	maxGSSHandle = 1024
	maxSecParms  = 16 // csa_sec_parms
)

// String returns the id in hexadecimal.
func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

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

// grantedBy reports whether the server protects at least the operations that the client asked for.
func (a *protectArgs) grantedBy(r *protectRes) bool {
	for i, asked := range a.Ops.Enforce {
		if asked != 0 && (i >= len(r.Ops.Enforce) || asked&^r.Ops.Enforce[i] != 0) {
			return false
		}
	}
	return r.How == a.How
}

// maxExchangeIDRes is the longest reply to EXCHANGE_ID that can be decoded, in bytes, including the header of the
// COMPOUND.
const maxExchangeIDRes = 5*xdr.Unit + 8 + 3*xdr.Unit + 2*(1+maxBitmap)*xdr.Unit + 8 + 2*(xdr.Unit+maxOwner) + xdr.Unit + 2*(xdr.Unit+maxImplName) + 12

// ChannelAttrs is channel_attrs4: the limits of calls in one direction. Sizes are in bytes, of
// whole RPC messages including headers. RFC 8881 section 18.36.
type ChannelAttrs struct {
	HeaderPad         uint32 // ca_headerpadsize
	MaxRequest        uint32 // ca_maxrequestsize
	MaxResponse       uint32 // ca_maxresponsesize
	MaxResponseCached uint32 // ca_maxresponsesize_cached
	MaxOps            uint32 // ca_maxoperations
	MaxRequests       uint32 // ca_maxrequests: slots

	// HasIRD reports whether IRD, the number of concurrent RDMA Reads, is present.
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

// CallbackSec is callback_sec_parms4: a credential that the server may use for callbacks. RFC 8881 section 18.36.
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
