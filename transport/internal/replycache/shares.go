package replycache

// A heap of hosts, by their shares of the cache: when the cache is full, the first one
// loses a reply.

// share returns a host's share of the cache, relative to the limit that it is nearer to: entries or bytes.
func (c *Cache) share(h *host) uint64 {
	return max(uint64(h.replies)*uint64(c.limits.Bytes), uint64(h.bytes)*uint64(c.limits.Entries))
}

// rise moves a host to its place after its share has grown. mu is held.
func (c *Cache) rise(h *host) {
	for h.at > 0 {
		up := (h.at - 1) / 2
		if c.share(c.shares[up]) >= c.share(h) {
			return
		}
		c.swap(up, h.at)
	}
}

// sink moves a host to its place after its share has shrunk. mu is held.
func (c *Cache) sink(h *host) {
	for {
		large := h.at
		for i := 2*h.at + 1; i <= 2*h.at+2 && i < len(c.shares); i++ {
			if c.share(c.shares[i]) > c.share(c.shares[large]) {
				large = i
			}
		}
		if large == h.at {
			return
		}
		c.swap(large, h.at)
	}
}

func (c *Cache) swap(i, j int) {
	s := c.shares
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}
