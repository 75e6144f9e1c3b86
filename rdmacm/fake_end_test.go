//go:build linux && cgo

package rdmacm_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// Names for what tests want.
const (
	ok      = fabric.WCSuccess
	flushed = fabric.WCFlushErr
)

// TestFakeFlush: when the peer ends a connection, every outstanding request completes once at most
// and in order, whatever the device does with its queues: the caller gets its memory back with the
// completions and with nothing else. Devices flush all requests, or only signaled ones, or nothing
// until the queue pair is destroyed, and some drop the completions of a queue pair that is destroyed.
func TestFakeFlush(t *testing.T) {
	flushAll := func(qp *cgotest.QP) { qp.Flush() }
	flushSignaled := func(qp *cgotest.QP) {
		for _, s := range qp.Sends() {
			if s.Signaled() {
				s.Complete(cgotest.FlushErr)
			} else {
				s.Forget()
			}
		}
	}
	nothing := func(*cgotest.QP) {}
	everything := []outcome{
		{2, fabric.WCRecv, flushed}, {3, fabric.WCRecv, flushed},
		{12, fabric.WCWrite, flushed}, {13, fabric.WCSend, flushed}, {14, fabric.WCSend, flushed}, {15, fabric.WCWrite, flushed},
	}
	// A request that is not signaled, before the first known failure, may have succeeded, but nothing
	// asks for its completion.
	fromSignaled := slices.Concat(everything[:2], everything[4:])
	for _, tc := range []struct {
		name    string
		device  []option
		flushes func(*cgotest.QP)
		want    []outcome
	}{
		{"device flushes all", nil, flushAll, everything},
		{"device flushes what is signaled", nil, flushSignaled, fromSignaled},
		{"device flushes nothing", nil, nothing, everything},
		{"device flushes nothing and cleans its queue", []option{cleaning}, nothing, everything},
		{"siw flushes all", []option{asSIW}, flushAll, everything},
		{"siw flushes what is signaled", []option{asSIW}, flushSignaled, fromSignaled},
		{"siw flushes nothing", []option{asSIW}, nothing, everything},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, tc.device...).connect(fabric.ConnAttr{})
			l.recv(1, 2, 3)
			l.post(
				l.wr(11, fabric.OpSend, 64, fabric.Signaled),
				l.wr(12, fabric.OpWrite, 64, 0),
				l.wr(13, fabric.OpSend, 64, 0),
				l.wr(14, fabric.OpSend, 64, fabric.Signaled),
				l.wr(15, fabric.OpWrite, 64, 0),
			)
			l.qp.Recvs()[0].Complete(cgotest.Success, []byte("hello"))
			l.qp.Sends()[0].Complete(cgotest.Success)
			l.want(outcome{1, fabric.WCRecv, ok}, outcome{11, fabric.WCSend, ok})
			tc.flushes(l.qp)
			l.disconnected()
			l.ending()
			got, err := l.polled()
			// Receives and sends are two queues: each is in order.
			slices.SortStableFunc(got, func(a, b outcome) int { return int(min(a.ID, 10)) - int(min(b.ID, 10)) })
			if !slices.Equal(got, tc.want) {
				t.Errorf("polled %v, want %v", got, tc.want)
			}
			var end *fabric.ConnError
			if !errors.As(err, &end) || !end.Remote || end.Clean {
				t.Errorf("the end is %+v, want one of the peer's, and not clean: requests were cut short", err)
			}
		})
	}
}

// TestFakeCleanEnd: an end of the peer's that cuts nothing short that the caller waits
// for is clean, even if receives are outstanding.
func TestFakeCleanEnd(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{})
	l.recv(1)
	l.post(l.wr(11, fabric.OpSend, 64, 0))
	l.disconnected()
	l.ending()
	end := l.wantEnd(outcome{11, fabric.WCSend, flushed}, outcome{1, fabric.WCRecv, flushed})
	if !end.Remote || !end.Clean || end.Cause != nil {
		t.Errorf("the end is %+v", end)
	}
}

// TestFakeCompletedBeforeTheEnd: requests that the device completed before the end do not fail with
// the connection, even if they were not polled in time: not even when the event of the end comes
// first.
func TestFakeCompletedBeforeTheEnd(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{})
	l.recv(1, 2)
	l.post(l.wr(11, fabric.OpSend, 64, fabric.Signaled), l.wr(12, fabric.OpSend, 64, fabric.Signaled))
	l.qp.Sends()[0].Complete(cgotest.Success)
	l.qp.Recvs()[0].Complete(cgotest.Success, []byte("last words"))
	l.disconnected()
	l.ending()
	l.wantEnd(
		outcome{11, fabric.WCSend, ok}, outcome{1, fabric.WCRecv, ok},
		outcome{12, fabric.WCSend, flushed}, outcome{2, fabric.WCRecv, flushed},
	)
}

// TestFakeLastCompletions: a device may still complete requests while the connection is
// being ended. They are taken before the queue pair is destroyed, until the queue is empty: which
// takes more than one poll of 32, or they would be reported as flushed. A device that cleans its
// queues has dropped them after that.
func TestFakeLastCompletions(t *testing.T) {
	for name, machine := range map[string][]option{"keeps": nil, "cleans": {cleaning}} {
		t.Run(name, func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, machine...).connect(fabric.ConnAttr{})
			var want []outcome
			for id := range uint64(100) {
				l.recv(id)
				want = append(want, outcome{id, fabric.WCRecv, ok})
			}
			l.id.OnDisconnect(func() {
				for _, r := range l.qp.Recvs() {
					r.Complete(cgotest.Success, nil)
				}
			})
			l.disconnected()
			l.ending()
			l.wantEnd(want...)
		})
	}
}

// TestFakeFailedRequest: the first request that fails ends the connection with its reason. Requests
// after it that succeeded are reported as flushed: the peer's state is not known from there on.
func TestFakeFailedRequest(t *testing.T) {
	for _, tc := range []struct {
		status  int32
		remote  bool
		flags   fabric.SendFlags
		machine []option
	}{
		{cgotest.LocProtErr, false, fabric.Signaled, nil},
		{cgotest.LocProtErr, false, 0, nil}, // failures are reported even if successes are not
		{cgotest.RetryErr, true, fabric.Signaled, nil},
		{cgotest.RetryErr, true, 0, []option{asSIW}},
	} {
		t.Run(fmt.Sprint(tc.status, " ", tc.flags, " ", len(tc.machine)), func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, tc.machine...).connect(fabric.ConnAttr{})
			l.post(l.wr(1, fabric.OpWrite, 64, 0), l.wr(2, fabric.OpWrite, 64, tc.flags), l.wr(3, fabric.OpSend, 64, fabric.Signaled))
			sends := l.qp.Sends()
			sends[0].Complete(cgotest.Success)
			sends[1].Complete(tc.status)
			sends[2].Complete(cgotest.Success)
			end := l.wantEnd(
				outcome{2, fabric.WCWrite, fabric.WCStatus(tc.status)}, outcome{3, fabric.WCSend, flushed},
			)
			var cause *rdmacm.WCError
			if !errors.As(end, &cause) || cause.Status != fabric.WCStatus(tc.status) || end.Remote != tc.remote || end.Clean {
				t.Errorf("the end is %+v", end)
			}
		})
	}
}

// TestFakeDeviceRemoved: the reason of an end is the removal of the device, however the news arrives:
// by the event, by requests that fail before it, or by polling that fails. The error blames nothing
// else, and names the device and the errno.
func TestFakeDeviceRemoved(t *testing.T) {
	const locQPOpErr = 2 // what siw says of its removal
	removal := func(r *rig, l *link) { l.id.Raise(cgo.CMEvent{Type: cgotest.DeviceRemoval}) }
	for _, tc := range []struct {
		name    string
		options []option
		happens func(r *rig, l *link)
		errno   syscall.Errno
	}{
		{"event", nil, removal, syscall.ENODEV},
		{"flushed, then event", nil, func(r *rig, l *link) {
			r.lib.Manual = true // nothing answers rdma_disconnect any more
			l.qp.Flush()
			l.polled()
			removal(r, l)
		}, syscall.ENODEV},
		{"siw's status, then event", []option{asSIW}, func(r *rig, l *link) {
			l.qp.Sends()[0].Complete(locQPOpErr)
			l.polled()
			removal(r, l)
		}, syscall.ENODEV},
		{"polling fails", nil, func(r *rig, l *link) { r.lib.Fail("ibv_poll_cq", syscall.EIO); l.Poll(make([]fabric.WC, 1)) }, syscall.EIO},
		{"posting fails", nil, func(r *rig, l *link) {
			r.lib.Fail("ibv_post_recv", syscall.ENODEV)
			l.recv(9)
		}, syscall.ENODEV},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, rdmacm.Config{}, tc.options...)
			l := r.connect(fabric.ConnAttr{})
			l.post(l.wr(1, fabric.OpSend, 64, fabric.Signaled))
			tc.happens(r, l)
			l.ending()
			_, err := l.polled()
			var end *fabric.ConnError
			var dev *rdmacm.DeviceError
			if !errors.As(err, &end) || !errors.As(err, &dev) || !errors.Is(err, tc.errno) || dev.Device != "fake0" || end.Remote || end.Clean {
				t.Fatalf("the end is %+v, want a DeviceError with %v", err, tc.errno)
			}
			if err := l.Post([]fabric.SendWR{l.wr(2, fabric.OpSend, 64, 0)}); !errors.As(err, &dev) {
				t.Errorf("Post afterwards: %v", err)
			}
			if _, err := l.RegMR(make([]byte, 8), 0); err != nil {
				t.Errorf("RegMR before Close: %v", err)
			}
			l.Close()
			if _, err := l.RegMR(make([]byte, 8), 0); !errors.As(err, &dev) {
				t.Errorf("RegMR after Close: %v", err)
			}
		})
	}
}

// TestFakeDeviceForgotten: after its removal a device is forgotten, since another one
// may take its address; and librdmacm is made to let go of it with the last connection,
// not before: the kernel waits for that.
func TestFakeDeviceForgotten(t *testing.T) {
	r := newRig(t, rdmacm.Config{})
	a, b := r.connect(fabric.ConnAttr{}), r.connect(fabric.ConnAttr{})
	for _, l := range []*link{a, b} {
		l.id.Raise(cgo.CMEvent{Type: cgotest.DeviceRemoval})
		l.ending()
	}
	r.lib.Calls()
	a.Close()
	if calls := r.lib.Calls(); slices.Contains(calls, "rdma_get_devices") {
		t.Errorf("librdmacm lets go with a connection left: %q", calls)
	}
	b.Close()
	if calls := r.lib.Calls(); !slices.Contains(calls, "rdma_get_devices") {
		t.Errorf("librdmacm does not let go with the last connection: %q", calls)
	}
	r.dev.Attr.MaxSGE = 3 // the next device at this address
	if got := r.connect(fabric.ConnAttr{}).Capabilities().MaxSendSGE; got != 3 {
		t.Errorf("a new connection has %d SGEs: the old device's", got)
	}
}

// TestFakeDestruction: Close gives everything back, children before parents: rxe waits
// for windows that hold a queue pair, and memory of a destroyed object is used again.
func TestFakeDestruction(t *testing.T) {
	destroys := []string{
		"ibv_dealloc_mw", "rdma_destroy_qp", "ibv_destroy_cq", "ibv_destroy_comp_channel", "ibv_dereg_mr", "rdma_destroy_id", "ibv_dealloc_pd",
	}
	r := newRig(t, rdmacm.Config{})
	l := r.connect(fabric.ConnAttr{})
	mw, err := l.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mw.Prepare(fabric.SGE{Buf: l.mr.Bytes()[:64], LKey: l.mr.LKey()}, fabric.AccessRemoteRead); err != nil {
		t.Fatal(err)
	}
	l.post(fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
	l.qp.Sends()[0].Complete(cgotest.Success)
	r.lib.Calls()
	l.Close()
	var got []string
	for _, call := range r.lib.Calls() {
		if call != "rdma_disconnect" {
			got = append(got, call)
		}
	}
	if !slices.Equal(got, destroys) {
		t.Errorf("destroyed in the order\n%q, want\n%q", got, destroys)
	}
	l.Close()
	if calls := r.lib.Calls(); len(calls) > 0 {
		t.Errorf("the second Close calls %q", calls)
	}
	rdmacm.Retire(r.p)
	if calls := r.lib.Calls(); !slices.Equal(calls, []string{"rdma_destroy_event_channel"}) {
		t.Errorf("the provider's last user has gone: %q", calls)
	}
}

// TestFakeSetUpFails: a call of set-up that fails is an error with its errno, and nothing made before
// remains: the fake checks that at the end.
func TestFakeSetUpFails(t *testing.T) {
	const errno = syscall.ENOSPC // which nothing has an explanation for
	for _, call := range []string{
		"rdma_create_event_channel", "rdma_create_id", "rdma_set_option", "rdma_resolve_addr", "rdma_resolve_route", "ibv_query_port",
		"ibv_alloc_pd", "ibv_create_comp_channel", "ibv_create_cq", "rdma_create_qp", "rdma_connect",
	} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, rdmacm.Config{TOS: 8})
			rdmacm.Retire(r.p) // New has opened a channel
			r.lib.Fail(call, errno)
			c, err := r.p.Resolve(soon(t), fakePeer, fabric.ConnAttr{})
			if err == nil {
				err = c.Connect(soon(t), nil)
				c.Close()
			}
			if !errors.Is(err, errno) {
				t.Errorf("the error is %v, want %v in it", err, errno)
			}
			r.connect(fabric.ConnAttr{}) // and the next one works
		})
	}
}

// TestFakeRegistrationFails: a region that cannot be registered is an error with its
// errno, and the connection goes on.
func TestFakeRegistrationFails(t *testing.T) {
	r := newRig(t, rdmacm.Config{})
	l := r.connect(fabric.ConnAttr{})
	before := r.p.OpenObjects()
	r.lib.Fail("ibv_reg_mr", syscall.ENOMEM)
	_, err := l.RegMR(make([]byte, 4096), fabric.AccessLocalWrite)
	var locked *ibv.MemlockError
	var plain *ibv.Error
	if !errors.Is(err, syscall.ENOMEM) || !errors.As(err, &plain) && !errors.As(err, &locked) {
		t.Errorf("RegMR: %T %v", err, err)
	}
	r.lib.Fail("ibv_alloc_mw", syscall.ENOMEM)
	if _, err := l.AllocMW(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("AllocMW: %v", err)
	}
	if now := r.p.OpenObjects(); now != before {
		t.Errorf("the provider counts %+v, before the failures %+v", now, before)
	}
	l.post(l.wr(1, fabric.OpSend, 8, fabric.Signaled))
	l.qp.Sends()[0].Complete(cgotest.Success)
	l.want(outcome{1, fabric.WCSend, ok})
}

// TestFakeInlineIsFound: no verb returns how much inline data a device accepts, so it is found by
// trying, once for each device.
func TestFakeInlineIsFound(t *testing.T) {
	r := newRig(t, rdmacm.Config{MaxInline: 400}, func(_ *cgotest.Library, d *cgotest.Device) { d.MaxInline = 120 })
	tries := func() (n int) {
		for _, call := range r.lib.Calls() {
			if call == "rdma_create_qp" {
				n++
			}
		}
		return n
	}
	r.connect(fabric.ConnAttr{})
	if n := tries(); n != 3 {
		t.Errorf("%d tries, want those of 400, 200 and 100 bytes", n)
	}
	l := r.connect(fabric.ConnAttr{})
	if n := tries(); n != 1 {
		t.Errorf("%d tries for the second connection", n)
	}
	const inline = 1 << 3
	l.post(l.wr(1, fabric.OpSend, 100, 0), l.wr(2, fabric.OpSend, 101, 0), l.wr(3, fabric.OpRead, 8, 0))
	for i, want := range []bool{true, false, false} {
		if got := l.qp.Sends()[i].Flags&inline != 0; got != want {
			t.Errorf("request %d is inline: %v", i+1, got)
		}
	}
}

// TestFakeFreedMeanwhile: memory that is registered or freed while Close runs does not keep the
// protection domain, of which the fake reports what is left.
func TestFakeFreedMeanwhile(t *testing.T) {
	r := newRig(t, rdmacm.Config{})
	for range 300 {
		l := r.connect(fabric.ConnAttr{})
		var wg sync.WaitGroup
		for _, f := range []func(){
			func() { l.mr.Close() },
			func() { l.RegMR(make([]byte, 64), fabric.AccessLocalWrite) },
			func() { l.AllocMW() },
			func() { l.Close() },
		} {
			wg.Go(f)
		}
		wg.Wait()
	}
}

// TestFakeDisconnectAnswers: Disconnect answers a peer that has disconnected first, which waits for it.
func TestFakeDisconnectAnswers(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{})
	l.disconnected()
	l.ending()
	l.r.lib.Calls()
	if err := l.Disconnect(soon(t)); err != nil {
		t.Error(err)
	}
	if n := count(l.r.lib.Calls(), "rdma_disconnect"); n != 1 {
		t.Errorf("%d calls of rdma_disconnect", n)
	}
}
