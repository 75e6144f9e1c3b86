package transport

// ArenaSlabs is how many slabs the client's arena has. An ended connection without
// calls has none.
func (cl *Client) ArenaSlabs() int {
	a := cl.conn().arena
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.slabs)
}

// Once is cfg for a client that has one connection.
func Once(cfg *Config) *Config { return once(cfg) }
