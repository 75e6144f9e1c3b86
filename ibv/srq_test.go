//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"syscall"
	"testing"
)

func TestSRQRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		srq := must[*SRQ](t)(pd.CreateSRQ(SRQAttr{MaxWR: 100, MaxSGE: 2}))
		if a := srq.Attr(); a.MaxWR < 100 || a.MaxSGE < 2 {
			t.Errorf("asked for 100 of 2, got %+v", a)
		}
		mr := must[*MR](t)(pd.RegMR(make([]byte, 4096), AccessLocalWrite))
		sgl := []SGE{{Buf: mr.Bytes(), LKey: mr.LKey()}}
		if err := srq.PostRecv([]RecvWR{{ID: 1, SGL: sgl}, {ID: 2, SGL: sgl}, {ID: 3, SGL: sgl}}); err != nil {
			t.Error(err)
		}
		if err := srq.Modify(SRQAttr{Limit: 2}, SRQLimit); err != nil {
			t.Error(err)
		}
		if a, err := srq.Query(); kindOf(c.Info().Name) == "siw" {
			// The kernel can, libibverbs' provider does not ask it.
			if err == nil || !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Errorf("%+v, %v", a, err)
			}
		} else if err != nil || a.Limit != 2 || a.MaxWR < 100 {
			t.Errorf("%+v, %v", a, err)
		}
		// A limit that can never be reached again is refused.
		if err := srq.Modify(SRQAttr{Limit: 1 << 30}, SRQLimit); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a limit of 1<<30: %v", err)
		}
		many := make([]RecvWR, 5000)
		for i := range many {
			many[i].SGL = sgl
		}
		err := srq.PostRecv(many)
		var partly *PostError
		if !errors.As(err, &partly) || partly.Index < 50 || partly.Index > 4999 || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("5000 receives: %v", err)
		}
		if err := pd.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("closing the domain: %v", err)
		}
		for range 2 {
			if err := srq.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := srq.PostRecv([]RecvWR{{}}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := srq.Query(); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := srq.Modify(SRQAttr{}, SRQLimit); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestSRQTrafficRDMA: receives come from the shared queue, and its limit raises one
// event.
func TestSRQTrafficRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		var srq *SRQ
		p := newPair(t, c, func(pd *PD) *SRQ {
			srq = must[*SRQ](t)(pd.CreateSRQ(SRQAttr{MaxWR: 64, MaxSGE: 1}))
			return srq
		})
		for i := range 10 {
			if err := srq.PostRecv([]RecvWR{{ID: uint64(i), SGL: p.b.sge(i*8, i*8+8)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := srq.Modify(SRQAttr{Limit: 8}, SRQLimit); err != nil {
			t.Fatal(err)
		}
		if err := srq.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("closing it before the queue pair: %v", err)
		}
		for i := range 5 {
			p.a.post(SendWR{Opcode: OpSend, SGL: p.a.sge(0, 8)})
			p.a.done(0, WCSend)
			p.b.done(uint64(i), WCRecv)
		}
		e, err := c.AsyncEvent(soon(t))
		if err != nil || e.Type != EventSRQLimitReached || e.SRQ != srq {
			t.Errorf("%v, %v", e, err)
		}
		if a, err := srq.Query(); err != nil || a.Limit != 0 {
			t.Errorf("after the event: %+v, %v", a, err)
		}
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if e, err := c.AsyncEvent(gone); err != context.Canceled {
			t.Errorf("a second event: %v, %v", e, err)
		}
	})
}
