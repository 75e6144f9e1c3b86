package transport

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// How the calls of busy clients are kept from standing in the way of others.
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

// A pacer is where connections of a server learn that others wait for processors, too.
type pacer struct {
	start time.Time
	late  atomic.Pointer[pace] // with the latest long wait
	mixed atomic.Int64         // when that changed, in nanoseconds after start
}

// rivals reports whether another connection has waited long, too. p has, now.
func (r *pacer) rivals(p *pace, now time.Time) bool {
	since := int64(now.Sub(r.start))
	if old := r.late.Swap(p); old != nil && old != p {
		r.mixed.Store(since)
		return true
	}
	at := r.mixed.Load()
	return at != 0 && since-at < int64(rivalTime)
}

// A pace is a connection's pacing state. It is owned by the leader, or by the reader of a TCP connection.
type pace struct {
	pacer  *pacer // nil at a client, and once the pace has ended
	halved int    // how many times the grant is halved
	prompt int    // measured waits since the latest long one
	waits  int    // for a processor
}

// end ends the pace: its connection has ended, or has calls with handlers that may wait for their
// client. It returns whether fewer calls than the most were in flight.
func (p *pace) end() (changed bool) {
	if p.pacer == nil {
		return false
	}
	p.pacer.late.CompareAndSwap(p, nil)
	changed = p.halved > 0
	*p = pace{}
	return changed
}

// met is called before the goroutine waits, with the number of messages since the last time. After several
// messages it yields to the goroutines that they woke. It reports whether that has changed how many of
// most calls may be in flight.
func (p *pace) met(messages, most int) (changed bool) {
	switch {
	case messages > 1 && (p.pacer == nil || p.passed()):
		runtime.Gosched()
	case messages > 1:
		began := time.Now()
		runtime.Gosched()
		now := time.Now()
		return p.waited(now.Sub(began) >= lateWait && p.pacer.rivals(p, now), most)
	case messages == 1 && p.halved > 0:
		return p.waited(false, most)
	}
	return false
}

// passed reports whether this wait is not measured.
func (p *pace) passed() bool {
	p.waits++
	return p.halved == 0 && p.waits%measureEvery != 0
}

// waited counts a wait for a processor, which was long beside rivals or not.
func (p *pace) waited(late bool, most int) (changed bool) {
	before := p.halved
	switch {
	case late:
		p.prompt = 0
		if most>>p.halved > plan.LeastPaced {
			p.halved++
		}
	case p.halved > 0:
		if p.prompt++; p.prompt == promptWaits {
			p.prompt = 0
			p.halved--
		}
	}
	return p.halved != before
}
