package transport

import "slices"

// ArenaSlabs is how many slabs the client's arena has. An ended connection without
// calls has none.
func (cl *Client) ArenaSlabs() int {
	a := cl.conn().arena
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.slabs)
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
	a := cn.c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slabs {
		mapped += len(s.mem)
	}
	return mapped, a.out
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
