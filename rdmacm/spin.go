//go:build linux && cgo

package rdmacm

import (
	"runtime"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

const (
	// yieldEvery is how many polls pass between two yields to other processes.
	yieldEvery = 8
	// turnEvery is the interval at which Go's poller gets a turn. Turns fall on multiples of it, because all pollers
	// must park for that at the same time.
	turnEvery = 50 * time.Microsecond
)

// poll polls until Wait can return. If limit is not 0, poll stops after limit and returns false.
func (c *Conn) poll(start time.Time, limit time.Duration) bool {
	last := start.UnixNano() / int64(turnEvery)
	for i := 1; ; i++ {
		l := c.q.polling.Lock()
		ready := l.closed || c.poller.Of(l).advance(l, 0)
		c.q.polling.Unlock()
		if ready || c.wakeup.Load() {
			return true
		}
		now := time.Now()
		if limit > 0 && now.Sub(start) > limit {
			return false
		}
		// The other end may be a goroutine, a process or a kernel thread that needs this processor.
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

// takeTurn runs goroutines that are parked on descriptors, such as the other end.
func (c *Conn) takeTurn() {
	p := c.poller.Of(c.q.polling.Lock())
	if p.turn == nil && !p.settled {
		p.turn, _ = pollfd.NewTurn() // without a turn they run late
	}
	turn := p.turn
	c.q.polling.Unlock()
	if turn == nil {
		runtime.Gosched()
		return
	}
	turn.Take()
}
