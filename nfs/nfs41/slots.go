package nfs41

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The slots of a session: RFC 8881 section 2.10.6.1. On the fore channel the client is the requester, and on the
// backchannel the server is. This file implements both ends.
//
// A slot carries one request at a time, and its sequence ids are consecutive. The replier can therefore distinguish a
// resent request from a new one, and answer it from its reply cache.

// slotTable is the requester's end.
type slotTable struct {
	mu    sync.Mutex
	slots []slot
	limit int           // number of slots that the replier permits
	freed chan struct{} // closed when a slot is freed; nil: no waiter
}

type slot struct {
	next uint32 // sequence id of the next request
	busy bool

	// doubt: a request with id next was sent, and it is unknown whether it was received.
	doubt bool
}

// newSlotTable returns a table of n slots, with 1 as the first sequence id: RFC 8881 section
// 2.10.6.1.
func newSlotTable(n int) *slotTable {
	t := &slotTable{slots: make([]slot, n), limit: n}
	for i := range t.slots {
		t.slots[i].next = 1
	}
	return t
}

// take waits for a free slot and returns the lowest one.
func (t *slotTable) take(ctx context.Context) (int, error) {
	for {
		t.mu.Lock()
		for i := range t.slots[:t.limit] {
			if !t.slots[i].busy {
				t.slots[i].busy = true
				t.mu.Unlock()
				return i, nil
			}
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// outcome says what is known about a slot's sequence id.
type outcome uint8

const (
	unused  outcome = iota // the replier did not receive it
	used                   // the replier received it
	doubted                // unknown
)

// settle records the outcome for the sequence id of slot i.
func (t *slotTable) settle(i int, o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o == used {
		t.slots[i].next++ // wraps around
	}
	t.slots[i].doubt = o == doubted
}

// give releases slot i.
func (t *slotTable) give(i int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[i].busy = false
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// target sets the highest slot that the replier permits. RFC 8881 section 2.10.6.1.
func (t *slotTable) target(highest uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = int(min(uint64(highest)+1, uint64(len(t.slots))))
}

// state returns the sequence id of slot i, whether it is doubted, and the highest slot
// in use.
func (t *slotTable) state(i int) (next uint32, doubt bool, highest uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for j := range t.slots {
		if t.slots[j].busy {
			highest = uint32(j)
		}
	}
	return t.slots[i].next, t.slots[i].doubt, highest
}

// requester sends the calls of one channel of a session.
type requester struct {
	session SessionID
	table   *slotTable
	name    func(op uint32) string

	// begin appends the header of a COMPOUND or CB_COMPOUND of count operations, and the first
	// one, SEQUENCE or CB_SEQUENCE with args.
	begin func(b []byte, count int, args *sequenceArgs) []byte

	// first returns SEQUENCE or CB_SEQUENCE, with its result in res.
	first func(res *sequenced) Operation

	// send makes the call.
	send func(ctx context.Context, call *rpc.Call) error
}

// sequenced holds the result of SEQUENCE or CB_SEQUENCE.
type sequenced struct {
	fore sequenceRes   // SEQUENCE
	back cbSequenceRes // CB_SEQUENCE
}

// echo returns the fields that must match the request, and the target slot.
func (s *sequenced) echo(op uint32) (id SessionID, sequence, slot, target uint32) {
	if op == OpSequence {
		return s.fore.Session, s.fore.Sequence, s.fore.Slot, s.fore.TargetHighest
	}
	return s.back.Session, s.back.Sequence, s.back.Slot, s.back.TargetHighest
}

// Delays after NFS4ERR_DELAY.
const (
	firstDelay = 10 * time.Millisecond
	lastDelay  = time.Second
)

// pause waits for d, or fails with ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// compound sends SEQUENCE and ops, and stores the result of SEQUENCE in res. cache asks the replier to cache the whole
// reply. again means that ops may be executed twice, which happens if an uncached reply is lost. The error is an *Error
// if an operation failed, a *BadReplyError, or an error of package transport.
func (r *requester) compound(ctx context.Context, ops []Operation, cache, again bool, res *sequenced) error {
	i, err := r.table.take(ctx)
	if err != nil {
		return err
	}
	defer r.table.give(i)
	all := make([]Operation, 0, 1+len(ops))
	all = append(append(all, r.first(res)), ops...)
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		if err := r.clear(ctx, i); err != nil {
			return err
		}
		next, _, highest := r.table.state(i)
		args := sequenceArgs{Session: r.session, Sequence: next, Slot: uint32(i), HighestSlot: highest, CacheThis: cache}
		call := rpc.Call{Args: appendOps(r.begin(nil, len(all), &args), ops)}
		r.table.settle(i, doubted) // until the reply has arrived
		if err := r.send(ctx, &call); err != nil {
			if notExecuted(err) {
				r.table.settle(i, unused)
			}
			return err
		}
		failed, err := decodeOps(call.Results, all, r.name)
		if err != nil {
			return err
		}
		switch failed.index {
		case 0, len(all):
			// A SEQUENCE that fails does not change the slot: RFC 8881 section 18.46.3.
			r.table.settle(i, unused)
			if failed.status == StatusDelay {
				if err := pause(ctx, delay); err != nil {
					return err
				}
				continue
			}
			return &Error{r.name(all[0].Op), failed.status}
		}
		id, sequence, slot, target := res.echo(all[0].Op)
		if id != r.session || sequence != next || slot != uint32(i) {
			return &BadReplyError{r.name(all[0].Op), "has another session, slot or sequence id"}
		}
		r.table.settle(i, used)
		r.table.target(target)
		switch {
		case failed.index < 0:
			return nil
		case failed.status == StatusRetryUncachedRep && again:
			continue
		}
		return &Error{r.name(all[failed.index].Op), failed.status}
	}
}

// clear resolves a doubted slot by sending a SEQUENCE alone with the doubted id. If the replier takes that for a new
// request, the other was never received, and the id is used now. Otherwise the id was used before.
func (r *requester) clear(ctx context.Context, i int) error {
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		next, doubt, highest := r.table.state(i)
		if !doubt {
			return nil
		}
		args := sequenceArgs{Session: r.session, Sequence: next, Slot: uint32(i), HighestSlot: highest}
		call := rpc.Call{Args: r.begin(nil, 1, &args)}
		if err := r.send(ctx, &call); err != nil {
			return err
		}
		// The reply may be that of the other request, including all its results.
		d := xdr.NewDecoder(call.Results)
		var res compoundRes
		res.Decode(&d)
		first := r.first(new(sequenced)).Op
		op, status := d.Uint32(), Status(d.Uint32())
		if d.Err() != nil || res.Count == 0 || op != first {
			return &BadReplyError{r.name(first), "has no result"}
		}
		switch status {
		case StatusOK, StatusSeqFalseRetry, StatusRetryUncachedRep:
			r.table.settle(i, used)
		case StatusDelay: // the other request is still being executed
			if err := pause(ctx, delay); err != nil {
				return err
			}
		default:
			return &Error{r.name(first), status}
		}
	}
}

// notExecuted reports whether err means that the peer has not executed the call.
func notExecuted(err error) bool {
	var denied *oncrpc.RPCError
	var rdma *rpc.RDMAError
	var size *rpc.SizeError
	var notReady *rpc.NotReadyError
	var lost *rpc.LostError
	return errors.As(err, &denied) || errors.As(err, &size) ||
		errors.As(err, &rdma) && rdma.Code == rpcrdma.ErrVers || // otherwise it may be about the reply
		errors.As(err, &notReady) && !notReady.Dropped || errors.As(err, &lost) && !lost.Sent
}

// replySlots is the replier's end. The owner's lock protects it.
type replySlots struct {
	slots []replySlot
	seed  maphash.Seed
}

type replySlot struct {
	last uint32 // sequence id of the last request; initially 0
	seen bool   // there has been a request
	busy bool   // the request is being executed
	sum  uint64 // checksum of its arguments

	// reply is the whole reply or, if only is set, the result of SEQUENCE.
	reply []byte
	only  bool
}

func newReplySlots(n int) *replySlots {
	return &replySlots{slots: make([]replySlot, n), seed: maphash.MakeSeed()}
}

// sum returns a checksum of a request. args is all of its arguments.
func (r *replySlots) sum(args []byte) uint64 { return maphash.Bytes(r.seed, args) }

// begin begins a request with the given checksum. If it returns StatusOK and a nil replay, the caller must execute the
// request and call end. If replay is not nil, the slot has the reply. RFC 8881 section 2.10.6.1.
func (r *replySlots) begin(a *sequenceArgs, sum uint64) (replay *replySlot, status Status) {
	if uint64(a.Slot) >= uint64(len(r.slots)) {
		return nil, StatusBadSlot
	}
	s := &r.slots[a.Slot]
	switch {
	case s.seen && a.Sequence == s.last && s.busy:
		return nil, StatusDelay
	case s.seen && a.Sequence == s.last && sum != s.sum:
		return nil, StatusSeqFalseRetry
	case s.seen && a.Sequence == s.last:
		return s, StatusOK
	case s.busy || a.Sequence != s.last+1:
		return nil, StatusSeqMisordered
	}
	*s = replySlot{last: a.Sequence, seen: true, busy: true, sum: sum}
	return nil, StatusOK
}

// end caches a copy of the reply to a request: all of it, or only the result of SEQUENCE if only is set.
func (r *replySlots) end(slot uint32, reply []byte, only bool) {
	s := &r.slots[slot]
	s.busy = false
	s.reply = append([]byte(nil), reply...)
	s.only = only
}

// replayed appends the cached reply to a resent request. tag is the request's tag, and next the number of its second
// operation.
func (s *replySlot) replayed(b, tag []byte, first, next uint32) []byte {
	if !s.only {
		return append(b, s.reply...)
	}
	res := compoundRes{Status: StatusRetryUncachedRep, Tag: tag, Count: 2}
	b = res.Append(b)
	b = xdr.AppendUint32(b, first)
	b = xdr.AppendUint32(b, uint32(StatusOK))
	b = append(b, s.reply...)
	b = xdr.AppendUint32(b, next)
	return xdr.AppendUint32(b, uint32(StatusRetryUncachedRep))
}
