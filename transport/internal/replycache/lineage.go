package replycache

import "sync/atomic"

// A Lineage is a server's knowledge about the client of a connection: which other connections may be
// the same client's.
//
// Connections from different machines are of different clients.
//
// A client has one connection at a time and makes the next when it has given up the one
// before. So a connection may continue any older one, unless the older one's client has
// sent something while the younger one was there. That something has been heard since does
// not show it: what was sent before the client gave up may arrive long after, and the
// server may learn late, or never, that the older connection has ended. But no further calls
// than were granted can be on their way. With one more than that, the client has sent a
// call since.
//
// Connections that are not known to be apart count as one client's, in either order: a
// call of the older one may arrive when the younger one has made it again.
type Lineage struct {
	cache   *Cache
	machine string        // the client's
	once    bool          // it sends no call twice on the connection
	born    uint64        // its place among all lineages
	alive   atomic.Uint64 // the client has called when so many lineages had been born

	// Of the goroutine that calls Called.
	since uint64 // the births when calls began to be counted
	calls int
}

// NewLineage returns the Lineage of a new connection from machine. once says that the client
// sends no call twice on it. NewLineage must be called before the client can use the connection.
func (c *Cache) NewLineage(machine string, once bool) *Lineage {
	n := c.births.Add(1)
	return &Lineage{cache: c, machine: machine, once: once, born: n, since: n}
}

// Called counts a call on the connection, on which so many are granted at once. One
// goroutine at a time may call it.
func (l *Lineage) Called(granted int) {
	if l.calls++; l.calls > granted {
		l.alive.Store(l.since)
		l.since, l.calls = l.cache.births.Load(), 0
	}
}

// apart reports whether two connections are certainly not of one client. A client's own
// connections, to its one server, have no Lineage, and never are.
func (l *Lineage) apart(o *Lineage) bool {
	if l == o || l == nil || o == nil {
		return false
	}
	if l.machine != o.machine {
		return true
	}
	older, younger := l, o
	if older.born > younger.born {
		older, younger = younger, older
	}
	return older.alive.Load() >= younger.born
}
