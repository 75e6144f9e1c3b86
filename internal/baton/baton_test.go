package baton_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/baton"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// A source has events for its members, which take turns at waiting for them.
type source struct {
	events chan *member // the members that the next events serve

	mu      sync.Mutex // guards what follows, and the members
	b       baton.Baton[source, member]
	leaders int
}

type member struct {
	baton.Waiter[member]
	served int // events for it that it has not taken
}

func newSource(members int) (*source, []*member) {
	s := &source{events: make(chan *member, 1<<12)}
	s.b.Give(s)
	list := make([]*member, members)
	for i := range list {
		list[i] = new(member)
		list[i].Init(list[i])
	}
	return s, list
}

// await waits for an event that serves m.
func (s *source) await(ctx context.Context, m *member) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for m.served == 0 && err == nil {
		if s.b.Take() != nil {
			err = s.lead(ctx, m)
		} else {
			err = s.follow(ctx, m)
		}
	}
	if m.served == 0 {
		return err
	}
	m.served--
	return nil
}

// lead takes events until one serves m. mu is held.
func (s *source) lead(ctx context.Context, m *member) (err error) {
	if s.leaders++; s.leaders > 1 {
		return errors.New("two lead at once")
	}
	for m.served == 0 && err == nil {
		s.mu.Unlock()
		select {
		case to := <-s.events:
			s.mu.Lock()
			to.served++
			if s.b.Leave(&to.Waiter) {
				to.Wake(true)
			}
		case <-ctx.Done():
			err = ctx.Err()
			s.mu.Lock()
		}
	}
	s.leaders--
	s.b.Give(s)
	s.b.Next().Wake(false)
	return err
}

// follow waits to be served or to lead. mu is held.
func (s *source) follow(ctx context.Context, m *member) error {
	s.b.Join(&m.Waiter)
	s.mu.Unlock()
	served, woken := baton.SleepOn(ctx, m.Bell())
	s.mu.Lock()
	switch {
	case !woken:
		if !s.b.Leave(&m.Waiter) {
			s.mu.Unlock()
			m.Sleep() // woken at the same moment
			s.mu.Lock()
		}
	case served && m.served == 0:
		return errors.New("woken as served, and nothing has come")
	case served || m.served == 0:
		return nil
	}
	s.b.Next().Wake(false) // it may have been for m to lead
	return ctx.Err()
}

// A wait is a call of await that is under way.
type wait struct {
	cancel func()
	over   chan error
}

// start has m wait on a goroutine of its own.
func (s *source) start(ctx context.Context, m *member) *wait {
	ctx, cancel := context.WithCancel(ctx)
	w := &wait{cancel, make(chan error, 1)}
	go func() { w.over <- s.await(ctx, m) }()
	return w
}

// ended reports whether the wait has ended, which it may do served or canceled.
func (w *wait) ended(t *testing.T) bool {
	t.Helper()
	select {
	case err := <-w.over:
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		w.cancel()
		return true
	default:
		return false
	}
}

// TestNobodyWaits: members give up, are served or lead, in any order. Once all is quiet, a member
// leads unless none waits, and no member waits that has been served.
func TestNobodyWaits(t *testing.T) {
	const members, steps = 6, 200
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s, list := newSource(members)
			waits := make([]*wait, members)
			quiet := func() {
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				if !s.b.Taken() && s.b.Waiting() {
					t.Errorf("seed %d: the baton is free, and somebody waits", seed)
				}
				for i, w := range waits {
					if w != nil && !w.ended(t) {
						if list[i].served > 0 || len(s.events) > 0 {
							t.Errorf("seed %d: member %d waits, with %d events for it and %d that nobody has taken", seed, i, list[i].served, len(s.events))
						}
						continue
					}
					waits[i] = nil
				}
			}
			for range steps {
				// Some of this happens at the same moment.
				for range 1 + rng.IntN(members) {
					switch i := rng.IntN(members); {
					case waits[i] == nil:
						waits[i] = s.start(t.Context(), list[i])
					case rng.IntN(2) == 0:
						waits[i].cancel()
					default:
						s.events <- list[i]
					}
				}
				quiet()
			}
			for _, w := range waits {
				if w != nil {
					w.cancel()
				}
			}
			quiet()
			for i, w := range waits {
				if w != nil {
					t.Errorf("seed %d: member %d has given up, and waits", seed, i)
				}
			}
		})
	}
}

// TestNoWakeLost: the same under the race detector, on all processors: each member gets all of
// its events, while others give up.
func TestNoWakeLost(t *testing.T) {
	const members, events = 8, 2000
	s, list := newSource(members)
	var wg sync.WaitGroup
	for i, m := range list {
		rng := rand.New(rand.NewPCG(uint64(i), 2))
		wg.Go(func() {
			for got := 0; got < events; {
				ctx, cancel := context.WithCancel(t.Context())
				if rng.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(20))*time.Microsecond, cancel)
				}
				switch err := s.await(ctx, m); {
				case err == nil:
					got++
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
				cancel()
			}
		})
		wg.Go(func() {
			for range events {
				s.events <- m
			}
		})
	}
	all := make(chan struct{})
	go func() { wg.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatal("somebody waits for events that have been taken, or for nobody to take them")
	}
}

// TestOfferPassedOn: a follower that gives up at the moment when it is chosen to lead has the
// next one lead.
func TestOfferPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, list := newSource(2)
		s.mu.Lock()
		token := s.b.Take()
		s.mu.Unlock()
		first := s.start(t.Context(), list[0])
		synctest.Wait()
		second := s.start(t.Context(), list[1])
		synctest.Wait()

		s.mu.Lock()
		s.b.Give(token)
		next := s.b.Next()
		s.mu.Unlock()
		if next.Who() != list[0] {
			t.Fatal("the first in the line is not the first to lead")
		}
		first.cancel()
		synctest.Wait()
		next.Wake(false)
		s.events <- list[1]
		synctest.Wait()
		if !first.ended(t) || !second.ended(t) {
			t.Error("nobody leads")
		}
	})
}

// TestWakeBeforeSleep: a wake-up does not wait for the sleeper, and is not lost on it.
func TestWakeBeforeSleep(t *testing.T) {
	var b baton.Baton[int, member]
	if !b.Taken() || b.Take() != nil || b.Next() != nil || b.Waiting() {
		t.Error("a new Baton is free, or somebody waits")
	}
	_, list := newSource(2)
	one, two := &list[0].Waiter, &list[1].Waiter
	b.Join(one)
	b.Join(two)
	if b.Next() != nil {
		t.Error("a follower is to lead, while somebody does")
	}
	b.Give(new(int))
	if w := b.Next(); w != one || w.Queued() || !two.Queued() {
		t.Error("the first in the line is not the first to lead")
	}
	one.Wake(false)
	if one.Sleep() {
		t.Error("woken as served")
	}
	if b.Disband() != two || b.Leave(two) {
		t.Error("the second is in the line still")
	}
	bell := two.Bell()
	two.Wake(true)
	ended, cancel := context.WithCancel(t.Context())
	if served, woken := baton.SleepOn(ended, bell); !served || !woken {
		t.Error("the wake-up is lost")
	}
	cancel()
	if _, woken := baton.SleepOn(ended, bell); woken {
		t.Error("woken twice")
	}
	(*baton.Waiter[member])(nil).Wake(true) // without a waiter
}

// TestLine: a Line is a queue, and Waiters may leave from the middle.
func TestLine(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var line baton.Line[member]
	_, list := newSource(10)
	var want []*member
	for range 10_000 {
		switch m := list[rng.IntN(len(list))]; rng.IntN(4) {
		case 0:
			got := line.Pop()
			if len(want) == 0 {
				if got != nil {
					t.Fatal("popped from an empty line")
				}
			} else if got.Who() != want[0] {
				t.Fatal("popped out of turn")
			} else {
				want = want[1:]
			}
		case 1:
			at := slices.Index(want, m)
			if line.Remove(&m.Waiter) != (at >= 0) {
				t.Fatalf("removed number %d of the line", at)
			}
			if at >= 0 {
				want = slices.Delete(want, at, at+1)
			}
		default:
			if !m.Queued() {
				line.Push(&m.Waiter)
				want = append(want, m)
			}
		}
		if line.Len() != len(want) || line.Empty() != (len(want) == 0) {
			t.Fatalf("%d are in the line, want %d", line.Len(), len(want))
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a Waiter has joined twice")
		}
	}()
	line.Push(&want[0].Waiter)
}

// TestAllocations: taking turns allocates nothing.
func TestAllocations(t *testing.T) {
	s, list := newSource(1)
	w := &list[0].Waiter
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		token := s.b.Take()
		s.b.Join(w)
		s.b.Give(token)
		s.b.Next().Wake(false)
		baton.SleepOn(ctx, w.Bell())
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
