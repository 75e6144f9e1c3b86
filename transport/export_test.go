package transport

import (
	"fmt"
	"slices"
	"strings"
)

// ArenaSlabs is how many slabs the client's arena has. An ended connection without
// calls has none.
func (cl *Client) ArenaSlabs() int {
	return cl.conn().arena.Stats().Slabs
}

// Once is cfg for a client that has one connection.
func Once(cfg *Config) *Config {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.NoReconnect = true
	return &c
}

// Latest is the client's connection as a handler would see it.
func (cl *Client) Latest() *Conn { return &Conn{c: cl.conn()} }

// ArenaUse is how many bytes the arena of a connection has mapped, and how many of its
// buffers are in use.
func ArenaUse(cn *Conn) (mapped, buffers int) {
	a := cn.c.arena.Stats()
	return a.Bytes, a.Buffers
}

// SameXIDs has the next calls of both ends begin with the same xids. False means that
// there are calls under way.
func SameXIDs(cl *Client, cn *Conn) bool {
	ends := []*requester{&cl.conn().req, &cn.c.req}
	var gen uint32
	for _, r := range ends {
		r.c.mu.Lock()
		for _, s := range r.slots {
			gen = max(gen, s.gen+1)
		}
		r.c.mu.Unlock()
	}
	mask := ends[0].mask
	for _, r := range ends {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		if r.inUse > 0 {
			return false
		}
		r.mask, r.gens = mask, make([]uint32, MaxCredits)
		for i := range r.gens {
			r.gens[i] = gen
		}
		for _, s := range r.slots {
			s.gen = gen
		}
		slices.SortFunc(r.free, func(a, b *slot) int { return int(b.idx) - int(a.idx) })
	}
	return true
}

// InLine is how many callers wait for a credit.
func InLine(cn *Conn) (n int) {
	r := &cn.c.req
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	for w := r.line.head.next; w != &r.line.head; w = w.next {
		n++
	}
	return n
}

// Random is cfg with random numbers from f: xids, and pauses between attempts to connect.
func Random(cfg *Config, f func() uint64) *Config {
	c := *cfg
	c.random = f
	return &c
}

// XID is the xid that a call was last sent with, 0 if it was not sent.
func (call *Call) XID() uint32 {
	if !call.sent {
		return 0
	}
	return call.xid
}

// Held is how many bytes the calls hold that this end of a connection is answering.
func Held(cn *Conn) int64 { return cn.c.rsp.tenant.Held() }

// Busy tells what a connection still holds on which nothing is under way, "" if all is well.
func Busy(cn *Conn) string {
	c := cn.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sq.mu.Lock()
	defer c.sq.mu.Unlock()
	var what []string
	note := func(bad bool, format string, args ...any) {
		if bad {
			what = append(what, fmt.Sprintf(format, args...))
		}
	}
	waiting := int(c.sq.waiting.Load())
	held := c.rsp.tenant.Held()
	note(held != 0, "its calls hold %d bytes", held)
	note(len(c.rsp.exchs)-len(c.rsp.free) != waiting, "%d calls are being answered", len(c.rsp.exchs)-len(c.rsp.free)-waiting)
	note(len(c.rsp.memq) > 0, "%d calls wait for memory", len(c.rsp.memq))
	note(c.req.inUse > 0, "%d calls have no reply", c.req.inUse)
	note(!c.req.line.empty(), "callers wait for credits")
	note(!c.waiters.empty(), "callers wait for the connection")
	note(len(c.sq.pending) > 0, "%d requests have not been posted", len(c.sq.pending))
	note(c.reads.posted > 0 || len(c.reads.line) > 0, "%d Reads are under way, %d messages wait", c.reads.posted, len(c.reads.line))
	used := len(c.rbufs)
	for _, s := range c.req.slots {
		note(s.lent.Len() > 0, "a loan is open")
		if s.send != nil {
			used++
		}
	}
	for _, x := range c.rsp.exchs {
		if x.out != nil {
			used++
		}
		note(x.held != 0, "a call that is over holds %d bytes", x.held)
	}
	a := c.arena.Stats()
	note(a.Buffers != used, "%d buffers are in use, %d by what stays", a.Buffers, used)
	note(a.Refs != 1, "%d hold the arena", a.Refs)
	return strings.Join(what, "; ")
}

// MemoryUse is what a server keeps for its clients, as it counts it.
func MemoryUse(s *Server) int64 {
	st := s.memory.Stats()
	return st.Held + st.Base + st.Idle
}
