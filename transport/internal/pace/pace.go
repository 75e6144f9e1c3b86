// Package pace keeps the calls of busy clients from delaying those of others.
//
// Go's scheduler polls descriptors for messages when no goroutine can run, or else every 10 ms. On a server with many
// calls in flight on each connection some goroutine can always run, so a client that makes one call at a time waits up
// to 10 ms for each. But fewer calls in flight keep the processors just as busy. So the goroutine of a connection
// measures how long it waits for a processor after it has processed several messages. While that is long on several
// connections, each of them grants half as many calls, and then half of that, down to plan.LeastPaced. The other calls
// wait at the client, which has a queue for them anyway. Over TCP, which has no credits, they wait to be read.
//
// A connection that has the server to itself keeps its grant. So does every connection while the processors are not
// busy, however long handlers wait for something else. A connection that calls a program that is not Independent also
// keeps its grant: handlers that wait for a later message might wait forever with fewer calls in flight.
package pace

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

const (
	// lateWait is the duration from which a wait for a processor is long.
	lateWait = time.Millisecond

	// rivalTime is how long another connection counts as a rival after a long wait.
	rivalTime = 20 * time.Millisecond

	// measureEvery: one wait in measureEvery is measured while the grant is whole, because reading the clock twice may
	// cost 1/30 of a call's time.
	measureEvery = 4

	// promptWaits is the number of consecutive waits that must not be long before the grant is doubled. If it rose as
	// fast as it falls, clients would keep stopping and starting calls.
	promptWaits = 64
)

// A Pacer lets connections of a server know that others wait for processors, too.
type Pacer struct {
	start time.Time
	late  atomic.Pointer[Pace] // with the latest long wait
	mixed atomic.Int64         // when another connection last took its place, in nanoseconds after start
}

// Start returns a Pacer for a server that starts now.
func Start() *Pacer { return &Pacer{start: time.Now()} }

// rivals reports whether another connection has had a long wait recently. p has one now.
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
	Halved int    // number of times the grant is halved
	prompt int    // measured waits since the latest long one
	waits  int    // for a processor
}

// End ends the pace: its connection has ended, or has calls with handlers that may wait for their client. It reports
// whether the number of calls in flight was reduced.
func (p *Pace) End() (changed bool) {
	if p.Pacer == nil {
		return false
	}
	p.Pacer.late.CompareAndSwap(p, nil)
	changed = p.Halved > 0
	*p = Pace{}
	return changed
}

// Met is called before the goroutine waits, with the number of messages since the last time. After several messages it
// yields to the goroutines that they woke. It reports whether the number of calls that may be in flight, out of most,
// has changed.
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

// passed reports whether this wait is not to be measured.
func (p *Pace) passed() bool {
	p.waits++
	return p.Halved == 0 && p.waits%measureEvery != 0
}

// waited records a wait for a processor. late reports whether it was long while there were rivals.
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
