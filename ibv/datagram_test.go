//go:build linux && cgo

package ibv

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
)

const testQkey = 0x11111111

// newDatagramEnd makes a queue pair of a RoCE device that is ready for datagrams.
func newDatagramEnd(t testing.TB, pd *PD, port uint8) *end {
	t.Helper()
	e := &end{t: t, buf: mmapped(t, endMemory)}
	e.mr = must[*MR](t)(pd.RegMR(e.buf, AccessLocalWrite))
	e.cq = must[*CQ](t)(pd.ctx.CreateCQ(64, nil, 0))
	e.qp = must[*QP](t)(pd.CreateQP(QPInitAttr{
		Type: QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq, Cap: QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2},
	}))
	if err := e.qp.StartDatagrams(port, testQkey, 0); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestDatagramsRDMA: datagrams carry data and the sender's address, which answers go to, and arrive at the Q_Key that the
// receiver has.
func TestDatagramsRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		gids, err := c.GIDTable()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(gids, func(g GIDEntry) bool { return g.Type == GIDTypeRoCEv2 && g.GID.Addr().Is4() })
		if at < 0 {
			t.Fatalf("no IPv4 address among %v", gids)
		}
		gid := gids[at]
		pd := must[*PD](t)(c.AllocPD())
		a, b := newDatagramEnd(t, pd, gid.Port), newExtendedEnd(t, pd, QPTypeUD)
		if err := b.qp.StartDatagrams(gid.Port, testQkey, 0); err != nil {
			t.Fatal(err)
		}
		ah := must[*AH](t)(pd.CreateAH(AHAttr{
			IsGlobal: true, PortNum: gid.Port, GRH: GlobalRoute{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64},
		}))
		send := func(from *end, id uint64, size int, to Destination) {
			t.Helper()
			from.post(SendWR{ID: id, Opcode: OpSendWithImm, Imm: uint32(id) << 16, SGL: from.sge(0, size), To: &to})
			from.done(id, WCSend)
		}
		for _, size := range []int{0, 1, 1000} {
			fill(a.buf[:size], byte(size))
			b.recv(1, 100, 2000)
			send(a, 2, size, Destination{ah, b.qp.Num(), testQkey + 1}) // which is dropped
			send(a, 3, size, Destination{ah, b.qp.Num(), testQkey})
			wc := b.done(1, WCRecv)
			if int(wc.ByteLen) != GRHSize+size || wc.Flags&WCGRH == 0 || wc.SrcQP != a.qp.Num() || wc.ImmData() != 3<<16 ||
				!bytes.Equal(b.buf[100+GRHSize:][:size], a.buf[:size]) {
				t.Fatalf("%d bytes: %+v", size, wc)
			}
			back, err := pd.CreateAHOf(gid.Port, &wc, b.buf[100:])
			if err != nil {
				t.Fatal(err)
			}
			a.recv(4, 3000, 5000)
			send(b, 5, 10, Destination{back, wc.SrcQP, testQkey})
			if wc := a.done(4, WCRecv); wc.SrcQP != b.qp.Num() {
				t.Errorf("the answer is %+v", wc)
			}
			if err := back.Close(); err != nil {
				t.Error(err)
			}
		}

		if row, err := c.GID(gid.Port, gid.Index); err != nil || row != gid {
			t.Errorf("row %d is %+v, %v, want %+v", gid.Index, row, err, gid)
		}
		if _, err := c.GID(gid.Port, 1000); err == nil {
			t.Error("there is a row 1000")
		}
		if n, err := c.PkeyIndex(gid.Port, 0xffff); n != 0 || err != nil {
			t.Errorf("the default key is at %d, %v", n, err)
		}

		group := GID(netip.MustParseAddr("::ffff:239.1.2.3").As16())
		if err := b.qp.AttachMcast(group, 0); err != nil {
			t.Error(err)
		}
		if err := b.qp.DetachMcast(group, 0); err != nil {
			t.Error(err)
		}
		if err := b.qp.DetachMcast(group, 0); err == nil {
			t.Error("a group that it has left is left again")
		}
	})
}

// TestUnreliableRDMA: an unreliable connection sends and writes.
func TestUnreliableRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		p := &pair{c: c, pd: pd, a: newExtendedEnd(t, pd, QPTypeUC), b: newTypedEnd(t, pd, nil, QPTypeUC)}
		connect(t, p.a.qp, p.b.qp)
		connect(t, p.b.qp, p.a.qp)
		fill(p.a.buf[:5000], 9)
		p.b.recv(1, 0, 5000)
		p.a.post(SendWR{ID: 2, Opcode: OpSend, SGL: p.a.sge(0, 5000)}, SendWR{
			ID: 3, Opcode: OpRDMAWrite, SGL: p.a.sge(0, 100), RemoteAddr: p.b.mr.Addr() + 6000, RKey: p.b.mr.RKey(),
		})
		p.a.done(2, WCSend)
		p.a.done(3, WCRDMAWrite)
		p.b.done(1, WCRecv)
		p.b.recv(4, 5000, 5100)
		p.a.post(SendWR{ID: 5, Opcode: OpSend, SGL: p.a.sge(0, 100)}) // after the write
		p.b.done(4, WCRecv)
		if !bytes.Equal(p.b.buf[:5000], p.a.buf[:5000]) || !bytes.Equal(p.b.buf[6000:6100], p.a.buf[:100]) {
			t.Error("the data is not what was sent")
		}
		if p.a.qp.Type() != QPTypeUC {
			t.Errorf("type %v", p.a.qp.Type())
		}
	})
}

// TestFakeDatagrams: the library gets the address of each datagram, which stays open while it is posted.
func TestFakeDatagrams(t *testing.T) {
	s := newSet(t)
	qp := must[*QP](t)(s.pd.CreateQP(QPInitAttr{Type: QPTypeUD, SendCQ: s.cq, RecvCQ: s.cq, Cap: QPCap{MaxSendWR: 8}}))
	attr := AHAttr{IsGlobal: true, PortNum: 1, SL: 3, GRH: GlobalRoute{DGID: GID{15: 1}, HopLimit: 9}}
	ah := must[*AH](t)(s.pd.CreateAH(attr))
	dev := s.lib.QP(qp.Raw())
	dev.OnPost(func() {
		if err := s.pd.Close(); err == nil {
			t.Error("the domain is closed while a datagram is posted")
		}
	})
	if err := qp.PostSend([]SendWR{
		{ID: 1, Opcode: OpSend, RemoteAddr: 77, To: &Destination{ah, 5, 6}}, {ID: 2, Opcode: OpSendWithImm, To: &Destination{ah, MulticastQPNum, 1 << 31}},
	}); err != nil {
		t.Fatal(err)
	}
	sends := dev.Sends()
	for i, want := range []struct{ qpn, qkey uint64 }{{5, 6}, {MulticastQPNum, 1 << 31}} {
		to := s.lib.AH(sends[i].RemoteAddr)
		if to == nil || to.Attr.SL != 3 || to.Attr.DGID[15] != 1 || to.Attr.HopLimit != 9 || sends[i].Arg1 != want.qpn<<32|want.qkey {
			t.Errorf("datagram %d: %+v to %+v", i, sends[i].SendWR, to)
		}
	}
	for _, send := range sends {
		send.Complete(0)
	}

	grh := make([]byte, GRHSize)
	grh[8+15] = 4
	from, err := s.c.AHOf(2, &WC{Flags: WCGRH, SL: 7}, grh)
	if err != nil || !from.IsGlobal || from.GRH.DGID[15] != 4 || from.PortNum != 2 || from.SL != 7 {
		t.Errorf("%+v, %v", from, err)
	}
	if _, err := s.c.AHOf(2, &WC{}, grh[1:]); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("39 bytes of a header: %v", err)
	}
	for call, f := range map[string]func() error{
		"ibv_create_ah":       func() error { _, err := s.pd.CreateAH(attr); return err },
		"ibv_init_ah_from_wc": func() error { _, err := s.pd.CreateAHOf(1, new(WC), grh); return err },
		"ibv_attach_mcast":    func() error { return qp.AttachMcast(GID{}, 0) },
		"ibv_detach_mcast":    func() error { return qp.DetachMcast(GID{}, 0) },
		"ibv_destroy_ah":      ah.Close,
	} {
		s.lib.Fail(call, syscall.ENOSPC)
		var e *Error
		if err := f(); !errors.As(err, &e) || e.Call != call || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s fails: %v", call, err)
		}
	}
	if err := ah.Close(); err != nil {
		t.Error(err)
	}
	for call, f := range map[string]func() error{
		"ibv_query_gid_ex":            func() error { _, err := s.c.GID(1, 0); return err },
		"ibv_get_pkey_index":          func() error { _, err := s.c.PkeyIndex(1, 0xffff); return err },
		"ibv_resolve_eth_l2_from_gid": func() error { _, _, err := s.c.EthernetAddr(attr); return err },
	} {
		var e *Error
		if err := f(); !errors.As(err, &e) || e.Call != call || e.Device != "fake0" {
			t.Errorf("%s: %v", call, err)
		}
	}
	var post *PostError
	for _, tc := range []struct {
		name string
		qp   *QP
		to   *Destination
		want error
	}{
		{"a closed handle", qp, &Destination{ah, 1, 1}, ErrClosed},
		{"no handle", qp, &Destination{nil, 1, 1}, syscall.EINVAL},
		{"a datagram to nowhere", qp, nil, syscall.EDESTADDRREQ},
		{"a message of a connection to an address", s.qp, &Destination{ah, 1, 1}, syscall.EISCONN},
	} {
		if err := tc.qp.PostSend([]SendWR{{Opcode: OpSend, To: tc.to}}); !errors.As(err, &post) || !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if err := s.qp.PostSend([]SendWR{{Opcode: OpSend, RemoteAddr: 77}}); err != nil || s.device().Sends()[0].RemoteAddr != 0 {
		t.Errorf("an address means nothing to a Send: %v, %+v", err, s.device().Sends())
	}
}

// TestRates: rates are those of ibv_rate_to_mbps(3), and a flow label gives a dynamic port.
func TestRates(t *testing.T) {
	for mbps, mult := range map[int]int{2500: 1, 10000: 4, 40000: 16} {
		r := RateOfMbps(mbps)
		if r == 0 || r.Mbps() != mbps || r.Mult() != mult || RateOfMult(mult) != r {
			t.Errorf("%d Mbit/s is rate %d, %d times 2.5 Gbit/s and %d Mbit/s", mbps, r, r.Mult(), r.Mbps())
		}
	}
	if RateOfMbps(17) != 0 || Rate(0).Mbps() != -1 || RateOfMult(3) != 0 {
		t.Error("unknown rates are not zero")
	}
	for _, label := range []uint32{0, 1, 1<<20 - 1} {
		if p := FlowLabelToUDPPort(label); p < 0xc000 {
			t.Errorf("flow label %d has port %d", label, p)
		}
	}
}
