package status

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// ---- calls under way

// shards is the number of locks that the calls in flight are divided among.
const shards = 16

// A callTable has the calls in flight, up to a limit.
type callTable struct {
	shards    [shards]callShard
	all       [2]atomic.Int64 // made, executed
	untracked atomic.Int64    // calls that there was no room for
}

type callShard struct {
	mu    sync.Mutex
	calls map[*rpc.CallEvent]underWay
	max   int
	_     [64]byte // one shard per cache line
}

// underWay is a call that has begun. conn is nil for a call that this end makes: it is not sent yet.
type underWay struct {
	rpc.Procedure
	conn               rpc.Conn
	xid                uint32
	executed, backward bool
	began              time.Time
	request            rpc.Transfer
}

func (t *callTable) bound(n int) {
	for i := range t.shards {
		t.shards[i].max = max(1, n/shards)
		t.shards[i].calls = make(map[*rpc.CallEvent]underWay)
	}
}

// shard returns the shard of a call, by data that does not change while the call is in flight.
func (t *callTable) shard(e *rpc.CallEvent) *callShard {
	return &t.shards[uint64(e.Began.UnixNano()>>10)%shards]
}

func side(executed bool) int {
	if executed {
		return 1
	}
	return 0
}

func (t *callTable) begin(e *rpc.CallEvent) {
	t.all[side(e.Executed)].Add(1)
	s := t.shard(e)
	s.mu.Lock()
	room := len(s.calls) < s.max
	if room {
		s.calls[e] = underWay{e.Procedure, e.Conn, e.XID, e.Executed, e.Backward, e.Began, e.Request}
	}
	s.mu.Unlock()
	if !room {
		t.untracked.Add(1)
	}
}

func (t *callTable) end(e *rpc.CallEvent) {
	t.all[side(e.Executed)].Add(-1)
	s := t.shard(e)
	s.mu.Lock()
	_, tracked := s.calls[e]
	delete(s.calls, e)
	s.mu.Unlock()
	if !tracked {
		t.untracked.Add(-1)
	}
}

// list returns the calls in flight, oldest first.
func (t *callTable) list() []underWay {
	var list []underWay
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, c := range s.calls {
			list = append(list, c)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b underWay) int { return a.began.Compare(b.began) })
	return list
}

// ---- latencies

// buckets is the number of latency classes: below 1 µs, 2 µs, 4 µs, and so on to 33.6 s, and everything longer.
const buckets = 27

// bucketOf returns the class of a duration.
func bucketOf(d time.Duration) int {
	return min(bits.Len64(uint64(max(d, 0)/time.Microsecond)), buckets-1)
}

// bucketEnd returns the upper bound of a class; that of the last is meaningless.
func bucketEnd(i int) time.Duration { return time.Microsecond << i }

// A latency has the durations of the calls of one procedure, at one end.
type latency struct {
	failed                        atomic.Uint64
	total, longest, waited, inner atomic.Int64 // nanoseconds; inner is in the handler, or on the wire
	classes                       [buckets]atomic.Uint64
	calls, failures               history
}

func (m *Monitor) latency(e *rpc.CallEvent) *latency {
	at := &m.procedures[2*m.cfg.Table.Index(e.Prog, e.Vers, e.Proc)+side(e.Executed)]
	if l := at.Load(); l != nil {
		return l
	}
	at.CompareAndSwap(nil, new(latency))
	return at.Load()
}

// add counts a call that ended in a second, in Unix time.
func (l *latency) add(e *rpc.CallEvent, second int64, failed bool) {
	l.calls.add(second, 1)
	if failed {
		l.failed.Add(1)
		l.failures.add(second, 1)
	}
	l.classes[bucketOf(e.Total)].Add(1)
	l.total.Add(int64(e.Total))
	l.waited.Add(int64(e.Waited))
	l.inner.Add(int64(e.Handler + e.Wire)) // one of them is zero
	for {
		was := l.longest.Load()
		if int64(e.Total) <= was || l.longest.CompareAndSwap(was, int64(e.Total)) {
			return
		}
	}
}

// ---- what has happened

// A ring has the latest n entries of a list. It accepts a bounded number of entries per second, so that recording stays
// cheap when a peer keeps causing entries.
type ring[T any] struct {
	n int

	mu     sync.Mutex
	list   []T
	next   int // the next place in list, once it is full
	total  uint64
	second int64 // the second in which taken entries were accepted
	taken  int
}

// add adds the entry that the function returns. It does not call the function if the ring accepts no more entries in
// this second.
func (r *ring[T]) add(now time.Time, entry func() T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	if second := now.Unix(); second != r.second {
		r.second, r.taken = second, 0
	}
	if r.taken++; r.taken > maxPerSec {
		return
	}
	if len(r.list) < r.n {
		r.list = append(r.list, entry())
		return
	}
	r.list[r.next] = entry()
	r.next = (r.next + 1) % r.n
}

// latest returns the entries, latest first, and how many there have ever been.
func (r *ring[T]) latest() ([]T, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Concat(r.list[r.next:], r.list[:r.next])
	slices.Reverse(list)
	return list, r.total
}

// A slowList has the n slowest calls of the current window and those of the previous one.
type slowList struct {
	n int

	floor atomic.Int64 // nanoseconds: calls that took no longer are not among this window's
	until atomic.Int64 // UnixNano of the window's end

	mu           sync.Mutex
	now, earlier []Call
}

func (s *slowList) offer(e *rpc.CallEvent, entry func() Call) {
	end := e.Began.Add(e.Total)
	if int64(e.Total) <= s.floor.Load() && end.UnixNano() < s.until.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(end)
	if len(s.now) == s.n {
		if int64(e.Total) <= s.floor.Load() {
			return
		}
		s.now = s.now[:s.n-1]
	}
	c := entry()
	i, _ := slices.BinarySearchFunc(s.now, c, slower)
	s.now = slices.Insert(s.now, i, c)
	if len(s.now) == s.n {
		s.floor.Store(int64(s.now[s.n-1].Total.Duration()))
	}
}

// turn begins a new window when the current one has ended.
func (s *slowList) turn(now time.Time) {
	until := s.until.Load()
	if now.UnixNano() < until {
		return
	}
	if s.earlier = s.now; now.UnixNano() >= until+int64(SlowWindow) {
		s.earlier = nil
	}
	s.now = nil
	s.floor.Store(0)
	s.until.Store(now.Add(SlowWindow).UnixNano())
}

func slower(a, b Call) int { return cmp.Compare(b.Total, a.Total) }

// slowest returns the calls, slowest first.
func (s *slowList) slowest(now time.Time) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	list := slices.Concat(s.now, s.earlier)
	slices.SortStableFunc(list, slower)
	return list[:min(len(list), s.n)]
}
