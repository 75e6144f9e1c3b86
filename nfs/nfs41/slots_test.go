package nfs41

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func TestSlotTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newSlotTable(3)
		take := func() int {
			i, err := table.take(bg)
			if err != nil {
				t.Fatal(err)
			}
			return i
		}
		// The lowest free slot is taken, and the first sequence id is 1.
		for want := range 3 {
			if i := take(); i != want {
				t.Errorf("slot %d, want %d", i, want)
			}
			if next, doubt, highest := table.state(want); next != 1 || doubt || highest != uint32(want) {
				t.Errorf("slot %d: %d, %v, %d", want, next, doubt, highest)
			}
		}
		// Without a free one the caller waits.
		ctx, cancel := context.WithTimeout(bg, time.Second)
		if _, err := table.take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
		got := make(chan int)
		for range 2 {
			go func() { got <- take() }()
		}
		synctest.Wait()
		table.settle(1, used)
		table.give(1)
		if i := <-got; i != 1 {
			t.Errorf("slot %d", i)
		}
		table.give(1)
		if i := <-got; i != 1 {
			t.Errorf("slot %d", i)
		}
		if next, _, _ := table.state(1); next != 2 {
			t.Errorf("sequence id %d", next)
		}
		// The replier lowers and raises the target slot.
		table.give(0)
		table.give(1)
		table.give(2)
		table.target(0)
		take()
		ctx, cancel = context.WithTimeout(bg, time.Second)
		if _, err := table.take(ctx); err == nil {
			t.Error("a second slot is taken")
		}
		cancel()
		table.target(1<<32 - 1)
		if take() != 1 || take() != 2 {
			t.Error("the slots have not come back")
		}
		// Sequence ids wrap.
		table.slots[0].next = 1<<32 - 1
		table.settle(0, used)
		if next, _, _ := table.state(0); next != 0 {
			t.Errorf("sequence id %d", next)
		}
	})
}

func TestReplySlots(t *testing.T) {
	r := newReplySlots(2)
	begin := func(slot, sequence uint32, sum uint64, want Status) *replySlot {
		t.Helper()
		replay, status := r.begin(&sequenceArgs{Slot: slot, Sequence: sequence}, sum)
		if status != want {
			t.Errorf("slot %d, id %d: %v, want %v", slot, sequence, status, want)
		}
		return replay
	}
	begin(2, 1, 7, StatusBadSlot)
	begin(0, 0, 7, StatusSeqMisordered) // nothing came before
	begin(0, 2, 7, StatusSeqMisordered)
	if begin(0, 1, 7, StatusOK) != nil {
		t.Error("a new request is a replay")
	}
	begin(0, 1, 7, StatusDelay)         // it is being executed
	begin(0, 2, 7, StatusSeqMisordered) // too far ahead
	r.end(0, []byte("reply"), false)
	s := begin(0, 1, 7, StatusOK)
	if s == nil || !bytes.Equal(s.replayed([]byte("x"), nil, OpSequence, OpGetAttr), []byte("xreply")) {
		t.Errorf("%+v", s)
	}
	begin(0, 1, 8, StatusSeqFalseRetry)
	begin(0, 0, 7, StatusSeqMisordered)
	if begin(0, 2, 8, StatusOK) != nil {
		t.Error("a new request is a replay")
	}
	// Only the result of SEQUENCE is cached.
	r.end(0, testutil.Hex(t, xSession), true)
	want := testutil.Hex(t, "00002754 00000001 74000000 00000002 00000035 00000000 "+xSession+"00000009 00002754")
	if got := begin(0, 2, 8, StatusOK).replayed(nil, []byte("t"), OpSequence, OpGetAttr); !bytes.Equal(got, want) {
		t.Errorf("%x, want\n%x", got, want)
	}
	// Ids wrap.
	r.slots[1] = replySlot{last: 1<<32 - 1, seen: true}
	begin(1, 0, 7, StatusOK)
}

// A fakeReplier executes SEQUENCE with a replySlots, or fails according to the script.
type fakeReplier struct {
	t      *testing.T
	slots  *replySlots
	mu     sync.Mutex
	script []func(execute func() []byte, call *rpc.Call) error
	seen   []sequenceArgs
}

// requester returns a requester that calls f.
func (f *fakeReplier) requester(n int) *requester {
	f.slots = newReplySlots(n)
	return &requester{
		session: tSession, table: newSlotTable(n), name: OpName,
		begin: func(b []byte, count int, args *sequenceArgs) []byte {
			head := compoundArgs{Minor: Minor, Count: uint32(count)}
			return args.Append(xdr.AppendUint32(head.Append(b), OpSequence))
		},
		first: func(res *sequenced) Operation { return Operation{Op: OpSequence, Result: &res.fore} },
		send:  f.send,
	}
}

func (f *fakeReplier) send(ctx context.Context, call *rpc.Call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	execute := func() []byte { return f.execute(call.Args) }
	if len(f.script) > 0 {
		step := f.script[0]
		f.script = f.script[1:]
		return step(execute, call)
	}
	call.Results = execute()
	return nil
}

// execute executes SEQUENCE as a server; all operations after it succeed without results.
func (f *fakeReplier) execute(args []byte) []byte {
	d := xdr.NewDecoder(args)
	var head compoundArgs
	head.Decode(&d)
	d.Uint32()
	var a sequenceArgs
	a.Decode(&d)
	f.seen = append(f.seen, a)
	replay, status := f.slots.begin(&a, f.slots.sum(args))
	if replay != nil {
		return replay.replayed(nil, nil, OpSequence, d.Uint32())
	}
	res := compoundRes{Status: status, Count: head.Count}
	if status != StatusOK {
		res.Count = 1
		return appendStatus(res.Append(nil), OpSequence, status)
	}
	b := appendStatus(res.Append(nil), OpSequence, StatusOK)
	at := len(b)
	result := sequenceRes{Session: a.Session, Sequence: a.Sequence, Slot: a.Slot, TargetHighest: uint32(len(f.slots.slots) - 1)}
	b = result.Append(b)
	end := len(b)
	for range head.Count - 1 {
		b = appendStatus(b, d.Uint32(), StatusOK)
	}
	if a.CacheThis || head.Count == 1 {
		f.slots.end(a.Slot, b, false)
	} else {
		f.slots.end(a.Slot, b[at:end], true)
	}
	return b
}

var errLost = errors.New("lost")

// The steps of scripts.
func lostCall(execute func() []byte, call *rpc.Call) error { return errLost }

func lostReply(execute func() []byte, call *rpc.Call) error {
	execute()
	return errLost
}

func answer(status Status) func(func() []byte, *rpc.Call) error {
	return func(_ func() []byte, call *rpc.Call) error {
		res := compoundRes{Status: status, Count: 1}
		call.Results = appendStatus(res.Append(nil), OpSequence, status)
		return nil
	}
}

// TestRequester: after any outcome of a call the slot's next sequence id is right.
func TestRequester(t *testing.T) {
	op := []Operation{{Op: OpPutRootFH}}
	refused := func(func() []byte, *rpc.Call) error { return &oncrpc.RPCError{AcceptStat: oncrpc.GarbageArgs} }
	tooNew := func(func() []byte, *rpc.Call) error { return &rpc.RDMAError{Code: rpcrdma.ErrVers} }
	tooLong := func(execute func() []byte, _ *rpc.Call) error {
		execute()
		return &rpc.RDMAError{Code: rpcrdma.ErrChunk}
	}
	garbage := func(execute func() []byte, call *rpc.Call) error {
		execute()
		call.Results = []byte{1}
		return nil
	}
	other := func(execute func() []byte, call *rpc.Call) error {
		call.Results = execute()
		call.Results[len(call.Results)-30]++ // the session's id, or what follows it
		return nil
	}
	wantError := func(status Status) func(error) bool {
		return func(err error) bool { return hasStatus(err, status) }
	}
	isLost := func(err error) bool { return errors.Is(err, errLost) }
	for _, test := range []struct {
		name   string
		script []func(func() []byte, *rpc.Call) error
		first  func(error) bool // of the first call; nil: it succeeds
		seen   []uint32         // sequence ids at the replier, with the second call
	}{
		{"all is well", nil, nil, []uint32{1, 2}},
		{"the call is lost", []func(func() []byte, *rpc.Call) error{lostCall}, isLost, []uint32{1, 2}},
		{"the reply is lost", []func(func() []byte, *rpc.Call) error{lostReply}, isLost, []uint32{1, 1, 2}},
		{"refused by RPC", []func(func() []byte, *rpc.Call) error{refused}, func(err error) bool { return err != nil }, []uint32{1}},
		{"refused for its version", []func(func() []byte, *rpc.Call) error{tooNew}, func(err error) bool { return err != nil }, []uint32{1}},
		{"no way for the reply", []func(func() []byte, *rpc.Call) error{tooLong}, func(err error) bool { return err != nil }, []uint32{1, 1, 2}},
		{"told to wait", []func(func() []byte, *rpc.Call) error{answer(StatusDelay), answer(StatusDelay)}, nil, []uint32{1, 2}},
		{"not known", []func(func() []byte, *rpc.Call) error{answer(StatusBadSession)}, wantError(StatusBadSession), []uint32{1}},
		{"a reply that makes no sense", []func(func() []byte, *rpc.Call) error{garbage}, func(err error) bool { return err != nil }, []uint32{1, 1, 2}},
		{"a reply about something else", []func(func() []byte, *rpc.Call) error{other}, func(err error) bool { return err != nil }, []uint32{1, 1, 2}},
		{
			"the reply is lost, and the probe is told to wait",
			[]func(func() []byte, *rpc.Call) error{lostReply, answer(StatusDelay), answer(StatusDelay)}, isLost, []uint32{1, 1, 2},
		},
		{
			"the reply is lost, and the probe gets it",
			[]func(func() []byte, *rpc.Call) error{lostReply, answer(StatusRetryUncachedRep)}, isLost, []uint32{1, 2},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeReplier{t: t, script: test.script}
				r := f.requester(1)
				var res sequenced
				err := r.compound(bg, op, false, true, &res)
				if ok := err == nil; test.first != nil {
					ok = test.first(err)
					if !ok {
						t.Errorf("the first call: %v", err)
					}
				} else if !ok {
					t.Errorf("the first call: %v", err)
				}
				// A different request: as a retry of the first it would be a false retry.
				if err := r.compound(bg, append(op, op...), false, true, &res); err != nil {
					t.Errorf("the second call: %v", err)
				}
				var seen []uint32
				for _, a := range f.seen {
					seen = append(seen, a.Sequence)
				}
				if len(seen) != len(test.seen) {
					t.Fatalf("sequence ids %v, want %v", seen, test.seen)
				}
				for i := range seen {
					if seen[i] != test.seen[i] {
						t.Fatalf("sequence ids %v, want %v", seen, test.seen)
					}
				}
			})
		})
	}
}

// A call with a reply that was lost and not cached is executed again if that is allowed, and
// otherwise fails.
func TestUncachedReply(t *testing.T) {
	// The transport resends the call on another connection.
	twice := func(execute func() []byte, call *rpc.Call) error {
		execute()
		call.Results = execute()
		return nil
	}
	for _, again := range []bool{true, false} {
		f := &fakeReplier{t: t, script: []func(func() []byte, *rpc.Call) error{twice}}
		r := f.requester(1)
		var res sequenced
		// Only the result of SEQUENCE is cached.
		err := r.compound(bg, []Operation{{Op: OpPutRootFH}}, false, again, &res)
		if again && (err != nil || len(f.seen) != 3) || !again && !hasStatus(err, StatusRetryUncachedRep) {
			t.Errorf("again %v: %v, %+v", again, err, f.seen)
		}
		if err := r.compound(bg, nil, false, true, &res); err != nil {
			t.Error(err)
		}
	}
}
