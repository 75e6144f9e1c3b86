//go:build linux && cgo

package rdmacm_test

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// Opcodes of enum ibv_wr_opcode.
const (
	verbWrite = 0
	verbSend  = 2
	verbRead  = 4
)

// TestFakeEarlyCompletion: a request may complete before the call that posts it has
// returned, and another goroutine may poll the completion by then: it finds the request
// in the queue.
func TestFakeEarlyCompletion(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options []option
	}{{"InfiniBand", nil}, {"siw", []option{asSIW}}} {
		t.Run(tc.name, func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, tc.options...).connect(fabric.ConnAttr{})
			l.qp.OnPost(func() {
				for _, s := range l.qp.Sends() {
					s.Complete(cgotest.Success)
				}
				returns(t, "Poll within Post", func() {
					l.want(outcome{1, fabric.WCSend, ok}, outcome{2, fabric.WCWrite, ok})
				})
			})
			l.post(l.wr(1, fabric.OpSend, 64, fabric.Signaled), l.wr(2, fabric.OpWrite, 64, fabric.Signaled))
			l.want()
			l.qp.OnPost(func() {
				l.qp.Recvs()[0].Complete(cgotest.Success, []byte("early"))
				returns(t, "Poll within PostRecv", func() { l.want(outcome{3, fabric.WCRecv, ok}) })
			})
			l.recv(3)
			l.want()
		})
	}
}

// TestFakeSilentByLater: an unsignaled request that succeeds has no completion. Its
// place in the queue comes back with a later signaled one, and its caller hears
// nothing of it.
func TestFakeSilentByLater(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{SendDepth: 64})
	l.post(l.wr(1, fabric.OpWrite, 64, 0), l.wr(2, fabric.OpWrite, 64, 0), l.wr(3, fabric.OpSend, 64, fabric.Signaled), l.wr(4, fabric.OpWrite, 64, 0))
	for _, s := range l.qp.Sends() {
		s.Complete(cgotest.Success)
	}
	l.want(outcome{3, fabric.WCSend, ok})
	room := 0
	for l.Post([]fabric.SendWR{l.wr(9, fabric.OpSend, 8, 0)}) == nil {
		room++
	}
	if room != 63 { // all but the one after the completion
		t.Errorf("room for %d more requests of 64, with one outstanding", room)
	}
}

// TestFakeDeferred: of requests that are deferred one in 16 is signaled and reported, in a
// short queue one in a quarter of its length signaled, and of requests that ask for
// nothing one in 32, whatever length their lists have.
func TestFakeDeferred(t *testing.T) {
	const n = 64
	for _, tc := range []struct {
		flags         fabric.SendFlags
		depth, list   int
		signal, every int // each how many are signaled and reported
	}{
		{fabric.Deferred, 128, 1, 16, 16},
		{fabric.Deferred, 128, 64, 16, 16},
		{fabric.Deferred, 64, 7, 16, 16},
		{fabric.Deferred, 16, 4, 4, 16},
		{0, 128, 5, 32, 0},
		{0, 16, 2, 4, 0},
		{fabric.Signaled, 16, 2, 1, 1},
		{fabric.Signaled | fabric.Deferred, 16, 2, 1, 1},
	} {
		t.Run(fmt.Sprint(tc.flags, " ", tc.depth, " ", tc.list), func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{SendDepth: tc.depth})
			var signaled, reported, wantSignaled, wantReported []uint64
			for id := uint64(1); id <= n; {
				var wrs []fabric.SendWR
				for ; id <= n && len(wrs) < tc.list; id++ {
					wrs = append(wrs, l.wr(id, fabric.OpSend, 1024, tc.flags)) // too long to be inline
					if id%uint64(tc.signal) == 0 {
						wantSignaled = append(wantSignaled, id)
					}
					if tc.every > 0 && id%uint64(tc.every) == 0 {
						wantReported = append(wantReported, id)
					}
				}
				l.post(wrs...)
				for i, s := range l.qp.Sends() {
					if s.Signaled() {
						signaled = append(signaled, wrs[i].ID)
					}
				}
				// The device reports those that are signaled, and those before them.
				for _, s := range l.qp.Sends() {
					s.Complete(cgotest.Success)
				}
				got, err := l.polled()
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range got {
					reported = append(reported, o.ID)
				}
			}
			if !slices.Equal(signaled, wantSignaled) || !slices.Equal(reported, wantReported) {
				t.Errorf("signaled %v, want %v; reported %v, want %v", signaled, wantSignaled, reported, wantReported)
			}
		})
	}
}

// TestFakeTold: deferred requests with inline data, which the library has copied, are reported
// together with something else, although the device signals none of them.
func TestFakeTold(t *testing.T) {
	const d = fabric.Deferred
	begin := func(t *testing.T, options ...option) *link {
		l := newRig(t, rdmacm.Config{}, options...).connect(fabric.ConnAttr{SendDepth: 128})
		l.recv(101, 102, 103)
		return l
	}
	receive := func(l *link) { l.qp.Recvs()[0].Complete(cgotest.Success, nil) }
	send := func(l *link, n int, ids ...uint64) {
		for _, id := range ids {
			l.post(l.wr(id, fabric.OpSend, n, d))
		}
	}

	t.Run("the latest stands for all", func(t *testing.T) {
		l := begin(t)
		send(l, 8, 1)
		receive(l)
		l.want(outcome{101, fabric.WCRecv, ok}) // one is not enough
		send(l, 8, 2)
		l.want() // nothing else has arrived
		receive(l)
		l.want(outcome{102, fabric.WCRecv, ok}, outcome{2, fabric.WCSend, ok})
		receive(l)
		l.want(outcome{103, fabric.WCRecv, ok})
		for id := uint64(3); id <= 17; id++ { // the count has begun anew
			send(l, 8, id)
		}
		for _, s := range l.qp.Sends() {
			if s.Signaled() {
				t.Fatal("a request is signaled")
			}
		}
	})

	t.Run("they keep their places in the queue until a later one completes", func(t *testing.T) {
		l := begin(t)
		send(l, 8, 1, 2, 3, 4)
		receive(l)
		l.want(outcome{101, fabric.WCRecv, ok}, outcome{4, fabric.WCSend, ok})
		room := 0
		for l.Post([]fabric.SendWR{l.wr(9, fabric.OpWrite, 8, 0)}) == nil {
			room++
		}
		if room != 124 {
			t.Errorf("room for %d more of 128 requests, with 4 outstanding", room)
		}
	})

	t.Run("not before a request in front of them", func(t *testing.T) {
		for _, op := range []fabric.Opcode{fabric.OpSend, fabric.OpWrite} {
			for _, flags := range []fabric.SendFlags{0, d, fabric.Signaled} {
				l := begin(t)
				l.post(l.wr(1, op, 1024, flags))
				send(l, 8, 2, 3, 4, 5)
				receive(l)
				l.want(outcome{101, fabric.WCRecv, ok})
				for _, s := range l.qp.Sends() {
					s.Complete(cgotest.Success)
				}
				receive(l)
				got, err := l.polled()
				if err != nil || slices.Contains(got, outcome{5, fabric.WCSend, ok}) != (flags == fabric.Signaled) {
					t.Errorf("opcode %d, flags %d: polled %v, %v", op, flags, got, err)
				}
			}
		}
	})

	t.Run("a request without a completion is no obstacle once it is copied, or done", func(t *testing.T) {
		l := begin(t)
		l.post(l.wr(1, fabric.OpSend, 8, 0))
		send(l, 8, 2, 3, 4, 5)
		receive(l)
		l.want(outcome{101, fabric.WCRecv, ok}, outcome{5, fabric.WCSend, ok})
		l.post(l.wr(6, fabric.OpSend, 1024, 0))
		send(l, 8, 7, 8, 9, 10)
		l.post(l.wr(11, fabric.OpSend, 8, fabric.Signaled))
		send(l, 8, 12, 13, 14, 15)
		for _, s := range l.qp.Sends() {
			s.Complete(cgotest.Success)
		}
		l.want(outcome{11, fabric.WCSend, ok}, outcome{15, fabric.WCSend, ok})
	})

	t.Run("nothing once a request has failed", func(t *testing.T) {
		l := begin(t)
		send(l, 8, 1, 2, 3, 4)
		l.qp.Sends()[0].Complete(int32(flushed))
		receive(l)
		got, _ := l.polled()
		if slices.Contains(got, outcome{4, fabric.WCSend, ok}) {
			t.Errorf("polled %v", got)
		}
	})

	t.Run("long data is the device's", func(t *testing.T) {
		l := begin(t)
		send(l, 1024, 1, 2, 3, 4, 5)
		receive(l)
		l.want(outcome{101, fabric.WCRecv, ok})
	})

	t.Run("what siw must not have yet has not been copied", func(t *testing.T) {
		l := begin(t, asSIW)
		for range 20 { // more Reads than may be outstanding
			l.post(l.wr(50, fabric.OpRead, 8, 0))
		}
		send(l, 8, 1, 2, 3, 4)
		receive(l)
		l.want(outcome{101, fabric.WCRecv, ok})
	})

	t.Run("one that has been reported is not reported again when it fails", func(t *testing.T) {
		l := begin(t)
		send(l, 8, 1, 2, 3, 4)
		receive(l)
		l.want(outcome{101, fabric.WCRecv, ok}, outcome{4, fabric.WCSend, ok})
		send(l, 8, 5)
		for _, s := range l.qp.Sends() {
			s.Complete(int32(flushed))
		}
		l.disconnected()
		l.ending()
		l.wantEnd(outcome{5, fabric.WCSend, flushed}, outcome{102, fabric.WCRecv, flushed}, outcome{103, fabric.WCRecv, flushed})
	})
}

// TestFakeEarlyIWARP: iWARP completes an unsignaled request when TCP has its pages, which
// TCP reads again when it retransmits. So what is long enough to be handed over in pages
// is signaled for the device, and so are Reads; the caller hears of neither.
func TestFakeEarlyIWARP(t *testing.T) {
	for _, tc := range []struct {
		name     string
		options  []option
		signaled []bool
	}{
		{"iWARP", []option{asSIW}, []bool{false, true, true}},
		{"InfiniBand", nil, []bool{false, false, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, tc.options...).connect(fabric.ConnAttr{})
			l.post(l.wr(1, fabric.OpWrite, 4095, 0), l.wr(2, fabric.OpWrite, 4096, 0), l.wr(3, fabric.OpRead, 8, 0))
			var signaled []bool
			for _, s := range l.qp.Sends() {
				signaled = append(signaled, s.Signaled())
				s.Complete(cgotest.Success)
			}
			if !slices.Equal(signaled, tc.signaled) {
				t.Errorf("signaled for the device: %v, want %v", signaled, tc.signaled)
			}
			l.want()
		})
	}
}

// TestFakeOvertaking: siw reports requests after a Read before the Read. Callers get completions in
// the order of the requests all the same.
func TestFakeOvertaking(t *testing.T) {
	l := newRig(t, rdmacm.Config{}, asSIW).connect(fabric.ConnAttr{})
	l.post(
		l.wr(1, fabric.OpRead, 8, fabric.Signaled), l.wr(2, fabric.OpSend, 8, fabric.Signaled), l.wr(3, fabric.OpSend, 8, 0),
		l.wr(4, fabric.OpSend, 8, fabric.Signaled),
	)
	sends := l.qp.Sends()
	sends[1].Complete(cgotest.Success)
	sends[2].Complete(cgotest.Success)
	l.want()
	sends[3].Complete(cgotest.Success)
	l.want()
	sends[0].Complete(cgotest.Success)
	l.want(outcome{1, fabric.WCRead, ok}, outcome{2, fabric.WCSend, ok}, outcome{4, fabric.WCSend, ok})
}

// TestFakeReadLimit: siw's send queue stops at a Read beyond the limit and at a fence, and answers
// none of the peer's Reads meanwhile, so two ends could wait for each other forever. Requests that
// would stop the queue are held back, with everything after them, until Reads have completed. Other
// devices get everything at once.
func TestFakeReadLimit(t *testing.T) {
	const R, S, W = verbRead, verbSend, verbWrite
	attr := fabric.ConnAttr{OutboundReads: 2}
	read := func(l *link, id uint64) fabric.SendWR { return l.wr(id, fabric.OpRead, 8, fabric.Signaled) }
	l := newRig(t, rdmacm.Config{}, asSIW).connect(attr)
	l.post(read(l, 1), l.wr(2, fabric.OpSend, 8, 0), read(l, 3), read(l, 4), l.wr(5, fabric.OpWrite, 8, 0))
	l.post(l.wr(6, fabric.OpSend, 8, fabric.Signaled|fabric.Fence)) // after requests that are held back
	steps := []struct {
		complete int // which of those the device has
		has      []uint32
		want     []outcome
	}{
		{-1, []uint32{R, S, R}, nil},
		{0, []uint32{S, R, R, W}, []outcome{{1, fabric.WCRead, ok}}}, // the Send stops at the fence
		{0, []uint32{R, R, W}, nil},
		{0, []uint32{R, W}, []outcome{{3, fabric.WCRead, ok}}},
		{0, []uint32{W, S}, []outcome{{4, fabric.WCRead, ok}}}, // no Read is left: the fence is open
		{0, []uint32{S}, nil},
		{0, nil, []outcome{{6, fabric.WCSend, ok}}},
	}
	for i, step := range steps {
		if step.complete >= 0 {
			l.qp.Sends()[step.complete].Complete(cgotest.Success)
		}
		l.want(step.want...)
		if ops := l.opcodes(); !slices.Equal(ops, step.has) {
			t.Fatalf("step %d: the device has %v, want %v", i, ops, step.has)
		}
	}

	t.Run("others have no limit", func(t *testing.T) {
		l := newRig(t, rdmacm.Config{}).connect(attr)
		l.post(read(l, 1), read(l, 2), read(l, 3), l.wr(4, fabric.OpSend, 8, fabric.Fence))
		if ops := l.opcodes(); !slices.Equal(ops, []uint32{R, R, R, S}) {
			t.Errorf("the device has %v", ops)
		}
	})
	t.Run("held back at the end", func(t *testing.T) {
		l := newRig(t, rdmacm.Config{}, asSIW).connect(attr)
		l.post(read(l, 1), read(l, 2), read(l, 3), l.wr(4, fabric.OpSend, 8, 0))
		l.disconnected()
		l.ending()
		l.wantEnd(outcome{1, fabric.WCRead, flushed}, outcome{2, fabric.WCRead, flushed}, outcome{3, fabric.WCRead, flushed}, outcome{4, fabric.WCSend, flushed})
	})
}

// TestFakeReadLimitElements: requests that are held back keep their own gather lists:
// those of later lists are made in the same scratch memory.
func TestFakeReadLimitElements(t *testing.T) {
	l := newRig(t, rdmacm.Config{MaxInline: -1}, asSIW).connect(fabric.ConnAttr{OutboundReads: 1})
	mem := l.mr.Bytes()
	piece := func(id uint64, op fabric.Opcode, from int) fabric.SendWR {
		return fabric.SendWR{ID: id, Op: op, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: mem[from : from+8], LKey: l.mr.LKey()}}}
	}
	l.post(piece(1, fabric.OpRead, 0), piece(2, fabric.OpRead, 100))
	l.post(piece(3, fabric.OpSend, 200), piece(4, fabric.OpRead, 300), piece(5, fabric.OpSend, 400))
	base := l.qp.Sends()[0].SGL[0].Addr
	for i := range 5 {
		s := l.qp.Sends()[0]
		if got := s.SGL[0].Addr - base; got != uint64(100*i) || s.NumSGE != 1 {
			t.Errorf("request %d has %d elements, the first at %d", i+1, s.NumSGE, got)
		}
		s.Complete(cgotest.Success)
		if got, err := l.polled(); len(got) != 1 || err != nil {
			t.Fatalf("request %d: polled %v, %v", i+1, got, err)
		}
	}
}

// TestFakeSendRoom: the send queue takes as many requests as it was made for, and one
// more is ErrQueueFull of which nothing is queued. A reported request keeps its place
// until its caller has polled it, an unreported one until the device is known to be done.
// The device itself never has to refuse: the fake would.
func TestFakeSendRoom(t *testing.T) {
	const depth = 8
	for _, tc := range []struct {
		name    string
		flags   fabric.SendFlags
		options []option
	}{
		{"signaled", fabric.Signaled, nil},
		{"unsignaled", 0, nil},
		{"signaled on siw", fabric.Signaled, []option{asSIW}},
		{"unsignaled on siw", 0, []option{asSIW}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, tc.options...).connect(fabric.ConnAttr{SendDepth: depth, RecvDepth: 1})
			l.recv(99)
			l.qp.Recvs()[0].Complete(cgotest.Success, nil) // so that siw is not nudged
			l.want(outcome{99, fabric.WCRecv, ok})
			id := uint64(0)
			for round := range 20 {
				for range depth {
					l.post(l.wr(id, fabric.OpSend, 8, tc.flags))
					id++
				}
				one := []fabric.SendWR{l.wr(1000, fabric.OpSend, 8, tc.flags)}
				if err := l.Post(one); !errors.Is(err, fabric.ErrQueueFull) {
					t.Fatalf("round %d: Post into a full queue: %v", round, err)
				}
				sends := l.qp.Sends()
				if len(sends) != depth {
					t.Fatalf("round %d: the device has %d requests", round, len(sends))
				}
				for _, s := range sends {
					s.Complete(cgotest.Success)
				}
				if err := l.Post(one); !errors.Is(err, fabric.ErrQueueFull) {
					t.Fatalf("round %d: Post before Poll: %v", round, err)
				}
				if got, err := l.polled(); err != nil || (len(got) == depth) != (tc.flags != 0) {
					t.Fatalf("round %d: polled %v, %v", round, got, err)
				}
			}
			l.post(make([]fabric.SendWR, depth)...)
		})
	}
}

// TestFakeRoomUntilPolled: a completion that another goroutine has polled from a shared queue, or
// that did not fit into the caller's list, keeps its place until its caller has it: the memory for
// completions has exactly one place for each request.
func TestFakeRoomUntilPolled(t *testing.T) {
	r := newRig(t, rdmacm.Config{SharedCQ: 4096})
	attr := fabric.ConnAttr{SendDepth: 4, RecvDepth: 4}
	l, other := r.connect(attr), r.connect(attr)
	send, recv := []fabric.SendWR{l.wr(9, fabric.OpSend, 8, fabric.Signaled)}, []fabric.RecvWR{{ID: 9}}
	full := func(when string) {
		t.Helper()
		if err := l.Post(send); !errors.Is(err, fabric.ErrQueueFull) {
			t.Errorf("Post %s: %v", when, err)
		}
		if err := l.PostRecv(recv); !errors.Is(err, fabric.ErrQueueFull) {
			t.Errorf("PostRecv %s: %v", when, err)
		}
	}
	for range 4 {
		l.post(send...)
		l.recv(9)
	}
	for i, s := range l.qp.Sends() {
		s.Complete(cgotest.Success)
		l.qp.Recvs()[0].Complete(cgotest.Success, nil)
		other.want() // takes them from the device
		full([]string{"after one", "after two", "after three", "after all"}[i])
	}
	var wcs [2]fabric.WC
	if n, err := l.Poll(wcs[:]); n != 2 || err != nil || wcs[0].Op == wcs[1].Op {
		t.Fatalf("polled %+v, %v", wcs[:n], err)
	}
	l.post(send...)
	l.recv(9)
	full("after as many as were polled")
}

// TestFakeListTooLong: a list that does not fit as a whole is refused as a whole.
func TestFakeListTooLong(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{SendDepth: 4, RecvDepth: 4})
	if err := l.Post(make([]fabric.SendWR, 5)); !errors.Is(err, fabric.ErrQueueFull) || len(l.qp.Sends()) > 0 {
		t.Errorf("Post of 5: %v, and the device has %d", err, len(l.qp.Sends()))
	}
	if err := l.PostRecv(make([]fabric.RecvWR, 5)); !errors.Is(err, fabric.ErrQueueFull) || len(l.qp.Recvs()) > 0 {
		t.Errorf("PostRecv of 5: %v, and the device has %d", err, len(l.qp.Recvs()))
	}
	if err := l.PostRecv(make([]fabric.RecvWR, 4)); err != nil {
		t.Error(err)
	}
	if err := l.PostRecv(make([]fabric.RecvWR, 1)); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("PostRecv into a full queue: %v", err)
	}
}

// TestFakeStarved: after ErrQueueFull, Wait returns also for completions that are not reported to any
// caller: they have made the room that the caller waits for.
func TestFakeStarved(t *testing.T) {
	for _, mode := range []rdmacm.WaitMode{rdmacm.WaitEvent, rdmacm.WaitAdaptive, rdmacm.WaitPoll} {
		t.Run(mode.String(), func(t *testing.T) {
			l := newRig(t, rdmacm.Config{Wait: mode}).connect(fabric.ConnAttr{SendDepth: 4})
			one := []fabric.SendWR{l.wr(1, fabric.OpSend, 8, 0)}
			var err error
			for err == nil {
				err = l.Post(one)
			}
			if !errors.Is(err, fabric.ErrQueueFull) {
				t.Fatal(err)
			}
			waiting := later(l.Wait)
			for _, s := range l.qp.Sends() {
				s.Complete(cgotest.Success)
			}
			if err := arrives(t, "Wait", waiting); err != nil {
				t.Fatal(err)
			}
			l.post(one...)
		})
	}
}

// TestFakeRefusedByDevice: a request that the device refuses at once ends the connection. Drivers do
// not report reliably how much of a list was posted: all of it completes as flushed.
func TestFakeRefusedByDevice(t *testing.T) {
	for _, tc := range []struct {
		call  string
		errno syscall.Errno
		peer  bool // it means that the connection has failed, and the event says why
	}{
		{"ibv_post_send", syscall.ENOMEM, false},
		{"ibv_post_send", syscall.EINVAL, true},
		{"ibv_post_send", syscall.ENOTCONN, true},
		{"ibv_post_send", syscall.EPERM, true},
		{"ibv_post_recv", syscall.ENOMEM, false},
		{"ibv_post_recv", syscall.EINVAL, true},
	} {
		t.Run(tc.call+" "+tc.errno.Error(), func(t *testing.T) {
			r := newRig(t, rdmacm.Config{})
			l := r.connect(fabric.ConnAttr{})
			r.lib.Fail(tc.call, 0, tc.errno) // the first of the list is taken
			want := []outcome{{1, fabric.WCSend, flushed}, {2, fabric.WCSend, flushed}}
			if tc.call == "ibv_post_send" {
				l.post(l.wr(1, fabric.OpSend, 8, fabric.Signaled), l.wr(2, fabric.OpSend, 8, fabric.Signaled))
			} else {
				if err := l.PostRecv([]fabric.RecvWR{{ID: 1}, {ID: 2}}); err != nil {
					t.Fatal(err)
				}
				want[0].Op, want[1].Op = fabric.WCRecv, fabric.WCRecv
			}
			if tc.peer {
				l.disconnected()
			}
			l.ending()
			end := l.wantEnd(want...)
			var dev *rdmacm.DeviceError
			if byDevice := errors.As(end, &dev); byDevice == tc.peer || byDevice && (dev.Op != tc.call || dev.Errno != tc.errno) || end.Remote != tc.peer {
				t.Errorf("the end is %+v", end)
			}
		})
	}
}

// TestFakeWindows: a window's key as Prepare tells it is that of the bind, and what the
// library expects of the next one: it has to be stored in the window, or devices refuse
// that. The peer's invalidation unbinds, under the flag of either kind of device.
func TestFakeWindows(t *testing.T) {
	const withInv, ipCsumOK = 1 << 3, 1 << 2
	for _, tc := range []struct {
		name    string
		options []option
		flag    uint32
	}{
		{"InfiniBand", nil, withInv}, {"rxe", []option{asRXE}, ipCsumOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, rdmacm.Config{UnsafeWindows: true}, tc.options...)
			l := r.connect(fabric.ConnAttr{})
			mw, err := l.AllocMW()
			if err != nil {
				t.Fatal(err)
			}
			var handles []uint32
			prepare := func() uint32 {
				seg, err := mw.Prepare(fabric.SGE{Buf: l.mr.Bytes()[:64], LKey: l.mr.LKey()}, fabric.AccessRemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				if slices.Contains(handles, seg.Handle) {
					t.Errorf("handle %#x comes twice", seg.Handle)
				}
				handles = append(handles, seg.Handle)
				return seg.Handle
			}
			bind := func(key uint32) {
				l.post(fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
				s := l.qp.Sends()[0]
				if s.RKey != key || r.lib.BoundKey(s) != key {
					t.Errorf("prepared %#x, bound %#x, stored %#x", key, s.RKey, r.lib.BoundKey(s))
				}
				s.Complete(cgotest.Success)
			}
			key := prepare()
			bind(key)
			if _, err := mw.Prepare(fabric.SGE{}, 0); !errors.Is(err, rdmacm.ErrMisuse) {
				t.Errorf("Prepare of a window that is bound: %v", err)
			}
			l.recv(1)
			l.qp.Recvs()[0].CompleteInv(nil, key, tc.flag)
			var wcs [2]fabric.WC
			if n, err := l.Poll(wcs[:]); n != 1 || err != nil || !wcs[0].WithInv || wcs[0].InvalidatedKey != key {
				t.Fatalf("polled %+v, %v", wcs[:n], err)
			}
			local := fabric.SendWR{Op: fabric.OpLocalInv, RKey: key}
			if err := l.Post([]fabric.SendWR{local}); !errors.Is(err, rdmacm.ErrMisuse) {
				t.Errorf("the key is invalidated twice: %v", err) // which crashes a kernel
			}
			key = prepare()
			bind(key)
			local.RKey = key
			l.post(local)
			l.qp.Sends()[0].Complete(cgotest.Success)
			bind(prepare())
			if err := mw.Close(); err != nil {
				t.Error(err)
			}
			if _, err := mw.Prepare(fabric.SGE{}, 0); !errors.Is(err, rdmacm.ErrMisuse) {
				t.Errorf("Prepare of a closed window: %v", err)
			}
		})
	}
	t.Run("not the flag of others", func(t *testing.T) {
		l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{})
		l.recv(1)
		r := l.qp.Recvs()[0]
		l.cq.Add(cgo.WC{ID: r.ID, QPNum: l.qp.Num(), Flags: ipCsumOK, Imm: 5})
		var wcs [1]fabric.WC
		if n, err := l.Poll(wcs[:]); n != 1 || err != nil || wcs[0].WithInv {
			t.Errorf("polled %+v, %v", wcs[:n], err)
		}
	})
}

// TestFakeStats: the counters count calls into C, one for each list.
func TestFakeStats(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{})
	before := l.Conn.(*rdmacm.Conn).Stats()
	l.post(l.wr(1, fabric.OpSend, 8, 0), l.wr(2, fabric.OpSend, 8, 0), l.wr(3, fabric.OpSend, 8, fabric.Signaled))
	l.recv(1, 2)
	for _, s := range l.qp.Sends() {
		s.Complete(cgotest.Success)
	}
	l.want(outcome{3, fabric.WCSend, ok})
	got := l.Conn.(*rdmacm.Conn).Stats()
	want := rdmacm.Stats{
		PostCounts: rdmacm.PostCounts{SendCalls: 1, Sends: 3, RecvCalls: 2, Recvs: 2},
		PollCounts: rdmacm.PollCounts{Calls: before.Calls + 2, Empty: before.Empty + 1},
	}
	if got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}
