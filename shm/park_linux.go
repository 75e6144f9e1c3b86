package shm

import (
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A place is where one goroutine at a time parks.
type place struct {
	at      *neighbor
	taken   sync.Mutex    // held by that goroutine
	due     atomic.Bool   // there may be a reason to look again
	woken   chan struct{} // buffered, for one value: due has been set
	follows atomic.Uint32 // whether the goroutine waits for woken, or is about to
	passed  atomic.Bool   // the deadline has passed
	listed  atomic.Bool   // in at.recv.followers
}

// Values of place.follows.
const (
	apart = iota
	following
	chosen // to lead
)

// wake makes the parked goroutine look again, or else the next one that parks.
func (p *place) wake() {
	p.mark()
	if p.at.leader.Load() == p {
		p.at.bell.SetReadDeadline(past)
	}
}

// mark is wake for a caller that leads: it wakes the caller itself or a follower.
func (p *place) mark() {
	p.due.Store(true)
	if p.follows.Load() != apart {
		select {
		case p.woken <- struct{}{}:
		default:
		}
	}
}

func (p *place) park(closed *atomic.Bool, step func(uintptr) bool) (err error) {
	p.taken.Lock()
	defer p.taken.Unlock()
	for {
		switch {
		case closed.Load():
			err = os.ErrClosed
		case p.passed.Load():
			err = os.ErrDeadlineExceeded
		case !step(0):
			p.at.wait(p)
			continue
		}
		if p.at.leader.Load() == p {
			p.at.leave()
		}
		return err
	}
}

// empty waits until no goroutine parks.
func (p *place) empty() {
	p.wake()
	p.taken.Lock()
	defer p.taken.Unlock()
}

// A parker is the llp.Parker of a stream. It has no descriptor of its own: it uses its neighbor's.
type parker struct {
	places [2]place // by hintRead and hintWrite
	closed atomic.Bool
}

func (p *parker) init(n *neighbor) {
	for i := range p.places {
		p.places[i].at, p.places[i].woken = n, make(chan struct{}, 1)
	}
}

// Read implements llp.Parker.
func (p *parker) Read(step func(uintptr) bool) error { return p.places[hintRead].park(&p.closed, step) }

// Write implements llp.Parker.
func (p *parker) Write(step func(uintptr) bool) error {
	return p.places[hintWrite].park(&p.closed, step)
}

func (p *parker) setDeadline(t time.Time, places ...uint32) error {
	if p.closed.Load() {
		return os.ErrClosed
	}
	for _, i := range places {
		p.places[i].passed.Store(!t.IsZero())
		p.places[i].wake()
	}
	return nil
}

// SetDeadline implements llp.Parker.
func (p *parker) SetDeadline(t time.Time) error { return p.setDeadline(t, hintRead, hintWrite) }

// SetReadDeadline implements llp.Parker.
func (p *parker) SetReadDeadline(t time.Time) error { return p.setDeadline(t, hintRead) }

// SetWriteDeadline implements llp.Parker.
func (p *parker) SetWriteDeadline(t time.Time) error { return p.setDeadline(t, hintWrite) }

// Close implements llp.Parker.
func (p *parker) Close() error {
	p.closed.Store(true)
	for i := range p.places {
		p.places[i].empty()
	}
	return nil
}
