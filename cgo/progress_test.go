//go:build linux && cgo

package cgo

import (
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo/internal/cfake"
)

// queues are objects of a fake driver, which the test plays.
type queues struct {
	*cfake.Queues
	qp      *QP
	srq     *SRQ
	cq      *CQ
	channel *CompChannel
}

func newQueues(t testing.TB) *queues {
	t.Helper()
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	f := cfake.New(p[0], 0)
	t.Cleanup(func() { f.Free(); syscall.Close(p[0]); syscall.Close(p[1]) })
	return &queues{f, (*QP)(f.QP()), (*SRQ)(f.SRQ()), (*CQ)(f.CQ()), (*CompChannel)(f.Channel())}
}

// TestPost: a batch goes to the device in lists of at most 128, receives first, and
// what the device refuses ends the batch. The caller has to learn exactly how many
// requests the device has: those are its memory's owner.
func TestPost(t *testing.T) {
	for _, tc := range []struct {
		name         string
		recvs, sends int
		srq          bool
		room, err    int
		silent       bool // the driver does not say which request it refused
		calls        []string
		want         Outcome
	}{
		{name: "nothing"},
		{name: "one of each", recvs: 1, sends: 1, room: 9, calls: []string{"post_recv 1", "post_send 1"}, want: Outcome{Recvs: 1, Sends: 1}},
		{name: "a shared receive queue", recvs: 3, srq: true, room: 9, calls: []string{"post_srq_recv 3"}, want: Outcome{Recvs: 3}},
		{name: "128 are one list", sends: 128, room: 999, calls: []string{"post_send 128"}, want: Outcome{Sends: 128}},
		{name: "129 are two lists", sends: 129, room: 999, calls: []string{"post_send 128", "post_send 1"}, want: Outcome{Sends: 129}},
		{name: "300 receives", recvs: 300, room: 999, calls: []string{"post_recv 128", "post_recv 128", "post_recv 44"}, want: Outcome{Recvs: 300}},
		{name: "full at once", sends: 2, err: 12, calls: []string{"post_send 2"}, want: Outcome{SendErr: 12}},
		{name: "full in the first list", sends: 9, room: 5, err: 12, calls: []string{"post_send 9"}, want: Outcome{Sends: 5, SendErr: 12}},
		{name: "full in the second list", sends: 140, room: 130, err: 12, calls: []string{"post_send 128", "post_send 12"}, want: Outcome{Sends: 130, SendErr: 12}},
		{name: "negative errno", sends: 2, room: 1, err: -22, calls: []string{"post_send 2"}, want: Outcome{Sends: 1, SendErr: 22}},
		{name: "no bad_wr", sends: 2, room: 1, err: 22, silent: true, calls: []string{"post_send 2"}, want: Outcome{SendErr: 22}},
		{name: "no sends behind a receive that failed", recvs: 2, sends: 1, room: 1, err: 12, calls: []string{"post_recv 2"}, want: Outcome{Recvs: 1, RecvErr: 12}},
		{name: "negative errno of a receive", recvs: 1, err: -12, calls: []string{"post_recv 1"}, want: Outcome{RecvErr: 12}},
		{name: "no bad_wr of a receive", recvs: 2, room: 1, err: 12, silent: true, calls: []string{"post_recv 2"}, want: Outcome{RecvErr: 12}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := newQueues(t)
			q.Room(tc.room, tc.err, !tc.silent)
			srq := q.srq
			if !tc.srq {
				srq = nil
			}
			out := Outcome{Recvs: 77, Sends: 77, RecvErr: 77, SendErr: 77, PollErr: 77, WCs: 77, Events: 77, Armed: 77} // of the call before
			Progress(RDMACore{}, q.qp, srq, nil, nil, make([]RecvWR, tc.recvs), make([]SendWR, tc.sends), nil, nil, 0, &out)
			if out != tc.want {
				t.Errorf("outcome %+v, want %+v", out, tc.want)
			}
			if calls := q.Calls(); !slices.Equal(calls, tc.calls) {
				t.Errorf("calls %q, want %q", calls, tc.calls)
			}
		})
	}
}

// TestPollAndArm: a queue is armed only when it is empty, and polled once more afterwards: what
// completed between the poll and the arming raises no event, so no goroutine would look for it.
func TestPollAndArm(t *testing.T) {
	const eio, ebadf = int32(syscall.EIO), int32(syscall.EBADF)
	for _, tc := range []struct {
		name    string
		flags   uint32
		polls   []int
		notify  int
		nwc     int
		broken  bool // the channel's descriptor
		calls   []string
		want    Outcome
		firstID uint64
	}{
		{name: "poll alone", polls: []int{2}, nwc: 4, calls: []string{"poll_cq 4"}, want: Outcome{WCs: 2}, firstID: 100},
		{name: "nothing to poll into", flags: Arm},
		{name: "something there: no arming", flags: Arm, polls: []int{1}, nwc: 4, calls: []string{"poll_cq 4"}, want: Outcome{WCs: 1}, firstID: 100},
		{name: "empty: armed", flags: Arm, nwc: 4, calls: []string{"poll_cq 4", "req_notify_cq 0", "poll_cq 4"}, want: Outcome{Armed: 1}},
		{
			name: "completed while arming", flags: Arm, polls: []int{0, 3}, nwc: 4,
			calls: []string{"poll_cq 4", "req_notify_cq 0", "poll_cq 4"}, want: Outcome{Armed: 1, WCs: 3}, firstID: 200,
		},
		{name: "armed already and no event: not armed twice", flags: Arm | TakeEvent, nwc: 4, calls: []string{"poll_cq 4"}},
		{name: "no channel", flags: Arm | TakeEvent, nwc: 4, broken: true, calls: []string{"poll_cq 4"}, want: Outcome{PollErr: ebadf}},
		{name: "arming fails", flags: Arm, nwc: 4, notify: -5, calls: []string{"poll_cq 4", "req_notify_cq 0"}, want: Outcome{PollErr: eio}},
		{name: "polling fails", flags: Arm, polls: []int{-19}, nwc: 4, calls: []string{"poll_cq 4"}, want: Outcome{PollErr: 19}},
		{name: "polling fails for no known reason", polls: []int{-1}, nwc: 4, calls: []string{"poll_cq 4"}, want: Outcome{PollErr: eio}},
		{
			name: "polling fails once armed", flags: Arm, polls: []int{0, -19}, nwc: 4,
			calls: []string{"poll_cq 4", "req_notify_cq 0", "poll_cq 4"}, want: Outcome{Armed: 1, PollErr: 19},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := newQueues(t)
			channel := q.channel
			if tc.broken {
				f := cfake.New(-1, 0)
				defer f.Free()
				channel = (*CompChannel)(f.Channel())
			}
			q.Polls(tc.polls...)
			q.NotifyErr(tc.notify)
			wcs := make([]WC, tc.nwc)
			var out Outcome
			Progress(RDMACore{}, nil, nil, q.cq, channel, nil, nil, nil, wcs, tc.flags, &out)
			if out != tc.want {
				t.Errorf("outcome %+v, want %+v", out, tc.want)
			}
			if calls := q.Calls(); !slices.Equal(calls, tc.calls) {
				t.Errorf("calls %q, want %q", calls, tc.calls)
			}
			for i := range out.WCs {
				if wcs[i].ID != tc.firstID+uint64(i) {
					t.Errorf("completion %d has ID %d", i, wcs[i].ID)
				}
			}
		})
	}
}

// TestSendMembers: each opcode has its operands in other members of unions, where
// the driver reads them; one in the wrong place would go to the peer as a key.
func TestSendMembers(t *testing.T) {
	const arg1 = 3<<32 | 14
	wr := SendWR{
		ID: 1, RemoteAddr: 2, Arg1: arg1, Arg2: 4, MW: 5, MR: 6, Flags: 7, RKey: 8, Imm: 9, BindAccess: 10,
		FirstSGE: 1, NumSGE: 1,
	}
	sges := []SGE{{Addr: 91}, {Addr: 11, Length: 12, LKey: 13}, {Addr: 92}}
	for _, tc := range []struct {
		name   string
		opcode uint32
		want   cfake.Send
	}{
		{"Write", 0, cfake.Send{RemoteAddr: 2, RKey: 8}},
		{"Write with immediate", 1, cfake.Send{RemoteAddr: 2, RKey: 8, Imm: 9}},
		{"Send", 2, cfake.Send{AH: 2, QPNum: 3, Qkey: 14}},
		{"Send with immediate", 3, cfake.Send{Imm: 9, AH: 2, QPNum: 3, Qkey: 14}},
		{"Read", 4, cfake.Send{RemoteAddr: 2, RKey: 8}},
		{"Compare and Swap", 5, cfake.Send{RemoteAddr: 2, RKey: 8, CompareAdd: arg1, Swap: 4}},
		{"Fetch and Add", 6, cfake.Send{RemoteAddr: 2, RKey: 8, CompareAdd: arg1, Swap: 4}},
		{"Local Invalidate", 7, cfake.Send{Imm: 9}},
		{"Bind", 8, cfake.Send{MW: 5, MR: 6, RKey: 8, BindAddr: arg1, BindLength: 4, BindAccess: 10}},
		{"Send with Invalidate", 9, cfake.Send{Imm: 9, RKey: 9}}, // the key once more where siw's library looks for it
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := newQueues(t)
			wr.Opcode = tc.opcode
			var out Outcome
			Progress(RDMACore{}, q.qp, nil, nil, nil, nil, []SendWR{wr}, sges, nil, 0, &out)
			tc.want.ID, tc.want.Opcode, tc.want.Flags = 1, tc.opcode, 7
			tc.want.NumSGE, tc.want.Addr, tc.want.Length, tc.want.LKey = 1, 11, 12, 13
			if got := q.Last(); got != tc.want {
				t.Errorf("the driver got\n%+v, want\n%+v", got, tc.want)
			}
		})
	}
}

// A recorder is a Library of which only Progress works. It keeps what it is given.
type recorder struct {
	RDMACore
	recvs []RecvWR
	sends []SendWR
	sges  []SGE
	wcs   []WC
}

func (r *recorder) Progress(_ *QP, _ *SRQ, _ *CQ, _ *CompChannel, recvs []RecvWR, sends []SendWR, sges []SGE, wcs []WC, flags uint32, out *Outcome) {
	r.recvs, r.sends, r.sges, r.wcs = recvs, sends, sges, wcs
	wcs[0].ID = 3
	*out = Outcome{WCs: 1, Armed: flags}
}

// TestProgressCopies: another Library than RDMACore gets the same arguments and its
// results arrive, but it may keep the slices without the caller's memory being
// shared: the arguments may be on the stack.
func TestProgressCopies(t *testing.T) {
	recvs, sends, sges, wcs := []RecvWR{{ID: 1}}, []SendWR{{ID: 2}}, []SGE{{Addr: 3}}, make([]WC, 2)
	var r recorder
	var out Outcome
	Progress(&r, nil, nil, nil, nil, recvs, sends, sges, wcs, Arm, &out)
	if want := (Outcome{WCs: 1, Armed: Arm}); out != want || wcs[0].ID != 3 {
		t.Errorf("outcome %+v, completions %+v", out, wcs)
	}
	if !reflect.DeepEqual([]any{r.recvs, r.sends, r.sges}, []any{recvs, sends, sges}) {
		t.Errorf("arguments %+v %+v %+v", r.recvs, r.sends, r.sges)
	}
	if &r.recvs[0] == &recvs[0] || &r.sends[0] == &sends[0] || &r.sges[0] == &sges[0] || &r.wcs[0] == &wcs[0] {
		t.Error("memory is shared")
	}
}

// TestProgressAllocs: posting and polling allocate nothing, with arguments on the
// stack.
func TestProgressAllocs(t *testing.T) {
	q := newQueues(t)
	var l Library = RDMACore{}
	if n := testing.AllocsPerRun(100, func() {
		var out Outcome
		var wcs [8]WC
		recvs, sends, sges := [1]RecvWR{}, [2]SendWR{}, [1]SGE{}
		Progress(l, q.qp, nil, q.cq, nil, recvs[:], sends[:], sges[:], wcs[:], Arm, &out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkProgress polls an empty queue, with a driver that does nothing: the call into C by itself;
// after the choice of the Library, as on the data path; and through an interface's method.
func BenchmarkProgress(b *testing.B) {
	q := newQueues(b)
	var l Library = RDMACore{}
	var wcs [32]WC
	var out Outcome
	for name, poll := range map[string]func(){
		"direct":    func() { RDMACore{}.Progress(nil, nil, q.cq, nil, nil, nil, nil, wcs[:], 0, &out) },
		"chosen":    func() { Progress(l, nil, nil, q.cq, nil, nil, nil, nil, wcs[:], 0, &out) },
		"interface": func() { l.Progress(nil, nil, q.cq, nil, nil, nil, nil, wcs[:], 0, &out) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				poll()
			}
		})
	}
}
