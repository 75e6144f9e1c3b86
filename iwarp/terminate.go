package iwarp

import (
	"math/bits"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// terminated processes the peer's Terminate message.
func (x *receiver) terminated(n int) *failure {
	b := x.ctl[:n]
	turnRound(b)
	var m rdmap.Terminate
	rdmap.ConsumeTerminate(b, &m) // on error it holds what could be decoded
	t := &TerminateError{Cause: m.Cause}
	if m.DDP != nil && ddp.IsTagged(m.DDP) {
		var h ddp.Tagged
		ddp.ConsumeTagged(m.DDP, &h)
		t.STag, t.TO = h.STag, h.TO
		if m.DDP[1]&0xf == byte(rdmap.OpReadResponse) {
			t.STag, t.TO = 0, 0 // the peer's own STag
		}
	}
	var r rdmap.ReadRequest
	if m.RDMAP != nil {
		rdmap.ConsumeReadRequest(m.RDMAP, &r)
		t.STag, t.TO, t.sink = r.SrcSTag, r.SrcTO, r.SinkSTag
	}
	return &failure{err: fabric.ConnError{Remote: true, Cause: t}}
}

// turnRound corrects a Terminate header of Linux's siw on little-endian machines. siw declares the fields as bit fields,
// of which the first has the lowest bits (struct iwarp_terminate). So layer and error type are swapped, and the flags M,
// D and R are the lowest bits of their byte instead of the highest. The error code is in the right place.
//
// By RFC 5040 section 4.8 the lowest bits of the byte of flags are reserved and zero. If no flag is set, turnRound swaps
// the fields only if they are invalid as received and valid when swapped, because some values are valid both ways.
func turnRound(b []byte) {
	const first, last = 0xe0, 0x07
	if len(b) < 4 {
		return
	}
	turned := b[0]>>4 | b[0]<<4
	switch flags := b[2]; {
	case flags&first == 0 && flags&last != 0:
	case flags == 0 && !meaningful(b[0], b[1]) && meaningful(turned, b[1]):
	default:
		return
	}
	b[0], b[2] = turned, bits.Reverse8(b[2])
}

// meaningful reports whether code is an error code of the layer and error type in kind, which is the first byte of a
// Terminate header: RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8, RFC 6581 section 8.
func meaningful(kind, code byte) bool {
	between := func(first, last byte) bool { return first <= code && code <= last }
	switch layer, errorType := rdmap.Layer(kind>>4), kind&0xf; layer {
	case rdmap.LayerRDMA:
		unspecific := code == byte(rdmap.CodeCannotInvalidate) || code == byte(rdmap.CodeUnspecified)
		switch rdmap.ErrorType(errorType) {
		case rdmap.TypeCatastrophic:
			return true
		case rdmap.TypeProtection:
			return between(0, byte(rdmap.CodeTOWrap)) || unspecific
		case rdmap.TypeOperation:
			return between(byte(rdmap.CodeVersion), byte(rdmap.CodeCatastrophicGlobal)) || unspecific
		}
	case rdmap.LayerDDP:
		switch ddp.ErrorType(errorType) {
		case ddp.TypeCatastrophic:
			return code == 0
		case ddp.TypeTagged:
			return between(0, ddp.TaggedVersion)
		case ddp.TypeUntagged:
			return between(ddp.UntaggedInvalidQN, ddp.UntaggedBadVersion)
		}
	case rdmap.LayerLLP:
		return errorType == mpa.TypeMPA && between(byte(mpa.CodeConnLost), byte(mpa.CodeNoMatchingRTR))
	}
	return false
}
