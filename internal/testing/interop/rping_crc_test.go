//go:build linux

package interop

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/interop/rping"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// How Linux's siw uses CRCs (RFC 5044 section 7.1.1: both sides use them if either requests
// them):
//
//   - As an initiator it does not request them. It accepts a reply that does, and then both
//     sides use them.
//   - As a responder it does as requested.
//   - If they are in use it checks them: a wrong CRC ends the connection with a Terminate
//     message. Otherwise the field is zero.

// A crcCase is a connection between rping on siw and our adapter.
type crcCase struct {
	name string
	cfg  iwarp.Config
	ours side // what our side is
	used bool // CRCs are
}

var crcCases = []crcCase{
	{"siw asks for none, and neither do we", iwarp.Config{}, responder, false},
	{"siw asks for none, but we do", iwarp.Config{RequireCRC: true}, responder, true},
	{"we ask for none", iwarp.Config{}, initiator, false},
	{"we ask", iwarp.Config{CRC: true}, initiator, true},
}

const (
	crcPings = 3
	crcSize  = 2000
)

// run makes the client ping the server through a relay that may change the data. It returns
// the result of our side, rping after its exit, and what the relay has received.
func (c crcCase) run(t *testing.T, change func(from side, fpdu []byte)) (result, *program, [2]heard) {
	t.Helper()
	p := iwarpProvider(c.name, c.cfg)
	addr := rdmatest.Device(t, p.peer)
	f := p.open(t)
	wire, port := startRelay(t, addr, change)
	var got result
	var r *program
	if c.ours == responder {
		served, ourPort := serve(t, &rping.Server{Provider: f, Validate: true}, addr)
		wire.passTo(net.JoinHostPort(addr, ourPort))
		r = startRping(t, p.peer, "-c", "-a", addr, "-p", port, "-C", strconv.Itoa(crcPings), "-V", "-v", "-S", strconv.Itoa(crcSize))
		got = <-served
	} else {
		var at string
		r, at = startRpingServer(t, p, addr, "-v", "-S", strconv.Itoa(crcSize))
		wire.passTo(at)
		r.awaitListening("futex")
		cl := &rping.Client{Provider: f, Count: crcPings, Validate: true, Size: crcSize}
		n, err := cl.Run(testContext(t), net.JoinHostPort(addr, port))
		got = result{n, err}
	}
	r.wantExit()
	wire.close()
	return got, r, wire.heard
}

// TestRDMARpingCRCIwarp checks the negotiation of CRCs, and every FPDU.
func TestRDMARpingCRCIwarp(t *testing.T) {
	for _, c := range crcCases {
		t.Run(c.name, func(t *testing.T) {
			got, r, wire := c.run(t, nil)
			if got.pings != crcPings || got.err != nil {
				t.Errorf("our side has %d pings and ends with %v", got.pings, got.err)
			}
			r.wantSuccess()
			if asked := wire[initiator].start.Flags&mpa.FlagCRC != 0; asked != c.cfg.CRC {
				t.Errorf("the initiator asks for CRCs: %t", asked)
			}
			if asked := wire[responder].start.Flags&mpa.FlagCRC != 0; asked != c.used {
				t.Errorf("the responder asks for CRCs: %t", asked)
			}
			for s, h := range wire {
				if h.err != nil || h.terminate != nil || h.bad > 0 {
					t.Errorf("the %v does not keep to the protocol: %+v", side(s), h)
				}
				if c.used && (h.zero > 0 || h.good == 0) || !c.used && (h.good > 0 || h.zero == 0) {
					t.Errorf("the %v sends %d FPDUs with CRCs and %d without", side(s), h.good, h.zero)
				}
				t.Logf("the %v's flags are %v; %d FPDUs with CRCs, %d without", side(s), h.start.Flags, h.good, h.zero)
			}
		})
	}
}

// crcCause is the cause in a Terminate message for a wrong CRC, and siwCRCCause that in one
// from siw, as decoded by RFC 5040: siw swaps layer and error type.
var (
	crcCause    = rdmap.Cause{Layer: rdmap.LayerLLP, Type: mpa.TypeMPA, Code: uint8(mpa.CodeCRC)}
	siwCRCCause = rdmap.Cause{Layer: mpa.TypeMPA, Type: uint8(rdmap.LayerLLP), Code: uint8(mpa.CodeCRC)}
)

// TestRDMARpingDamageIwarp flips one bit of a text in transit. With CRCs the connection ends,
// without them the comparison of the text fails.
func TestRDMARpingDamageIwarp(t *testing.T) {
	for _, c := range crcCases {
		for _, from := range []side{initiator, responder} {
			t.Run(c.name+"/damaged from the "+from.String(), func(t *testing.T) {
				damaged := 0
				got, r, wire := c.run(t, func(s side, fpdu []byte) {
					if at := bytes.Index(fpdu, []byte("rdma-ping-1: ")); s == from && at >= 0 {
						fpdu[at+100] ^= 1
						damaged++
					}
				})
				if damaged != 1 {
					t.Fatalf("damaged %d FPDUs", damaged)
				}
				receiver := initiator + responder - from
				switch {
				case c.used:
					said := crcCause
					if receiver != c.ours {
						said = siwCRCCause
					}
					if h := wire[receiver]; h.terminate == nil || h.terminate.Cause != said {
						t.Errorf("the receiver says %+v", h.terminate)
					}
					var pe *iwarp.ProtocolError
					var te *iwarp.TerminateError
					if receiver == c.ours && (!errors.As(got.err, &pe) || pe.Cause != crcCause) ||
						receiver != c.ours && (!errors.As(got.err, &te) || te.Cause != crcCause) {
						t.Errorf("our side ends with %v", got.err)
					}
					// The server's Write has completed before it is refused.
					if most := 1 + int(c.ours); got.pings < 1 || got.pings > most {
						t.Errorf("our side has %d pings", got.pings)
					}
				case c.ours == responder && from == responder:
					// rping's client compares the text.
					if r.err == nil || !strings.Contains(r.stderr.String(), "data mismatch!") {
						t.Errorf("rping does not see it: %s", r.state())
					}
				default:
					var me *rping.MismatchError
					if !errors.As(got.err, &me) || me.Ping != 1 || me.At != 100 {
						t.Errorf("our side ends with %v", got.err)
					}
				}
			})
		}
	}
}
