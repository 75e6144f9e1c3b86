package iwarp

import (
	"runtime"
	"sync/atomic"
	"time"
)

// spin implements Wait. It polls first, if polling has been faster than parking.
func (c *Conn) spin() {
	limit, counts := c.spinner.Begin(c.received()), c.spinner.Counts()
	var start time.Duration
	if counts {
		start = c.p.now()
	}
	if limit == 0 {
		c.park(c.steps.wait)
	} else {
		// A wait that parks for lack of room shows nothing about the two ways.
		room := c.p.polls.enter()
		found := room && c.poll(limit)
		c.p.polls.leave(room, found)
		if !found {
			c.park(c.steps.wait)
		}
		if !room {
			return
		}
	}
	if counts && !c.wakeup.Load() {
		c.spinner.End(c.received(), c.p.now()-start)
	}
}

// Polls limits how many goroutines of a Provider poll. Goroutines that poll in vain take processors from those that have
// work: one processor is left to the latter. Where polling is mostly in vain, as on many connections with few calls
// each, hardly any goroutine polls.
type polls struct {
	procs atomic.Int32 // a copy of GOMAXPROCS, reading which locks the scheduler
	under atomic.Int32 // goroutines that poll
	vain  atomic.Int32 // excess of polls in vain, from 0 to maxVain
	tries atomic.Uint32
}

// look updates the number of processors. It reports whether there are several.
func (p *polls) look() (several bool) {
	n := runtime.GOMAXPROCS(0)
	p.procs.Store(int32(n))
	return n > 1
}

const (
	maxVain    = 64
	foundFor   = 4 // a poll that finds something makes up for this many that do not
	seldom     = 64
	mostlyVain = 16
)

// enter reports whether another goroutine may poll.
func (p *polls) enter() bool {
	return p.under.Add(1) < p.procs.Load() && (p.vain.Load() < mostlyVain || p.tries.Add(1)%seldom == 0)
}

// leave ends what enter began, and counts the poll, if there was one.
func (p *polls) leave(polled, found bool) {
	p.under.Add(-1)
	switch v := p.vain.Load(); {
	case !polled:
	case found && v == 0:
	case found:
		p.vain.Store(max(0, v-foundFor))
	default:
		p.vain.Store(min(maxVain, v+1))
	}
}

// now returns the time since p was made.
func (p *Provider) now() time.Duration { return time.Since(p.made) }

// A beat is how often a goroutine that polls makes room for others. After looks looks a turn ends. After goroutines
// turns it lets other goroutines run, and after threads turns other threads: the other end may need this processor, and
// so may a goroutine that this end has woken on another thread.
type beat struct{ looks, goroutines, threads int }

var (
	ofMemory = beat{128, 1, 4} // a look is a load
	ofSocket = beat{8, 32, 1}  // a look is a system call, and Gosched wakes a thread
)

// procsFor is the number of turns after which the number of processors is looked up again.
const procsFor = 32

// poll polls until Wait can return. After limit it returns false.
func (c *Conn) poll(limit time.Duration) bool {
	var start time.Duration
	for turn := 1; ; turn++ {
		for range c.beat.looks {
			if c.ready() {
				return true
			}
			if x := c.rx.Lock(); x.idle() {
				c.rx.Unlock()
			} else {
				c.advance(x)
			}
		}
		now := c.p.now()
		if turn == 1 {
			start = now
		}
		if now-start > limit {
			return false
		}
		if turn%c.beat.goroutines == 0 {
			runtime.Gosched()
		}
		if turn%c.beat.threads == 0 {
			yield()
		}
		if turn%procsFor == 0 {
			c.p.polls.look()
		}
	}
}
