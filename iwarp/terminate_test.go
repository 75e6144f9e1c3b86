//go:build linux

package iwarp

import (
	"encoding/hex"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// TestTurnRound: payloads of Terminate messages that siw of Linux 6.1 has sent on
// x86-64, when one field of what it received had been changed, and what RFC 5040
// would have them say.
func TestTurnRound(t *testing.T) {
	for _, tc := range []struct {
		what, payload string
		want          rdmap.Cause
		ddp, rdmap    bool // headers that are quoted
	}{
		{"STag of a Write", "110003000064c1400defed000000563602a2bdd0", ddpTagged(ddp.TaggedInvalidSTag), true, false},
		{"offset of a Write", "110103000064c1406c2a5a005500555a79534dd0", ddpTagged(ddp.TaggedBaseBounds), true, false},
		{"STag of a Read Request",
			"1000070000004141000000000000000100000064" + "00000000ffffff00000000000000000000000064e9e5a200000055d4e08af470",
			rdmaProtection(rdmap.CodeInvalidSTag), true, true},
		{"offset of a Read Request",
			"1001070000004141000000000000000100000064" + "00000000ffffff00000000000000000000000064da689100550055f60aae6470",
			rdmaProtection(rdmap.CodeBaseBounds), true, true},
		{"MSN of a Send", "210303000010414300000000000000000000000400000000", ddpUntagged(ddp.UntaggedMSNRange), true, false},
		{"DDP version", "21060000", ddpUntagged(ddp.UntaggedBadVersion), false, false},
		{"CRC", "02020000", llpCause(mpa.CodeCRC), false, false},
		{"Write turned into a Read Response", "010003000064c142a5dcc000000055c645f45dd0", rdmap.Cause{Layer: rdmap.LayerDDP}, true, false},

		// These are valid both ways, so they are not swapped; siw means version and opcode.
		{"RDMAP version", "20050000", llpCause(mpa.CodeCatastrophic), false, false},
		{"RDMAP opcode", "20060000", llpCause(mpa.CodeInsufficientIRD), false, false},
	} {
		b, err := hex.DecodeString(tc.payload)
		if err != nil {
			t.Fatal(tc.what, err)
		}
		turnRound(b)
		var m rdmap.Terminate
		if _, err := rdmap.ConsumeTerminate(b, &m); err != nil || m.Cause != tc.want || (m.DDP != nil) != tc.ddp || (m.RDMAP != nil) != tc.rdmap {
			t.Errorf("%s: %+v, %v; want %v", tc.what, m, err, tc.want)
		}
	}
}

// TestTurnRoundLeaves: valid headers do not change, and invalid ones do no harm.
func TestTurnRoundLeaves(t *testing.T) {
	quote := ddp.AppendTagged(nil, &ddp.Tagged{Last: true, ULP: rdmap.Control(rdmap.OpWrite), STag: 1})
	known := 0
	for kind := range 256 {
		for code := range 256 {
			cause := rdmap.Cause{Layer: rdmap.Layer(kind >> 4), Type: uint8(kind & 0xf), Code: uint8(code)}
			if meaningful(byte(kind), byte(code)) {
				known++
			}
			for _, m := range []rdmap.Terminate{
				{Cause: cause},
				{Cause: cause, HasSegment: true, Segment: 20},
				{Cause: cause, HasSegment: true, Segment: 20, DDP: quote},
			} {
				b := rdmap.AppendTerminate(nil, &m)
				before := string(b)
				turnRound(b)
				if string(b) != before && (meaningful(byte(kind), byte(code)) || m.HasSegment) {
					t.Errorf("%v: %x has become %x", cause, before, b)
				}
			}
		}
	}
	// RDMA: catastrophic 256, protection 7, operation 6. DDP: 1, 5, 6. LLP: 7.
	if known != 256+7+6+1+5+6+7 {
		t.Errorf("%d causes have a meaning", known)
	}
	for n := range 4 {
		turnRound(make([]byte, n))
	}
}
