package replycache

import "fmt"

// Stats are the counts of a Cache.
type Stats struct {
	Entries int // running and answered
	Running int
	Replies int
	Bytes   int // of the replies
	Hosts   int
	Waiting int // calls that wait for the reply to another
	Alike   int // the most entries for the same call from clients of one host
}

// Stats returns the current counts.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Running: c.running, Replies: c.replies, Bytes: c.bytes, Hosts: len(c.hosts)}
	for _, e := range c.entries {
		alike := 0
		for ; e != nil; e = e.alike {
			alike++
			s.Waiting += len(e.waiting)
		}
		s.Entries += alike
		s.Alike = max(s.Alike, alike)
	}
	return s
}

// Check compares the counts of the cache with its contents, for tests.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, running, replies, sum := 0, 0, 0, 0
	for _, first := range c.entries {
		for e := first; e != nil; e = e.alike {
			entries++
			if c.hosts[e.key.host.name] != e.key.host {
				return fmt.Errorf("an entry is of host %q, which is not there", e.key.host.name)
			}
		}
	}
	for name, h := range c.hosts {
		n, b := 0, 0
		for e := h.done.next; e != &h.done; e = e.next {
			n++
			b += len(e.store)
		}
		if n != h.replies || b != h.bytes || h.name != name || n+h.running == 0 {
			return fmt.Errorf("host %q has %d replies of %d bytes, counted are %d of %d, and %d calls", name, n, b, h.replies, h.bytes, h.running)
		}
		if n > 0 && c.shares[h.at] != h {
			return fmt.Errorf("host %q is not at its place in the heap", name)
		}
		running, replies, sum = running+h.running, replies+n, sum+b
	}
	aged := 0
	for e := c.all.newer; e != &c.all; e = e.newer {
		if aged++; e.newer != &c.all && e.newer.since < e.since {
			return fmt.Errorf("reply %d is before an older one", aged)
		}
	}
	if aged != replies {
		return fmt.Errorf("%d replies by age, %d by host", aged, replies)
	}
	if running != c.running || replies != c.replies || sum != c.bytes || entries != replies+running {
		return fmt.Errorf("%d entries, %d replies of %d bytes, %d calls; counted are %d of %d, %d", entries, replies, sum, running, c.replies, c.bytes, c.running)
	}
	if replies > c.limits.Entries || sum > c.limits.Bytes || running > c.limits.Entries {
		return fmt.Errorf("%d replies of %d bytes, %d calls are more than the limits", replies, sum, running)
	}
	for i, h := range c.shares {
		if i > 0 && c.share(c.shares[(i-1)/2]) < c.share(h) {
			return fmt.Errorf("share %d is larger than the one above it", i)
		}
		if h.replies == 0 {
			return fmt.Errorf("host %q is in the heap without a reply", h.name)
		}
	}
	return nil
}
