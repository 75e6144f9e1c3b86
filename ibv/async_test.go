//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// TestAsyncEventEndsRDMA: waiting ends with the context, and with Close.
func TestAsyncEventEndsRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if e, err := c.AsyncEvent(short); err != context.DeadlineExceeded {
			t.Errorf("%v, %v", e, err)
		}
		errs := make(chan error)
		go func() { _, err := c.AsyncEvent(context.Background()); errs <- err }()
		for len(c.async.turn) == 0 {
			time.Sleep(time.Millisecond)
		}
		queued, cancel := context.WithCancel(context.Background())
		go func() { _, err := c.AsyncEvent(queued); errs <- err }()
		cancel()
		if err := <-errs; err != context.Canceled {
			t.Errorf("behind another: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !errors.Is(err, ErrClosed) || !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestAsyncEventRDMA: events name the objects that they are of.
func TestAsyncEventRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		t.Run("a send queue that is drained", func(t *testing.T) {
			p := newPair(t, c, nil)
			if err := p.a.qp.Modify(QPAttr{State: QPSSQD, EnSQDAsyncNotify: true}, AttrState|AttrEnSQDAsyncNotify); err != nil {
				t.Fatal(err)
			}
			e, err := c.AsyncEvent(soon(t))
			if err != nil || e.Type != EventSQDrained || e.QP != p.a.qp {
				t.Fatalf("%v, %v", e, err)
			}
			if s, err := p.a.qp.State(); err != nil || s != QPSSQD {
				t.Errorf("state %v, %v", s, err)
			}
			// And on again.
			if err := p.a.qp.Modify(QPAttr{State: QPSRTS}, AttrState); err != nil {
				t.Fatal(err)
			}
			p.b.recv(1, 0, 8)
			p.a.post(SendWR{ID: 2, Opcode: OpSend, SGL: p.a.sge(0, 8)})
			p.a.done(2, WCSend)
			p.b.done(1, WCRecv)
		})
		t.Run("a completion queue that overruns", func(t *testing.T) {
			p := newPair(t, c, nil)
			small := must[*CQ](t)(c.CreateCQ(1, nil, 0))
			qp, err := p.pd.CreateQP(QPInitAttr{SendCQ: small, RecvCQ: small, Cap: QPCap{MaxSendWR: 16, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				t.Fatal(err)
			}
			closing(t, qp)
			if err := qp.Modify(QPAttr{State: QPSInit, PortNum: 1}, AttrState|AttrPkeyIndex|AttrPort|AttrAccessFlags); err != nil {
				t.Fatal(err)
			}
			recvs := make([]RecvWR, small.Size()+8)
			if err := qp.PostRecv(recvs[:min(len(recvs), 64)]); err != nil {
				t.Fatal(err)
			}
			if err := qp.Modify(QPAttr{State: QPSErr}, AttrState); err != nil {
				t.Fatal(err)
			}
			e, err := c.AsyncEvent(soon(t))
			if err != nil || e.Type != EventCQErr || e.CQ != small {
				t.Fatalf("%v, %v", e, err)
			}
		})
		t.Run("an object that is gone", func(t *testing.T) {
			p := newPair(t, c, nil)
			if err := p.a.qp.Modify(QPAttr{State: QPSSQD, EnSQDAsyncNotify: true}, AttrState|AttrEnSQDAsyncNotify); err != nil {
				t.Fatal(err)
			}
			// Closing does not wait until the event is taken.
			if err := p.a.qp.Close(); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			for {
				e, err := c.AsyncEvent(short)
				if err == context.DeadlineExceeded {
					break
				}
				if err != nil || e.QP != nil {
					t.Fatalf("%v, %v", e, err)
				}
			}
		})
	})
}

func TestAsyncEventString(t *testing.T) {
	for want, e := range map[string]AsyncEvent{
		"IBV_EVENT_DEVICE_FATAL":                                {Type: EventDeviceFatal},
		"IBV_EVENT_PORT_ACTIVE of port 2":                       {Type: EventPortActive, Port: 2},
		"IBV_EVENT_QP_FATAL of queue pair 17":                   {Type: EventQPFatal, QP: &QP{num: 17}},
		"IBV_EVENT_CQ_ERR of a completion queue":                {Type: EventCQErr, CQ: &CQ{}},
		"IBV_EVENT_SRQ_LIMIT_REACHED of a shared receive queue": {Type: EventSRQLimitReached, SRQ: &SRQ{}},
		"ibv_event_type 99":                                     {Type: 99},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if EventQPFatal.Text() == "" || EventQPFatal.Text() == EventCQErr.Text() {
		t.Errorf("texts %q and %q", EventQPFatal.Text(), EventCQErr.Text())
	}
}
