package iwarp

import (
	"runtime"
	"time"
)

// spin waits as Wait does, over a stream that is read without system calls: by polling at first, where
// that has been faster than parking.
func (c *Conn) spin() {
	start := time.Now()
	limit := c.spinner.Begin(c.received())
	if limit == 0 {
		c.park(c.steps.wait)
	} else {
		// One processor is left to goroutines that have something to do. A wait that parks for that
		// reason says nothing of the two ways.
		room := int(c.p.spinning.Add(1)) < runtime.GOMAXPROCS(0)
		found := room && c.poll(start, limit)
		c.p.spinning.Add(-1)
		if !found {
			c.park(c.steps.wait)
		}
		if !room {
			return
		}
	}
	if !c.wakeup.Load() {
		c.spinner.End(c.received(), time.Since(start))
	}
}

// received returns how many messages have been received.
func (c *Conn) received() uint64 {
	defer c.rx.Unlock()
	return uint64(c.rx.Lock().msn[0])
}

const (
	// glances is how often a goroutine looks before it lets others of its process run, and turns after
	// how many of these it lets other processes run: the other end may need this processor.
	glances = 32
	turns   = 8
)

// poll polls until Wait can return. It gives up after limit, and returns false.
func (c *Conn) poll(start time.Time, limit time.Duration) bool {
	for turn := 1; ; turn++ {
		for range glances {
			if c.ready() {
				return true
			}
			x := c.rx.Lock()
			look := !x.dead && x.sock.stream.Ready()
			c.rx.Unlock()
			if look {
				c.progress(true)
			}
		}
		if time.Since(start) > limit {
			return false
		}
		runtime.Gosched()
		if turn%turns == 0 {
			yield()
		}
	}
}
