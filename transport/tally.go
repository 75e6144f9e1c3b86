package transport

import (
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// counters are the Stats of a connection while it is up: fields are counted with inc and count. Stats comes first,
// because its words must be aligned for that on all processors.
type counters struct {
	rpc.Stats
	all *tally // of the owner; may be nil
}

// inc counts one more.
func inc(counter *uint64) { atomic.AddUint64(counter, 1) }

// count counts n more.
func count(counter *uint64, n int) { atomic.AddUint64(counter, uint64(n)) }

func (c *counters) snapshot() (s rpc.Stats) {
	from, to := reflect.ValueOf(&c.Stats).Elem(), reflect.ValueOf(&s).Elem()
	for i := range to.NumField() {
		to.Field(i).SetUint(atomic.LoadUint64(from.Field(i).Addr().Interface().(*uint64)))
	}
	return s
}

// A tally has the counters of all connections of one owner, including those that have ended.
type tally struct {
	mu   sync.Mutex
	live map[*counters]struct{}
	past rpc.Stats
}

// join returns the counters of one more connection.
func (t *tally) join() *counters {
	c := &counters{all: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = make(map[*counters]struct{})
	}
	t.live[c] = struct{}{}
	return c
}

// leave keeps the counts of a connection that has ended.
func (c *counters) leave() {
	t := c.all
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.live[c]; ok {
		delete(t.live, c)
		s := c.snapshot()
		t.past.Add(&s)
	}
}

// sum returns the sum of the counters.
func (t *tally) sum() rpc.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.past
	for c := range t.live {
		s := c.snapshot()
		sum.Add(&s)
	}
	return sum
}
