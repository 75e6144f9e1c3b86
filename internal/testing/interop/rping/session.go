package rping

import (
	"context"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// attr holds the sizes of a connection: rping(1) serves one RDMA Read at a time and has one outstanding.
var attr = fabric.ConnAttr{SendDepth: 4, RecvDepth: 1, InboundReads: 1, OutboundReads: 1}

// IDs of work requests.
const (
	idMessage uint64 = 1 + iota // a Send, or the receive
	idRead
	idWrite
)

// session is one side of a connection, driven by the calling goroutine.
type session struct {
	conn     fabric.Conn
	in, out  fabric.MR // one message each
	received bool      // in has a message, and no receive is posted
	length   int       // of that message
	undone   int       // signaled requests that have not completed
	failed   error     // the first request that did not succeed
	wcs      [4]fabric.WC
}

// newSession prepares c, which is not connected or accepted yet.
func newSession(c fabric.Conn) (*session, error) {
	s := &session{conn: c}
	var err error
	if s.in, err = c.RegMR(make([]byte, messageLen), fabric.AccessLocalWrite); err != nil {
		return nil, err
	}
	if s.out, err = c.RegMR(make([]byte, messageLen), 0); err != nil {
		return nil, err
	}
	return s, s.postRecv()
}

func sge(mr fabric.MR, n int) fabric.SGE {
	return fabric.SGE{Buf: mr.Bytes()[:n], LKey: mr.LKey()}
}

func (s *session) postRecv() error {
	return s.conn.PostRecv([]fabric.RecvWR{{ID: idMessage, SGE: sge(s.in, messageLen)}})
}

// send returns the request that sends the message in out.
func (s *session) send() fabric.SendWR {
	return fabric.SendWR{ID: idMessage, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{sge(s.out, messageLen)}}
}

// do posts requests and waits for those that are signaled. It posts nothing if the context has
// ended.
func (s *session) do(ctx context.Context, wrs ...fabric.SendWR) error {
	if err := ctx.Err(); err != nil {
		return s.ended(err)
	}
	if err := s.conn.Post(wrs); err != nil {
		return s.ended(err)
	}
	for i := range wrs {
		if wrs[i].Flags&fabric.Signaled != 0 {
			s.undone++
		}
	}
	return s.await(ctx, func() bool { return s.undone == 0 })
}

// receive waits for the peer's message, and posts the receive for the next one, so that the peer may answer the next
// message.
func (s *session) receive(ctx context.Context) (fabric.Segment, error) {
	if err := s.await(ctx, func() bool { return s.received }); err != nil {
		return fabric.Segment{}, err
	}
	s.received = false
	seg, err := parseMessage(s.in.Bytes()[:s.length])
	if err != nil {
		return fabric.Segment{}, err
	}
	if err := s.postRecv(); err != nil {
		return fabric.Segment{}, s.ended(err)
	}
	return seg, nil
}

// await drives the connection until done returns true. After a request has failed, it waits for the end of the
// connection, which has the reason as its error.
func (s *session) await(ctx context.Context, done func() bool) error {
	for s.failed != nil || !done() {
		n, err := s.conn.Poll(s.wcs[:])
		if err != nil {
			return s.ended(err)
		}
		for i := range s.wcs[:n] {
			s.complete(&s.wcs[i])
		}
		if n > 0 {
			continue
		}
		if err := fabric.WaitContext(ctx, s.conn); err != nil {
			return s.ended(err)
		}
	}
	return nil
}

func (s *session) complete(wc *fabric.WC) {
	switch {
	case wc.Status != fabric.WCSuccess:
		// Flushed requests are a consequence of the end, not its cause.
		if s.failed == nil && wc.Status != fabric.WCFlushErr {
			s.failed = &WorkError{What: describe(wc), Status: wc.Status}
		}
	case wc.Op == fabric.WCRecv:
		s.received, s.length = true, int(wc.Len)
	default:
		s.undone--
	}
}

func describe(wc *fabric.WC) string {
	switch {
	case wc.ID == idRead:
		return "RDMA Read"
	case wc.ID == idWrite:
		return "RDMA Write"
	case wc.Op == fabric.WCRecv:
		return "Receive"
	}
	return "Send"
}

// ended returns the error of a connection that has ended.
func (s *session) ended(err error) error {
	if s.failed != nil {
		return fmt.Errorf("rping: %w: %w", s.failed, err)
	}
	return fmt.Errorf("rping: %w", err)
}
