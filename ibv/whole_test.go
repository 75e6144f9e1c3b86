//go:build linux && cgo

package ibv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A maker is a call that creates an object.
type maker struct {
	call, end string
	make      func() (io.Closer, error)
	parents   []io.Closer // which cannot be closed meanwhile
}

// makerOf hides the type of an object. A nil object is no io.Closer.
func makerOf[T any, P interface {
	*T
	io.Closer
}](make func() (P, error),
) func() (io.Closer, error) {
	return func() (io.Closer, error) {
		p, err := make()
		if p == nil {
			return nil, err
		}
		return p, err
	}
}

// rareOf are the objects that neither rxe nor siw has.
func rareOf(t *testing.T, s *set) []maker {
	td := must[*TD](t)(s.c.AllocTD())
	xrcd := must[*XRCD](t)(s.c.OpenXRCD(-1, syscall.O_CREAT))
	wq := must[*WQ](t)(s.pd.CreateWQ(WQInitAttr{CQ: s.cq, MaxWR: 8, MaxSGE: 1}))
	counters := must[*Counters](t)(s.c.CreateCounters())
	return []maker{
		{"ibv_alloc_td", "ibv_dealloc_td", makerOf(s.c.AllocTD), []io.Closer{s.c}},
		{"ibv_alloc_parent_domain", "ibv_dealloc_pd", makerOf(func() (*PD, error) { return s.pd.AllocParentDomain(td) }), []io.Closer{s.pd, td}},
		{"ibv_open_xrcd", "ibv_close_xrcd", makerOf(func() (*XRCD, error) { return s.c.OpenXRCD(-1, syscall.O_CREAT) }), []io.Closer{s.c}},
		{"ibv_create_qp_ex", "ibv_destroy_qp", makerOf(xrcd.CreateQP), []io.Closer{xrcd}},
		{"ibv_open_qp", "ibv_destroy_qp", makerOf(func() (*QP, error) { return xrcd.OpenQP(s.qp.Num()) }), []io.Closer{xrcd}},
		{"ibv_create_qp_ex", "ibv_destroy_qp", makerOf(func() (*QP, error) {
			return s.pd.CreateQP(QPInitAttr{Type: QPTypeXRCSend, SendCQ: s.cq})
		}), []io.Closer{s.pd, s.cq}},
		{"ibv_create_srq_ex", "ibv_destroy_srq", makerOf(func() (*SRQ, error) {
			return s.pd.CreateSRQEx(SRQInitAttr{SRQAttr: SRQAttr{MaxWR: 8, MaxSGE: 1}, Type: SRQTypeXRC, XRCD: xrcd, CQ: s.cq})
		}), []io.Closer{s.pd, xrcd, s.cq}},
		{"ibv_create_wq", "ibv_destroy_wq", makerOf(func() (*WQ, error) { return s.pd.CreateWQ(WQInitAttr{CQ: s.cq}) }), []io.Closer{s.pd, s.cq}},
		{"ibv_create_rwq_ind_table", "ibv_destroy_rwq_ind_table", makerOf(func() (*RWQIndTable, error) {
			return s.c.CreateRWQIndTable(wq, wq)
		}), []io.Closer{wq}},
		{"ibv_create_flow", "ibv_destroy_flow", makerOf(func() (*Flow, error) {
			return s.qp.CreateFlow(FlowAttr{Port: 1, Specs: []FlowSpec{FlowCount{counters}}})
		}), []io.Closer{s.qp, counters}},
		{"ibv_create_counters", "ibv_destroy_counters", makerOf(s.c.CreateCounters), []io.Closer{s.c}},
	}
}

// TestFakeRareObjects: an object is made by one call of the library and destroyed by another, keeps open
// what it was made of, and fails as the library does.
func TestFakeRareObjects(t *testing.T) {
	s := newSet(t)
	for _, m := range rareOf(t, s) {
		s.lib.Fail(m.call, syscall.ENOSPC)
		var e *Error
		if o, err := m.make(); o != nil || !errors.As(err, &e) || e.Call != m.call || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v, %v", m.call, o, err)
		}
		s.lib.Calls()
		o, err := m.make()
		if err != nil {
			t.Errorf("%s: %v", m.call, err)
			continue
		}
		for _, parent := range m.parents {
			var busy *BusyError
			if err := parent.Close(); !errors.As(err, &busy) {
				t.Errorf("%s: %T is closed before it: %v", m.call, parent, err)
			}
		}
		s.lib.Fail(m.end, syscall.EIO)
		if err := o.Close(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", m.end, err)
		}
		if err := errors.Join(o.Close(), o.Close()); err != nil {
			t.Errorf("%s: %v", m.end, err)
		}
		if calls := s.lib.Calls(); !slices.Equal(calls, []string{m.call, m.end, m.end}) {
			t.Errorf("%s: the calls are %q", m.call, calls)
		}
	}
	for name, f := range map[string]func() error{
		"a work queue without completions": func() error { _, err := s.pd.CreateWQ(WQInitAttr{}); return err },
		"an empty table":                   func() error { _, err := s.c.CreateRWQIndTable(); return err },
		"a table of nothing":               func() error { _, err := s.c.CreateRWQIndTable(nil, nil); return err },
		"a table of three":                 func() error { _, err := s.c.CreateRWQIndTable(make([]*WQ, 3)...); return err },
		"counting by nothing":              func() error { _, err := s.qp.CreateFlow(FlowAttr{Specs: []FlowSpec{FlowCount{}}}); return err },
		"256 conditions": func() error {
			_, err := s.qp.CreateFlow(FlowAttr{Specs: slices.Repeat([]FlowSpec{FlowDrop{}}, 256)})
			return err
		},
		"a queue pair without queues": func() error { _, err := s.pd.CreateQP(QPInitAttr{Type: QPTypeRawPacket}); return err },
	} {
		if err := f(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRareObjectsRDMA: what the devices of Linux's software do not have is an error that says so.
func TestRareObjectsRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		cq := must[*CQ](t)(c.CreateCQ(8, nil, 0))
		qp := must[*QP](t)(pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		srq := must[*SRQ](t)(pd.CreateSRQ(SRQAttr{MaxWR: 8, MaxSGE: 1}))
		_, clock := c.RawClock()
		_, number := srq.Num()
		_, ece := qp.ECE()
		for name, err := range map[string]error{
			"ibv_alloc_td":             second(c.AllocTD()),
			"ibv_alloc_parent_domain":  second(pd.AllocParentDomain(nil)),
			"ibv_open_xrcd":            second(c.OpenXRCD(-1, syscall.O_CREAT)),
			"ibv_create_wq":            second(pd.CreateWQ(WQInitAttr{CQ: cq, MaxWR: 8, MaxSGE: 1})),
			"ibv_create_flow":          second(qp.CreateFlow(FlowAttr{Port: 1})),
			"ibv_create_counters":      second(c.CreateCounters()),
			"ibv_query_rt_values_ex":   clock,
			"ibv_get_srq_num":          number,
			"ibv_modify_qp_rate_limit": qp.LimitRate(RateLimit{Kbps: 1000}),
			"ibv_query_ece":            ece,
			"ibv_import_pd":            second(c.ImportPD(1)),
			"ibv_import_mr":            second(pd.ImportMR(1, 0, 1)),
			"ibv_import_dm":            second(c.ImportDM(1, 1)),
			"ibv_post_srq_ops":         srq.SyncTags(1, 0, 0),
			"ibv_create_srq_ex of tag matching": second(pd.CreateSRQEx(SRQInitAttr{
				SRQAttr: SRQAttr{MaxWR: 8, MaxSGE: 1}, Type: SRQTypeTM, CQ: cq, MaxTags: 8, MaxOps: 8,
			})),
		} {
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.QueryEx(); err != nil {
			t.Error(err)
		}
		if _, err := qp.DataInOrder(OpRDMAWrite); err != nil {
			t.Error(err)
		}
		basic := must[*SRQ](t)(pd.CreateSRQEx(SRQInitAttr{SRQAttr: SRQAttr{MaxWR: 8, MaxSGE: 1}}))
		if basic.Attr().MaxWR < 8 {
			t.Errorf("%+v", basic.Attr())
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestFakeQueries: a query is one call, with its values and its errno.
func TestFakeQueries(t *testing.T) {
	s := newSet(t)
	s.dev.Ex.ODP.General, s.dev.Ex.MaxCQPeriod, s.dev.Ex.RSS.Types = 1, 500, 1<<QPTypeRawPacket
	a, err := s.c.QueryEx()
	if err != nil || !a.OnDemand || a.OnDemandWhole || a.MaxModeratePeriod != 500*time.Microsecond || !a.RSSTypes.Has(QPTypeRawPacket) || a.RSSTypes.Has(QPTypeRC) || a.RSSTypes.Has(-1) {
		t.Errorf("%+v, %v", a, err)
	}
	before, _ := s.c.RawClock()
	if after, err := s.c.RawClock(); err != nil || after <= before {
		t.Errorf("the clock shows %d, then %d, %v", before, after, err)
	}
	if yes, err := s.qp.DataInOrder(OpRDMAWrite); !yes || err != nil {
		t.Errorf("Writes: %v, %v", yes, err)
	}
	if yes, err := s.qp.DataInOrder(OpSend); yes || err != nil {
		t.Errorf("Sends: %v, %v", yes, err)
	}
	if err := s.qp.SetECE(ECE{VendorID: 7, Options: 3}); err != nil {
		t.Error(err)
	}
	if e, err := s.qp.ECE(); e != (ECE{VendorID: 7, Options: 3}) || err != nil {
		t.Errorf("%+v, %v", e, err)
	}
	wq := must[*WQ](t)(s.pd.CreateWQ(WQInitAttr{CQ: s.cq, MaxWR: 8, MaxSGE: 2}))
	counters := must[*Counters](t)(s.c.CreateCounters())
	for call, f := range map[string]func() error{
		"ibv_query_device_ex":            func() error { _, err := s.c.QueryEx(); return err },
		"ibv_query_rt_values_ex":         func() error { _, err := s.c.RawClock(); return err },
		"ibv_modify_qp_rate_limit":       func() error { return s.qp.LimitRate(RateLimit{Kbps: 1}) },
		"ibv_set_ece":                    func() error { return s.qp.SetECE(ECE{}) },
		"ibv_query_ece":                  func() error { _, err := s.qp.ECE(); return err },
		"ibv_get_srq_num":                func() error { _, err := s.srq.Num(); return err },
		"ibv_post_srq_ops":               func() error { return s.srq.SyncTags(1, 1, 0) },
		"ibv_modify_wq":                  func() error { return wq.Modify(WQAttr{}, 0) },
		"ibv_post_wq_recv":               func() error { return wq.PostRecv([]RecvWR{{}}) },
		"ibv_attach_counters_point_flow": func() error { return counters.Attach(nil, CounterBytes, 0) },
		"ibv_read_counters":              func() error { return counters.Read(make([]uint64, 1), false) },
	} {
		s.lib.Fail(call, syscall.ENOSPC)
		if err := f(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", call, err)
		}
		if err := f(); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// TestFakeXRC: a sending end names the queue of the peer, and the list of a queue that matches tags has
// what was added to it.
func TestFakeXRC(t *testing.T) {
	s := newSet(t)
	send := must[*QP](t)(s.pd.CreateQP(QPInitAttr{Type: QPTypeXRCSend, SendCQ: s.cq, Cap: QPCap{MaxSendWR: 4}}))
	if err := send.PostSend([]SendWR{{Opcode: OpSend, RemoteSRQ: 77}}); err != nil {
		t.Fatal(err)
	}
	if wr := s.lib.QP(send.Raw()).Sends()[0]; wr.SRQNum != 77 {
		t.Errorf("%+v", wr.SendWR)
	}
	tags := must[*SRQ](t)(s.pd.CreateSRQEx(SRQInitAttr{SRQAttr: SRQAttr{MaxWR: 8, MaxSGE: 1}, Type: SRQTypeTM, CQ: s.cq, MaxTags: 4, MaxOps: 2}))
	handle, err := tags.AddTag(TagRecv{ID: 1, RecvID: 2, SGL: []SGE{s.mr.SGE(0, 64)}, Tag: 0xabcd, Mask: 0xffff, Flags: TagSignaled})
	if op := s.lib.Tags(tags.Raw())[handle]; err != nil || op.Tag != 0xabcd || op.Mask != 0xffff || op.RecvID != 2 {
		t.Errorf("%+v, %v", op, err)
	}
	if err := tags.DeleteTag(3, handle, 0); err != nil || len(s.lib.Tags(tags.Raw())) != 0 {
		t.Errorf("a deleted tag: %v", err)
	}
	if _, err := tags.AddTag(TagRecv{SGL: []SGE{{Buf: make([]byte, 1<<20), Length: 1}}}); err != nil {
		t.Error(err)
	}
}

// TestFakeRaw: flows are the structures of the library, receives go to a work queue, and a long payload
// has its header.
func TestFakeRaw(t *testing.T) {
	s := newSet(t)
	wq := must[*WQ](t)(s.pd.CreateWQ(WQInitAttr{CQ: s.cq, MaxWR: 8, MaxSGE: 2}))
	if wr, sge := wq.Cap(); wr != 8 || sge != 2 {
		t.Errorf("a queue of %d receives with %d buffers", wr, sge)
	}
	if err := wq.Modify(WQAttr{State: WQSReady}, WQAttrState); err != nil || s.lib.WQ(wq.raw).State != int32(WQSReady) {
		t.Errorf("the state is %d, %v", s.lib.WQ(wq.raw).State, err)
	}
	s.lib.Fail("ibv_post_wq_recv", 0, syscall.ENOMEM)
	var pe *PostError
	if err := wq.PostRecv([]RecvWR{{ID: 1, SGL: []SGE{s.mr.SGE(0, 8)}}, {ID: 2}}); !errors.As(err, &pe) || pe.Index != 1 || len(s.lib.WQ(wq.raw).Recvs()) != 1 {
		t.Errorf("the second receive: %v", err)
	}
	table := must[*RWQIndTable](t)(s.c.CreateRWQIndTable(wq))
	key := []byte("forty bytes of a key of the Toeplitz hash")
	spread := must[*QP](t)(s.pd.CreateQP(QPInitAttr{Type: QPTypeRawPacket, Table: table, Hash: RxHash{Function: 1, Key: key, Fields: 3}}))
	if x := s.lib.QP(spread.Raw()).Init(); x.Table != table.raw || !bytes.Equal(x.HashKey, key) || x.HashFields != 3 {
		t.Errorf("%+v", x)
	}
	raw := must[*QP](t)(s.pd.CreateQP(QPInitAttr{Type: QPTypeRawPacket, SendCQ: s.cq, RecvCQ: s.cq, Cap: QPCap{MaxSendWR: 4}, MaxTSOHeader: 64, Flags: QPCreateScatterFCS}))
	header := make([]byte, 54)
	if err := raw.PostSend([]SendWR{{Opcode: OpTSO, TSO: &TSO{Header: header, MSS: 1460}}}); err != nil {
		t.Fatal(err)
	}
	if wr := s.lib.QP(raw.Raw()).Sends()[0]; wr.Arg1 != addrOf(header) || wr.Arg2 != 54<<32|1460 {
		t.Errorf("%+v", wr.SendWR)
	}
	for name, qp := range map[string]*QP{"without a header": raw, "of a connection": s.qp} {
		wr := SendWR{Opcode: OpTSO}
		if qp == s.qp {
			wr.TSO = &TSO{}
		}
		if err := qp.PostSend([]SendWR{wr}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a TSO %s: %v", name, err)
		}
	}

	counters := must[*Counters](t)(s.c.CreateCounters())
	if err := errors.Join(counters.Attach(nil, CounterPackets, 0), counters.Attach(nil, CounterBytes, 2)); err != nil {
		t.Error(err)
	}
	var values [3]uint64
	if err := counters.Read(values[:], true); err != nil || values != [3]uint64{100, 0, 101} {
		t.Errorf("%d, %v", values, err)
	}
	// By the layouts of <infiniband/verbs.h>, of a machine that is little endian.
	eth := FlowEth{Val: EthFilter{Dst: [6]byte{1, 2, 3, 4, 5, 6}, EtherType: 0x0800}, Mask: EthFilter{EtherType: 0xffff}}
	for _, tc := range []struct {
		spec FlowSpec
		size int
		at   map[int][]byte
	}{
		{eth, 40, map[int][]byte{0: {0x20, 0, 0, 0, 40, 0, 1, 2, 3, 4, 5, 6}, 18: {8, 0}, 34: {255, 255}}},
		{FlowIPv4{Inner: true, Val: IPv4Filter{Dst: [4]byte{10, 9, 9, 1}}}, 24, map[int][]byte{0: {0x30, 1, 0, 0, 24, 0}, 12: {10, 9, 9, 1}}},
		{FlowIPv6{Mask: IPv6Filter{FlowLabel: 0x12345, HopLimit: 9}}, 88, map[int][]byte{0: {0x31, 0}, 80: {0, 1, 0x23, 0x45, 0, 0, 9}}},
		{FlowTCP{Val: PortFilter{Dst: 2049}}, 16, map[int][]byte{0: {0x40, 0, 0, 0, 16, 0, 8, 1}}},
		{FlowUDP{Mask: PortFilter{Src: 0xffff}}, 16, map[int][]byte{0: {0x41}, 12: {255, 255}}},
		{FlowVXLAN{Val: 7, Mask: 0xffffff}, 16, map[int][]byte{0: {0x50}, 8: {0, 0, 0, 7, 0, 255, 255, 255}}},
		{FlowTag(0x01020304), 12, map[int][]byte{0: {0, 0x10, 0, 0, 12}, 8: {4, 3, 2, 1}}},
		{FlowDrop{}, 8, map[int][]byte{0: {1, 0x10}}},
		{FlowCount{counters}, 16, map[int][]byte{0: {3, 0x10}}},
	} {
		flow, err := s.qp.CreateFlow(FlowAttr{Type: FlowNormal, Priority: 3, Port: 1, Specs: []FlowSpec{tc.spec}})
		if err != nil {
			t.Fatal(err)
		}
		got := s.lib.Flow(flow.raw)
		if len(got.Specs) != tc.size || got.Attr != (cgo.FlowAttr{Priority: 3, Specs: 1, Port: 1}) {
			t.Errorf("%T: %d bytes, %+v", tc.spec, len(got.Specs), got.Attr)
		}
		for at, want := range tc.at {
			if !bytes.HasPrefix(got.Specs[at:], want) {
				t.Errorf("%T: % x at %d, want % x", tc.spec, got.Specs[at:], at, want)
			}
		}
		if err := counters.Attach(flow, CounterBytes, 5); err != nil {
			t.Error(err)
		}
		if err := flow.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFakeImport: an imported object is the other's, and stays there when it is given up.
func TestFakeImport(t *testing.T) {
	s := newSet(t)
	if fd := s.c.FD(); fd < 0 {
		t.Errorf("the descriptor is %d", fd)
	}
	dm := must[*DM](t)(s.c.AllocDM(64, 0))
	numbers := make([]uint32, 3)
	for i, f := range []func() (uint32, error){s.pd.Handle, s.mr.Handle, dm.Handle} {
		var err error
		if numbers[i], err = f(); err != nil {
			t.Fatal(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	s.lib.Fail("ibv_import_device", syscall.EBADF)
	if _, err := importDevice(s.lib, -1); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no device: %v", err)
	}
	fd, err := syscall.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	c, err := importDevice(s.lib, fd)
	if err != nil {
		t.Fatal(err)
	}
	pd := must[*PD](t)(c.ImportPD(numbers[0]))
	mr := must[*MR](t)(pd.ImportMR(numbers[1], 1<<40, 4096))
	if mr.LKey() != s.mr.LKey() || mr.Addr() != 1<<40 || mr.Len() != 4096 || mr.Bytes() != nil {
		t.Errorf("%+v", mr)
	}
	block := must[*DM](t)(c.ImportDM(numbers[2], 64))
	if _, err := block.WriteAt([]byte("shared"), 8); err != nil {
		t.Error(err)
	}
	got := make([]byte, 6)
	if _, err := dm.ReadAt(got, 8); string(got) != "shared" {
		t.Errorf("%q, %v", got, err)
	}
	for _, err := range []error{second(c.ImportPD(999)), second(pd.ImportMR(999, 0, 1)), second(c.ImportDM(999, 1))} {
		if !errors.Is(err, syscall.ENOENT) {
			t.Errorf("an object that there is not: %v", err)
		}
	}
	s.lib.Calls()
	for _, o := range []io.Closer{mr, pd, block, c} {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
	if calls := s.lib.Calls(); !slices.Equal(calls, []string{"ibv_unimport_mr", "ibv_unimport_pd", "ibv_unimport_dm", "ibv_close_device"}) {
		t.Errorf("the calls are %q", calls)
	}
	if n, err := mr.Handle(); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed region: %d, %v", n, err)
	}
	if fd := c.FD(); fd != -1 {
		t.Errorf("of a closed device: %d", fd)
	}
}

// TestNamesOfKinds: every kind of object has a name, for errors that list what is in use.
func TestNamesOfKinds(t *testing.T) {
	for k := range kinds {
		if kindNames[k] == "" {
			t.Error(fmt.Sprint(k), " has no name")
		}
	}
}
