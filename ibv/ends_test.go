//go:build linux && cgo

package ibv

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestManyObjectsRDMA: 10,000 objects are opened and closed on a device; main_test counts those that the
// kernel still has.
func TestManyObjectsRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		each := 10_000 / 6
		if kindOf(c.Info().Name) != "rxe" { // its kernel needs as long
			each /= 10
		}
		buf := mmapped(t, 4096)
		var attr *AHAttr
		if _, port, row, gid, err := new(PathAttr).source(c); err == nil && kindOf(c.Info().Name) == "rxe" {
			attr = &AHAttr{IsGlobal: true, PortNum: port, GRH: GlobalRoute{DGID: gid, SGIDIndex: uint8(row), HopLimit: 64}}
		}
		var closers []interface{ Close() error }
		opened := func(o interface{ Close() error }, err error) {
			if err != nil {
				t.Fatal(err)
			}
			closers = append(closers, o)
		}
		for range each {
			pd, err := c.AllocPD()
			opened(pd, err)
			mr, err := pd.RegMR(buf, AccessLocalWrite)
			opened(mr, err)
			cq, err := c.CreateCQ(4, nil, 0)
			opened(cq, err)
			srq, err := pd.CreateSRQ(SRQAttr{MaxWR: 4, MaxSGE: 1})
			opened(srq, err)
			qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
			opened(qp, err)
			if attr != nil {
				ah, err := pd.CreateAH(*attr)
				opened(ah, err)
			}
			for _, o := range slices.Backward(closers) {
				if err := o.Close(); err != nil {
					t.Fatal(err)
				}
			}
			closers = closers[:0]
		}
	})
}

// TestGoneHostRDMA: an address handle for a host that is not there is made, or an error in time.
func TestGoneHostRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		_, port, row, gid, err := new(PathAttr).source(c)
		if err != nil {
			t.Fatal(err)
		}
		ip := gid.Addr().As4()
		ip[3] = 77
		gone := GID(netip.AddrFrom4(ip).As16())
		pd := must[*PD](t)(c.AllocPD())
		began := time.Now()
		ah, err := pd.CreateAH(AHAttr{IsGlobal: true, PortNum: port, GRH: GlobalRoute{DGID: gone, SGIDIndex: uint8(row), HopLimit: 64}})
		var e *Error
		switch {
		case err == nil: // the device resolves nothing, and datagrams are lost
			closing(t, ah)
		case !errors.As(err, &e) || time.Since(began) > patience:
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestRegionClosedInUseRDMA: a region of the peer that is closed while it is written to refuses the rest,
// and one's own that is closed ends a request that needs it, or holds out until it is done.
func TestRegionClosedInUseRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		a, b := p.a, p.b
		target := must[*MR](t)(p.pd.RegMR(mmapped(t, endMemory), everything))
		write := SendWR{ID: 1, Opcode: OpRDMAWrite, SGL: a.sge(0, 1000), RemoteAddr: target.Addr(), RKey: target.RKey()}
		a.post(write)
		a.done(1, WCRDMAWrite)
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		a.post(write)
		a.failed(1, WCRemAccessErr)
		if err := b.qp.Modify(QPAttr{State: QPSErr}, AttrState); err != nil {
			t.Fatal(err)
		}
	})
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		p := newPair(t, c, nil)
		own := must[*MR](t)(p.pd.RegMR(mmapped(t, 4096), everything))
		p.a.post(SendWR{ID: 2, Opcode: OpSend, SGL: []SGE{own.SGE(0, 4096)}}) // which waits for a receive
		if err := own.Close(); err != nil && !errors.Is(err, syscall.EBUSY) {
			t.Fatal(err)
		}
		p.b.recv(3, 0, 4096)
		if wc := p.a.next(); wc.ID != 2 || !slices.Contains([]WCStatus{WCSuccess, WCLocProtErr, WCLocQPOpErr}, wc.Status) {
			t.Errorf("%+v", wc)
		}
	})
}
