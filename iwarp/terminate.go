package iwarp

import (
	"math/bits"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// terminated takes the peer's Terminate message.
func (c *Conn) terminated(n int) *failure {
	x := &c.rx
	b := x.ctl[:n]
	turnRound(b)
	var m rdmap.Terminate
	rdmap.ConsumeTerminate(b, &m) // what could be read of it is there
	t := &TerminateError{Cause: m.Cause}
	if m.DDP != nil && ddp.IsTagged(m.DDP) {
		var h ddp.Tagged
		ddp.ConsumeTagged(m.DDP, &h)
		t.STag, t.TO = h.STag, h.TO
		if m.DDP[1]&0xf == byte(rdmap.OpReadResponse) {
			t.STag, t.TO = 0, 0 // a name of the peer's own
		}
	}
	var r rdmap.ReadRequest
	if m.RDMAP != nil {
		rdmap.ConsumeReadRequest(m.RDMAP, &r)
		t.STag, t.TO, t.sink = r.SrcSTag, r.SrcTO, r.SinkSTag
	}
	return &failure{err: fabric.ConnError{Provider: name, Remote: true, Cause: t}}
}

// turnRound puts the fields of a Terminate header in order when they are as
// Linux's siw sends them on most machines: it declares them as bit fields, of
// which the first has the lowest bits (struct iwarp_terminate). So layer and
// error type have each other's place, and the flags M, D and R are the last of
// their byte instead of the first. The error code is where it belongs.
//
// RFC 5040 section 4.8 has the last bits of the flags' byte reserved, as zero.
// Without flags, only what makes no sense as it is and makes sense the other way
// round is turned: some of it makes sense both ways.
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

// meaningful reports whether layer and error type, as in the first byte of a
// Terminate header, have such an error code: RFC 5040 section 4.8, RFC 5041
// section 7, RFC 5044 section 8, RFC 6581 section 8.
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
