package replycache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A bed is a cache that is checked after each step.
type bed struct {
	*Cache
	t *testing.T
}

func newBed(t *testing.T, limits Limits) bed { return bed{New(limits), t} }

func (b bed) check(what string) {
	b.t.Helper()
	if err := b.Check(); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// begin begins a call and checks the outcome.
func (b bed) begin(call Call, w Waiter, want Outcome) (*Entry, Reply) {
	b.t.Helper()
	got, e, r := b.Begin(&call, w)
	b.check("begin")
	if got != want {
		b.t.Fatalf("call %d of %s: outcome %d, want %d", call.XID, call.Host, got, want)
	}
	return e, r
}

// fresh begins a call that is to be remembered.
func (b bed) fresh(call Call) *Entry {
	b.t.Helper()
	e, _ := b.begin(call, nil, Fresh)
	if e == nil {
		b.t.Fatalf("call %d of %s will not be remembered", call.XID, call.Host)
	}
	return e
}

func (b bed) answer(e *Entry, results string) {
	b.t.Helper()
	e.Answer(nil, []byte(results), 0, nil)
	b.check("answer")
}

func (b bed) drop(e *Entry) {
	b.t.Helper()
	e.Drop()
	b.check("drop")
}

// holds checks which of the xids of a host are remembered, of all up to the last.
func (b bed) holds(host string, last uint32, want ...uint32) {
	b.t.Helper()
	var got []uint32
	for xid := range last + 1 {
		outcome, e, _ := b.Begin(&Call{Host: host, XID: xid}, nil)
		if outcome == Answered {
			got = append(got, xid)
		} else if e != nil {
			b.drop(e)
		}
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("%s has the replies %v, want %v", host, got, want)
	}
}

// A waiter writes down what it sees.
type waiter struct{ log []string }

func (w *waiter) Wait(*Entry)    { w.log = append(w.log, "wait") }
func (w *waiter) Fail()          { w.log = append(w.log, "fail") }
func (w *waiter) Answer(r Reply) { w.log = append(w.log, "answer "+all(r)) }

func (w *waiter) told(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(w.log, want) {
		t.Errorf("a waiter was told %q, want %q", w.log, want)
	}
}

var wide = Limits{Entries: 64, Bytes: 1 << 20}

// all is a reply as a string.
func all(r Reply) string {
	s := fmt.Sprintf("%s|%s", r.Header, r.Results)
	for _, it := range r.Items {
		s += fmt.Sprintf("|%d %s", it.At, it.Data)
	}
	return s
}

func TestBegin(t *testing.T) {
	call := Call{Host: "a", XID: 7, Prog: 1, Vers: 2, Proc: 3, Body: []byte("body")}
	for _, tt := range []struct {
		name   string
		change func(c *Call)
		same   bool
	}{
		{"V1-8-2 the same call", func(c *Call) {}, true},
		{"the same call, elsewhere in memory", func(c *Call) { c.Body = slices.Clone(c.Body) }, true},
		{"another host", func(c *Call) { c.Host = "b" }, false},
		{"another xid", func(c *Call) { c.XID++ }, false},
		{"another program", func(c *Call) { c.Prog++ }, false},
		{"another version", func(c *Call) { c.Vers++ }, false},
		{"another procedure", func(c *Call) { c.Proc++ }, false},
		{"another credential or argument", func(c *Call) { c.Body = []byte("bodi") }, false},
		{"nothing behind the header", func(c *Call) { c.Body = nil }, false},
		{"a caller", func(c *Call) { c.Caller = []byte("alice") }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, wide)
			running, answered := Fresh, Fresh
			if tt.same {
				running, answered = Waiting, Answered
			}
			second := call
			tt.change(&second)
			e := b.fresh(call)
			if other, _ := b.begin(second, new(waiter), running); other != nil {
				b.drop(other)
			}
			b.answer(e, "reply")
			b.begin(second, nil, answered)
		})
	}
}

func TestAnswer(t *testing.T) {
	call := Call{Host: "a", XID: 7}
	data := []string{"first", "", "second"}
	reply := func(e *Entry) {
		e.Answer([]byte("head"), []byte("results"), len(data), func(i int) (int, []byte) { return 3 * i, []byte(data[i]) })
	}
	const want = "head|results|0 first|3 |6 second"

	t.Run("the reply is there, header, results and items, and is a copy each time", func(t *testing.T) {
		b := newBed(t, wide)
		reply(b.fresh(call))
		b.check("answer")
		for range 2 {
			_, r := b.begin(call, nil, Answered)
			if all(r) != want {
				t.Errorf("%q, want %q", all(r), want)
			}
			clear(r.Header)
			clear(r.Results)
			clear(r.Items[0].Data)
		}
		if s := b.Stats(); s != (Stats{Entries: 1, Replies: 1, Bytes: len("headresultsfirstsecond"), Hosts: 1, Alike: 1}) {
			t.Errorf("%+v", s)
		}
	})
	t.Run("V1-8-2 those who wait get it, each a copy of its own", func(t *testing.T) {
		b := newBed(t, wide)
		e := b.fresh(call)
		w := []*waiter{{}, {}}
		for _, w := range w {
			b.begin(call, w, Waiting)
			w.told(t, "wait")
		}
		if s := b.Stats(); s != (Stats{Entries: 1, Running: 1, Hosts: 1, Waiting: 2, Alike: 1}) {
			t.Errorf("%+v", s)
		}
		b.answer(e, "reply")
		w[0].told(t, "wait", "answer |reply")
		w[1].told(t, "wait", "answer |reply")
	})
	for _, tt := range []struct {
		name string
		size int
		want Outcome
	}{
		{"a reply of an eighth of all bytes is kept", 128, Answered},
		{"a reply of one byte more is not", 129, Fresh},
		{"a reply of no bytes is kept", 0, Answered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, Limits{Entries: 64, Bytes: 1024})
			e, w, item := b.fresh(call), new(waiter), make([]byte, tt.size/2)
			b.begin(call, w, Waiting)
			results := strings.Repeat("x", tt.size-len(item))
			e.Answer(nil, []byte(results), 1, func(int) (int, []byte) { return 0, item })
			b.check("answer")
			w.told(t, "wait", fmt.Sprintf("answer |%s|0 %s", results, item))
			b.begin(call, w, tt.want)
		})
	}
	t.Run("an entry that serves again has the items of its last reply alone", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 1, Bytes: 1 << 20})
		for xid := range uint32(3) {
			e := b.fresh(Call{Host: "a", XID: xid})
			reply(e)
			b.check("answer")
			if _, r := b.begin(Call{Host: "a", XID: xid}, nil, Answered); all(r) != want {
				t.Errorf("%q, want %q", all(r), want)
			}
		}
	})
	t.Run("the memory of a long reply is not kept for the next", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 1, Bytes: 1 << 20})
		b.answer(b.fresh(call), strings.Repeat("x", maxSpare+1))
		b.answer(b.fresh(Call{Host: "a", XID: 8}), "short")
		if b.spare.store != nil {
			t.Errorf("%d bytes are kept", cap(b.spare.store))
		}
	})
}

func TestDrop(t *testing.T) {
	b, call, w := newBed(t, wide), Call{Host: "a", XID: 7}, new(waiter)
	e := b.fresh(call)
	b.begin(call, w, Waiting)
	b.drop(e)
	w.told(t, "wait", "fail")
	if s := b.Stats(); s != (Stats{}) {
		t.Errorf("left is %+v", s)
	}
	b.answer(b.fresh(call), "reply")
	w.told(t, "wait", "fail")
}

func TestLeave(t *testing.T) {
	b, call := newBed(t, wide), Call{Host: "a", XID: 7}
	e := b.fresh(call)
	w := []*waiter{{}, {}, {}}
	for _, w := range w[:2] {
		b.begin(call, w, Waiting)
	}
	if e.Leave(w[2]) {
		t.Error("one left who has never waited")
	}
	if !e.Leave(w[0]) || e.Leave(w[0]) {
		t.Error("one who waits leaves, once")
	}
	b.check("leave")
	b.answer(e, "reply")
	w[0].told(t, "wait")
	w[1].told(t, "wait", "answer |reply")
	if e.Leave(w[1]) {
		t.Error("one left who has the reply")
	}
}

func TestClose(t *testing.T) {
	b := newBed(t, wide)
	e := b.fresh(Call{Host: "a"})
	if b.Context().Err() != nil {
		t.Error("the context has ended")
	}
	b.Close()
	if b.Context().Err() == nil {
		t.Error("the context has not ended")
	}
	b.drop(e)
}

func TestLimits(t *testing.T) {
	running := func(b bed, host string, n int) (l []*Entry) {
		for i := range n {
			l = append(l, b.fresh(Call{Host: host, XID: uint32(100 + i)}))
		}
		return l
	}
	refused := func(b bed, call Call) {
		b.t.Helper()
		if e, _ := b.begin(call, nil, Fresh); e != nil {
			b.t.Errorf("call %d of %s is remembered", call.XID, call.Host)
		}
	}
	t.Run("one host may have a quarter of the calls", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 8, Bytes: 1 << 20})
		l := running(b, "a", 2)
		refused(b, Call{Host: "a", XID: 1})
		running(b, "b", 2)
		b.answer(l[0], "reply")
		b.fresh(Call{Host: "a", XID: 2})
	})
	t.Run("one host may have one call in any case", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 2, Bytes: 1 << 20})
		running(b, "a", 1)
		refused(b, Call{Host: "a", XID: 1})
	})
	t.Run("all hosts together have no more calls than entries", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 4, Bytes: 1 << 20})
		for _, host := range []string{"a", "b", "c", "d"} {
			running(b, host, 1)
		}
		refused(b, Call{Host: "e", XID: 1})
		b.begin(Call{Host: "a", XID: 100}, new(waiter), Waiting)
	})
	t.Run("no entries, no replies", func(t *testing.T) {
		b := newBed(t, Limits{})
		refused(b, Call{Host: "a"})
	})
	t.Run("of a host's replies the oldest are forgotten", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 4, Bytes: 1 << 20})
		for xid := range uint32(6) {
			b.answer(b.fresh(Call{Host: "a", XID: xid}), "reply")
		}
		b.holds("a", 6, 2, 3, 4, 5)
	})
	t.Run("a reply that has been replayed is no younger", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 2, Bytes: 1 << 20})
		b.answer(b.fresh(Call{Host: "a", XID: 0}), "reply")
		b.answer(b.fresh(Call{Host: "a", XID: 1}), "reply")
		b.begin(Call{Host: "a", XID: 0}, nil, Answered)
		b.answer(b.fresh(Call{Host: "a", XID: 2}), "reply")
		b.holds("a", 2, 1, 2)
	})
	t.Run("long replies are limited by their bytes", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 100, Bytes: 1000})
		for xid := range uint32(12) {
			b.answer(b.fresh(Call{Host: "a", XID: xid}), strings.Repeat("x", 100))
		}
		b.holds("a", 12, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	})
	t.Run("a busy host costs only itself", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 10, Bytes: 1 << 20})
		for xid := range uint32(100) {
			b.answer(b.fresh(Call{Host: "a", XID: xid}), "reply")
			if xid == 50 || xid == 60 {
				b.answer(b.fresh(Call{Host: "b", XID: xid / 60}), "reply")
				b.answer(b.fresh(Call{Host: "c", XID: xid / 60}), "reply")
			}
		}
		b.holds("a", 100, 94, 95, 96, 97, 98, 99)
		b.holds("b", 2, 0, 1)
		b.holds("c", 2, 0, 1)
	})
	t.Run("a host with long replies pays for them", func(t *testing.T) {
		b := newBed(t, Limits{Entries: 100, Bytes: 1000})
		for xid := range uint32(9) {
			b.answer(b.fresh(Call{Host: "short", XID: xid}), "reply")
		}
		for xid := range uint32(10) {
			b.answer(b.fresh(Call{Host: "long", XID: xid}), strings.Repeat("x", 125))
		}
		b.holds("short", 9, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		b.holds("long", 10, 3, 4, 5, 6, 7, 8, 9)
	})
}

func TestLineage(t *testing.T) {
	// A step is the connection that a call comes on, or the birth of the next connection.
	const granted, birth = 2, -1
	for _, tt := range []struct {
		name  string
		steps []int
		want  bool
	}{
		{"a connection may continue an older one", []int{birth, birth}, false},
		{"as many calls as granted may have been on their way", []int{birth, birth, 0, 0}, false},
		{"one more shows nothing, if counting began before the younger one came", []int{birth, birth, 0, 0, 0, 0, 0}, false},
		{"as many and one more, counted since, show that the older client is alive", []int{birth, birth, 0, 0, 0, 0, 0, 0}, true},
		{"calls before the younger one came show nothing", []int{birth, 0, 0, 0, birth, 0, 0}, false},
		{"counted anew since the younger one came", []int{birth, 0, 0, 0, birth, 0, 0, 0, 0, 0, 0}, true},
		{"calls on the younger one show nothing", []int{birth, birth, 1, 1, 1, 1, 1, 1, 1, 1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := New(wide)
			var l []*Lineage
			for _, at := range tt.steps {
				if at == birth {
					l = append(l, c.NewLineage("a", false))
				} else {
					l[at].Called(granted)
				}
			}
			if l[0].apart(l[1]) != tt.want || l[1].apart(l[0]) != tt.want {
				t.Errorf("apart: %v, %v, want %v", l[0].apart(l[1]), l[1].apart(l[0]), tt.want)
			}
			if l[0].apart(l[0]) || l[0].apart(nil) || (*Lineage)(nil).apart(l[0]) {
				t.Error("a connection is apart from itself, or from none")
			}
		})
	}

	// strangers are connections of as many clients.
	strangers := func(c *Cache, n int) (l []*Lineage) {
		for range n {
			l = append(l, c.NewLineage("a", false))
		}
		for range 2 {
			for _, l := range l {
				l.Called(0)
			}
		}
		return l
	}
	t.Run("clients of one host have each a reply to the same call", func(t *testing.T) {
		b := newBed(t, wide)
		clients := strangers(b.Cache, 3)
		for i, client := range clients {
			b.answer(b.fresh(Call{Host: "a", XID: 7, Client: client}), fmt.Sprint("reply ", i))
		}
		for i, client := range clients {
			if _, r := b.begin(Call{Host: "a", XID: 7, Client: client}, nil, Answered); string(r.Results) != fmt.Sprint("reply ", i) {
				t.Errorf("client %d was given %q", i, r.Results)
			}
		}
		if n := b.Stats().Alike; n != 3 {
			t.Errorf("%d alike", n)
		}
	})
	t.Run("one of them is dropped, whether first, in the midst or last", func(t *testing.T) {
		for gone := range 3 {
			b := newBed(t, wide)
			clients := strangers(b.Cache, 3)
			var l []*Entry
			for _, client := range clients {
				l = append(l, b.fresh(Call{Host: "a", XID: 7, Client: client}))
			}
			b.drop(l[gone])
			for i, client := range clients {
				want := Waiting
				if i == gone {
					want = Fresh
				}
				b.begin(Call{Host: "a", XID: 7, Client: client}, new(waiter), want)
			}
		}
	})
	t.Run("no more of them than MaxAlike", func(t *testing.T) {
		b := newBed(t, wide)
		clients := strangers(b.Cache, MaxAlike+1)
		for i, client := range clients {
			if e, _ := b.begin(Call{Host: "a", XID: 7, Client: client}, nil, Fresh); (e != nil) != (i < MaxAlike) {
				t.Errorf("client %d: %v", i, e)
			}
		}
	})
	t.Run("a client that comes back is given its reply", func(t *testing.T) {
		b := newBed(t, wide)
		before, after := b.NewLineage("a", false), b.NewLineage("a", false)
		b.answer(b.fresh(Call{Host: "a", XID: 7, Client: before}), "reply")
		b.begin(Call{Host: "a", XID: 7, Client: after}, nil, Answered)
	})
}

// A reply is forgotten when it is old, whether its call comes again or others come.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, Limits{Entries: 100, Bytes: 1000})
		defer b.Close()
		first := b.fresh(Call{Host: "a", XID: 1})
		time.Sleep(2 * Age) // it takes long
		b.begin(Call{Host: "a", XID: 1}, new(waiter), Waiting)
		b.answer(first, "reply")
		time.Sleep(Age - 1)
		b.begin(Call{Host: "a", XID: 1}, nil, Answered)
		time.Sleep(time.Nanosecond)
		b.drop(b.fresh(Call{Host: "a", XID: 1}))
		if st := b.Stats(); st.Entries != 0 || st.Hosts != 0 {
			t.Errorf("%+v is kept", st)
		}

		for i := range uint32(10) { // one a second
			b.answer(b.fresh(Call{Host: string(rune('a' + i)), XID: i}), "reply")
			time.Sleep(time.Second)
		}
		time.Sleep(Age - 5*time.Second)
		for i, want := range []int{8, 6, 4, 4} { // six are old
			b.answer(b.fresh(Call{Host: "z", XID: uint32(i)}), "reply")
			if n := b.Stats().Replies - (i + 1); n != want {
				t.Errorf("%d others are kept after %d, want %d", n, i+1, want)
			}
		}
	})
}

// On a connection over which clients send nothing twice, a call that has its reply is another call.
func TestOnce(t *testing.T) {
	for _, once := range []bool{true, false} {
		b := newBed(t, wide)
		l := b.NewLineage("a", once)
		e := b.fresh(Call{Host: "a", XID: 7, Client: l})
		b.begin(Call{Host: "a", XID: 7, Client: l}, new(waiter), Waiting)
		b.answer(e, "reply")
		b.begin(Call{Host: "a", XID: 7, Client: b.NewLineage("a", once)}, nil, Answered)
		if once {
			b.drop(b.fresh(Call{Host: "a", XID: 7, Client: l}))
		} else {
			b.begin(Call{Host: "a", XID: 7, Client: l}, nil, Answered)
		}
	}
}

// Machines of a network share a part of the cache, and not their replies.
func TestMachines(t *testing.T) {
	b := newBed(t, wide)
	one, two := b.NewLineage("2001:db8::1", false), b.NewLineage("2001:db8::2", false)
	b.answer(b.fresh(Call{Host: "2001:db8::/64", XID: 7, Client: one}), "reply of one")
	b.answer(b.fresh(Call{Host: "2001:db8::/64", XID: 7, Client: two}), "reply of two")
	for _, l := range []*Lineage{one, two} {
		b.begin(Call{Host: "2001:db8::/64", XID: 7, Client: l}, nil, Answered)
	}
	if st := b.Stats(); st.Hosts != 1 || st.Replies != 2 {
		t.Errorf("%+v are kept", st)
	}
}

// Any steps, in any order, leave what Check says.
func TestAnySteps(t *testing.T) {
	r := rand.New(rand.NewPCG(8881, 2))
	b := newBed(t, Limits{Entries: 12, Bytes: 500})
	var running []*Entry
	waits := make(map[*waiter]bool)
	lineages := []*Lineage{nil, b.NewLineage("a", false)}
	for range 20_000 {
		if r.IntN(50) == 0 {
			lineages = append(lineages, b.NewLineage("a", false))
		}
		client := lineages[max(0, len(lineages)-1-r.IntN(4))]
		if client != nil {
			client.Called(1)
		}
		switch i := r.IntN(max(len(running), 1)); {
		case r.IntN(2) == 0 || len(running) == 0:
			w := new(waiter)
			outcome, e, _ := b.Begin(&Call{Host: string(rune('a' + r.IntN(12))), XID: uint32(r.IntN(10)), Client: client}, w)
			if outcome == Waiting {
				waits[w] = true
			} else if e != nil {
				running = append(running, e)
			}
		case r.IntN(4) == 0:
			running[i].Drop()
			running = slices.Delete(running, i, i+1)
		default:
			running[i].Answer(nil, make([]byte, r.IntN(70)), 0, nil)
			running = slices.Delete(running, i, i+1)
		}
		b.check("a step")
		if s := b.Stats(); s.Running != len(running) || s.Alike > MaxAlike {
			t.Fatalf("%d calls are running: %+v", len(running), s)
		}
	}
	for _, e := range running {
		b.drop(e)
	}
	for w := range waits {
		if len(w.log) != 2 {
			t.Fatalf("a waiter was told %q", w.log)
		}
	}
}

// full returns a step, Begin and Answer, of a cache that is full.
func full(t *testing.T) (step func()) {
	c := New(Limits{Entries: 64, Bytes: 1 << 20})
	call := Call{Host: "a", Client: c.NewLineage("a", false), Body: make([]byte, 100)}
	header, results, data := make([]byte, 24), make([]byte, 100), make([]byte, 1000)
	item := func(int) (int, []byte) { return 4, data }
	step = func() {
		call.XID++
		outcome, e, _ := c.Begin(&call, nil)
		if outcome != Fresh || e == nil {
			t.Fatal("not fresh")
		}
		e.Answer(header, results, 1, item)
	}
	for range 1000 {
		step()
	}
	if s := c.Stats(); s.Replies != 64 {
		t.Fatalf("the cache is not full: %+v", s)
	}
	return step
}
