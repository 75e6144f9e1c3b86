package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// With an empty plan the wrapper passes all checks.
func TestFaultyWithoutFaults(t *testing.T) {
	cfg := newModel("").config()
	inner := cfg.New
	cfg.New = func(t testing.TB) fabric.Provider { return Faulty(inner(t), nil) }
	cfg.Complete = true
	Run(t, cfg)
}

// rig is a connected pair on a provider with a plan, which can connect more.
func rig(t *testing.T, plan Plan) (*scene, *FaultyProvider) {
	cfg := newModel("").config().withDefaults()
	f := Faulty(cfg.New(t), plan)
	return &scene{TB: t, cfg: cfg, p: f}, f
}

func wantInjected(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrInjected) {
		t.Errorf("%s: %v, want the injected fault", what, err)
	}
}

// Each call can be made to fail, at exactly the passage in the plan.
func TestFaultyCalls(t *testing.T) {
	ctx := context.Background()

	t.Run("Resolve", func(t *testing.T) {
		s, f := rig(t, Plan{{At: AtResolve, N: 2}})
		l := s.listen(attr)
		s.resolve(l)
		_, err := f.Resolve(ctx, l.Addr().String(), attr)
		wantInjected(t, "the second Resolve", err)
		s.resolve(l)
	})
	t.Run("Listen", func(t *testing.T) {
		s, f := rig(t, Plan{{At: AtListen}, {At: AtListen, N: 2, Do: Break}})
		_, err := f.Listen(ctx, loopback, attr)
		wantInjected(t, "the first Listen", err)
		l := s.listen(attr)
		if _, err := l.Accept(ctx); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept of a listener that is broken: %v", err)
		}
	})
	t.Run("ListenerAccept", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtTake}})
		l := s.listen(attr)
		_, err := l.Accept(ctx)
		wantInjected(t, "the first Accept", err)
		a, b := s.pairAt(l, stage{})
		s.exchange("after the fault", a, b)
	})
	t.Run("Connect", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtConnect, Err: net.ErrWriteToConnected}})
		l := s.listen(attr)
		if err := s.resolve(l).Connect(ctx, nil); !errors.Is(err, net.ErrWriteToConnected) {
			t.Errorf("Connect: %v, want the error of the plan", err)
		}
		a, b := s.pairAt(l, stage{})
		s.exchange("after the fault", a, b)
	})
	t.Run("Accept", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtAccept}})
		l := s.listen(attr)
		connected := later(func() error { return s.resolve(l).Connect(s.ctx(), nil) })
		server := s.request(l)
		wantInjected(t, "Accept", server.Accept(ctx, nil))
		server.Close()
		if err := s.result("Connect", connected); err == nil {
			t.Error("connected to one whose Accept has failed")
		}
	})
	t.Run("RegMR", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtRegMR, N: 2, Side: Taken}})
		a, b := s.pair(stage{})
		a.Region(8, 0)
		a.Region(8, 0)
		b.Region(8, 0)
		mr, err := b.Conn.RegMR(make([]byte, 8), 0)
		wantInjected(t, "the second RegMR", err)
		if mr != nil {
			t.Errorf("the second RegMR failed and returned %v", mr)
		}
		b.Region(8, 0)
	})
	t.Run("AllocMW", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtAllocMW}})
		a, b := s.pair(stage{})
		_, err := a.Conn.AllocMW()
		wantInjected(t, "the first AllocMW", err)
		a.Window()
		b.Window()
	})
	t.Run("Post", func(t *testing.T) {
		s, f := rig(t, Plan{{At: AtPost, N: 2, Every: true, Err: fabric.ErrQueueFull}})
		a, b := s.pair(stage{})
		b.Receives(3, 8)
		for i := range byte(6) {
			err := a.TryPost(a.Message([]byte{i}))
			if odd := i%2 == 1; errors.Is(err, fabric.ErrQueueFull) != odd || (err != nil) != odd {
				t.Errorf("Post %d: %v", i, err)
			}
		}
		for i := range byte(3) {
			b.WantMessage("what was not refused", []byte{2 * i})
		}
		if n := f.Struck(0); n != 3 {
			t.Errorf("the fault has struck %d times, want 3", n)
		}
	})
	t.Run("PostRecv", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtPostRecv, N: 3}})
		a, _ := s.pair(stage{})
		in := a.Region(8, fabric.AccessLocalWrite)
		for i := 1; i <= 4; i++ {
			err := a.TryPostRecv(fabric.RecvWR{ID: uint64(i), SGE: SGE(in, 0, 8)})
			if (err != nil) != (i == 3) {
				t.Errorf("PostRecv %d: %v", i, err)
			}
		}
	})
}

// A connection can be made to end after any call or completion. The Endpoints check that each
// outstanding request is flushed once, and that the peer sees the end.
func TestFaultyBreaks(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		act   func(a, b *Endpoint)
	}{
		{Fault{At: AtPost, N: 3, Do: Break, Side: Dialed}, func(a, b *Endpoint) {
			for range 3 {
				a.Post("a message", a.Message([]byte("one of three")))
			}
		}},
		{Fault{At: AtPostRecv, N: 2, Do: Break, Side: Dialed}, func(a, b *Endpoint) {
			a.Receives(1, 8) // the second, since a has posted some already
		}},
		{Fault{At: AtRegMR, N: 2, Do: Break, Side: Dialed}, func(a, b *Endpoint) {
			a.Region(8, 0)
		}},
		{Fault{At: AtCompletion, N: 2, Do: Break, Side: Dialed}, func(a, b *Endpoint) {
			a.Post("messages", a.Message(nil), a.Message(nil), a.Message(nil))
		}},
		{Fault{At: AtCompletion, N: 2, Status: fabric.WCRemOpErr, Side: Dialed}, func(a, b *Endpoint) {
			first, second := a.Message(nil), a.Message(nil)
			a.Post("messages", first, second, a.Message(nil))
			a.WantSent("the first message", first.ID)
			a.WantFailed("the second message", second.ID, fabric.WCRemOpErr)
			a.WantFailed("the third message", second.ID+1, fabric.WCFlushErr)
		}},
		{Fault{At: AtCompletion, N: 1, Side: Dialed}, func(a, b *Endpoint) {
			b.Post("a message", b.Message([]byte("received")))
			if wc, _, err := a.NextRecv(); err != nil || wc.Status != fabric.WCGeneralErr {
				a.t.Errorf("a receive completed with %v (%v), want %v", wc.Status, err, fabric.WCGeneralErr)
			}
		}},
		{Fault{At: AtPost, N: 2, Do: Cut, Side: Dialed}, func(a, b *Endpoint) {
			a.Post("a message", a.Message([]byte("one")))
			wantInjected(a.t.(*testing.T), "Post", a.TryPost(a.Message([]byte("two"))))
		}},
		{Fault{At: AtRequest, N: 1, Do: Cut, Side: Dialed, Match: sends("two")}, func(a, b *Endpoint) {
			a.Post("three messages", a.Message([]byte("one")), a.Message([]byte("two")), a.Message([]byte("three")))
		}},
		{Fault{At: AtRequest, N: 1, Do: Cut, Side: Dialed, Match: sends("one")}, func(a, b *Endpoint) {
			wantInjected(a.t.(*testing.T), "Post", a.TryPost(a.Message([]byte("one")), a.Message([]byte("two"))))
		}},
		{Fault{At: AtRequest, N: 1, Do: Break, Side: Dialed, Match: sends("two")}, func(a, b *Endpoint) {
			a.Post("three messages", a.Message([]byte("one")), a.Message([]byte("two")), a.Message([]byte("three")))
		}},
		{Fault{At: AtCompletion, N: 1, Do: Cut, Side: Dialed, Match: receives("two")}, func(a, b *Endpoint) {
			b.Post("messages", b.Message([]byte("one")), b.Message([]byte("two")))
			if _, msg, err := a.NextRecv(); err != nil || string(msg) != "one" {
				a.t.Errorf("received %q, %v", msg, err)
			}
		}},
	} {
		t.Run(fmt.Sprintf("%v/%v", c.fault.At, c.fault.Do), func(t *testing.T) {
			s, f := rig(t, Plan{c.fault})
			l := s.listen(attr)
			a, b := s.pairAt(l, stage{})
			a.Receives(4, 64)
			b.Receives(4, 64)
			c.act(a, b)
			end := a.WantEnd("by the fault")
			if !errors.Is(end, ErrInjected) || !errors.Is(end, net.ErrClosed) || end.Remote || end.Clean {
				t.Errorf("the end is %v (%+v)", end, *end)
			}
			if end := b.WantEnd("by the peer's fault"); !end.Remote {
				t.Errorf("the peer's end is %v", end)
			}
			if n := f.Struck(0); n != 1 {
				t.Errorf("the fault has struck %d times, want 1", n)
			}
			s.wantAfterEnd(a)
			wantInjected(t, "RegMR", func() error { _, err := a.Conn.RegMR(make([]byte, 8), 0); return err }())
			wantInjected(t, "Disconnect", a.Conn.Disconnect(context.Background()))
			a, b = s.pairAt(l, stage{})
			s.exchange("on a connection behind it", a, b)
		})
	}
	t.Run("Connect", func(t *testing.T) {
		s, _ := rig(t, Plan{{At: AtConnect, Do: Break}, {At: AtAccept, N: 2, Do: Break}, {At: AtResolve, N: 3, Do: Break}, {At: AtTake, N: 3, Do: Break}})
		l := s.listen(attr)
		a, b := s.pairAt(l, stage{})
		a.WantEnd("at once")
		b.WantEnd("at once")
		a, b = s.pairAt(l, stage{})
		a.WantEnd("at once")
		b.WantEnd("at once")
		wantInjected(t, "Connect of a Conn that broke before", s.resolve(l).Connect(s.ctx(), nil))
		c := s.resolve(l)
		connected := later(func() error { return c.Connect(s.ctx(), nil) })
		wantInjected(t, "Accept of a Conn that broke before", s.request(l).Accept(s.ctx(), nil))
		if err := s.result("Connect", connected); err == nil {
			t.Error("connected to a Conn that broke before")
		}
	})
}

func sends(msg string) func(Passage) bool {
	return func(p Passage) bool {
		return p.Conn > 0 && string(p.Message) == msg && &p.List[p.N].SGL[0].Buf[0] == &p.Message[0]
	}
}

func receives(msg string) func(Passage) bool {
	return func(p Passage) bool { return p.WC.Op == fabric.WCRecv && string(p.Message) == msg }
}

// Requests of a list after a Cut have not been posted, those before it have.
func TestFaultyCutsLists(t *testing.T) {
	for do, want := range map[Action]int{Cut: 1, Break: 2} {
		s, _ := rig(t, Plan{{At: AtRequest, Do: do, Side: Dialed, Match: sends("two")}})
		a, b := s.pairAt(s.listen(attr), stage{})
		b.Receives(3, 8)
		a.Post("three messages", a.Message([]byte("one")), a.Message([]byte("two")), a.Message([]byte("three")))
		if end := a.WantEnd("by the fault"); !errors.Is(end, ErrInjected) {
			t.Errorf("the end is %v", end)
		}
		got := 0
		for wc, _, err := b.NextRecv(); err == nil && wc.Status == fabric.WCSuccess; wc, _, err = b.NextRecv() {
			got++
		}
		if got > want {
			t.Errorf("%v: %d messages arrived, want at most %d", do, got, want)
		}
	}
}

// With repeated faults under load, on either side, no completion is lost or duplicated.
func TestFaultyUnderLoad(t *testing.T) {
	for _, side := range []Side{BothSides, Dialed, Taken} {
		for _, at := range []Point{AtPost, AtPostRecv, AtCompletion} {
			s, f := rig(t, Plan{{At: at, N: 23, Every: true, Do: Break, Side: side}})
			l := s.listen(attr)
			for range 20 {
				a, b := s.pairAt(l, stage{})
				ends := []*Endpoint{a, b}
				var in [2]fabric.MR
				for i, e := range ends {
					in[i] = e.Region(64, fabric.AccessLocalWrite)
					e.Message([]byte{0}) // takes memory for all that follow
				}
				for id, err := uint64(0), error(nil); !errors.Is(err, net.ErrClosed); id++ {
					for i, e := range ends {
						err = errors.Join(err, patiently(func() error {
							return e.TryPostRecv(fabric.RecvWR{ID: id, SGE: SGE(in[i], 0, 64)})
						}))
					}
					for _, e := range ends {
						wr := e.Message([]byte{1})
						err = errors.Join(err, patiently(func() error { return e.TryPost(wr) }))
					}
				}
				for _, e := range ends {
					e.WantEnd("by the fault")
					e.Close()
				}
			}
			if f.Struck(0) < 20 {
				t.Errorf("at %v the fault has struck %d times in 20 connections", at, f.Struck(0))
			}
		}
	}
}

// patiently posts, and retries while the queue is full.
func patiently(post func() error) (err error) {
	for err = fabric.ErrQueueFull; errors.Is(err, fabric.ErrQueueFull); runtime.Gosched() {
		err = post()
	}
	return err
}

// Names are those of the interface.
func TestFaultNames(t *testing.T) {
	for p := range points {
		if p.String() == "" {
			t.Errorf("point %d has no name", p)
		}
	}
	if s := fmt.Sprint(points, Fail, Break, Cut); s != "point 11 fail break cut" {
		t.Error(s)
	}
}
