// Package connset is for Observers that want to know which connections are open, and what has
// been counted on them and on those before.
package connset

import (
	"maps"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Set is the connections that have begun for an Observer and that have not ended. The zero
// value is empty. Its methods may be called by many goroutines at once.
type Set struct {
	mu     sync.Mutex
	open   map[rpc.Conn]Entry
	opened uint64
	past   Sum // of connections that have ended
}

// An Entry is a connection.
type Entry struct {
	Conn   rpc.Conn
	ID     uint64 // in the order in which they came, from 1
	Server bool   // the other end has opened it
	Began  time.Time
	Stats  rpc.ConnStats // in what Ended and Look return
}

// A Sum is figures of several connections.
type Sum struct {
	rpc.Stats
	InFlight, Waiting       int   // of those that are open, like the fields below
	ExposedBytes, HeldBytes int64 //
	Credits                 int
	Adapter                 map[string]uint64
	Help                    map[string]string // of Adapter
}

// Began is for ConnBegan.
func (s *Set) Began(e rpc.ConnEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[rpc.Conn]Entry)
	}
	s.opened++
	s.open[e.Conn] = Entry{Conn: e.Conn, ID: s.opened, Server: e.Server, Began: e.Began}
}

// Ended is for ConnEnded.
func (s *Set) Ended(e rpc.ConnEvent) Entry {
	stats := e.Conn.Stats() // locks mutexes that goroutines hold while they wait for s.mu: not under it
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.open[e.Conn]
	c.Stats = stats
	delete(s.open, e.Conn)
	s.past.count(&stats)
	return c
}

// count adds what only grows.
func (s *Sum) count(c *rpc.ConnStats) {
	s.Stats.Add(&c.Stats)
	if s.Adapter == nil {
		s.Adapter, s.Help = make(map[string]uint64), make(map[string]string)
	}
	for _, n := range c.Adapter {
		s.Help[n.Name] = n.Help
		s.Adapter[n.Name] += n.Value
	}
}

// ID returns the ID of a connection that is open, else 0.
func (s *Set) ID(c rpc.Conn) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[c].ID
}

// Look returns the connections that are open, in no order, the sum of what has been counted on
// them and on those that have ended, and how many there have been. Calls that were executed when
// their connection ended may lack in the sum; it never shrinks. It takes the locks of the data
// path of each connection for a moment.
func (s *Set) Look() (open []Entry, all Sum, opened uint64) {
	s.mu.Lock()
	open = make([]Entry, 0, len(s.open))
	for _, c := range s.open {
		open = append(open, c)
	}
	all, opened = s.past, s.opened
	all.Adapter, all.Help = make(map[string]uint64), make(map[string]string)
	maps.Copy(all.Adapter, s.past.Adapter)
	maps.Copy(all.Help, s.past.Help)
	s.mu.Unlock()
	for i := range open {
		c := &open[i]
		c.Stats = c.Conn.Stats()
		all.count(&c.Stats)
		all.InFlight += c.Stats.InFlight
		all.Waiting += c.Stats.Waiting
		all.ExposedBytes += c.Stats.ExposedBytes
		all.HeldBytes += c.Stats.HeldBytes
		all.Credits += c.Conn.Info().Credits
	}
	return open, all, opened
}
