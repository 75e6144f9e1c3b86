package nfs41

import (
	"context"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The callback program, which a Session executes for its server.

// A CallbackHandler executes an operation of a callback: OpCBRecall with a *CBRecallArgs, or OpCBRecallAny with a
// *CBRecallAnyArgs. The arguments are valid until it returns. It returns the status of the operation. It must not wait
// for the server, which may be waiting for the handler.
type CallbackHandler func(ctx context.Context, op uint32, args Message) Status

// CallbackStats counts calls made by the server.
type CallbackStats struct {
	Compounds uint64 // CB_COMPOUND, successful or not
	Sequences uint64 // CB_SEQUENCE of new requests
	Replays   uint64 // requests answered from the reply cache
	Refused   uint64 // CB_SEQUENCE that failed
}

type callbackCounters struct {
	compounds, sequences, replays, refused atomic.Uint64
}

func (c *callbackCounters) snapshot() CallbackStats {
	return CallbackStats{c.compounds.Load(), c.sequences.Load(), c.replays.Load(), c.refused.Load()}
}

// callbacks returns the callback program for transport.ClientConfig.Callbacks.
func (s *Session) callbacks() rpc.Program {
	return rpc.Program{
		Number: s.cfg.CallbackProgram, Low: CallbackVersion, High: CallbackVersion,
		Handler:    rpc.HandlerFunc(s.serve),
		Idempotent: func(vers, proc uint32) bool { return true }, // the session has a reply cache
	}
}

// serve executes a CB_COMPOUND. RFC 8881 section 19.2.
func (s *Session) serve(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc != ProcCompound {
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	s.counters.compounds.Add(1)
	c := cbCompound{s: s, ctx: ctx, args: req.Args}
	c.size = oncrpc.MinCallSize + len(req.Cred.Body) + len(req.Verf.Body) + len(req.Args)
	if !c.run(&res.Results) {
		res.Fail(oncrpc.GarbageArgs)
	}
}

// cbCompound is a CB_COMPOUND being executed.
type cbCompound struct {
	s    *Session
	ctx  context.Context
	args []byte // the arguments as a whole
	size int    // of the call's arguments, in bytes

	d     xdr.Decoder
	count uint32 // number of operations
	index uint32 // index of the current operation

	held   *held // set once CB_SEQUENCE has been executed
	slot   uint32
	cache  bool
	replay *replySlot
}

// run executes the operations in order until one fails, and appends CB_COMPOUND4res to *out.
// It returns false if the arguments' header does not decode.
func (c *cbCompound) run(out *[]byte) bool {
	c.d = xdr.NewDecoder(c.args)
	var head cbCompoundArgs
	head.Decode(&c.d)
	if c.d.Err() != nil {
		return false
	}
	c.count = head.Count
	res := compoundRes{Tag: head.Tag}
	start := len(*out)
	b := res.Append(*out)
	body := len(b)
	if head.Minor != Minor {
		res.Status = StatusMinorVersMismatch
		c.count = 0
	}
	sequence := 0 // end of the result of CB_SEQUENCE
	for c.index = 0; c.index < c.count && res.Status == StatusOK; c.index++ {
		op := c.d.Uint32()
		b, res.Status = c.operation(b, op)
		if c.replay != nil {
			*out = c.replay.replayed(b[:start], head.Tag, op, c.d.Uint32())
			return true
		}
		res.Count++
		if c.index == 0 {
			sequence = len(b)
		}
	}
	copy(b[start:body], res.Append(nil)) // the length is unchanged
	if c.held != nil {
		reply, only := b[start:], c.count > 1 && (!c.cache || int64(len(b)-start+replyHeader) > int64(c.held.back.MaxResponseCached))
		if only {
			reply = b[body+2*xdr.Unit : sequence]
		}
		c.s.mu.Lock()
		c.held.replies.end(c.slot, reply, only)
		c.s.mu.Unlock()
	}
	*out = b
	return true
}

// operation executes one operation and appends its result.
func (c *cbCompound) operation(b []byte, op uint32) ([]byte, Status) {
	at := len(b)
	b = appendStatus(b, op, StatusOK)
	var status Status
	switch {
	case c.d.Err() != nil: // there is no operation number
		op, status = OpCBIllegal, StatusBadXDR
	case op < firstCBOp || op > lastCBOp:
		op, status = OpCBIllegal, StatusOpIllegal
	case op == OpCBSequence:
		b, status = c.sequence(b)
	case c.held == nil:
		status = StatusOpNotInSession
	default:
		status = c.handle(op)
	}
	if status != StatusOK {
		b = appendStatus(b[:at], op, status)
	}
	return b, status
}

// sequence executes CB_SEQUENCE. RFC 8881 section 20.9.
func (c *cbCompound) sequence(b []byte) ([]byte, Status) {
	var a cbSequenceArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	if c.index != 0 {
		return b, StatusSequencePos
	}
	b, status := c.begin(b, &a)
	switch {
	case status != StatusOK:
		c.s.counters.refused.Add(1)
	case c.replay != nil:
		c.s.counters.replays.Add(1)
	default:
		c.s.counters.sequences.Add(1)
	}
	return b, status
}

func (c *cbCompound) begin(b []byte, a *cbSequenceArgs) ([]byte, Status) {
	h := c.s.known(c.ctx, a.sequenceArgs.Session)
	if h == nil {
		return b, StatusBadSession
	}
	switch {
	case c.count > h.back.MaxOps:
		return b, StatusTooManyOps
	case int64(c.size) > int64(h.back.MaxRequest):
		return b, StatusReqTooBig
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	replay, status := h.replies.begin(&a.sequenceArgs, h.replies.sum(c.args))
	if status != StatusOK {
		return b, status
	}
	if c.replay = replay; replay != nil {
		return b, StatusOK
	}
	c.held, c.slot, c.cache = h, a.sequenceArgs.Slot, a.sequenceArgs.CacheThis
	highest := h.back.MaxRequests - 1
	res := cbSequenceRes{
		Session: a.sequenceArgs.Session, Sequence: a.sequenceArgs.Sequence, Slot: a.sequenceArgs.Slot,
		HighestSlot: highest, TargetHighest: highest,
	}
	return res.Append(b), StatusOK
}

// handle executes an operation other than CB_SEQUENCE.
func (c *cbCompound) handle(op uint32) Status {
	var args Message
	switch op {
	case OpCBRecall:
		args = new(CBRecallArgs)
	case OpCBRecallAny:
		args = new(CBRecallAnyArgs)
	default:
		return StatusNotSupp
	}
	if c.s.cfg.Callback == nil {
		return StatusNotSupp
	}
	if args.Decode(&c.d); c.d.Err() != nil {
		return StatusBadXDR
	}
	return c.s.cfg.Callback(c.ctx, op, args)
}
