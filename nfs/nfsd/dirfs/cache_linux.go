package dirfs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cache holds the nodes in use, and recently used ones, with their descriptors. Its lock is never held during a system
// call that may access a disk.
type cache struct {
	max  int // maximum number of descriptors
	idle time.Duration

	mu     sync.Mutex
	nodes  map[id]*node // by the keys of their ids
	front  node         // ring of unused nodes, from front.next, the most recently used, to front.prev
	open   int          // number of open descriptors
	timer  *time.Timer
	check  *time.Timer // timer of checkSoon
	closed bool
	sweeps sync.WaitGroup
}

func newCache(most int, idle time.Duration) *cache {
	c := &cache{max: most, idle: idle, nodes: make(map[id]*node)}
	c.front.prev, c.front.next = &c.front, &c.front
	return c
}

// get acquires the node with an id, or returns nil if it is not in the cache.
func (c *cache) get(i *id) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[i.key()]
	if n != nil {
		c.take(n)
	}
	return n
}

// use acquires a node that is already in use.
func (c *cache) use(n *node) {
	c.mu.Lock()
	c.take(n)
	c.mu.Unlock()
}

// take removes a node from the ring. mu is held.
func (c *cache) take(n *node) {
	if n.refs == 0 && n.next != nil {
		n.leave()
	}
	n.refs++
}

// add adds n, unless the cache already has a node with its id. It acquires and returns the node in the cache.
func (c *cache) add(n *node) *node {
	c.mu.Lock()
	key := n.id.key()
	old := c.nodes[key]
	if old == nil {
		c.nodes[key] = n
		c.open++
		old = n
	}
	c.take(old)
	evicted := c.evict()
	c.mu.Unlock()
	if old != n {
		n.closeAll()
	}
	closeNodes(evicted)
	return old
}

// opened counts n descriptors that a node in use has opened, or closed if n is negative.
func (c *cache) opened(n int) {
	c.mu.Lock()
	c.open += n
	evicted := c.evict()
	c.mu.Unlock()
	closeNodes(evicted)
}

// release undoes one get, use or add.
func (c *cache) release(n *node) {
	c.mu.Lock()
	n.refs--
	gone := n.refs == 0 && n.dropped
	if gone {
		c.open -= n.descriptors()
	} else if n.refs == 0 {
		n.used = time.Now()
		n.prev, n.next = &c.front, c.front.next
		n.prev.next, n.next.prev = n, n
		if c.timer == nil && !c.closed {
			c.timer = time.AfterFunc(c.idle, c.sweep)
		}
	}
	evicted := c.evict()
	c.mu.Unlock()
	if gone {
		n.closeAll()
	}
	closeNodes(evicted)
}

// drop removes a node after its object is gone. The node is closed when it is no longer in use.
func (c *cache) drop(i *id) {
	c.mu.Lock()
	n := c.nodes[i.key()]
	if n != nil {
		delete(c.nodes, i.key())
		n.dropped = true
		if n.refs > 0 {
			n = nil
		} else {
			n.leave()
			c.open -= n.descriptors()
		}
	}
	c.mu.Unlock()
	if n != nil {
		n.closeAll()
	}
}

// evict removes unused nodes until the number of descriptors is below the limit. The caller closes the nodes without
// holding the lock, because closing can take as long as writing. mu is held.
func (c *cache) evict() (list *node) {
	for c.open > c.max && c.front.prev != &c.front {
		list = c.remove(c.front.prev, list)
	}
	return list
}

// remove removes an unused node and prepends it to a list. mu is held.
func (c *cache) remove(n, list *node) *node {
	n.leave()
	delete(c.nodes, n.id.key())
	c.open -= n.descriptors()
	n.next = list
	return n
}

// sweep closes nodes that have not been used for a while.
func (c *cache) sweep() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.sweeps.Add(1)
	defer c.sweeps.Done()
	var list *node
	limit := time.Now().Add(-c.idle)
	for c.front.prev != &c.front && !c.front.prev.used.After(limit) {
		list = c.remove(c.front.prev, list)
	}
	if oldest := c.front.prev; oldest != &c.front {
		c.timer.Reset(oldest.used.Sub(limit))
	} else {
		c.timer = nil
	}
	c.mu.Unlock()
	closeNodes(list)
}

// checkTime is how long a removed object may stay open if its last name was removed unnoticed.
const checkTime = time.Second

// checkSoon schedules a search for objects that are gone. It is not certain which object a removal has removed, because
// the name may have been replaced just before.
func (c *cache) checkSoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.check == nil && !c.closed {
		c.check = time.AfterFunc(checkTime, c.dropGone)
	}
}

// dropGone drops the nodes of objects without a name.
func (c *cache) dropGone() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.sweeps.Add(1)
	defer c.sweeps.Done()
	c.check = nil
	list := make([]*node, 0, len(c.nodes))
	for _, n := range c.nodes {
		c.take(n)
		list = append(list, n)
	}
	c.mu.Unlock()
	for _, n := range list {
		var st unix.Stat_t
		if fstat(n.path, &st) == nil && st.Nlink == 0 {
			c.drop(&n.id)
		}
		c.release(n)
	}
}

// close closes all nodes.
func (c *cache) close() {
	c.mu.Lock()
	c.closed = true
	for _, t := range []*time.Timer{c.timer, c.check} {
		if t != nil {
			t.Stop()
		}
	}
	c.mu.Unlock()
	c.sweeps.Wait()
	c.mu.Lock()
	nodes := c.nodes
	c.nodes = nil
	c.mu.Unlock()
	for _, n := range nodes {
		n.closeAll()
	}
}

func closeNodes(list *node) {
	for list != nil {
		n := list
		list, n.next = n.next, nil
		n.closeAll()
	}
}

// leave unlinks a node from the ring.
func (n *node) leave() {
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}
