package reads

import (
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// A poster keeps the Reads that are posted, by the ID of their message and the handle.
type poster struct{ posted [][2]int }

func (p *poster) PostRead(wrs []fabric.SendWR) {
	for _, wr := range wrs {
		p.posted = append(p.posted, [2]int{int(wr.ID), int(wr.RKey)})
	}
}

// queue returns a queue, its poster, and a maker of messages of n Reads.
func queue(most int) (*Queue, *poster, func(id, n int) *Message) {
	q, p := new(Queue), new(poster)
	q.Init(p, most)
	return q, p, func(id, n int) *Message {
		m := &Message{Mem: &arena.Buffer{Bytes: make([]byte, 8*n), LKey: 9}}
		m.Init(uint64(id))
		var list []entry
		for range n {
			list = append(list, entry{0, "8 bytes."})
		}
		m.Assemble(header(nomsg, list...), nil, Layout{Lead: n})
		return m
	}
}

func TestQueue(t *testing.T) {
	done, failed := &fabric.WC{Status: fabric.WCSuccess}, &fabric.WC{Status: fabric.WCFlushErr}
	type reads = [][2]int
	check := func(t *testing.T, q *Queue, p *poster, underway int, want reads) {
		t.Helper()
		if n, _ := q.Len(); n != underway || !slices.Equal(p.posted, want) {
			t.Errorf("%d underway, posted %v, want %d, %v", n, p.posted, underway, want)
		}
	}
	empty := func(t *testing.T, q *Queue) {
		t.Helper()
		if n, w := q.Len(); n != 0 || w != 0 {
			t.Errorf("%d underway, %d messages wait", n, w)
		}
	}

	t.Run("V1-3.3-12 CCP-6.2-8 no more at once than allowed, in order of arrival", func(t *testing.T) {
		q, p, message := queue(2)
		a, b, c := message(1, 3), message(2, 1), message(3, 1)
		q.Start(a)
		q.Start(b)
		q.Start(c)
		check(t, q, p, 2, reads{{1, 0}, {1, 1}})
		if q.Completed(a, done) {
			t.Error("whole after one Read of three")
		}
		check(t, q, p, 2, reads{{1, 0}, {1, 1}, {1, 2}})
		if q.Completed(a, done) {
			t.Error("whole after two Reads of three")
		}
		check(t, q, p, 2, reads{{1, 0}, {1, 1}, {1, 2}, {2, 0}})
		if !q.Completed(a, done) || !q.Completed(b, done) {
			t.Error("not whole after the last Read")
		}
		check(t, q, p, 1, reads{{1, 0}, {1, 1}, {1, 2}, {2, 0}, {3, 0}})
		if !q.Completed(c, done) {
			t.Error("the last message is not whole")
		}
		empty(t, q)
	})

	t.Run("Reads of several messages at once", func(t *testing.T) {
		q, p, message := queue(16)
		a, b := message(1, 2), message(2, 2)
		q.Start(a)
		q.Start(b)
		check(t, q, p, 4, reads{{1, 0}, {1, 1}, {2, 0}, {2, 1}})
		if q.Completed(b, done) || q.Completed(a, done) || !q.Completed(b, done) || !q.Completed(a, done) {
			t.Error("a message is whole with its own last Read")
		}
		empty(t, q)
	})

	t.Run("a Read fails: its message is never whole", func(t *testing.T) {
		q, _, message := queue(16)
		a, b := message(1, 2), message(2, 1)
		q.Start(a)
		q.Start(b)
		if q.Completed(a, done) || q.Completed(a, failed) || q.Completed(b, failed) {
			t.Error("a message is whole whose last Read has failed")
		}
		empty(t, q)
	})

	t.Run("CCP-6.2-8 one at a time", func(t *testing.T) {
		q, p, message := queue(1)
		m := message(1, 2)
		q.Start(m)
		if q.Completed(m, done) {
			t.Error("whole before its last Read is posted")
		}
		check(t, q, p, 1, reads{{1, 0}, {1, 1}})
		if !q.Completed(m, done) {
			t.Error("not whole after the last Read")
		}
		empty(t, q)
	})

	t.Run("CCP-6.2-9 with none allowed none is posted", func(t *testing.T) {
		q, p, message := queue(0)
		q.Start(message(1, 1))
		check(t, q, p, 0, nil)
		if _, w := q.Len(); w != 1 {
			t.Errorf("%d messages wait", w)
		}
	})

	t.Run("CCP-6.2-8 fewer are allowed from now on", func(t *testing.T) {
		q, p, message := queue(3)
		a, b := message(1, 3), message(2, 2)
		q.Start(a)
		q.Start(b)
		q.Most = 1
		q.Completed(a, done)
		q.Completed(a, done)
		check(t, q, p, 1, reads{{1, 0}, {1, 1}, {1, 2}})
		if !q.Completed(a, done) {
			t.Error("not whole after the last Read")
		}
		check(t, q, p, 1, reads{{1, 0}, {1, 1}, {1, 2}, {2, 0}})
	})

	t.Run("what is posted", func(t *testing.T) {
		q, _, message := queue(1)
		m := message(77, 1)
		var got fabric.SendWR
		q.poster = posterFunc(func(wrs []fabric.SendWR) { got = wrs[0] })
		q.Start(m)
		if got.ID != 77 || got.Op != fabric.OpRead || got.Flags != fabric.Signaled || got.RemoteOffset != 1<<40 ||
			len(got.SGL) != 1 || &got.SGL[0].Buf[0] != &m.Mem.Bytes[0] || len(got.SGL[0].Buf) != 8 || got.SGL[0].LKey != 9 {
			t.Errorf("%+v", got)
		}
	})
}

type posterFunc func([]fabric.SendWR)

func (f posterFunc) PostRead(wrs []fabric.SendWR) { f(wrs) }
