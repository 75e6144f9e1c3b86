//go:build linux

package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/bits"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// A target has 4096 bytes that the peer may write, as many that it may read, as many that it
// may not access, a window with write access, and two receives of 64 bytes. All memory is in
// one slab, separated by guard bytes.
type target struct {
	c                 *Conn
	peer              *rawPeer
	slab              []byte
	write, read, none fabric.Segment
	window            fabric.Segment
}

const guard = 0xa5

func newTarget(t testing.TB, crc bool) *target {
	t.Helper()
	flags := mpa.Flags(0)
	if crc {
		flags = mpa.FlagCRC
	}
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{InboundReads: 2}, flags)
	g := &target{c: c, peer: peer}
	g.prepare(t)
	// Execute the bind. Nothing is sent before the peer has sent something.
	post(t, c, fabric.SendWR{})
	return g
}

func (g *target) prepare(t testing.TB) {
	g.slab = bytes.Repeat([]byte{guard}, 10*4096)
	reg := func(i int, access fabric.Access) fabric.Segment {
		mr, err := g.c.RegMR(g.slab[i*4096:][:4096], access)
		if err != nil {
			t.Fatal(err)
		}
		return mr.Segment()
	}
	g.write = reg(1, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	g.read = reg(3, fabric.AccessRemoteRead)
	mr, err := g.c.RegMR(g.slab[5*4096:][:4096], fabric.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	g.none = fabric.Segment{Handle: mr.LKey(), Length: 4096, Offset: mr.(*MR).base}
	mw, err := g.c.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	g.window, err = mw.Prepare(fabric.SGE{Buf: g.slab[7*4096:][:4096]}, fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	post(t, g.c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	postRecv(t, g.c, g.slab[9*4096:][:64], g.slab[9*4096+64:][:64])
}

// wantUntouched wants memory that the peer may not write to be unchanged.
func (g *target) wantUntouched(t testing.TB, writable bool) {
	t.Helper()
	for i, b := range g.slab {
		page := i / 4096
		open := page == 1 || page == 7 || page == 9 && i%4096 < 128
		if b != guard && !(open && writable) {
			t.Fatalf("byte %d of page %d has been written", i%4096, page)
		}
	}
}

var garbage = bytes.Repeat([]byte{0xee}, 5000)

// setVersion changes the DDP version of a header.
func setVersion(h []byte, v byte) []byte {
	h[0] = h[0]&^3 | v
	return h
}

// setControl changes the RDMAP control field of a header.
func setControl(h []byte, c byte) []byte {
	h[1] = c
	return h
}

// An offense is something that a peer must not send, and what it gets for it.
type offense struct {
	name    string
	cause   rdmap.Cause     // in the Terminate message
	recv    fabric.WCStatus // of the first receive
	bare    bool            // the Terminate message quotes no header
	writes  bool            // the peer has rightly written something before
	crcOnly bool
	script  sends
}

// sends returns the FPDUs to send. The last one is the offense.
type sends func(g *target, p *rawPeer) [][]byte

// one is the script of a single FPDU.
func one(parts ...[]byte) sends {
	return func(g *target, p *rawPeer) [][]byte { return [][]byte{p.fpdu(parts...)} }
}

func sendHeader(last bool, msn, mo uint32) []byte { return untagged(rdmap.OpSend, last, 0, msn, mo) }

func sendInv(stag uint32) []byte {
	return ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendInv), ULP32: stag, MSN: 1})
}

// framingViolations: malformed FPDUs and wrong CRCs. RFC 5044 section 8.
var framingViolations = []offense{
	{name: "ULPDU of length 0", cause: llpCause(mpa.CodeFPDUStart), recv: fabric.WCFlushErr, bare: true, script: one()},
	{name: "ULPDU too short for a tagged header", cause: llpCause(mpa.CodeFPDUStart), recv: fabric.WCFlushErr, bare: true,
		script: one(tagged(rdmap.OpWrite, true, 1, 0)[:13])},
	{name: "ULPDU too short for an untagged header", cause: llpCause(mpa.CodeFPDUStart), recv: fabric.WCFlushErr, bare: true, script: one(sendHeader(true, 1, 0)[:17])},
	{name: "wrong CRC", cause: llpCause(mpa.CodeCRC), recv: fabric.WCFlushErr, bare: true, crcOnly: true, script: func(g *target, p *rawPeer) [][]byte {
		f := p.fpdu(sendHeader(true, 1, 0), []byte("hello"))
		f[len(f)-1] ^= 1
		return [][]byte{f}
	}},
	{name: "wrong CRC of an FPDU that comes in pieces", cause: llpCause(mpa.CodeCRC), recv: fabric.WCFlushErr, bare: true, crcOnly: true, writes: true,
		script: func(g *target, p *rawPeer) [][]byte {
			f := p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset), garbage[:4096])
			f[500] ^= 1
			return [][]byte{f[:100], f[100:3000], f[3000:]}
		}},
	{name: "wrong pad under the CRC", cause: llpCause(mpa.CodeCRC), recv: fabric.WCFlushErr, bare: true, crcOnly: true, script: func(g *target, p *rawPeer) [][]byte {
		f := p.fpdu(sendHeader(true, 1, 0), []byte{1, 2, 3})
		f[len(f)-5] ^= 1
		return [][]byte{f}
	}},
}

// headerViolations: invalid DDP and RDMAP headers.
var headerViolations = []offense{
	{name: "DDP version 0 in a tagged segment", cause: ddpTagged(ddp.TaggedVersion), recv: fabric.WCFlushErr,
		script: one(setVersion(tagged(rdmap.OpWrite, true, 1, 0), 0))},
	{name: "DDP version 2 in an untagged segment", cause: ddpUntagged(ddp.UntaggedBadVersion), recv: fabric.WCFlushErr,
		script: one(setVersion(sendHeader(true, 1, 0), 2))},
	{name: "RDMAP version 0", cause: rdmaOperation(rdmap.CodeVersion), recv: fabric.WCFlushErr, script: one(setControl(sendHeader(true, 1, 0), 0x03))},
	{name: "unknown opcode, untagged", cause: rdmaOperation(rdmap.CodeUnexpectedOpcode), recv: fabric.WCFlushErr, script: one(setControl(sendHeader(true, 1, 0), 0x48))},
	{name: "unknown opcode, tagged", cause: rdmaOperation(rdmap.CodeUnexpectedOpcode), recv: fabric.WCFlushErr,
		script: one(setControl(tagged(rdmap.OpWrite, true, 1, 0), 0x4f))},
	{name: "Send in a tagged segment", cause: rdmaOperation(rdmap.CodeUnexpectedOpcode), recv: fabric.WCFlushErr,
		script: one(tagged(rdmap.OpSend, true, 1, 0))},
	{name: "Write in an untagged segment", cause: rdmaOperation(rdmap.CodeUnexpectedOpcode), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpWrite, true, 0, 1, 0))},
}

// untaggedViolations: untagged messages on the wrong queue, out of sequence, or too long for
// their receive. RFC 5041 section 8.2.
var untaggedViolations = []offense{
	{name: "Send on the queue of Reads", cause: ddpUntagged(ddp.UntaggedInvalidQN), recv: fabric.WCFlushErr, script: one(untagged(rdmap.OpSend, true, 1, 1, 0))},
	{name: "Send on queue 3", cause: ddpUntagged(ddp.UntaggedInvalidQN), recv: fabric.WCFlushErr, script: one(untagged(rdmap.OpSend, true, 3, 1, 0))},
	{name: "Read Request on the queue of Sends", cause: ddpUntagged(ddp.UntaggedInvalidQN), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpReadRequest, true, 0, 1, 0), garbage[:28])},
	{name: "Terminate on the queue of Sends", cause: ddpUntagged(ddp.UntaggedInvalidQN), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpTerminate, true, 0, 1, 0), garbage[:4])},
	{name: "Send number 0", cause: ddpUntagged(ddp.UntaggedMSNRange), recv: fabric.WCFlushErr, script: one(sendHeader(true, 0, 0))},
	{name: "Send number 2 first", cause: ddpUntagged(ddp.UntaggedMSNRange), recv: fabric.WCFlushErr, script: one(sendHeader(true, 2, 0))},
	{name: "Send number 1 again", cause: ddpUntagged(ddp.UntaggedMSNRange), recv: fabric.WCSuccess, writes: true,
		script: func(g *target, p *rawPeer) [][]byte {
			return [][]byte{p.fpdu(sendHeader(true, 1, 0)), p.fpdu(sendHeader(true, 1, 0))}
		}},
	{name: "Read Request number 2 first", cause: ddpUntagged(ddp.UntaggedMSNRange), recv: fabric.WCFlushErr,
		script: one(readRequest(2, rdmap.ReadRequest{}))},
	{name: "Send that begins in the middle", cause: ddpUntagged(ddp.UntaggedInvalidMO), recv: fabric.WCFlushErr, script: one(sendHeader(true, 1, 4), garbage[:4])},
	{name: "Send with a gap", cause: ddpUntagged(ddp.UntaggedInvalidMO), recv: fabric.WCFlushErr, writes: true, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(sendHeader(false, 1, 0), garbage[:8]), p.fpdu(sendHeader(true, 1, 9), garbage[:8])}
	}},
	{name: "Send that steps back", cause: ddpUntagged(ddp.UntaggedInvalidMO), recv: fabric.WCFlushErr, writes: true, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(sendHeader(false, 1, 0), garbage[:8]), p.fpdu(sendHeader(true, 1, 7), garbage[:8])}
	}},
	{name: "Send longer than its receive", cause: ddpUntagged(ddp.UntaggedMsgTooLong), recv: fabric.WCLocLenErr, script: one(sendHeader(true, 1, 0), garbage[:65])},
	{name: "Send of many segments longer than its receive", cause: ddpUntagged(ddp.UntaggedMsgTooLong), recv: fabric.WCLocLenErr, writes: true,
		script: func(g *target, p *rawPeer) [][]byte {
			return [][]byte{p.fpdu(sendHeader(false, 1, 0), garbage[:60]), p.fpdu(sendHeader(false, 1, 60), garbage[:4]), p.fpdu(sendHeader(true, 1, 64), garbage[:1])}
		}},
	{name: "Send of 64 KiB to a receive of 64 bytes", cause: ddpUntagged(ddp.UntaggedMsgTooLong), recv: fabric.WCLocLenErr,
		script: one(sendHeader(true, 1, 0), make([]byte, 65535-18))},
	{name: "Send with no receive left", cause: ddpUntagged(ddp.UntaggedNoBuffer), recv: fabric.WCSuccess, writes: true,
		script: func(g *target, p *rawPeer) [][]byte {
			return [][]byte{p.fpdu(sendHeader(true, 1, 0)), p.fpdu(sendHeader(true, 2, 0)), p.fpdu(sendHeader(true, 3, 0), garbage[:4])}
		}},
}

// writeViolations: Writes to memory that the peer may not write, and misuse of windows. RFC
// 5041 section 8.2.
var writeViolations = []offense{
	{name: "Write to STag 0", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCFlushErr, script: one(tagged(rdmap.OpWrite, true, 0, 0), garbage[:4])},
	{name: "Write to the local DMA key with another low byte", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCFlushErr,
		script: one(tagged(rdmap.OpWrite, true, 0x55, 0), garbage[:4])},
	{name: "Write to an STag never given", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCFlushErr,
		script: one(tagged(rdmap.OpWrite, true, 0x7fffff01, 0), garbage[:4])},
	{name: "Write to the sink of Reads", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCFlushErr,
		script: one(tagged(rdmap.OpWrite, true, sinkSTag(0), sinkTO(0)), garbage[:4])},
	{name: "Write with the wrong key", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle^1, g.write.Offset), garbage[:4])}
	}},
	{name: "Write to memory that is for reading", cause: rdmaProtection(rdmap.CodeAccess), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.read.Handle, g.read.Offset), garbage[:4])}
	}},
	{name: "Write to memory that is local", cause: rdmaProtection(rdmap.CodeAccess), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.none.Handle, g.none.Offset), garbage[:4])}
	}},
	{name: "Write below the base", cause: ddpTagged(ddp.TaggedBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset-1), garbage[:4])}
	}},
	{name: "Write at offset 0", cause: ddpTagged(ddp.TaggedBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, 0), garbage[:4])}
	}},
	{name: "Write beyond the end", cause: ddpTagged(ddp.TaggedBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset+4093), garbage[:4])}
	}},
	{name: "Write of more than there is", cause: ddpTagged(ddp.TaggedBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset), garbage[:4097])}
	}},
	{name: "Write whose offset wraps", cause: ddpTagged(ddp.TaggedTOWrap), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, math.MaxUint64-2), garbage[:4])}
	}},
	{name: "Write whose second segment is beyond the end", cause: ddpTagged(ddp.TaggedBaseBounds), recv: fabric.WCFlushErr, writes: true,
		script: func(g *target, p *rawPeer) [][]byte {
			return [][]byte{p.fpdu(tagged(rdmap.OpWrite, false, g.write.Handle, g.write.Offset), garbage[:4096]),
				p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset+4096), garbage[:1])}
		}},
	{name: "Write through a window beyond its end", cause: ddpTagged(ddp.TaggedBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(tagged(rdmap.OpWrite, true, g.window.Handle, g.window.Offset+1), garbage[:4096])}
	}},
	{name: "Read through a window for writing", cause: rdmaProtection(rdmap.CodeAccess), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: 1, SrcSTag: g.window.Handle, SrcTO: g.window.Offset}))}
	}},
}

// readViolations: Reads of memory that the peer may not read. RFC 5040 section 4.8.
var readViolations = []offense{
	{name: "Read of an STag never given", cause: rdmaProtection(rdmap.CodeInvalidSTag), recv: fabric.WCFlushErr,
		script: one(readRequest(1, rdmap.ReadRequest{Size: 1, SrcSTag: 0x7fffff01}))},
	{name: "Read of the first STag that is not given yet", cause: rdmaProtection(rdmap.CodeInvalidSTag), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: 1, SrcSTag: g.c.stags.len() << stagKeyBits, SrcTO: g.read.Offset}))}
	}},
	{name: "Read with the wrong key", cause: rdmaProtection(rdmap.CodeInvalidSTag), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: 1, SrcSTag: g.read.Handle ^ 1, SrcTO: g.read.Offset}))}
	}},
	{name: "Read of memory that is for writing", cause: rdmaProtection(rdmap.CodeAccess), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: 1, SrcSTag: g.write.Handle, SrcTO: g.write.Offset}))}
	}},
	{name: "Read beyond the end", cause: rdmaProtection(rdmap.CodeBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: 4097, SrcSTag: g.read.Handle, SrcTO: g.read.Offset}))}
	}},
	{name: "Read of all there could be", cause: rdmaProtection(rdmap.CodeBaseBounds), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: math.MaxUint32, SrcSTag: g.read.Handle, SrcTO: g.read.Offset}))}
	}},
	{name: "Read whose offset wraps", cause: rdmaProtection(rdmap.CodeTOWrap), recv: fabric.WCFlushErr, script: func(g *target, p *rawPeer) [][]byte {
		return [][]byte{p.fpdu(readRequest(1, rdmap.ReadRequest{Size: 4096, SrcSTag: g.read.Handle, SrcTO: math.MaxUint64 - 8}))}
	}},
}

// messageViolations: malformed or unexpected RDMAP messages.
var messageViolations = []offense{
	{name: "Read Request that is too short", cause: rdmaOperation(rdmap.CodeCatastrophicStream), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpReadRequest, true, 1, 1, 0), garbage[:27])},
	{name: "Read Request that is too long", cause: ddpUntagged(ddp.UntaggedMsgTooLong), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpReadRequest, true, 1, 1, 0), garbage[:29])},
	{name: "Read Request in two segments", cause: rdmaOperation(rdmap.CodeCatastrophicStream), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpReadRequest, false, 1, 1, 0), garbage[:14])},
	{name: "Read Request from the middle", cause: ddpUntagged(ddp.UntaggedInvalidMO), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpReadRequest, true, 1, 1, 14), garbage[:14])},
	{name: "Read Response to no Read", cause: rdmaOperation(rdmap.CodeUnexpectedOpcode), recv: fabric.WCFlushErr,
		script: one(tagged(rdmap.OpReadResponse, true, sinkSTag(0), sinkTO(0)), garbage[:4])},
	{name: "Terminate message of 65 bytes", cause: ddpUntagged(ddp.UntaggedMsgTooLong), recv: fabric.WCFlushErr,
		script: one(untagged(rdmap.OpTerminate, true, 2, 1, 0), garbage[:65])},
}

// invalidationViolations: invalid invalidations, and use of invalidated windows.
var invalidationViolations = []offense{
	{name: "invalidation of STag 0", cause: rdmaProtection(rdmap.CodeCannotInvalidate), recv: fabric.WCFlushErr, script: one(sendInv(0))},
	{name: "invalidation of an STag never given", cause: rdmaProtection(rdmap.CodeCannotInvalidate), recv: fabric.WCFlushErr, script: one(sendInv(0x12345678))},
	{name: "invalidation of a region", cause: rdmaProtection(rdmap.CodeCannotInvalidate), recv: fabric.WCFlushErr,
		script: func(g *target, p *rawPeer) [][]byte { return [][]byte{p.fpdu(sendInv(g.write.Handle))} }},
	{name: "invalidation of a window, twice", cause: rdmaProtection(rdmap.CodeCannotInvalidate), recv: fabric.WCSuccess, writes: true,
		script: func(g *target, p *rawPeer) [][]byte {
			second := sendInv(g.window.Handle)
			second[13] = 2 // MSN
			return [][]byte{p.fpdu(sendInv(g.window.Handle)), p.fpdu(second)}
		}},
	{name: "Write through a window that has been invalidated", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCSuccess,
		script: func(g *target, p *rawPeer) [][]byte {
			return [][]byte{p.fpdu(sendInv(g.window.Handle)),
				p.fpdu(tagged(rdmap.OpWrite, true, g.window.Handle, g.window.Offset), garbage[:4])}
		}},
	{name: "Write through a window that was written through and has been invalidated", cause: ddpTagged(ddp.TaggedInvalidSTag), recv: fabric.WCSuccess,
		script: func(g *target, p *rawPeer) [][]byte {
			write := tagged(rdmap.OpWrite, true, g.window.Handle, g.window.Offset)
			return [][]byte{p.fpdu(write, []byte{guard}), p.fpdu(sendInv(g.window.Handle)), p.fpdu(write, garbage[:4])}
		}},
}

// TestViolations sends what a peer must not send. It checks the Terminate message that comes
// back (RFC 5040 section 4.8, RFC 5041 section 8.2, RFC 5044 section 8), and how the receives
// complete.
func TestViolations(t *testing.T) {
	for _, v := range slices.Concat(framingViolations, headerViolations, untaggedViolations, writeViolations,
		readViolations, messageViolations, invalidationViolations) {
		for _, crc := range []bool{false, true} {
			if v.crcOnly && !crc {
				continue
			}
			suffix := ""
			if crc {
				suffix = ", with CRC"
			}
			t.Run(v.name+suffix, func(t *testing.T) { v.test(t, crc, false) })
			t.Run(v.name+", behind a Write"+suffix, func(t *testing.T) { v.test(t, crc, true) })
		}
	}
}

// test sends the violation to a new target. With behindWrite a valid Write comes before it:
// what a valid FPDU has looked up must not help an invalid one.
func (v *offense) test(t *testing.T, crc, behindWrite bool) {
	g := newTarget(t, crc)
	fpdus := v.script(g, g.peer)
	bad := fpdus[len(fpdus)-1]
	// A valid FPDU first, so that the responder may send: the empty Send that it has posted
	// comes back before anything else.
	g.peer.write(g.peer.fpdu(tagged(rdmap.OpWrite, true, 0, 0)))
	if behindWrite {
		good := g.peer.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset), []byte{guard})
		fpdus = append([][]byte{good}, fpdus...)
	}
	g.peer.write(fpdus...)
	wcs := wantViolation(t, g.c, v.cause)
	g.wantUntouched(t, v.writes)
	if len(wcs) != 2 || wcs[0].Status != v.recv {
		t.Errorf("receives completed with %+v, want two, the first with %v", wcs, v.recv)
	}
	g.peer.wantSegment("what the responder had posted", rdmap.OpSend)
	v.wantQuote(t, g.peer.wantTerminate("after "+v.name, v.cause), bad)
}

// wantQuote checks that the Terminate message quotes the headers of the offending FPDU.
func (v *offense) wantQuote(t *testing.T, m rdmap.Terminate, bad []byte) {
	t.Helper()
	if v.bare {
		if m.HasSegment {
			t.Errorf("the Terminate message quotes %x", m.DDP)
		}
		return
	}
	n := ddp.UntaggedLen
	if ddp.IsTagged(bad[2:]) {
		n = ddp.TaggedLen
	}
	if !bytes.Equal(m.DDP, bad[2:2+n]) || int(m.Segment) != int(binary.BigEndian.Uint16(bad)) {
		t.Errorf("the Terminate message quotes %x of %d bytes, the offense was %x", m.DDP, m.Segment, bad[2:2+n])
	}
	isRead := v.cause.Layer == rdmap.LayerRDMA && rdmap.ErrorType(v.cause.Type) == rdmap.TypeProtection &&
		bad[3]&0xf == byte(rdmap.OpReadRequest)
	if isRead != (m.RDMAP != nil) || isRead && !bytes.Equal(m.RDMAP, bad[20:48]) {
		t.Errorf("the Terminate message quotes the Read Request %x", m.RDMAP)
	}
}

// TestReadResponses: invalid responses to a Read of this side.
func TestReadResponses(t *testing.T) {
	const size = 100
	good := func(r rdmap.ReadRequest, last bool, off, n int) [][]byte {
		return [][]byte{tagged(rdmap.OpReadResponse, last, r.SinkSTag, r.SinkTO+uint64(off)), garbage[:n]}
	}
	for _, tc := range []struct {
		name   string
		cause  rdmap.Cause
		script func(r rdmap.ReadRequest) [][][]byte
	}{
		{"too much", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte { return [][][]byte{good(r, true, 0, size+1)} }},
		{"too little", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte { return [][][]byte{good(r, true, 0, size-1)} }},
		{"all of it, and not the last", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte { return [][][]byte{good(r, false, 0, size)} }},
		{"nothing", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte { return [][][]byte{good(r, true, 0, 0)} }},
		{"from the middle", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte { return [][][]byte{good(r, true, 1, size-1)} }},
		{"with a gap", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte {
			return [][][]byte{good(r, false, 0, 10), good(r, true, 11, size-11)}
		}},
		{"twice the same", ddpTagged(ddp.TaggedBaseBounds), func(r rdmap.ReadRequest) [][][]byte {
			return [][][]byte{good(r, false, 0, 10), good(r, false, 0, 10)}
		}},
		{"another sink", ddpTagged(ddp.TaggedInvalidSTag), func(r rdmap.ReadRequest) [][][]byte {
			r.SinkSTag ^= 1
			return [][][]byte{good(r, true, 0, size)}
		}},
		{"one more", rdmaOperation(rdmap.CodeUnexpectedOpcode), func(r rdmap.ReadRequest) [][][]byte {
			return [][][]byte{good(r, true, 0, size), good(r, true, 0, size)}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
			mem := bytes.Repeat([]byte{guard}, 3*size)
			post(t, c, fabric.SendWR{ID: 4, Op: fabric.OpRead, Flags: fabric.Signaled, RKey: 7, RemoteOffset: 8,
				SGL: []fabric.SGE{{Buf: mem[size : 2*size]}}})
			s := peer.wantSegment("a Read Request", rdmap.OpReadRequest)
			var r rdmap.ReadRequest
			rdmap.ConsumeReadRequest(s.payload, &r)
			if r.Size != size || r.SrcSTag != 7 || r.SrcTO != 8 || s.u.QN != rdmap.QNRead || s.u.MSN != 1 || !s.u.Last {
				t.Fatalf("the Read Request is %+v %+v", s.u, r)
			}
			for _, f := range tc.script(r) {
				peer.write(peer.fpdu(f...))
			}
			wcs := wantViolation(t, c, tc.cause)
			want := fabric.WCFlushErr
			if tc.name == "one more" {
				want = fabric.WCSuccess
			}
			if len(wcs) != 1 || wcs[0].Status != want {
				t.Errorf("the Read completed with %+v", wcs)
			}
			for i, b := range mem {
				if b != guard && (i < size || i >= 2*size) {
					t.Fatalf("byte %d beside the sink has been written", i-size)
				}
			}
			peer.wantTerminate("after "+tc.name, tc.cause)
		})
	}
}

// TestReadFlood, V1-3.3-12: the peer can have as many outstanding Reads as negotiated, but not one
// more. It does not read the responses, so none of the Reads completes.
func TestReadFlood(t *testing.T) {
	const reads, size = 2, 64 << 20 // more than sockets take
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{InboundReads: reads}, 0)
	mr := register(t, c, size, fabric.AccessRemoteRead)
	seg := mr.Segment()
	ask := func(msn uint32) {
		peer.write(peer.fpdu(readRequest(msn, rdmap.ReadRequest{SinkSTag: 1, Size: size, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
	}
	for msn := range uint32(reads) {
		ask(1 + msn)
	}
	pollUntil(t, c, "as many Reads as were agreed on", func() bool { return c.readsOfPeer() == reads })
	ask(1 + reads)
	_, end := drive(t, c)
	var pe *ProtocolError
	if !errors.As(end, &pe) || pe.Cause != ddpUntagged(ddp.UntaggedNoBuffer) {
		t.Errorf("ended with %v", end)
	}
}

// TestReadsInTurn: a peer with the maximum of outstanding Reads sends the next one as soon as
// it has the last byte of the oldest response.
func TestReadsInTurn(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{InboundReads: 1}, 0)
	mr := register(t, c, 4096, fabric.AccessRemoteRead)
	seg := mr.Segment()
	// Another goroutine posts at the same time, so that it often writes the responses while
	// this one reads the next request.
	turns := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range turns {
			for range 4 {
				c.Post([]fabric.SendWR{{Op: fabric.OpWrite}})
				runtime.Gosched()
			}
		}
	})
	done := make(chan *fabric.ConnError)
	go func() {
		_, end := drive(t, c)
		done <- end
	}()
	for msn := uint32(1); msn <= 3000; msn++ {
		turns <- struct{}{}
		peer.write(peer.fpdu(readRequest(msn, rdmap.ReadRequest{SinkSTag: msn, SinkTO: 9, Size: 4096, SrcSTag: seg.Handle, SrcTO: seg.Offset})))
		s := peer.wantAny("a Read Response, behind Writes")
		for s.op == rdmap.OpWrite {
			s = peer.wantAny("a Read Response, behind Writes")
		}
		if s.op != rdmap.OpReadResponse || s.t.STag != msn || s.t.TO != 9 || !s.t.Last || len(s.payload) != 4096 {
			t.Fatalf("response %d: %+v", msn, s)
		}
	}
	peer.c.(*net.TCPConn).CloseWrite()
	if end := <-done; !end.Remote || !end.Clean {
		t.Errorf("ended with %v", end)
	}
	close(turns)
	wg.Wait()
}

// TestTerminated: the effect of a Terminate message from the peer on the requests.
func TestTerminated(t *testing.T) {
	access := rdmaProtection(rdmap.CodeAccess)
	for _, tc := range []struct {
		name  string
		cause rdmap.Cause
		// quote makes the message from the FPDUs of the Reads and the Write.
		quote func(reads [2]segment, write segment) rdmap.Terminate
		want  [3]fabric.WCStatus // of Read, Read, Write
	}{
		{"of the first Read", access, func(reads [2]segment, _ segment) rdmap.Terminate { return quoteRead(reads[0]) },
			[3]fabric.WCStatus{fabric.WCRemAccessErr, fabric.WCFlushErr, fabric.WCFlushErr}},
		{"of the second Read", access, func(reads [2]segment, _ segment) rdmap.Terminate { return quoteRead(reads[1]) },
			[3]fabric.WCStatus{fabric.WCFlushErr, fabric.WCRemAccessErr, fabric.WCFlushErr}},
		{"of the Write", ddpTagged(ddp.TaggedInvalidSTag), func(_ [2]segment, w segment) rdmap.Terminate {
			return rdmap.Terminate{HasSegment: true, Segment: 20, DDP: ddp.AppendTagged(nil, &w.t)}
		}, [3]fabric.WCStatus{fabric.WCFlushErr, fabric.WCFlushErr, fabric.WCRemAccessErr}},
		{"of a Read, without its header", access, func([2]segment, segment) rdmap.Terminate { return rdmap.Terminate{} },
			[3]fabric.WCStatus{fabric.WCRemAccessErr, fabric.WCFlushErr, fabric.WCFlushErr}},
		{"of a Read as malformed", rdmaOperation(rdmap.CodeUnexpectedOpcode), func(reads [2]segment, _ segment) rdmap.Terminate { return quoteRead(reads[0]) },
			[3]fabric.WCStatus{fabric.WCRemInvReqErr, fabric.WCFlushErr, fabric.WCFlushErr}},
		{"of something that is not ours", ddpTagged(ddp.TaggedInvalidSTag), func([2]segment, segment) rdmap.Terminate {
			return rdmap.Terminate{HasSegment: true, Segment: 20, DDP: tagged(rdmap.OpWrite, true, 0x999, 0)}
		}, [3]fabric.WCStatus{fabric.WCFlushErr, fabric.WCFlushErr, fabric.WCFlushErr}},
		{"for a catastrophe", catastrophic, func([2]segment, segment) rdmap.Terminate { return rdmap.Terminate{} },
			[3]fabric.WCStatus{fabric.WCFlushErr, fabric.WCFlushErr, fabric.WCFlushErr}},
	} {
		terminated := func(t *testing.T, peerIsSiw bool) {
			c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
			mem := make([]byte, 64)
			sge := func(i int) []fabric.SGE { return []fabric.SGE{{Buf: mem[i : i+8]}} }
			// The Write waits for the Reads, so it is outstanding.
			post(t, c,
				fabric.SendWR{ID: 1, Op: fabric.OpRead, RKey: 0x701, RemoteOffset: 10, SGL: sge(0)},
				fabric.SendWR{ID: 2, Op: fabric.OpRead, Flags: fabric.Signaled, RKey: 0x702, RemoteOffset: 20, SGL: sge(8)},
				fabric.SendWR{ID: 3, Op: fabric.OpWrite, Flags: fabric.Signaled, RKey: 0x703, RemoteOffset: 30, SGL: sge(16)})
			postRecv(t, c, make([]byte, 8))
			var reads [2]segment
			for i := range reads {
				reads[i] = peer.wantSegment("a Read Request", rdmap.OpReadRequest)
			}
			w := peer.wantSegment("a Write", rdmap.OpWrite)
			m := tc.quote(reads, w)
			m.Cause = tc.cause
			payload := rdmap.AppendTerminate(nil, &m)
			if peerIsSiw {
				payload[0] = payload[0]<<4 | payload[0]>>4
				payload[2] = bits.Reverse8(payload[2])
			}
			peer.write(peer.fpdu(untagged(rdmap.OpTerminate, true, 2, 1, 0), payload))
			wcs, end := drive(t, c)
			var te *TerminateError
			if !errors.As(end, &te) || te.Cause != tc.cause || !end.Remote || end.Clean {
				t.Errorf("ended with %v, want a *TerminateError of %v", end, tc.cause)
			}
			if m.RDMAP != nil && (te.STag>>8 != 7 || te.TO == 0) {
				t.Errorf("the Terminate is about STag %#x, offset %d", te.STag, te.TO)
			}
			if len(wcs) != 4 {
				t.Fatalf("completions %+v", wcs)
			}
			for i, want := range tc.want {
				if wcs[i].ID != uint64(i+1) || wcs[i].Status != want {
					t.Errorf("request %d: %v, want %v", wcs[i].ID, wcs[i].Status, want)
				}
			}
			if wcs[3].Op != fabric.WCRecv || wcs[3].Status != fabric.WCFlushErr {
				t.Errorf("the receive: %+v", wcs[3])
			}
			peer.wantEnd("after our Terminate message")
		}
		t.Run(tc.name, func(t *testing.T) { terminated(t, false) })
		t.Run(tc.name+", as siw puts it", func(t *testing.T) { terminated(t, true) })
	}
}

func quoteRead(s segment) rdmap.Terminate {
	return rdmap.Terminate{HasSegment: true, Segment: uint16(ddp.UntaggedLen + len(s.payload)),
		DDP: ddp.AppendUntagged(nil, &s.u), RDMAP: s.payload}
}

// TestEnds: kinds of ends of a stream, and how they are reported.
func TestEnds(t *testing.T) {
	type script = func(g *target, p *rawPeer)
	half := func(last bool) script {
		return func(g *target, p *rawPeer) { p.write(p.fpdu(untagged(rdmap.OpSend, last, 0, 1, 0), garbage[:8])) }
	}
	cut := func(n int) script {
		return func(g *target, p *rawPeer) {
			p.write(p.fpdu(tagged(rdmap.OpWrite, true, g.write.Handle, g.write.Offset), garbage[:4096])[:n])
		}
	}
	for _, tc := range []struct {
		name   string
		script script
		reset  bool
		clean  bool
	}{
		{"between messages", half(true), false, true},
		{"before the first one", func(*target, *rawPeer) {}, false, true},
		{"in the middle of a Send", half(false), false, false},
		{"in the middle of a Write", func(g *target, p *rawPeer) {
			p.write(p.fpdu(tagged(rdmap.OpWrite, false, g.write.Handle, g.write.Offset), garbage[:8]))
		}, false, false},
		{"after the first byte of an FPDU", cut(1), false, false},
		{"in a header", cut(10), false, false},
		{"in a payload", cut(2000), false, false},
		{"in a CRC", cut(4096 + 16 + 3), false, false},
		{"by a reset", half(true), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t, false)
			tc.script(g, g.peer)
			if tc.reset {
				if wc := next(t, g.c); wc.Status != fabric.WCSuccess {
					t.Fatalf("completion %+v", wc)
				}
				g.peer.c.(*net.TCPConn).SetLinger(0)
			}
			if tc.reset {
				g.peer.c.Close()
			} else {
				g.peer.c.(*net.TCPConn).CloseWrite()
			}
			wcs, end := drive(t, g.c)
			if !end.Remote || end.Clean != tc.clean {
				t.Errorf("ended with %+v, want Clean=%t by the peer", end, tc.clean)
			}
			var be *BrokenError
			if !tc.clean && !errors.As(end, &be) {
				t.Errorf("ended with %v, want a *BrokenError", end)
			}
			if !tc.clean && !tc.reset && !errors.Is(end, io.ErrUnexpectedEOF) {
				t.Errorf("ended with %v, want io.ErrUnexpectedEOF in it", end)
			}
			if tc.reset && !errors.Is(end, syscall.ECONNRESET) && !errors.Is(end, io.ErrUnexpectedEOF) {
				t.Errorf("ended with %v, want a reset", end)
			}
			if n := len(wcs); wcs[n-1].Status != fabric.WCFlushErr {
				t.Errorf("completions %+v", wcs)
			}
		})
	}
}

// TestTerminateBehindReset: a Terminate message is read even if the connection was reset after
// it and a write has failed.
func TestTerminateBehindReset(t *testing.T) {
	c, peer := connectRaw(t, New(Config{}), fabric.ConnAttr{})
	sge := []fabric.SGE{{Buf: make([]byte, 8)}}
	post(t, c, fabric.SendWR{Op: fabric.OpSend, SGL: sge})
	m := rdmap.Terminate{Cause: ddpUntagged(ddp.UntaggedNoBuffer)}
	peer.write(peer.fpdu(rdmap.AppendTerminate(untagged(rdmap.OpTerminate, true, 2, 1, 0), &m)))
	peer.c.Close() // with the Send unread: a reset
	for c.Post([]fabric.SendWR{{Op: fabric.OpSend, SGL: sge}}) == nil {
	}
	_, end := drive(t, c)
	var te *TerminateError
	if !errors.As(end, &te) || te.Cause != m.Cause {
		t.Errorf("ended with %v, want the peer's Terminate message", end)
	}
}

// TestViolationBehindReset: nothing after a violation is processed, even if a write fails at
// the same moment because the connection was reset.
func TestViolationBehindReset(t *testing.T) {
	c, peer := underAttack(t, New(Config{}), fabric.ConnAttr{}, 0)
	postRecv(t, c, make([]byte, 8))
	// It is not sent until the peer has sent something.
	post(t, c, fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: make([]byte, 8)}}})
	peer.write(peer.fpdu(untagged(rdmap.OpSend, true, 0, 1, 0), []byte("hello")),
		peer.fpdu(tagged(rdmap.OpWrite, true, 0xdead00, 0), make([]byte, 5*readAhead)))
	if err := peer.c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	peer.c.Close()
	wantViolation(t, c, faultSTag.writeCause())
}
