//go:build linux

package interop

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// TestRDMARefusedIwarp makes siw refuse requests of our adapter, and checks the error of the
// connection. rping's client exposes the memory.
func TestRDMARefusedIwarp(t *testing.T) {
	p := iwarpProvider("default", iwarp.Config{})
	addr := rdmatest.Device(t, p.peer)
	const size = 64
	protection := func(code rdmap.Code) rdmap.Cause {
		return rdmap.Cause{Layer: rdmap.LayerRDMA, Type: uint8(rdmap.TypeProtection), Code: uint8(code)}
	}
	tagged := func(code uint8) rdmap.Cause {
		return rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.TypeTagged), Code: code}
	}
	for _, tc := range []struct {
		what   string
		change func(wr *fabric.SendWR) // of a Read of the memory lent
		cause  rdmap.Cause
		quoted bool              // the memory is named in the Terminate message
		status []fabric.WCStatus // that the request may complete with
	}{
		{"a Read with a wrong STag", func(wr *fabric.SendWR) { wr.RKey ^= 0x5500 },
			protection(rdmap.CodeInvalidSTag), true, []fabric.WCStatus{fabric.WCRemAccessErr}},
		{"a Read with a stale key", func(wr *fabric.SendWR) { wr.RKey ^= 1 },
			protection(rdmap.CodeInvalidSTag), true, []fabric.WCStatus{fabric.WCRemAccessErr}},
		{"a Read beyond the end", func(wr *fabric.SendWR) { wr.RemoteOffset++ },
			protection(rdmap.CodeBaseBounds), true, []fabric.WCStatus{fabric.WCRemAccessErr}},
		// A Write or Send may complete before the answer arrives.
		{"a Write with a wrong STag", func(wr *fabric.SendWR) { wr.Op, wr.RKey = fabric.OpWrite, wr.RKey^0x5500 },
			tagged(ddp.TaggedInvalidSTag), true, []fabric.WCStatus{fabric.WCSuccess, fabric.WCRemAccessErr}},
		{"a Write in front of the memory", func(wr *fabric.SendWR) { wr.Op = fabric.OpWrite; wr.RemoteOffset-- },
			tagged(ddp.TaggedBaseBounds), true, []fabric.WCStatus{fabric.WCSuccess, fabric.WCRemAccessErr}},
		// RFC 5041 section 7.2 has a code for messages that are too long; siw does not use it.
		{"a Send longer than the receive", func(wr *fabric.SendWR) { wr.Op = fabric.OpSend },
			rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.TypeUntagged), Code: ddp.UntaggedNoBuffer}, false,
			[]fabric.WCStatus{fabric.WCSuccess, fabric.WCFlushErr}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			ctx := testContext(t)
			l, err := p.open(t).Listen(ctx, net.JoinHostPort(addr, "0"), fabric.ConnAttr{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r := startRping(t, p.peer, "-c", "-a", addr, "-p", portOf(l), "-S", "64")
			c, err := l.Accept(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			note, err := c.RegMR(make([]byte, 16), fabric.AccessLocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabric.SGE{Buf: note.Bytes(), LKey: note.LKey()}}}); err != nil {
				t.Fatal(err)
			}
			if err := c.Accept(ctx, nil); err != nil {
				t.Fatal(err)
			}
			if wcs, err := completions(ctx, c, 1); err != nil || wcs[0].Status != fabric.WCSuccess {
				t.Fatalf("the client's offer: %+v, %v", wcs, err)
			}
			buf, err := c.RegMR(make([]byte, size), fabric.AccessLocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			// Address, rkey and length of the memory.
			wr := fabric.SendWR{ID: 2, Op: fabric.OpRead, Flags: fabric.Signaled,
				RemoteOffset: binary.BigEndian.Uint64(note.Bytes()), RKey: binary.BigEndian.Uint32(note.Bytes()[8:]),
				SGL: []fabric.SGE{{Buf: buf.Bytes(), LKey: buf.LKey()}}}
			tc.change(&wr)
			if err := c.Post([]fabric.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
			wcs, err := completions(ctx, c, 2) // one is all that there is
			var te *iwarp.TerminateError
			if !errors.As(err, &te) || te.Cause != tc.cause {
				t.Fatalf("the connection ends with %v, want a *TerminateError of %v", err, tc.cause)
			}
			if tc.quoted && (te.STag != wr.RKey || te.TO != wr.RemoteOffset) {
				t.Errorf("the Terminate is about STag %#x, offset %#x; want %#x, %#x", te.STag, te.TO, wr.RKey, wr.RemoteOffset)
			}
			if len(wcs) != 1 || !slices.Contains(tc.status, wcs[0].Status) {
				t.Errorf("completions %+v, want one of %v", wcs, tc.status)
			}
			r.kill() // it may be waiting for what siw does not flush
		})
	}
}

// completions drives c until it has n completions or ends.
func completions(ctx context.Context, c fabric.Conn, n int) (wcs []fabric.WC, err error) {
	var wc [1]fabric.WC
	for len(wcs) < n {
		k, err := c.Poll(wc[:])
		wcs = append(wcs, wc[:k]...)
		if err != nil {
			return wcs, err
		}
		if k == 0 {
			if err := fabric.WaitContext(ctx, c); err != nil {
				return wcs, err
			}
		}
	}
	return wcs, nil
}
