//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
)

func TestCQRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		cq := must[*CQ](t)(c.CreateCQ(100, nil, 0))
		if cq.Size() < 100 {
			t.Errorf("a queue for 100 has %d", cq.Size())
		}
		var wcs [4]WC
		if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
			t.Errorf("polling an empty queue: %d, %v", n, err)
		}
		if n, err := cq.Poll(nil); n != 0 || err != nil {
			t.Errorf("polling for nothing: %d, %v", n, err)
		}
		err := cq.Resize(200)
		if err == nil && cq.Size() < 200 || err != nil && !errors.As(err, new(*Error)) {
			t.Errorf("resizing: %d, %v", cq.Size(), err)
		}
		t.Logf("resizing: %v", err)
		if err := cq.Arm(false); err != nil {
			t.Errorf("arming without a channel: %v", err)
		}
		for _, cqe := range []int{0, -1, 1 << 30} {
			if cq, err := c.CreateCQ(cqe, nil, 0); err == nil {
				cq.Close()
				t.Logf("%s takes a queue of size %d", c.Info().Name, cqe)
			} else if !errors.As(err, new(syscall.Errno)) {
				t.Errorf("size %d: %v", cqe, err)
			}
		}
		if cq, err := c.CreateCQ(10, nil, 1000); err == nil {
			cq.Close()
			t.Errorf("vector 1000 of %d exists", c.NumCompVectors())
		}
	})
}

// TestGetEventEndsRDMA: waiting ends with the context, and with Close.
func TestGetEventEndsRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		ch := must[*CompChannel](t)(c.CreateCompChannel())
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := ch.GetEvent(gone); err != context.Canceled {
			t.Errorf("with a context that is done: %v", err)
		}
		short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := ch.GetEvent(short); err != context.DeadlineExceeded {
			t.Errorf("with a context that ends: %v", err)
		}
		// Many wait in a row, and all of them end.
		errs := make(chan error)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range 3 {
			go func() { _, err := ch.GetEvent(ctx); errs <- err }()
		}
		for len(ch.w.turn) == 0 {
			time.Sleep(time.Millisecond)
		}
		ch.Wake() // not for these
		cancel()
		for range 3 {
			if err := <-errs; err != context.Canceled {
				t.Errorf("waiting in a row: %v", err)
			}
		}
		go func() { _, err := ch.GetEvent(context.Background()); errs <- err }()
		for len(ch.w.turn) == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := ch.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !errors.Is(err, ErrClosed) || !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestGetEventRDMA: an event for each time the queue was armed, acknowledged in bulk. Close does not
// wait for events that were not taken.
func TestGetEventRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		p := newPair(t, c, nil)
		for i := range uint64(20) {
			p.b.recv(i, 0, 8)
			if err := p.b.cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
				if _, err := p.b.ch.GetEvent(short); err != context.DeadlineExceeded {
					t.Errorf("nothing was sent, but: %v", err)
				}
				cancel()
			}
			if i%2 == 0 {
				p.a.post(SendWR{Opcode: OpSend, SGL: p.a.sge(0, 8)})
			} else {
				go p.a.qp.PostSend([]SendWR{{Opcode: OpSend, SGL: p.a.sge(0, 8), Flags: SendSignaled}})
			}
			cq, err := p.b.ch.GetEvent(soon(t))
			if err != nil || cq != p.b.cq {
				t.Fatalf("event of %v, %v", cq, err)
			}
			p.b.done(i, WCRecv)
			p.a.done(0, WCSend)
		}
		if p.b.cq.events != 20 {
			t.Errorf("%d events wait for their acknowledgement", p.b.cq.events)
		}
		p.b.cq.AckEvents(0)

		// An event is waiting: a context that is done does not hide it.
		p.b.recv(1, 0, 8)
		if err := p.b.cq.Arm(true); err != nil {
			t.Fatal(err)
		}
		p.a.post(SendWR{Opcode: OpSend, SGL: p.a.sge(0, 8), Flags: SendSolicited})
		p.b.done(1, WCRecv)
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if cq, err := p.b.ch.GetEvent(gone); err != nil || cq != p.b.cq {
			t.Errorf("the event that is there: %v, %v", cq, err)
		}
		// Solicited only.
		p.b.recv(2, 0, 8)
		if err := p.b.cq.Arm(true); err != nil {
			t.Fatal(err)
		}
		p.a.post(SendWR{Opcode: OpSend, SGL: p.a.sge(0, 8)})
		p.b.done(2, WCRecv)
		if cq, err := p.b.ch.GetEvent(gone); err != context.Canceled {
			t.Errorf("a message that is not solicited raises an event: %v, %v", cq, err)
		}
	})
}

// TestAwaitRDMA: waiting with calls of C that take events, poll and arm, as package rdmacm does.
func TestAwaitRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		p := newPair(t, c, nil)
		for i := range uint64(20) {
			p.b.recv(i, 0, 8)
			go p.a.qp.PostSend([]SendWR{{Opcode: OpSend, SGL: p.a.sge(0, 8), Flags: SendSignaled}})
			var wcs [4]cgo.WC
			var out cgo.Outcome
			if err := p.b.ch.Await(func() bool {
				cgo.Progress(cgo.RDMACore{}, nil, nil, nil, p.b.ch.Raw(), nil, nil, nil, nil, cgo.TakeEvent, &out)
				p.b.cq.AckEvents(out.Events)
				cgo.Progress(cgo.RDMACore{}, nil, nil, p.b.cq.Raw(), nil, nil, nil, nil, wcs[:], cgo.Arm, &out)
				return out.WCs > 0 || out.PollErr != 0
			}); err != nil || out.PollErr != 0 || wcs[0].ID != i {
				t.Fatalf("round %d: %v, %+v", i, err, out)
			}
			p.a.done(0, WCSend)
		}
		p.b.ch.Wake()
		if err := p.b.ch.Await(func() bool { return false }); err == nil || errors.Is(err, ErrClosed) {
			t.Errorf("after Wake: %v", err)
		}
	})
}

// TestCloseDuringEventsRDMA: queues that share a channel come and go while a goroutine waits for
// their events.
func TestCloseDuringEventsRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		ch := must[*CompChannel](t)(c.CreateCompChannel())
		ctx, cancel := context.WithCancel(context.Background())
		var waiting sync.WaitGroup
		waiting.Go(func() {
			for {
				if _, err := ch.GetEvent(ctx); err != nil {
					if err != context.Canceled {
						t.Error(err)
					}
					return
				}
			}
		})
		pd := must[*PD](t)(c.AllocPD())
		for range 30 {
			cq, err := c.CreateCQ(16, ch, 0)
			if err != nil {
				t.Fatal(err)
			}
			qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if err := qp.Modify(QPAttr{State: QPSInit, PortNum: 1}, AttrState|AttrPkeyIndex|AttrPort|AttrAccessFlags); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(qp.PostRecv([]RecvWR{{ID: 1}}), cq.Arm(false), qp.Modify(QPAttr{State: QPSErr}, AttrState)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(qp.Close(), cq.Close()); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		waiting.Wait()
	})
}
