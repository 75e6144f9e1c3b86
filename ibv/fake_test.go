//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
)

// fake opens a device of a fake library. The fake reports what is left of it.
func fake(t testing.TB) (*Context, *cgotest.Library, *cgotest.Device) {
	t.Helper()
	lib := cgotest.New(t)
	dev := lib.AddDevice("fake0", netip.MustParseAddr("192.0.2.1"))
	return must[*Context](t)(open(lib, "fake0")), lib, dev
}

// A set is one object of each kind.
type set struct {
	c   *Context
	pd  *PD
	mr  *MR
	mw  *MW
	ch  *CompChannel
	cq  *CQ
	qp  *QP
	srq *SRQ

	lib *cgotest.Library
	dev *cgotest.Device
}

// newSet makes a set on a fake device.
func newSet(t testing.TB) *set {
	t.Helper()
	c, lib, dev := fake(t)
	s := &set{c: c, lib: lib, dev: dev}
	s.pd = must[*PD](t)(c.AllocPD())
	s.mr = must[*MR](t)(s.pd.RegMR(make([]byte, 4096), AccessLocalWrite|AccessMWBind))
	s.mw = must[*MW](t)(s.pd.AllocMW(MWType2))
	s.ch = must[*CompChannel](t)(c.CreateCompChannel())
	s.cq = must[*CQ](t)(c.CreateCQ(2000, s.ch, 0))
	s.qp = must[*QP](t)(s.pd.CreateQP(QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4}}))
	s.srq = must[*SRQ](t)(s.pd.CreateSRQ(SRQAttr{MaxWR: 8, MaxSGE: 1}))
	return s
}

func (s *set) device() *cgotest.QP { return s.lib.QP(s.qp.Raw()) }

// TestFakeLife: objects are closed children first, or not at all, and closed objects are not passed
// to the library.
func TestFakeLife(t *testing.T) {
	c, _, _ := fake(t)
	livesInOrder(t, c)
}

// TestFakeOpen: what can be opened, what cannot and why.
func TestFakeOpen(t *testing.T) {
	lib := cgotest.New(t)
	if _, err := devices(lib); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("no device: %v", err)
	}
	lib.AddDevice("b", netip.MustParseAddr("192.0.2.1"))
	lib.AddDevice("a", netip.MustParseAddr("192.0.2.2"))
	if infos, err := devices(lib); err != nil || len(infos) != 2 || infos[0].Name != "b" || infos[1].Index != 1 {
		t.Errorf("devices %+v, %v", infos, err)
	}
	var missing *NoDeviceError
	if _, err := open(lib, "c"); !errors.As(err, &missing) || !slices.Equal(missing.Devices, []string{"a", "b"}) {
		t.Errorf("an unknown name: %v", err)
	}
	for _, tc := range []struct {
		call       string
		errno      syscall.Errno
		permission bool
		none       bool
	}{
		{call: "ibv_get_device_list", errno: syscall.ENOMEM},
		{call: "ibv_get_device_list", errno: syscall.ENOSYS, none: true}, // a kernel without RDMA
		{call: "ibv_open_device", errno: syscall.EMFILE},
		{call: "ibv_open_device", errno: syscall.EPERM, permission: true},
	} {
		lib.Fail(tc.call, tc.errno)
		_, err := open(lib, "a")
		var permission *PermissionError
		var call *Error
		switch {
		case tc.none:
			if !errors.As(err, &missing) {
				t.Errorf("%s fails with %v: %v", tc.call, tc.errno, err)
			}
		case tc.permission:
			if !errors.As(err, &permission) || !errors.Is(err, tc.errno) {
				t.Errorf("%s fails with %v: %v", tc.call, tc.errno, err)
			}
		case !errors.As(err, &call) || call.Call != tc.call || !errors.Is(err, tc.errno):
			t.Errorf("%s fails with %v: %v", tc.call, tc.errno, err)
		}
	}
}

// TestFakeErrno: a call that fails is an error with its name, the device and the errno,
// and has made and changed nothing.
func TestFakeErrno(t *testing.T) {
	const errno = syscall.ENOSPC
	s := newSet(t)
	before := s.lib.Live()
	for call, f := range map[string]func() error{
		"ibv_query_device":        func() error { _, err := s.c.Query(); return err },
		"ibv_query_port":          func() error { _, err := s.c.QueryPort(1); return err },
		"ibv_get_async_event":     func() error { _, err := s.c.AsyncEvent(soon(t)); return err },
		"ibv_alloc_pd":            func() error { _, err := s.c.AllocPD(); return err },
		"ibv_reg_mr":              func() error { _, err := s.pd.RegMR(make([]byte, 8), 0); return err },
		"ibv_alloc_mw":            func() error { _, err := s.pd.AllocMW(MWType2); return err },
		"ibv_create_comp_channel": func() error { _, err := s.c.CreateCompChannel(); return err },
		"ibv_create_cq":           func() error { _, err := s.c.CreateCQ(1, s.ch, 0); return err },
		"ibv_resize_cq":           func() error { return s.cq.Resize(10) },
		"ibv_create_cq_ex":        func() error { _, err := s.c.CreateCQEx(CQInitAttr{Entries: 1}); return err },
		"ibv_modify_cq":           func() error { return s.cq.Moderate(1, time.Millisecond) },
		"ibv_create_qp_ex":        func() error { _, err := s.pd.CreateQP(QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, SendOps: 1}); return err },
		"ibv_req_notify_cq":       func() error { return s.cq.Arm(false) },
		"ibv_poll_cq":             func() error { _, err := s.cq.Poll(make([]WC, 1)); return err },
		"ibv_get_cq_event":        func() error { _, err := s.ch.GetEvent(soon(t)); return err },
		"ibv_create_srq":          func() error { _, err := s.pd.CreateSRQ(SRQAttr{MaxWR: 1}); return err },
		"ibv_modify_srq":          func() error { return s.srq.Modify(SRQAttr{}, SRQLimit) },
		"ibv_query_srq":           func() error { _, err := s.srq.Query(); return err },
		"ibv_create_qp":           func() error { _, err := s.pd.CreateQP(QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq}); return err },
		"ibv_modify_qp":           func() error { return s.qp.Modify(QPAttr{State: QPSErr}, AttrState) },
		"ibv_query_qp":            func() error { _, err := s.qp.State(); return err },
		"ibv_post_send":           func() error { return s.qp.PostSend([]SendWR{{Opcode: OpSend}}) },
		"ibv_post_recv":           func() error { return s.qp.PostRecv([]RecvWR{{}}) },
		"ibv_post_srq_recv":       func() error { return s.srq.PostRecv([]RecvWR{{}}) },
		// Objects that cannot be closed live on.
		"ibv_dealloc_mw":           s.mw.Close,
		"ibv_dereg_mr":             s.mr.Close,
		"ibv_destroy_qp":           s.qp.Close,
		"ibv_destroy_srq":          s.srq.Close,
		"ibv_destroy_comp_channel": must[*CompChannel](t)(s.c.CreateCompChannel()).Close,
		"ibv_destroy_cq":           must[*CQ](t)(s.c.CreateCQ(1, nil, 0)).Close,
		"ibv_dealloc_pd":           must[*PD](t)(s.c.AllocPD()).Close,
		"ibv_close_device":         must[*Context](t)(open(s.lib, "fake0")).Close,
	} {
		s.lib.Fail(call, errno)
		err := f()
		var e *Error
		var post *PostError
		named := errors.As(err, &e) && e.Call == call && e.Device == "fake0" || errors.As(err, &post) && post.Call == call && post.Device == "fake0"
		if !named || !errors.Is(err, errno) {
			t.Errorf("%s fails with %v: %T %v", call, errno, err, err)
		}
	}
	if n := len(s.lib.Live()); n != len(before)+4 {
		t.Errorf("%d objects, before there were %d and 4 were added", n, len(before))
	}
}

// TestFakeBusy: an object that only the library knows to be in use lives on, and can be
// closed later. rxe says EINVAL of a region with a window on it.
func TestFakeBusy(t *testing.T) {
	s := newSet(t)
	for _, tc := range []struct {
		call   string
		errno  syscall.Errno
		object interface{ Close() error }
	}{
		{"ibv_dereg_mr", syscall.EINVAL, s.mr}, {"ibv_dereg_mr", syscall.EBUSY, must[*MR](t)(s.pd.RegMR(make([]byte, 8), 0))},
		{"ibv_destroy_qp", syscall.EBUSY, s.qp}, {"ibv_destroy_cq", syscall.EBUSY, must[*CQ](t)(s.c.CreateCQ(1, s.ch, 0))},
		{"ibv_dealloc_pd", syscall.EBUSY, must[*PD](t)(s.c.AllocPD())},
	} {
		s.lib.Fail(tc.call, tc.errno)
		var busy *BusyError
		if err := tc.object.Close(); !errors.As(err, &busy) || !errors.Is(err, syscall.EBUSY) || busy.Users != nil {
			t.Errorf("%s fails with %v: %v", tc.call, tc.errno, err)
		}
		if err := tc.object.Close(); err != nil {
			t.Errorf("%s the second time: %v", tc.call, err)
		}
	}
}

// TestFakeMemlock: memory that cannot be locked because of the process's limit is an
// error that names the limit; with the limit out of question it is the errno alone.
func TestFakeMemlock(t *testing.T) {
	s := newSet(t)
	calls := map[string]func() error{
		"ibv_reg_mr":    func() error { _, err := s.pd.RegMR(mmapped(t, 1<<20), 0); return err },
		"ibv_create_cq": func() error { _, err := s.c.CreateCQ(1<<16, nil, 0); return err },
		"ibv_create_srq": func() error {
			_, err := s.pd.CreateSRQ(SRQAttr{MaxWR: 1 << 12, MaxSGE: 16})
			return err
		},
		"ibv_create_qp": func() error {
			_, err := s.pd.CreateQP(QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: QPCap{MaxSendWR: 1 << 12, MaxRecvWR: 1 << 12, MaxSendSGE: 16}})
			return err
		},
		"rdma_create_qp": func() error { return s.c.MemoryError("rdma_create_qp", syscall.ENOMEM, 1<<20) },
	}
	withMemlock(t, 64<<10, func() {
		for call, f := range calls {
			for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOSPC} {
				s.lib.Fail(call, errno)
				err := f()
				var low *MemlockError
				switch blamed := errors.As(err, &low); {
				case call == "rdma_create_qp" && errno != syscall.ENOMEM:
				case blamed != (errno == syscall.ENOMEM) || !errors.Is(err, errno):
					t.Errorf("%s fails with %v: %v", call, errno, err)
				case blamed && (low.Limit != 64<<10 || low.Requested < 1<<19 || low.Call != call):
					t.Errorf("%s: %+v", call, low)
				}
			}
		}
	})
	if len(s.lib.Live()) != 8 {
		t.Errorf("left of calls that failed: %q", s.lib.Live())
	}
}

// withMemlock runs f without capabilities and under a limit of locked memory.
func withMemlock(t *testing.T, limit uint64, f func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: min(limit, old.Max), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
	withoutCaps(t, f)
}

// TestFakePostError: of a list that is posted in part the error has the index of the first request
// that was not: requests before it belong to the device.
func TestFakePostError(t *testing.T) {
	sends := make([]SendWR, 6)
	recvs := make([]RecvWR, 6)
	for i := range sends {
		sends[i] = SendWR{ID: uint64(i), Opcode: OpSend}
	}
	wrong := slices.Clone(sends)
	wrong[4] = SendWR{Opcode: OpBindMW} // of nothing
	for _, tc := range []struct {
		name  string
		fail  []syscall.Errno
		list  []SendWR
		index int
		want  error
	}{
		{"refused by the device", []syscall.Errno{0, 0, syscall.EINVAL}, sends, 2, syscall.EINVAL},
		{"wrong in itself", nil, wrong, 4, syscall.EINVAL},
		{"refused before what is wrong", []syscall.Errno{0, syscall.ENOMEM}, wrong, 1, syscall.ENOMEM},
	} {
		s := newSet(t)
		s.lib.Fail("ibv_post_send", tc.fail...)
		var e *PostError
		if err := s.qp.PostSend(tc.list); !errors.As(err, &e) || e.Index != tc.index || !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if got := len(s.device().Sends()); got != tc.index {
			t.Errorf("%s: the device has %d requests", tc.name, got)
		}
		if err := s.qp.PostSend(sends[:1]); err != nil {
			t.Errorf("%s: the next post: %v", tc.name, err)
		}
	}
	s := newSet(t)
	var e *PostError
	if err := s.qp.PostRecv(slices.Concat(recvs, recvs)); !errors.As(err, &e) || e.Index != 8 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("12 receives for a queue of 8: %v", err)
	}
	s.lib.Fail("ibv_post_srq_recv", 0, syscall.EINVAL)
	if err := s.srq.PostRecv(recvs); !errors.As(err, &e) || e.Index != 1 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("receives of a shared queue: %v", err)
	}
}

// TestFakeBinds: the library reads a window's key while the bind is posted, so a second
// bind of it in one list is posted by itself, with the next key; and only binds that
// were posted change the key.
func TestFakeBinds(t *testing.T) {
	s := newSet(t)
	bind := SendWR{Opcode: OpBindMW, Bind: &MWBind{MW: s.mw, MR: s.mr, Buf: s.mr.Bytes()[:64], Access: AccessRemoteRead}}
	first := s.mw.NextRKey()
	if err := s.qp.PostSend([]SendWR{bind, {Opcode: OpLocalInv, RKey: first}, bind}); err != nil {
		t.Fatal(err)
	}
	sends := s.device().Sends()
	if len(sends) != 3 || sends[0].RKey != first || sends[2].RKey != cgo.IncRKey(first) || s.mw.RKey() != sends[2].RKey {
		t.Errorf("posted %+v, and the key is %#x", sends, s.mw.RKey())
	}
	for _, send := range sends {
		send.Complete(cgotest.Success)
	}
	defer s.mw.Close() // before the queue pair, which it holds
	s.lib.Fail("ibv_post_send", syscall.EINVAL)
	if err := s.qp.PostSend([]SendWR{bind}); err == nil || s.mw.RKey() != sends[2].RKey {
		t.Errorf("a bind that was not posted: %v, and the key is %#x", err, s.mw.RKey())
	}
}

// TestFakeElements: an empty buffer is left out of a list, since for devices a length of zero means 2
// GiB. The other buffers stay with their requests.
func TestFakeElements(t *testing.T) {
	s := newSet(t)
	buf := s.mr.Bytes()
	sge := func(from, to int) SGE { return SGE{Buf: buf[from:to], LKey: s.mr.LKey()} }
	if err := s.qp.PostSend([]SendWR{
		{Opcode: OpSend, SGL: []SGE{sge(0, 10), sge(5, 5), sge(20, 40)}}, {Opcode: OpSend}, {Opcode: OpSend, SGL: []SGE{sge(50, 60)}},
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"0+10 20+20", "", "50+10"}
	for i, send := range s.device().Sends() {
		var got []string
		for _, e := range send.SGL {
			got = append(got, fmt.Sprintf("%d+%d", e.Addr-s.mr.Addr(), e.Length))
			if e.LKey != s.mr.LKey() {
				t.Errorf("request %d has key %#x", i, e.LKey)
			}
		}
		if strings.Join(got, " ") != want[i] {
			t.Errorf("request %d has elements %q, want %q", i, got, want[i])
		}
	}
}

// TestFakeFlags: rxe writes the kernel's flags into completions. Poll translates them
// for that device and for no other.
func TestFakeFlags(t *testing.T) {
	const kernelWithInv = 1 << 2
	for _, vendor := range []uint32{0x1234, cgotest.VendorRXE} {
		lib := cgotest.New(t)
		lib.AddDevice("fake0", netip.MustParseAddr("192.0.2.1")).Attr.VendorID = vendor
		c := must[*Context](t)(open(lib, "fake0"))
		cq := must[*CQ](t)(c.CreateCQ(4, nil, 0))
		raw := cgo.WC{ID: 1, Flags: kernelWithInv}
		lib.CQ(cq.Raw()).Add(raw)
		want := WCFlags(kernelWithInv)
		if vendor == cgotest.VendorRXE {
			want = WCWithInv
		}
		var wcs [2]WC
		if n, err := cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Flags != want || cq.Flags(&raw) != want {
			t.Errorf("vendor %#x: %+v, %v", vendor, wcs[:n], err)
		}
	}
}

// TestFakeAcknowledged: events are acknowledged in bulk, the rest when the queue is closed, which
// would wait for them forever. That goes for events of GetEvent and for those that the caller takes
// itself.
func TestFakeAcknowledged(t *testing.T) {
	for _, events := range []int{0, 1, ackBatch - 1, ackBatch, ackBatch + 5} {
		s := newSet(t)
		cq := must[*CQ](t)(s.c.CreateCQ(2000, s.ch, 0))
		raw := s.lib.CQ(cq.Raw())
		for range events {
			if err := cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			raw.Add(cgo.WC{})
			if got, err := s.ch.GetEvent(soon(t)); got != cq || err != nil {
				t.Fatalf("the event is of %v, %v", got, err)
			}
		}
		if got, want := raw.Unacked(), events%ackBatch; got != want {
			t.Errorf("of %d events %d are not acknowledged, want %d", events, got, want)
		}
		// One more, taken inside Await.
		if err := cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		raw.Add(cgo.WC{})
		var out cgo.Outcome
		if err := s.ch.Await(func() bool {
			cgo.Progress(s.lib, nil, nil, nil, s.ch.Raw(), nil, nil, nil, nil, cgo.TakeEvent, &out)
			cq.AckEvents(out.Events)
			return out.Events > 0
		}); err != nil {
			t.Fatal(err)
		}
		if err := cq.Close(); err != nil || raw.Unacked() != 0 {
			t.Errorf("closed: %v, with %d events not acknowledged", err, raw.Unacked())
		}
		cq.AckEvents(1) // too late, and harmless
	}
}

// TestFakeEventsOfClosed: queues may be closed while a goroutine takes their events. Every event is
// acknowledged before its queue is destroyed, or goes with it, and no event of a closed queue is
// reported.
func TestFakeEventsOfClosed(t *testing.T) {
	s := newSet(t)
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	for range 2 {
		waiting.Go(func() {
			for {
				if _, err := s.ch.GetEvent(ctx); err != nil {
					if err != context.Canceled {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	for range 500 {
		cq, err := s.c.CreateCQ(4, s.ch, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		s.lib.CQ(cq.Raw()).Add(cgo.WC{})
		if err := cq.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	waiting.Wait()
}

// TestFakeAsyncEvent: an asynchronous event names its object, unless that has been
// closed since.
func TestFakeAsyncEvent(t *testing.T) {
	s := newSet(t)
	for _, tc := range []struct {
		raw  cgo.AsyncEvent
		want AsyncEvent
	}{
		{cgo.AsyncEvent{Type: int32(EventQPFatal), Element: s.qp.Raw().Word()}, AsyncEvent{Type: EventQPFatal, QP: s.qp}},
		{cgo.AsyncEvent{Type: int32(EventCQErr), Element: s.cq.Raw().Word()}, AsyncEvent{Type: EventCQErr, CQ: s.cq}},
		{cgo.AsyncEvent{Type: int32(EventSRQLimitReached), Element: s.srq.Raw().Word()}, AsyncEvent{Type: EventSRQLimitReached, SRQ: s.srq}},
		{cgo.AsyncEvent{Type: int32(EventPortErr), Element: 1}, AsyncEvent{Type: EventPortErr, Port: 1}},
		{cgo.AsyncEvent{Type: int32(EventDeviceFatal)}, AsyncEvent{Type: EventDeviceFatal}},
	} {
		s.lib.RaiseAsync(s.c.Raw(), tc.raw)
		if got, err := s.c.AsyncEvent(soon(t)); got != tc.want || err != nil {
			t.Errorf("%v, %v; want %v", got, err, tc.want)
		}
	}
	s.lib.RaiseAsync(s.c.Raw(), cgo.AsyncEvent{Type: int32(EventQPFatal), Element: s.qp.Raw().Word()})
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.c.AsyncEvent(soon(t)); got != (AsyncEvent{Type: EventQPFatal}) || err != nil {
		t.Errorf("of a queue pair that is closed: %v, %v", got, err)
	}
}

// TestFakeLent: what librdmacm owns is not destroyed here.
func TestFakeLent(t *testing.T) {
	s := newSet(t)
	w := WrapOf(s.lib, s.c.Raw())
	qp, err := s.pd.WrapQP(s.qp.Raw(), QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq})
	if err != nil {
		t.Fatal(err)
	}
	s.lib.Calls()
	if err := errors.Join(qp.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if calls := s.lib.Calls(); len(calls) > 0 {
		t.Errorf("closing what is lent calls %q", calls)
	}
	if err := qp.PostRecv([]RecvWR{{}}); !errors.Is(err, ErrClosed) {
		t.Errorf("use of a lent queue pair after Close: %v", err)
	}
}

// TestFakeModifyError: a step that the device finds invalid says what is missing; other
// errors are the errno.
func TestFakeModifyError(t *testing.T) {
	s := newSet(t)
	s.lib.Fail("ibv_modify_qp", syscall.EINVAL)
	var invalid *ModifyError
	if err := s.qp.Modify(QPAttr{State: QPSRTS}, AttrState); !errors.As(err, &invalid) || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an invalid step: %T %v", err, err)
	}
	s.lib.Fail("ibv_modify_qp", syscall.ENOMEM)
	if err := s.qp.Modify(QPAttr{State: QPSInit}, AttrState); errors.As(err, &invalid) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("no memory: %T %v", err, err)
	}
}

// TestFakeVanishes: every call on a removed device fails, and all can still be closed.
func TestFakeVanishes(t *testing.T) {
	s := newSet(t)
	if err := s.qp.PostRecv([]RecvWR{{ID: 1}}); err != nil {
		t.Fatal(err)
	}
	s.dev.Unplug()
	s.lib.RaiseAsync(s.c.Raw(), cgo.AsyncEvent{Type: int32(EventDeviceFatal)})
	s.device().Flush()
	if e, err := s.c.AsyncEvent(soon(t)); err != nil || e.Type != EventDeviceFatal {
		t.Errorf("the event is %v, %v", e, err)
	}
	var wcs [2]WC
	if n, err := s.cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Status != WCWRFlushErr {
		t.Errorf("polled %+v, %v", wcs[:n], err)
	}
	s.lib.Fail("ibv_post_recv", syscall.EIO)
	if err := s.qp.PostRecv([]RecvWR{{ID: 2}}); !errors.Is(err, syscall.EIO) {
		t.Errorf("PostRecv: %v", err)
	}
	if _, err := open(s.lib, "fake0"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Open: %v", err)
	}
	for _, o := range []interface{ Close() error }{s.srq, s.qp, s.mw, s.cq, s.ch, s.mr, s.pd, s.c} {
		if err := o.Close(); err != nil {
			t.Errorf("closing %T: %v", o, err)
		}
	}
}
