// Package connset is for Observers that need to know which connections are open, and the counts of those and of earlier
// ones.
package connset

import (
	"maps"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Set holds the connections of an Observer that have begun and not ended. The zero value is empty. Its methods are
// safe for concurrent use.
type Set struct {
	mu     sync.Mutex
	open   map[rpc.Conn]Entry
	opened uint64
	past   Sum // of connections that have ended
}

// An Entry is a connection.
type Entry struct {
	Conn   rpc.Conn
	ID     uint64 // sequential, from 1
	Server bool   // the other end opened the connection
	Began  time.Time
	Stats  rpc.ConnStats // set in results of Ended and Look
}

// A Sum is the sum of several connections' figures.
type Sum struct {
	rpc.Stats
	InFlight, Waiting       int   // of open connections, like the fields below
	ExposedBytes, HeldBytes int64 //
	Credits                 int
	Adapter                 map[string]uint64
	Help                    map[string]string // help texts of Adapter
}

// Began handles ConnBegan.
func (s *Set) Began(e rpc.ConnEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[rpc.Conn]Entry)
	}
	s.opened++
	s.open[e.Conn] = Entry{Conn: e.Conn, ID: s.opened, Server: e.Server, Began: e.Began}
}

// Ended handles ConnEnded.
func (s *Set) Ended(e rpc.ConnEvent) Entry {
	stats := e.Conn.Stats() // not with s.mu held: it locks mutexes, and their holders may wait for s.mu
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.open[e.Conn]
	c.Stats = stats
	delete(s.open, e.Conn)
	s.past.count(&stats)
	return c
}

// count adds the figures that only increase.
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

// ID returns the ID of an open connection, or 0.
func (s *Set) ID(c rpc.Conn) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[c].ID
}

// Look returns the open connections in no particular order, the sum of the counts of all connections, including those that
// have ended, and how many connections there have been. The sum may lack calls that were being executed when their
// connection ended; it never decreases. Look briefly takes locks of the data path of each connection.
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
