//go:build linux && cgo

package rdmacm

import (
	"math/bits"
	"runtime"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// A spinner decides whether a connection's waits begin with polling, or park at once.
// Which of these is better depends on the device, on the kernel, on what else the
// processors have to do, and on what the other end does. So it is not guessed but
// measured: one way is in use, now and then the other one is tried, and when as many
// waits take less time that way, it is in use from there on. What a trial has cost decides
// when the next one comes, so that trials take a few percent of the time.
//
// Each end decides for itself, but both try at the same time, namely by the number of
// messages received, of which there are as many at both ends where calls are
// answered. An end that polls while the other one parks learns little: there may be no
// processor left to wake the other one on, and when it has polled in vain and parks too,
// the other one does for the same reason.
type spinner struct {
	parks bool  // the way in use
	use   tally // of it
	trial bool  // the other one is being tried
	try   tally // of that
	due   uint64
	turn  *pollfd.Turn
}

// A tally is about the latest waits that began in the same way.
type tally struct {
	n    int           // how many they are
	mean time.Duration // of what counts of each
	vain int           // how many more of them have polled in vain than not
}

const (
	// maxSpin is how long a wait polls.
	maxSpin = 200 * time.Microsecond
	// fewWaits is how many waits are held against as many of the other way.
	fewWaits = 32
	// maxWait is what counts of a wait. The rest is idleness, or somebody else's
	// turn on the processor, and one such would outweigh all others.
	maxWait = time.Millisecond
	// maxVain is how many more waits may poll in vain than not. Somewhat fewer do
	// because the other end tries something.
	maxVain = 8
	// Between trials are so many times the waits that there could have been in the
	// time that the last one has cost, within limits.
	trialShare = 32
	minPause   = 256
	maxPause   = 4096
)

// begin returns how long the wait that begins polls before it parks. received is how many
// messages have been.
func (s *spinner) begin(received uint64) time.Duration {
	if !s.trial && s.use.n == fewWaits && received >= s.due {
		s.trial, s.try = true, tally{}
	}
	if s.parks != s.trial {
		return 0
	}
	return maxSpin
}

// end takes in how long the wait has taken.
func (s *spinner) end(received uint64, took time.Duration) {
	t := &s.use
	if s.trial {
		t = &s.try
	}
	t.add(took, s.parks == s.trial && took > maxSpin)
	if !s.trial {
		if t.vain > maxVain { // whether or not parking takes longer
			s.putOff(received, maxVain*maxSpin)
			s.parks, s.use = true, tally{}
		}
		return
	}
	// When both are about as good, who parks leaves the processor to others.
	limit := fewWaits * s.use.mean
	if s.parks {
		limit -= limit / 16
	} else {
		limit += limit / 16
	}
	switch n := time.Duration(t.n); {
	case n*t.mean >= limit || t.vain > maxVain:
		s.trial = false
		s.putOff(received, n*(t.mean-s.use.mean)+time.Duration(t.vain)*maxSpin)
	case n == fewWaits:
		s.trial = false
		s.parks, s.use = !s.parks, s.try
		s.putOff(received, 0) // soon: it may have been luck
	}
}

func (t *tally) add(took time.Duration, vain bool) {
	t.n = min(t.n+1, fewWaits)
	t.mean += (min(took, maxWait) - t.mean) / time.Duration(t.n)
	if vain {
		t.vain++
	} else {
		t.vain = max(0, t.vain-1)
	}
}

// putOff has the next trial wait. Trials begin at multiples of powers of two, so that
// one end's coincide with the other's, though one may have fewer.
func (s *spinner) putOff(received uint64, cost time.Duration) {
	waits := trialShare * max(0, cost) / max(1, s.use.mean)
	pause := uint64(1) << bits.Len64(uint64(min(max(waits, minPause), maxPause))-1)
	s.due = received&^(pause-1) + pause
}

const (
	// yieldEvery is how many rounds of polling pass between two at which other
	// processes may have the processor.
	yieldEvery = 8
	// turnEvery: at multiples of it Go's poller has its turn. All who poll have to park
	// for that, so they do it at the same time.
	turnEvery = 50 * time.Microsecond
)

// poll polls until Wait has something to return for. It gives up after limit, if that
// is not 0, and returns false.
func (c *Conn) poll(start time.Time, limit time.Duration) bool {
	last := start.UnixNano() / int64(turnEvery)
	for i := 1; ; i++ {
		c.q.mu.Lock()
		ready := c.q.closed || c.advance(0)
		c.q.mu.Unlock()
		if ready || c.wakeup.Load() {
			return true
		}
		now := time.Now()
		if limit > 0 && now.Sub(start) > limit {
			return false
		}
		// The other end may be a goroutine, a process or a kernel thread that
		// needs this processor.
		this := now.UnixNano() / int64(turnEvery)
		if this != last && (now.Sub(start) > turnEvery || runtime.GOMAXPROCS(0) == 1) {
			c.takeTurn()
		} else {
			runtime.Gosched()
		}
		last = this
		if i%yieldEvery == 0 {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// takeTurn lets those run who are parked on descriptors, the other end perhaps.
func (c *Conn) takeTurn() {
	turn := c.spin.turn
	if turn == nil {
		c.q.mu.Lock()
		if !c.settled {
			c.spin.turn, _ = pollfd.NewTurn() // without one they are late
			turn = c.spin.turn
		}
		c.q.mu.Unlock()
	}
	if turn == nil {
		runtime.Gosched()
		return
	}
	turn.Take()
}
