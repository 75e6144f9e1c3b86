package replycache

import "sync/atomic"

// A Lineage is a server's knowledge about the client of a connection: which other connections may belong to the same
// client.
//
// Connections from different machines belong to different clients.
//
// A client has one connection at a time, and makes the next after it has abandoned the previous one. So a connection
// may continue any older one, unless the older one's client has sent something after the younger one was made.
// Receiving something since then is no evidence of that: data sent before the client abandoned the connection may
// arrive long after, and the server may learn late, or never, that the older connection has ended. But at most as many
// calls as were granted can be on their way. If one more arrives, the client has sent a call since.
//
// Connections that are not known to be apart count as one client's, in either order: a call of the older one may arrive
// after the younger one has made it again.
type Lineage struct {
	cache   *Cache
	machine string        // the client's
	once    bool          // the client sends no call twice on the connection
	born    uint64        // number of the lineage
	alive   atomic.Uint64 // number of lineages when the client is known to have called

	// Used by the goroutine that calls Called.
	since uint64 // number of lineages when calls began to be counted
	calls int
}

// NewLineage returns the Lineage of a new connection from machine. once reports that the client sends no call twice on
// the connection. NewLineage must be called before the client can use the connection.
func (c *Cache) NewLineage(machine string, once bool) *Lineage {
	n := c.births.Add(1)
	return &Lineage{cache: c, machine: machine, once: once, born: n, since: n}
}

// Called counts a call on the connection. granted is the number of calls that may be in flight. Only one goroutine at a
// time may call it.
func (l *Lineage) Called(granted int) {
	if l.calls++; l.calls > granted {
		l.alive.Store(l.since)
		l.since, l.calls = l.cache.births.Load(), 0
	}
}

// apart reports whether two connections are certainly of different clients. A client's own connections, to its one
// server, have no Lineage, and never are.
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
