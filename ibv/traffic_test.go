//go:build linux && cgo

package ibv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"syscall"
	"testing"
)

// fill writes a pattern that depends on seed.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i)*7
	}
}

// TestPairRDMA shows the harness: two connected queue pairs, and a message.
func TestPairRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		for _, e := range []*end{p.a, p.b} {
			if s, err := e.qp.State(); s != QPSRTS || err != nil {
				t.Errorf("%v is in state %v, %v", e.qp, s, err)
			}
			if got := e.qp.Cap(); got.MaxSendWR < 256 || got.MaxInlineData < 64 {
				t.Errorf("%+v", got)
			}
		}
		fill(p.a.buf[:100], 1)
		p.b.recv(7, 200, 400)
		p.a.post(SendWR{ID: 8, Opcode: OpSend, SGL: p.a.sge(0, 100)})
		p.a.done(8, WCSend)
		if wc := p.b.done(7, WCRecv); wc.ByteLen != 100 || wc.QPNum != p.b.qp.Num() || wc.Flags&(WCWithImm|WCWithInv) != 0 {
			t.Errorf("%+v", wc)
		}
		if !bytes.Equal(p.b.buf[200:300], p.a.buf[:100]) {
			t.Error("the message is not what was sent")
		}
	})
}

// TestOpcodesRDMA: every operation of a reliable connection, with its data.
func TestOpcodesRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b

		for _, size := range []int{0, 1, 1000, 5000, 30_000} {
			fill(a.buf[:size], byte(size))
			clear(b.buf)

			b.recv(1, 100, 100+size+1)
			a.post(SendWR{ID: 2, Opcode: OpSendWithImm, SGL: a.sge(0, size), Imm: 0x01020304})
			a.done(2, WCSend)
			wc := b.done(1, WCRecv)
			if int(wc.ByteLen) != size || wc.Flags&WCWithImm == 0 || wc.ImmData() != 0x01020304 || !bytes.Equal(b.buf[100:100+size], a.buf[:size]) {
				t.Errorf("Send with immediate data of %d bytes: %+v", size, wc)
			}

			clear(b.buf)
			a.post(SendWR{ID: 3, Opcode: OpRDMAWrite, SGL: a.sge(0, size), RemoteAddr: b.mr.Addr() + 300, RKey: b.mr.RKey()})
			a.done(3, WCRDMAWrite)
			if !bytes.Equal(b.buf[300:300+size], a.buf[:size]) || b.buf[300+size] != 0 {
				t.Errorf("RDMA Write of %d bytes", size)
			}

			clear(b.buf)
			b.recv(4, 0, 0)
			a.post(SendWR{ID: 5, Opcode: OpRDMAWriteWithImm, SGL: a.sge(0, size), RemoteAddr: b.mr.Addr() + 300, RKey: b.mr.RKey(), Imm: 99})
			a.done(5, WCRDMAWrite)
			wc = b.done(4, WCRecvRDMAWithImm)
			if int(wc.ByteLen) != size || wc.ImmData() != 99 || !bytes.Equal(b.buf[300:300+size], a.buf[:size]) {
				t.Errorf("RDMA Write with immediate data of %d bytes: %+v", size, wc)
			}

			fill(b.buf[:size], byte(size)+1)
			clear(a.buf)
			a.post(SendWR{ID: 6, Opcode: OpRDMARead, SGL: a.sge(50, 50+size), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
			a.done(6, WCRDMARead)
			if !bytes.Equal(a.buf[50:50+size], b.buf[:size]) || a.buf[50+size] != 0 {
				t.Errorf("RDMA Read of %d bytes", size)
			}
		}

		word := func(buf []byte) uint64 { return binary.NativeEndian.Uint64(buf) }
		binary.NativeEndian.PutUint64(b.buf[64:], 40)
		remote := SendWR{ID: 1, SGL: a.sge(8, 16), RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey()}
		remote.Opcode, remote.CompareAdd = OpAtomicFetchAdd, 2
		a.post(remote)
		a.done(1, WCFetchAdd)
		if word(a.buf[8:]) != 40 || word(b.buf[64:]) != 42 {
			t.Errorf("40 + 2 is %d, was %d", word(b.buf[64:]), word(a.buf[8:]))
		}
		remote.Opcode, remote.CompareAdd, remote.Swap = OpAtomicCmpSwp, 41, 7
		a.post(remote)
		a.done(1, WCCompSwap)
		if word(a.buf[8:]) != 42 || word(b.buf[64:]) != 42 {
			t.Errorf("42 is not 41, but now %d, was %d", word(b.buf[64:]), word(a.buf[8:]))
		}
		remote.CompareAdd = 42
		a.post(remote)
		a.done(1, WCCompSwap)
		if word(a.buf[8:]) != 42 || word(b.buf[64:]) != 7 {
			t.Errorf("42 is 42, but now %d, was %d", word(b.buf[64:]), word(a.buf[8:]))
		}
	})
}

// TestGatherRDMA: several buffers, some of them empty, and a list longer than one
// doorbell.
func TestGatherRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b
		fill(a.buf, 3)
		if err := b.qp.PostRecv([]RecvWR{{ID: 1, SGL: slices.Concat(b.sge(0, 10), b.sge(20, 20), b.sge(30, 100))}}); err != nil {
			t.Fatal(err)
		}
		parts := slices.Concat(a.sge(0, 5), a.sge(0, 0), a.sge(100, 120), []SGE{{}})
		if a.qp.sends.oneBuffer {
			if err := a.qp.PostSend([]SendWR{{Opcode: OpSend, SGL: parts}}); !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Errorf("several buffers: %v", err)
			}
			parts = slices.Concat(a.sge(0, 0), a.sge(75, 100))
		}
		var want []byte
		for _, part := range parts {
			want = append(want, part.Buf...)
		}
		a.post(SendWR{ID: 2, Opcode: OpSend, SGL: parts})
		a.done(2, WCSend)
		wc := b.done(1, WCRecv)
		got := append(slices.Clone(b.buf[:10]), b.buf[30:45]...)
		if wc.ByteLen != 25 || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %x, want %x", wc.ByteLen, got, want)
		}

		const many = 200
		recvs, sends := make([]RecvWR, many), make([]SendWR, many)
		for i := range many {
			recvs[i] = RecvWR{ID: uint64(i), SGL: b.sge(i*8, i*8+8)}
			sends[i] = SendWR{ID: uint64(i), Opcode: OpSend, SGL: a.sge(i, i+8)}
		}
		if err := b.qp.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		a.post(sends...)
		for i := range many {
			a.done(uint64(i), WCSend)
			b.done(uint64(i), WCRecv)
			if !bytes.Equal(b.buf[i*8:i*8+8], a.buf[i:i+8]) {
				t.Fatalf("message %d", i)
			}
		}
	})
}

// TestInlineRDMA: inline data is the caller's again at once, may be anywhere, and has
// a limit.
func TestInlineRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b
		limit := int(a.qp.Cap().MaxInlineData)
		b.recv(1, 0, 100)
		var onStack [16]byte
		fill(onStack[:], 9)
		heap := []byte("on the heap")
		want := slices.Concat(onStack[:], heap)
		parts := []SGE{{Buf: onStack[:]}, {Buf: heap}}
		if a.qp.sends.oneBuffer {
			parts, want = parts[:1], want[:len(onStack)]
		}
		a.post(SendWR{Opcode: OpSend, Flags: SendInline, SGL: parts})
		clear(onStack[:])
		clear(heap)
		runtime.GC()
		a.done(0, WCSend)
		if wc := b.done(1, WCRecv); !bytes.Equal(b.buf[:wc.ByteLen], want) {
			t.Errorf("inline data: %q, want %q", b.buf[:wc.ByteLen], want)
		}
		for _, keep := range a.qp.sends.bufs[:cap(a.qp.sends.bufs)] {
			if keep != nil {
				t.Error("the queue pair keeps the caller's memory")
			}
		}
		var partly *PostError
		err := a.qp.PostSend([]SendWR{{Opcode: OpSend, Flags: SendInline, SGL: []SGE{{Buf: make([]byte, limit+1)}}}})
		if !errors.As(err, &partly) || !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d bytes inline of %d: %v", limit+1, limit, err)
		}
	})
}

// TestLimitsRDMA: more than the device has is refused, not cut down.
func TestLimitsRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		cq := must[*CQ](t)(c.CreateCQ(16, nil, 0))
		has, err := c.Query()
		if err != nil {
			t.Fatal(err)
		}
		inline := uint32(512) // of rxe
		if kindOf(c.Info().Name) == "siw" {
			inline = 80
		}
		small := QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
		for what, tt := range map[string]struct {
			change func(*QPCap)
			ok     bool
		}{
			"little":                   {func(*QPCap) {}, true},
			"the most inline data":     {func(c *QPCap) { c.MaxInlineData = inline }, true},
			"1 MiB of inline data":     {func(c *QPCap) { c.MaxInlineData = 1 << 20 }, false},
			"the most buffers":         {func(c *QPCap) { c.MaxSendSGE, c.MaxRecvSGE = uint32(has.MaxSGE), uint32(has.MaxSGE) }, true},
			"a buffer too many":        {func(c *QPCap) { c.MaxSendSGE = uint32(has.MaxSGE) + 1 }, false},
			"a receive buffer to many": {func(c *QPCap) { c.MaxRecvSGE = uint32(has.MaxSGE) + 1 }, false},
			"a request too many":       {func(c *QPCap) { c.MaxSendWR = uint32(has.MaxQPWR) + 1 }, false},
		} {
			want := small
			tt.change(&want)
			qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: want})
			if (err == nil) != tt.ok {
				t.Errorf("%s: %v", what, err)
			}
			if err != nil {
				if !errors.As(err, new(*Error)) {
					t.Errorf("%s: %v", what, err)
				}
				continue
			}
			got := qp.Cap()
			if got.MaxSendWR < want.MaxSendWR || got.MaxRecvWR < want.MaxRecvWR || got.MaxSendSGE < want.MaxSendSGE ||
				got.MaxRecvSGE < want.MaxRecvSGE || got.MaxInlineData < want.MaxInlineData {
				t.Errorf("%s: asked for %+v, got %+v", what, want, got)
			}
			if err := qp.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPostErrorRDMA: what was posted before the request that could not be is
// posted, and the rest is not.
func TestPostErrorRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		p := newPair(t, c, nil)
		a, b := p.a, p.b
		for i := range uint64(2) {
			b.recv(i, 0, 10)
		}
		good := SendWR{ID: 1, Opcode: OpSend, Flags: SendSignaled, SGL: a.sge(0, 1)}
		for what, bad := range map[string]SendWR{
			"a bind of nothing":          {Opcode: OpBindMW},
			"more buffers than there is": {Opcode: OpSend, SGL: slices.Repeat(a.sge(0, 1), 40)},
		} {
			err := a.qp.PostSend([]SendWR{good, bad, good})
			var e *PostError
			if !errors.As(err, &e) || e.Index != 1 || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", what, err)
			}
			a.done(1, WCSend)
			b.next()
			var wcs [2]WC
			if n, _ := a.cq.Poll(wcs[:]); n != 0 {
				t.Errorf("%s: %v", what, wcs[:n])
			}
		}

		// A full queue.
		room := int(b.qp.Cap().MaxRecvWR)
		recvs := make([]RecvWR, room+1000)
		err := b.qp.PostRecv(recvs)
		var e *PostError
		if !errors.As(err, &e) || e.Index < room || e.Index >= len(recvs) || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%d receives for %d: %v", len(recvs), room, err)
		}
		t.Log(err)
	})
}

// TestFailuresRDMA: the ways in which requests of a good program fail.
func TestFailuresRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		t.Run("a message longer than the receive", func(t *testing.T) {
			p := newPair(t, c, nil)
			p.b.recv(1, 0, 10)
			p.a.post(SendWR{ID: 2, Opcode: OpSend, SGL: p.a.sge(0, 20)})
			p.a.failed(2, WCRemInvReqErr, WCRemOpErr)
			p.b.failed(1, WCLocLenErr, WCLocQPOpErr)
		})
		t.Run("a wrong remote key", func(t *testing.T) {
			p := newPair(t, c, nil)
			p.b.recv(1, 0, 10)
			p.a.post(SendWR{ID: 2, Opcode: OpRDMAWrite, SGL: p.a.sge(0, 20), RemoteAddr: p.b.mr.Addr(), RKey: p.b.mr.RKey() ^ 0x100})
			p.a.failed(2, WCRemAccessErr)
			if s, err := p.a.qp.State(); s != QPSErr || err != nil {
				t.Errorf("state %v, %v", s, err)
			}
			// Everything else is flushed.
			if err := p.a.qp.PostSend([]SendWR{{ID: 3, Opcode: OpSend, SGL: p.a.sge(0, 1)}}); err != nil {
				t.Logf("posting in state IBV_QPS_ERR: %v", err)
			} else {
				p.a.failed(3, WCWRFlushErr)
			}
		})
		t.Run("a wrong local key", func(t *testing.T) {
			p := newPair(t, c, nil)
			p.b.recv(1, 0, 10)
			p.a.post(SendWR{ID: 2, Opcode: OpSend, SGL: []SGE{{Buf: p.a.buf[:10], LKey: p.a.mr.LKey() ^ 0x100}}})
			p.a.failed(2, WCLocProtErr, WCLocQPOpErr)
		})
		t.Run("a flush of receives", func(t *testing.T) {
			p := newPair(t, c, nil)
			p.b.recv(1, 0, 10)
			if err := p.b.qp.Modify(QPAttr{State: QPSErr}, AttrState); err != nil {
				t.Fatal(err)
			}
			wc := p.b.next()
			var e *WCError
			if !errors.As(wc.Err(), &e) || e.Status != WCWRFlushErr || e.ID != 1 {
				t.Errorf("%+v", wc)
			}
		})
		// A region that was registered is not the peer's to invalidate: only windows are.
		t.Run("Send with Invalidate of a region", func(t *testing.T) {
			p := newPair(t, c, nil)
			p.b.recv(1, 0, 10)
			p.a.post(SendWR{ID: 2, Opcode: OpSendWithInv, SGL: p.a.sge(0, 5), RKey: p.b.mr.RKey()})
			wc := p.b.next()
			t.Logf("the receive: %v; the Send: %v", wc.Status, p.a.next().Status)
			if wc.Status == WCSuccess {
				t.Error("a region was invalidated")
			}
			if s, err := p.b.qp.State(); s != QPSErr || err != nil {
				t.Errorf("state %v, %v", s, err)
			}
		})
	})
}

// TestAllocsRDMA: posting and polling leave nothing to collect.
func TestAllocsRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b
		mw := must[*MW](t)(p.pd.AllocMW(MWType2))
		var wcs [8]WC
		drain := func(e *end, n int) {
			for n > 0 {
				k, err := e.poll(wcs[:])
				if err != nil {
					t.Fatal(err)
				}
				for i := range k {
					if wcs[i].Status != WCSuccess {
						t.Fatalf("%+v", wcs[i])
					}
				}
				n -= k
			}
		}
		round := func() {
			err := b.qp.PostRecv([]RecvWR{
				{ID: 1, SGL: []SGE{{Buf: b.buf[:100], LKey: b.mr.LKey()}}},
				{ID: 2, SGL: []SGE{{Buf: b.buf[100:200], LKey: b.mr.LKey()}, {Buf: b.buf[300:400], LKey: b.mr.LKey()}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			sgl := [2]SGE{{Buf: a.buf[:50], LKey: a.mr.LKey()}, {Buf: a.buf[90:100], LKey: a.mr.LKey()}}
			gathered := sgl[:]
			if a.qp.sends.oneBuffer {
				gathered = sgl[:1]
			}
			bind := MWBind{MW: mw, MR: a.mr, Buf: a.buf[:4096], Access: AccessRemoteRead}
			err = a.qp.PostSend([]SendWR{
				{ID: 3, Opcode: OpRDMAWrite, SGL: gathered, RemoteAddr: b.mr.Addr() + 1000, RKey: b.mr.RKey()},
				{ID: 4, Opcode: OpBindMW, Bind: &bind},
				{ID: 5, Opcode: OpSend, SGL: sgl[:1]},
				{ID: 6, Opcode: OpLocalInv, RKey: mw.NextRKey()},
				{ID: 7, Opcode: OpSend, Flags: SendInline | SendSignaled, SGL: sgl[1:]},
			})
			if err != nil {
				t.Fatal(err)
			}
			drain(b, 2)
			drain(a, 1)
		}
		round()
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("%v allocations for a round of posting and polling", n)
		}
		if n := testing.AllocsPerRun(50, func() { a.poll(wcs[:]) }); n != 0 {
			t.Errorf("%v allocations for polling an empty queue", n)
		}
		if n := testing.AllocsPerRun(50, func() { a.cq.Arm(true); b.cq.AckEvents(0); mw.RKey() }); n != 0 {
			t.Errorf("%v allocations for arming", n)
		}
	})
}

// TestFlushRDMA: a queue pair that ends gives its receives back, with an event, on
// every device and without a connection.
func TestFlushRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		e := newEnd(t, pd, nil)
		if kindOf(c.Info().Name) == "rxe" {
			if err := e.qp.Modify(QPAttr{State: QPSInit, PortNum: 1}, AttrState|AttrPkeyIndex|AttrPort|AttrAccessFlags); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint64(5) {
			e.recv(i, 0, 100)
		}
		if err := e.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		if err := e.qp.Modify(QPAttr{State: QPSErr}, AttrState); err != nil {
			t.Fatal(err)
		}
		if cq, err := e.ch.GetEvent(soon(t)); err != nil || cq != e.cq {
			t.Errorf("event of %v, %v", cq, err)
		}
		for i := range uint64(5) {
			e.failed(i, WCWRFlushErr)
		}
	})
}

// TestWrapQPRDMA: a queue pair that other code has made and will destroy.
func TestWrapQPRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		w, err := p.pd.WrapQP(p.a.qp.Raw(), QPInitAttr{SendCQ: p.a.cq, RecvCQ: p.a.cq, Cap: p.a.qp.Cap()})
		if err != nil {
			t.Fatal(err)
		}
		if w.Num() != p.a.qp.Num() || w.Cap() != p.a.qp.Cap() {
			t.Errorf("%v is not %v", w, p.a.qp)
		}
		p.b.recv(1, 0, 8)
		if err := w.PostSend([]SendWR{{ID: 2, Opcode: OpSend, SGL: p.a.sge(0, 8), Flags: SendSignaled}}); err != nil {
			t.Fatal(err)
		}
		p.a.done(2, WCSend)
		p.b.done(1, WCRecv)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.PostSend([]SendWR{{Opcode: OpSend}}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if s, err := p.a.qp.State(); err != nil || s != QPSRTS {
			t.Errorf("the queue pair itself: %v, %v", s, err)
		}
		if _, err := p.pd.WrapQP(p.a.qp.Raw(), QPInitAttr{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("without completion queues: %v", err)
		}
		if _, err := p.pd.CreateQP(QPInitAttr{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("without completion queues: %v", err)
		}
	})
}
