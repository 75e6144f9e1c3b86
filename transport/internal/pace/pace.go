// Package pace keeps the calls of busy clients from standing in the way of others.
//
// Go's scheduler looks for messages on descriptors when no goroutine can run, or else every 10 ms. On
// a server with many calls in flight on each connection there is always one that can, so a client
// that makes one call at a time waits up to 10 ms for each. But fewer calls in flight keep the
// processors just as busy. So the goroutine of a connection measures how long it waits for a
// processor after it has met several messages. While that is long on several connections, each of
// them grants half as many calls, and then half of that, down to plan.LeastPaced. The other calls
// wait at the client, which has a queue for them anyway. Over TCP, which has no credits, they wait to
// be read.
//
// A connection that has the server to itself keeps its grant, and so has each while the processors
// are not busy, however long handlers wait for something else. So has one with a client that calls a
// program that is not Independent: handlers that wait for a later message might wait forever with
// fewer calls in flight.
package pace

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

const (
	// lateWait is a long wait for a processor.
	lateWait = time.Millisecond

	// rivalTime is for how long after a long wait of another connection there is a rival.
	rivalTime = 20 * time.Millisecond

	// measureEvery is how many waits there are for each that is measured while the grant is whole:
	// reading the clock twice may cost 1/30 of a call's time.
	measureEvery = 4

	// promptWaits is how many waits in a row are not long before the grant is doubled. If it
	// rose as fast as it falls, clients would be about to stop and start calls all the time.
	promptWaits = 64
)

// A Pacer is where connections of a server learn that others wait for processors, too.
type Pacer struct {
	start time.Time
	late  atomic.Pointer[Pace] // with the latest long wait
	mixed atomic.Int64         // when that changed, in nanoseconds after start
}

// Start returns a Pacer for a server that begins.
func Start() *Pacer { return &Pacer{start: time.Now()} }

// rivals reports whether another connection has waited long, too. p has, now.
func (r *Pacer) rivals(p *Pace, now time.Time) bool {
	since := int64(now.Sub(r.start))
	if old := r.late.Swap(p); old != nil && old != p {
		r.mixed.Store(since)
		return true
	}
	at := r.mixed.Load()
	return at != 0 && since-at < int64(rivalTime)
}

// A Pace is a connection's pacing state. It is owned by the leader, or by the reader of a TCP connection.
type Pace struct {
	Pacer  *Pacer // nil at a client, and once the pace has ended
	Halved int    // how many times the grant is halved
	prompt int    // measured waits since the latest long one
	waits  int    // for a processor
}

// End ends the pace: its connection has ended, or has calls with handlers that may wait for their
// client. It returns whether fewer calls than the most were in flight.
func (p *Pace) End() (changed bool) {
	if p.Pacer == nil {
		return false
	}
	p.Pacer.late.CompareAndSwap(p, nil)
	changed = p.Halved > 0
	*p = Pace{}
	return changed
}

// Met is called before the goroutine waits, with the number of messages since the last time. After several
// messages it yields to the goroutines that they woke. It reports whether that has changed how many of
// most calls may be in flight.
func (p *Pace) Met(messages, most int) (changed bool) {
	switch {
	case messages > 1 && (p.Pacer == nil || p.passed()):
		runtime.Gosched()
	case messages > 1:
		began := time.Now()
		runtime.Gosched()
		now := time.Now()
		return p.waited(now.Sub(began) >= lateWait && p.Pacer.rivals(p, now), most)
	case messages == 1 && p.Halved > 0:
		return p.waited(false, most)
	}
	return false
}

// passed reports whether this wait is not measured.
func (p *Pace) passed() bool {
	p.waits++
	return p.Halved == 0 && p.waits%measureEvery != 0
}

// waited counts a wait for a processor, which was long beside rivals or not.
func (p *Pace) waited(late bool, most int) (changed bool) {
	before := p.Halved
	switch {
	case late:
		p.prompt = 0
		if most>>p.Halved > plan.LeastPaced {
			p.Halved++
		}
	case p.Halved > 0:
		if p.prompt++; p.prompt == promptWaits {
			p.prompt = 0
			p.Halved--
		}
	}
	return p.Halved != before
}
