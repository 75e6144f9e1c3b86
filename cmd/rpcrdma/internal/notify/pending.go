package notify

// maxPending and maxPendingSize limit the number of events that wait for a client, and their encoded size in bytes.
// They use up to some 2 MB of memory.
const (
	maxPending     = 8192
	maxPendingSize = 512 << 10
)

// pending is the queue of events not yet sent to a client.
type pending struct {
	events []Event
	size   int // encoded, in bytes
	// told records the later changes of a path that need no event: the queued event makes the client look at the path,
	// where it will find the later change too.
	told map[string]told
}

type told struct{ modified, attributes bool }

// add appends an event unless an event in the queue covers it.
func (p *pending) add(e Event) {
	if p.overflowed() && e.Kind != Ended {
		return
	}
	t := p.told[e.Path]
	switch {
	case e.Kind == Modified && t.modified, e.Kind == Attributes && t.attributes:
		return
	case e.Kind == Created:
		t = told{true, true}
	case e.Kind == Modified:
		t.modified = true
	case e.Kind == Attributes:
		t.attributes = true
	default:
		t = told{}
	}
	if p.size += e.size(); (len(p.events) >= maxPending || p.size > maxPendingSize) && e.Kind != Ended {
		e, t = overflow(), told{}
		*p = pending{size: e.size()}
	}
	p.events = append(p.events, e)
	if e.Kind == Renamed {
		delete(p.told, e.From)
	}
	if t == (told{}) {
		delete(p.told, e.Path)
		return
	}
	if p.told == nil {
		p.told = make(map[string]told)
	}
	p.told[e.Path] = t
}

// overflowed reports whether the last event covers all that may follow.
func (p *pending) overflowed() bool {
	if len(p.events) == 0 {
		return false
	}
	last := &p.events[len(p.events)-1]
	return last.Kind == Overflow && last.Path == ""
}

// take removes and returns the first event. It shortens the event if its encoding is longer than limit bytes.
func (p *pending) take(limit int) (e Event, ok bool) {
	if len(p.events) == 0 {
		return Event{}, false
	}
	e = p.events[0]
	delete(p.told, e.Path)
	p.size -= e.size()
	if p.events = p.events[1:]; len(p.events) == 0 {
		*p = pending{}
	}
	if e.size() > limit {
		e.shorten(limit)
	}
	return e, true
}
