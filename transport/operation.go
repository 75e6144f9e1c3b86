package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Optional operations (version two section 3.1): messages of extensions, which the transports exchange in addition to
// calls.
//
// The document leaves the meaning of an operation to each extension. Here each is a request with an answer: a message
// of the same operation with the same xid, or RDMA_ERR_INVAL_OPTION from an end that does not know it. A request uses a
// credit, like a call, and its answer carries a grant, like a reply; both fit inline.

// An OperationError says why an optional operation cannot be requested. Nothing has been sent, unless the request was
// in flight when its connection was lost, and the next connection is of version 1. It unwraps to errors.ErrUnsupported.
type OperationError struct {
	Type   uint32
	Reason string
}

func (e *OperationError) Error() string {
	return fmt.Sprintf("optional operation %#x: %s", e.Type, e.Reason)
}

func (e *OperationError) Unwrap() error { return errors.ErrUnsupported }

// Operate requests an optional operation, as Client.Operate does. At a server it fails before AllowBackward, as a call
// does.
func (cn *Conn) Operate(ctx context.Context, m Optional) (answer Optional, err error) {
	return operate(cn.cfg, m, func(call *pendingCall) error { return cn.make(ctx, call) })
}

func operate(cfg *config, m Optional, do func(call *pendingCall) error) (answer Optional, err error) {
	o := cfg.operation(m.Type)
	switch {
	case o == nil:
		return answer, &OperationError{m.Type, "it is not one of Config.Operations"}
	case !o.Payload.holds(m.Payload):
		return answer, &OperationError{m.Type, "its payload breaks its rule"}
	}
	op := operation{Optional: m, answers: o.IsAnswer, rule: o.Payload}
	if err := do(&pendingCall{Call: new(rpc.Call), op: &op}); err != nil {
		return answer, err
	}
	return op.answer, nil
}

func (c *Config) operation(t uint32) *Operation {
	for i := range c.Operations {
		if c.Operations[i].Type == t {
			return &c.Operations[i]
		}
	}
	return nil
}

// ---- requester

// formOperation builds the message of a request.
func (s *slot) formOperation(op *operation) ([]byte, error) {
	h := &s.hdr
	if h.Vers != rpcrdma.Version2 {
		return nil, &OperationError{op.Type, "the connection is of version 1"}
	}
	h.Proc, h.OptType, h.OptInfo = rpcrdma.ProcOptional, op.Type, op.Info
	if n, most := h.Size()+len(op.Payload), s.c.sendMax(); n > most {
		return nil, &rpc.SizeError{What: "the optional operation", Size: n, Limit: most}
	}
	return append(rpcrdma.AppendHeader(s.send.Bytes[:0], h), op.Payload...), nil
}

// answerReceived processes the answer to a request. It returns false if the message does not answer any.
func (l *leader) answerReceived(h *rpcrdma.Header, payload []byte) bool {
	s := l.c.state.Lock().calls.underWay.Find(h.XID)
	// Answers to canceled requests are answers, too.
	ours := s != nil && s.state != slotFree && s.op != nil && s.op.Type == h.OptType && s.op.answers(h.OptInfo)
	l.c.state.Unlock()
	if !ours {
		return false
	}
	l.setGrant(h.Credit)
	s = l.answered(h.XID)
	if s == nil {
		return true // its caller has left, and its credit is back
	}
	op := s.op
	if op.rule.holds(payload) {
		mem := append(append([]byte(nil), h.OptInfo...), payload...)
		n := len(h.OptInfo)
		op.answer = Optional{Type: h.OptType, Info: mem[:n:n], Payload: mem[n:]}
	} else {
		s.err = &rpc.BadReplyError{XID: h.XID, Reason: "its payload breaks the rule of the operation"}
	}
	l.fence(s)
	return true
}

// ---- responder

// optionalReceived processes an RDMA_OPTIONAL. It returns true if the receive buffer is now in use.
func (l *leader) optionalReceived(rb *recvBuf, h *rpcrdma.Header, payload []byte) bool {
	c := l.c
	if l.answerReceived(h, payload) {
		return false
	}
	o := c.cfg.operation(h.OptType)
	own := h.OptType == rpcrdma.OptProperties
	switch {
	case own && lateProperties(h.OptInfo), o != nil && o.IsAnswer(h.OptInfo):
		inc(&c.stats.Dropped) // its caller has left
		return false
	case !own && (o == nil || o.Handle == nil):
		l.refuse(rb, h.XID, h.Vers, rpcrdma.ErrInvalOption, errBadOption)
		return true
	case o != nil && !o.Payload.holds(payload):
		l.refuse(rb, h.XID, h.Vers, rpcrdma.ErrBadHeader, errBadOption)
		return true
	case l.stop:
		inc(&c.stats.Dropped)
		return false
	}
	x := l.takeExchange(rb)
	if x == nil {
		return true
	}
	inc(&c.stats.Optional)
	x.hdr, l.hdr = h, x.hdr
	l.keepUp(x.hdr.Credit)
	x.state = exchExecuting
	if x.begin() != nil {
		x.refuse(rpcrdma.ErrBadHeader)
		return true
	}
	if own {
		l.takeOffer(x, len(payload) > 0)
		return true
	}
	x.detach()
	go x.operate(o, payload)
	return true
}

// operate executes a request. A panic or runtime.Goexit is answered like an error.
func (x *exch) operate(o *Operation, payload []byte) {
	returned := false
	defer func() {
		if v := recover(); !returned {
			x.c.logPanic("Operation.Handle", slog.Uint64("type", uint64(o.Type)), v)
			x.refuse(rpcrdma.ErrInvalOption)
		}
	}()
	answer, err := o.Handle(x.c.contexts.of(false, false), &x.c.public, Optional{Type: o.Type, Info: x.hdr.OptInfo, Payload: payload})
	returned = true
	if err != nil || !o.Payload.holds(answer.Payload) {
		x.refuse(rpcrdma.ErrInvalOption)
		return
	}
	answer.Type = o.Type
	x.answerOperation(answer)
}

// answerOperation answers a request.
func (x *exch) answerOperation(m Optional) {
	if !x.takeBack() {
		return
	}
	c, h := x.c, &x.rh
	h.Proc = rpcrdma.ProcOptional
	h.OptType, h.OptInfo = m.Type, m.Info
	if h.Size()+len(m.Payload) > c.sendMax() {
		x.sendError(rpcrdma.ErrInvalOption, x.hdr.Vers)
		return
	}
	x.wrs, x.sges = x.wrs[:0], x.sges[:0]
	x.reserve(1)
	x.finishList(append(rpcrdma.AppendHeader(x.out.Bytes[:0], h), m.Payload...))
	c.replySent()
	x.post()
}
