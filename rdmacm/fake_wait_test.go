//go:build linux && cgo

package rdmacm_test

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// arrive completes the oldest receive with success.
func (l *link) arrive() { l.qp.Recvs()[0].Complete(cgotest.Success, []byte("x")) }

// armed waits until the next completion raises an event. Every waiter is parked then, or about to be.
func (l *link) armed() {
	l.t.Helper()
	for late := time.Now().Add(limit); !l.cq.Armed(); runtime.Gosched() {
		if time.Now().After(late) {
			l.t.Fatal("the queue is not armed")
		}
	}
}

// TestFakeArmingRace: a completion that comes between the poll that finds nothing and
// the arming raises no event, so the queue is polled again once it is armed. One that
// comes before the poll or after the arming has to be noticed as well.
func TestFakeArmingRace(t *testing.T) {
	for _, shared := range []int{0, 4096} {
		cfg := rdmacm.Config{Wait: rdmacm.WaitEvent, SharedCQ: shared}
		for _, tc := range []struct {
			name string
			when func(l *link, arrive func())
		}{
			{"before the poll", func(l *link, arrive func()) { l.cq.OnPoll(arrive) }},
			{"before the arming", func(l *link, arrive func()) { l.cq.OnArm(arrive) }},
			{"after the arming", func(l *link, arrive func()) {
				l.cq.OnArm(func() { l.cq.OnPoll(arrive) })
			}},
			{"parked", func(l *link, arrive func()) {
				go func() {
					for !l.cq.Armed() {
						runtime.Gosched()
					}
					arrive()
				}()
			}},
		} {
			t.Run(modeName(cfg)+" "+tc.name, func(t *testing.T) {
				l := newRig(t, cfg).connect(fabric.ConnAttr{})
				for id := range uint64(50) {
					if l.cq.Armed() { // since the last round: an event uses that up
						l.recv(1000)
						l.arrive()
						l.want(outcome{1000, fabric.WCRecv, ok})
					}
					l.recv(id)
					tc.when(l, l.arrive)
					if err := arrives(t, "Wait", later(l.Wait)); err != nil {
						t.Fatal(err)
					}
					l.want(outcome{id, fabric.WCRecv, ok})
				}
			})
		}
	}
}

// TestFakeArmedOnce: a queue that is armed and has raised no event is not armed again,
// and never polled more than needed: each is a call into the device.
func TestFakeArmedOnce(t *testing.T) {
	l := newRig(t, rdmacm.Config{Wait: rdmacm.WaitEvent}).connect(fabric.ConnAttr{})
	stats := l.Conn.(*rdmacm.Conn).Stats
	before := stats().PollCounts
	for range 20 {
		l.Wake()
		if err := arrives(t, "Wait", later(l.Wait)); err != nil {
			t.Fatal(err)
		}
	}
	if got := stats().Arms - before.Arms; got > 1 {
		t.Errorf("armed %d times without an event", got)
	}
	for id := uint64(1); stats().Events == before.Events; id++ { // see TestFakeAcknowledged
		l.recv(id)
		waiting := later(l.Wait)
		l.armed()
		l.arrive()
		if err := arrives(t, "Wait", waiting); err != nil {
			t.Fatal(err)
		}
		l.want(outcome{id, fabric.WCRecv, ok})
	}
	if got := stats(); got.Arms-before.Arms > got.Events-before.Events+1 {
		t.Errorf("armed %d times for %d events", got.Arms-before.Arms, got.Events-before.Events)
	}
}

// TestFakeAcknowledged: events are acknowledged in bulk, and all of them before the completion queue
// is destroyed, which would wait for the rest forever. The fake reports those that are missing, and
// those that are too many.
func TestFakeAcknowledged(t *testing.T) {
	const bulk = 512
	for _, events := range []uint64{0, 1, bulk - 1, bulk, bulk + 3} {
		l := newRig(t, rdmacm.Config{Wait: rdmacm.WaitEvent}).connect(fabric.ConnAttr{})
		taken := func() uint64 { return l.Conn.(*rdmacm.Conn).Stats().Events }
		// A completion that arrives between the arming and the poll after it is polled, and its
		// event is left for the next Wait: rounds and events may differ in number.
		for id := uint64(0); taken() < events; id++ {
			l.recv(id)
			waiting := later(l.Wait)
			l.armed()
			l.arrive()
			if err := arrives(t, "Wait", waiting); err != nil {
				t.Fatal(err)
			}
			l.want(outcome{id, fabric.WCRecv, ok})
		}
		if got, want := l.cq.Unacked(), int(taken()%bulk); got != want {
			t.Errorf("after %d events %d are not acknowledged, want %d", taken(), got, want)
		}
		l.Close()
		if got := l.cq.Unacked(); got != 0 {
			t.Errorf("after Close %d events are not acknowledged", got)
		}
	}
}

// TestFakeEventLeft: an event may be left of a completion that was polled without waiting. It wakes
// at most one waiter for nothing, and is acknowledged.
func TestFakeEventLeft(t *testing.T) {
	l := newRig(t, rdmacm.Config{Wait: rdmacm.WaitEvent}).connect(fabric.ConnAttr{})
	l.recv(1, 2)
	l.Wake() // Wait arms and returns
	arrives(t, "Wait", later(l.Wait))
	waiting := later(l.Wait)
	l.armed()
	l.Wake()
	arrives(t, "Wait", waiting)
	l.arrive() // raises the event
	l.want(outcome{1, fabric.WCRecv, ok})
	waiting = later(l.Wait) // finds the event, and nothing polled
	l.armed()
	select {
	case err := <-waiting:
		t.Fatalf("Wait has returned for nothing: %v", err)
	default:
	}
	l.arrive()
	arrives(t, "Wait", waiting)
	l.want(outcome{2, fabric.WCRecv, ok})
}

// TestFakeSharedWaiting: of the goroutines that wait on a shared queue, one leads and is parked on
// its channel. A goroutine that polls hands completions to their connections and wakes only
// goroutines that wait for them. When the leader leaves, another goroutine leads.
func TestFakeSharedWaiting(t *testing.T) {
	r := newRig(t, rdmacm.Config{Wait: rdmacm.WaitEvent, SharedCQ: 8192})
	var links [3]*link
	var waiting [3]<-chan error
	for i := range links {
		links[i] = r.connect(fabric.ConnAttr{})
		links[i].recv(1, 2, 3, 4)
		if links[i].cq != links[0].cq {
			t.Fatal("the queue is not shared")
		}
	}
	wait := func(i, followers int) {
		t.Helper()
		waiting[i] = later(links[i].Wait)
		comes(t, "a waiter", func() bool { _, n := rdmacm.Waiters(links[i].Conn); return n == followers })
	}
	leader := func() int {
		t.Helper()
		at := -1
		comes(t, "a leader on an armed queue", func() bool {
			at = slices.IndexFunc(links[:], func(l *link) bool { leads, _ := rdmacm.Waiters(l.Conn); return leads })
			return at >= 0 && links[0].cq.Armed()
		})
		return at
	}
	waits := func(i int) {
		t.Helper()
		select {
		case err := <-waiting[i]:
			t.Fatalf("connection %d has nothing, and its Wait has returned: %v", i, err)
		default:
		}
	}
	got := func(i int, id uint64) {
		t.Helper()
		if err := arrives(t, "Wait", waiting[i]); err != nil {
			t.Fatal(err)
		}
		links[i].want(outcome{id, fabric.WCRecv, ok})
	}

	waiting[0] = later(links[0].Wait)
	if at := leader(); at != 0 {
		t.Fatalf("connection %d leads", at)
	}
	wait(1, 1)
	wait(2, 2)
	links[1].arrive() // the leader polls for a follower
	got(1, 1)
	waits(0)
	waits(2)
	wait(1, 2)
	links[0].arrive() // the leader has something itself, and leaves
	got(0, 1)
	next := leader()
	if next == 0 {
		t.Fatal("connection 0 leads, and does not wait")
	}
	waits(1)
	waits(2)
	links[1].arrive()
	got(1, 2)
	links[2].arrive()
	got(2, 1)

	// Closing the leader gives the lead away, too.
	waiting[0] = later(links[0].Wait)
	leader()
	wait(1, 1)
	wait(2, 2)
	links[0].Close()
	arrives(t, "Wait of the leader, which is closed", waiting[0])
	at := leader()
	follower := 3 - at
	links[follower].Close()
	arrives(t, "Wait of a follower, which is closed", waiting[follower])
	waits(at)
	links[at].arrive()
	got(at, map[int]uint64{1: 3, 2: 2}[at])
}

// TestFakeSharedPolling: with a shared queue Poll of one connection takes what is for
// others from the device, and keeps it for them: also what comes for a waiter.
func TestFakeSharedPolling(t *testing.T) {
	r := newRig(t, rdmacm.Config{Wait: rdmacm.WaitEvent, SharedCQ: 8192})
	a, b := r.connect(fabric.ConnAttr{}), r.connect(fabric.ConnAttr{})
	a.recv(1, 2)
	b.recv(1)
	b.arrive()
	a.arrive()
	a.want(outcome{1, fabric.WCRecv, ok})
	b.want(outcome{1, fabric.WCRecv, ok})

	waiting := later(a.Wait)
	a.armed()
	a.cq.OnPoll(a.arrive) // b polls it before the event has woken a
	b.want()
	if err := arrives(t, "Wait", waiting); err != nil {
		t.Fatal(err)
	}
	a.want(outcome{2, fabric.WCRecv, ok})
}

// TestFakeSharedNumber: the device may give the next queue pair the number of one that has gone.
// Completions of the old one that are left in a shared queue belong to neither.
func TestFakeSharedNumber(t *testing.T) {
	r := newRig(t, rdmacm.Config{SharedCQ: 8192})
	stays := r.connect(fabric.ConnAttr{}) // keeps the queue
	old := r.connect(fabric.ConnAttr{})
	old.recv(1, 2)
	old.post(old.wr(3, fabric.OpSend, 8, fabric.Signaled))
	old.qp.Flush() // and nothing polls
	old.qp.ReuseNum()
	old.Close()
	next := r.connect(fabric.ConnAttr{})
	if next.qp.Num() != old.qp.Num() || next.cq != stays.cq {
		t.Fatal("the next connection has another queue or number")
	}
	next.recv(11)
	next.post(next.wr(12, fabric.OpSend, 8, fabric.Signaled))
	next.want()
	next.arrive()
	next.qp.Sends()[0].Complete(cgotest.Success)
	next.want(outcome{11, fabric.WCRecv, ok}, outcome{12, fabric.WCSend, ok})
	// A completion without a connection is passed over.
	next.cq.Add(cgo.WC{ID: 1, QPNum: 9999})
	next.want()
}

// TestFakeSharedSize: connections get a shared queue as long as all that they can have
// outstanding fits into it, or else another one; what leaves makes place. The fake
// reports a queue that overruns.
func TestFakeSharedSize(t *testing.T) {
	r := newRig(t, rdmacm.Config{SharedCQ: 600})
	attr := fabric.ConnAttr{SendDepth: 32, RecvDepth: 96} // 129 with a request of the provider's
	var links []*link
	queues := func() (n int) {
		for _, kind := range r.lib.Live() {
			if kind == "cq" {
				n++
			}
		}
		return n
	}
	for i := range 5 {
		links = append(links, r.connect(attr))
		if want := 1 + i/4; queues() != want {
			t.Fatalf("%d queues for %d connections, want %d", queues(), i+1, want)
		}
	}
	for _, l := range links {
		for id := range uint64(96) {
			l.recv(id)
		}
		for id := range uint64(32) {
			l.post(l.wr(id, fabric.OpSend, 8, fabric.Signaled))
		}
		for _, s := range l.qp.Sends() {
			s.Complete(cgotest.Success)
		}
		for _, r := range l.qp.Recvs() {
			r.Complete(cgotest.Success, nil)
		}
	}
	links[4].Close()
	if queues() != 1 {
		t.Errorf("%d queues with 4 connections", queues())
	}
	links[0].Close()
	r.connect(attr)
	if queues() != 1 {
		t.Errorf("%d queues: the place of one that has left is not used", queues())
	}
	for _, l := range links {
		l.Close()
	}
	if queues() != 1 { // the last one's
		t.Errorf("%d queues with one connection", queues())
	}
}

// TestFakeSharedFails: a shared queue that cannot be polled any more ends all of its
// connections, with the device and the errno in the error.
func TestFakeSharedFails(t *testing.T) {
	r := newRig(t, rdmacm.Config{SharedCQ: 8192})
	a, b := r.connect(fabric.ConnAttr{}), r.connect(fabric.ConnAttr{})
	r.lib.Fail("ibv_poll_cq", syscall.EIO)
	a.Poll(make([]fabric.WC, 1)) // may or may not tell
	for _, l := range []*link{a, b} {
		l.ending()
		if end := l.wantEnd(); end.Cause == nil || end.Cause.Error() != "rdmacm: device fake0: ibv_poll_cq: input/output error" {
			t.Errorf("the end is %v", end)
		}
	}
}

// TestFakeWake: Wake ends the Wait of now or else the next one, in every mode, and only
// one.
func TestFakeWake(t *testing.T) {
	for _, cfg := range waitModes {
		t.Run(modeName(cfg), func(t *testing.T) {
			l := newRig(t, cfg).connect(fabric.ConnAttr{})
			l.Wake()
			if err := arrives(t, "Wait after Wake", later(l.Wait)); err != nil {
				t.Error(err)
			}
			waiting := later(l.Wait)
			if cfg.Wait != rdmacm.WaitPoll {
				l.armed()
			}
			select {
			case <-waiting:
				t.Error("one Wake has ended two Waits")
			default:
			}
			l.Wake()
			if err := arrives(t, "Wait before Wake", waiting); err != nil {
				t.Error(err)
			}
		})
	}
}
