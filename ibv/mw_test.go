//go:build linux && cgo

package ibv

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"
)

// window is b's memory through a window of type 2.
func window(p *pair) (*MW, *SendWR) {
	mw := must[*MW](p.b.t)(p.pd.AllocMW(MWType2))
	return mw, &SendWR{ID: 10, Opcode: OpBindMW, Bind: &MWBind{MW: mw, MR: p.b.mr, Buf: p.b.buf[:4096], Access: AccessRemoteRead | AccessRemoteWrite}}
}

// TestMWType2RDMA: bound, used, invalidated by this side and by the peer, often enough for the key to
// wrap.
func TestMWType2RDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b
		mw, bind := window(p)
		if mw.Type() != MWType2 {
			t.Errorf("type %v", mw.Type())
		}
		seen := make(map[uint32]int)
		for round := range 600 {
			next := mw.NextRKey()
			b.post(*bind)
			if mw.RKey() != next || mw.NextRKey() == next {
				t.Fatalf("round %d: key %#x, was to be %#x", round, mw.RKey(), next)
			}
			seen[next]++
			b.done(10, WCBindMW)
			fill(a.buf[:100], byte(round))
			a.post(SendWR{ID: 11, Opcode: OpRDMAWrite, SGL: a.sge(0, 100), RemoteAddr: b.mr.Addr() + 50, RKey: mw.RKey()})
			a.done(11, WCRDMAWrite)
			if !bytes.Equal(b.buf[50:150], a.buf[:100]) {
				t.Fatalf("round %d: other data", round)
			}
			if round%2 == 0 {
				b.post(SendWR{ID: 12, Opcode: OpLocalInv, RKey: mw.RKey()})
				b.done(12, WCLocalInv)
				continue
			}
			b.recv(13, 5000, 5100)
			a.post(SendWR{ID: 14, Opcode: OpSendWithInv, SGL: a.sge(0, 7), RKey: mw.RKey()})
			a.done(14, WCSend)
			if wc := b.done(13, WCRecv); wc.Flags&WCWithInv == 0 || wc.InvalidatedRKey() != mw.RKey() {
				t.Fatalf("round %d: %+v", round, wc)
			}
		}
		if len(seen) != 256 {
			t.Errorf("%d different keys", len(seen))
		}

		// One list with everything, without waiting: the same window twice.
		key1 := mw.NextRKey()
		b.post(*bind, SendWR{ID: 15, Opcode: OpLocalInv, RKey: key1}, *bind)
		b.done(10, WCBindMW)
		b.done(15, WCLocalInv)
		b.done(10, WCBindMW)
		if mw.RKey() == key1 {
			t.Error("two binds gave one key")
		}
		a.post(SendWR{ID: 16, Opcode: OpRDMARead, SGL: a.sge(0, 100), RemoteAddr: b.mr.Addr(), RKey: mw.RKey()})
		a.done(16, WCRDMARead)

		// While the window is bound, its region stays.
		var busy *BusyError
		if err := b.mr.Close(); !errors.As(err, &busy) {
			t.Errorf("closing a region with a window: %v", err)
		}

		// Taken back is taken back. This ends the connection.
		b.post(SendWR{ID: 17, Opcode: OpLocalInv, RKey: mw.RKey()})
		b.done(17, WCLocalInv)
		a.post(SendWR{ID: 18, Opcode: OpRDMARead, SGL: a.sge(0, 100), RemoteAddr: b.mr.Addr(), RKey: mw.RKey()})
		a.failed(18, WCRemAccessErr)
	})
}

// TestMWForgottenKeyRDMA: what SetRKey is for. A window that does not know the key of
// its last bind cannot be bound.
func TestMWForgottenKeyRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		mw, bind := window(p)
		before := mw.RKey()
		p.b.post(*bind)
		p.b.done(10, WCBindMW)
		p.b.post(SendWR{ID: 11, Opcode: OpLocalInv, RKey: mw.RKey()})
		p.b.done(11, WCLocalInv)
		mw.SetRKey(before)
		p.b.post(*bind)
		p.b.failed(10, WCMWBindErr)
	})
}

// TestMWBoundTwiceRDMA: a window of type 2 is taken back before it is bound again.
func TestMWBoundTwiceRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		_, bind := window(p)
		p.b.post(*bind)
		p.b.done(10, WCBindMW)
		p.b.post(*bind)
		p.b.failed(10, WCMWBindErr)
	})
}

// TestMWRightsRDMA: the peer gets only what the window allows.
func TestMWRightsRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		for _, tt := range []struct {
			what   string
			op     Opcode
			access Access
			from   int
		}{
			{"writing through a window for reading", OpRDMAWrite, AccessRemoteRead, 0},
			{"reading through a window for writing", OpRDMARead, AccessRemoteWrite, 0},
			{"reading past the end", OpRDMARead, AccessRemoteRead, endMemory - 50},
			{"reading before the beginning", OpRDMARead, AccessRemoteRead, -50},
		} {
			t.Run(tt.what, func(t *testing.T) {
				p := newPair(t, c, nil)
				mw, bind := window(p)
				bind.Bind.Access, bind.Bind.Buf = tt.access, p.b.buf
				p.b.post(*bind)
				p.b.done(10, WCBindMW)
				p.a.post(SendWR{ID: 11, Opcode: tt.op, SGL: p.a.sge(0, 100), RemoteAddr: p.b.mr.Addr() + uint64(tt.from), RKey: mw.RKey()})
				p.a.failed(11, WCRemAccessErr)
			})
		}
	})
}

func TestMWType1RDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b
		mw := must[*MW](t)(p.pd.AllocMW(MWType1))
		bind := MWBind{MW: mw, MR: b.mr, Buf: b.buf[:4096], Access: AccessRemoteRead | AccessRemoteWrite}
		for round := range 300 {
			next := mw.NextRKey()
			if err := b.qp.BindMW1(1, SendSignaled, bind); err != nil {
				t.Fatal(err)
			}
			b.done(1, WCBindMW)
			if mw.RKey() != next {
				t.Fatalf("key %#x, was to be %#x", mw.RKey(), next)
			}
			fill(b.buf[:64], byte(round))
			a.post(SendWR{ID: 2, Opcode: OpRDMARead, SGL: a.sge(0, 64), RemoteAddr: b.mr.Addr(), RKey: mw.RKey()})
			a.done(2, WCRDMARead)
			if !bytes.Equal(a.buf[:64], b.buf[:64]) {
				t.Fatalf("round %d: other data", round)
			}
		}
		if err := b.qp.BindMW1(1, SendSignaled, MWBind{MW: mw, MR: b.mr}); err != nil {
			t.Fatalf("unbinding: %v", err)
		}
		b.done(1, WCBindMW)
		if err := b.qp.BindMW1(1, 0, MWBind{MW: mw, Buf: b.buf}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a bind to no region: %v", err)
		}
		if err := b.qp.PostSend([]SendWR{{Opcode: OpBindMW, Bind: &bind}}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a window of type 1 in a list: %v", err)
		}
		w2 := must[*MW](t)(p.pd.AllocMW(MWType2))
		if err := b.qp.BindMW1(1, 0, MWBind{MW: w2, MR: b.mr, Buf: b.buf}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a window of type 2: %v", err)
		}
		a.post(SendWR{ID: 3, Opcode: OpRDMARead, SGL: a.sge(0, 64), RemoteAddr: b.mr.Addr(), RKey: mw.RKey()})
		a.failed(3, WCRemAccessErr)
	})
}

// TestMWSiwRDMA: a device without windows says so.
func TestMWSiwRDMA(t *testing.T) {
	onDevices(t, []string{"siw"}, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		mw, err := pd.AllocMW(MWType2)
		if err == nil {
			mw.Close()
			t.Fatal("siw has memory windows now: use them")
		}
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Error(err)
		}
	})
}

// TestMWClosedRDMA: closing a window or a region is safe while binds of it are posted.
func TestMWClosedRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 20 {
					mw, err := p.pd.AllocMW(MWType2)
					if err != nil {
						t.Error(err)
						return
					}
					closed := make(chan error)
					go func() { closed <- mw.Close() }()
					err = p.b.qp.PostSend([]SendWR{{Opcode: OpBindMW, Bind: &MWBind{MW: mw, MR: p.b.mr, Buf: p.b.buf, Access: AccessRemoteRead}}})
					if err != nil && !errors.Is(err, ErrClosed) {
						t.Logf("posting: %v", err) // the connection ends when a window goes that is to be bound
					}
					if err := <-closed; err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	})
}
