//go:build linux && cgo

package cgotest

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// A spy is a test with errors that are looked at instead of reported.
type spy struct {
	testing.TB
	errs     []string
	cleanups []func()
}

func (s *spy) Errorf(format string, args ...any) {
	s.errs = append(s.errs, fmt.Sprintf(format, args...))
}
func (s *spy) Failed() bool     { return len(s.errs) > 0 }
func (s *spy) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

// end runs what the test would at its end.
func (s *spy) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// A kit is one of each object, with a spy as the test.
type kit struct {
	f   *Library
	ctx *cgo.Context
	pd  *cgo.PD
	mr  *cgo.MR
	mw  *cgo.MW
	ch  *cgo.CompChannel
	cq  *cgo.CQ
	qp  *cgo.QP
}

func newKit(t testing.TB) *kit {
	t.Helper()
	f := New(t)
	f.AddDevice("fake0", netip.MustParseAddr("192.0.2.1"))
	list, free, _ := f.GetDeviceList()
	defer free()
	k := &kit{f: f}
	k.ctx, _ = f.OpenDevice(list[0])
	k.pd, _ = f.AllocPD(k.ctx)
	k.mr, _, _, _ = f.RegMR(k.pd, make([]byte, 8), 0)
	k.mw, _, _ = f.AllocMW(k.pd, 2)
	k.ch, _ = f.CreateCompChannel(k.ctx)
	k.cq, _ = f.CreateCQ(k.ctx, 2, k.ch, 0)
	k.qp, _, _ = f.CreateQP(k.pd, cgo.QPInit{SendCQ: k.cq, RecvCQ: k.cq, Cap: cgo.QPCap{MaxSendWR: 2, MaxRecvWR: 2}})
	return k
}

// close destroys what has not been destroyed, in the right order.
func (k *kit) close() {
	f := k.f
	f.DeallocMW(k.mw)
	f.DestroyQP(k.qp)
	f.DestroyCQ(k.cq)
	f.DestroyCompChannel(k.ch)
	f.DeregMR(k.mr)
	f.DeallocPD(k.pd)
	f.CloseDevice(k.ctx)
}

// send posts one request without elements.
func (k *kit) send(wr cgo.SendWR) syscall.Errno {
	var out cgo.Outcome
	cgo.Progress(k.f, k.qp, nil, nil, nil, nil, []cgo.SendWR{wr}, nil, nil, 0, &out)
	return syscall.Errno(out.SendErr)
}

// poll polls for up to 4 completions.
func (k *kit) poll(flags uint32) cgo.Outcome {
	var out cgo.Outcome
	cgo.Progress(k.f, nil, nil, k.cq, k.ch, nil, nil, nil, make([]cgo.WC, 4), flags, &out)
	return out
}

// TestReports: the fake reports what is fatal with rdma-core, and nothing else.
func TestReports(t *testing.T) {
	for _, tc := range []struct {
		name   string
		f      func(k *kit)
		report string // empty: none
	}{
		{"in order", func(*kit) {}, ""},
		{"queue pair after its queue", func(k *kit) { k.f.DestroyCQ(k.cq) }, "a cq is destroyed that 1 objects use"},
		{"domain with children", func(k *kit) { k.f.DeallocPD(k.pd) }, "a pd is destroyed that 3 objects use"},
		{"region with a window bound", func(k *kit) {
			k.send(cgo.SendWR{Opcode: opBindMW, MW: k.mw.Word(), MR: k.mr.Word(), RKey: 7})
			k.f.QP(k.qp).Sends()[0].Complete(Success)
			k.f.DeregMR(k.mr)
		}, "a mr is destroyed that 1 objects use"},
		{"channel before its queue", func(k *kit) { k.f.DestroyCompChannel(k.ch) }, "a channel is destroyed that 1 objects use"},
		{"twice", func(k *kit) { k.f.DeallocMW(k.mw); k.f.DeallocMW(k.mw) }, "a mw is used that has been destroyed"},
		{"post after destruction", func(k *kit) { k.f.DestroyQP(k.qp); k.send(cgo.SendWR{}) }, "a qp is used that has been destroyed"},
		{"completed twice", func(k *kit) {
			k.send(cgo.SendWR{ID: 5, Flags: sendSignaled})
			s := k.f.QP(k.qp).Sends()[0]
			s.Complete(Success)
			s.Complete(Success)
		}, "request 0x5 is completed twice"},
		{"overrun", func(k *kit) {
			for range 3 {
				k.f.CQ(k.cq).Add(cgo.WC{})
			}
		}, "a completion queue of 2 entries has overrun"},
		{"events not acknowledged", func(k *kit) {
			k.f.ReqNotifyCQ(k.cq, false)
			k.f.CQ(k.cq).Add(cgo.WC{})
			k.f.GetCQEvent(k.ch)
		}, "ibv_destroy_cq waits for ever: 1 events"},
		{"events acknowledged too often", func(k *kit) { k.f.AckCQEvents(k.cq, 1) }, "1 events are acknowledged more than were taken"},
		{"an event not taken goes with its queue", func(k *kit) { k.f.ReqNotifyCQ(k.cq, false); k.f.CQ(k.cq).Add(cgo.WC{}) }, ""},
		{"something is left", func(k *kit) { k.f.AllocPD(k.ctx) }, "a context is destroyed that 1 objects use"},
		{"invalidation of nothing", func(k *kit) {
			k.send(cgo.SendWR{Opcode: opLocalInv, Imm: 9})
			k.f.QP(k.qp).Sends()[0].Complete(Success)
		}, "key 0x9 is invalidated, and no window"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &spy{TB: t}
			k := newKit(s)
			tc.f(k)
			k.close()
			s.end()
			if report := strings.Join(s.errs, "\n"); tc.report == "" && report != "" || !strings.Contains(report, tc.report) {
				t.Errorf("reported %q, want %q", report, tc.report)
			}
			k.release()
		})
	}
}

// release closes the descriptors of what could not be destroyed.
func (k *kit) release() {
	if !contextOf(k.ctx).gone {
		contextOf(k.ctx).async.close()
	}
	if !channelOf(k.ch).gone {
		channelOf(k.ch).signal.close()
	}
}

// TestLeft: at the end of the test the fake lists what has not been destroyed.
func TestLeft(t *testing.T) {
	s := &spy{TB: t}
	k := newKit(s)
	s.end()
	if len(s.errs) != 1 || !strings.Contains(s.errs[0], `not destroyed: ["context" "pd" "mr" "mw" "channel" "cq" "qp"]`) {
		t.Errorf("reported %q", s.errs)
	}
	k.close()
}

// TestPlaces: a place in the send queue comes back when the completion of that request,
// or of a later one, has been polled: as with a device, not when it has been executed.
func TestPlaces(t *testing.T) {
	k := newKit(t)
	defer k.close()
	qp := k.f.QP(k.qp)
	k.send(cgo.SendWR{ID: 1})
	k.send(cgo.SendWR{ID: 2, Flags: sendSignaled})
	for _, s := range qp.Sends() {
		s.Complete(Success)
	}
	if errno := k.send(cgo.SendWR{ID: 3}); errno != syscall.ENOMEM {
		t.Errorf("a third request of 2 before polling: %v", errno)
	}
	if out := k.poll(0); out.WCs != 1 {
		t.Errorf("polled %+v, want the one that is signaled", out)
	}
	for id := range uint64(2) {
		if errno := k.send(cgo.SendWR{ID: 3 + id}); errno != 0 {
			t.Errorf("request %d after polling: %v", 3+id, errno)
		}
	}
}

// TestProgressOrder: the fake polls, arms and polls like the real one: it arms an empty
// queue only, and one that is armed only when its event has been taken.
func TestProgressOrder(t *testing.T) {
	k := newKit(t)
	defer k.close()
	cq := k.f.CQ(k.cq)
	steps := []struct {
		name  string
		do    func()
		flags uint32
		want  cgo.Outcome
	}{
		{"something there", func() { cq.Add(cgo.WC{}) }, cgo.Arm, cgo.Outcome{WCs: 1}},
		{"empty", nil, cgo.Arm, cgo.Outcome{Armed: 1}},
		{"armed", nil, cgo.Arm | cgo.TakeEvent, cgo.Outcome{}},
		{"event and completion", func() { cq.Add(cgo.WC{}) }, cgo.Arm | cgo.TakeEvent, cgo.Outcome{Events: 1, WCs: 1}},
		{"not armed, no event", nil, cgo.Arm | cgo.TakeEvent, cgo.Outcome{}},
		{"completion while arming", func() { cq.OnArm(func() { cq.Add(cgo.WC{}) }) }, cgo.Arm, cgo.Outcome{Armed: 1, WCs: 1}},
		{"event that is late", func() { cq.Add(cgo.WC{}); k.poll(0) }, cgo.Arm | cgo.TakeEvent, cgo.Outcome{Events: 1, Armed: 1}},
	}
	for _, step := range steps {
		if step.do != nil {
			step.do()
		}
		out := k.poll(step.flags)
		if out != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, out, step.want)
		}
		k.f.AckCQEvents(k.cq, out.Events)
	}
}
