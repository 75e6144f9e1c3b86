package main

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// watcher is an Observer that uses everything an Observer may at every event, and counts what has begun and not ended.
type watcher struct{ conns, calls atomic.Int64 }

func (w *watcher) ask(cn rpc.Conn) {
	if cn != nil {
		_, _, _ = cn.Info(), cn.Stats(), cn.RemoteAddr()
	}
}

func (w *watcher) ConnBegan(e rpc.ConnEvent)  { w.conns.Add(1); w.ask(e.Conn) }
func (w *watcher) ConnEnded(e rpc.ConnEvent)  { w.conns.Add(-1); w.ask(e.Conn) }
func (w *watcher) CallBegan(e *rpc.CallEvent) { w.calls.Add(1); w.ask(e.Conn) }
func (w *watcher) CallEnded(e *rpc.CallEvent) { w.calls.Add(-1); w.ask(e.Conn) }
func (w *watcher) Noticed(n rpc.Notice)       { w.ask(n.Conn) }

// open names what has begun and not ended, or has ended more often than begun.
func (w *watcher) open() string {
	if conns, calls := w.conns.Load(), w.calls.Load(); conns != 0 || calls != 0 {
		return fmt.Sprintf("%d connections and %d calls have begun and not ended", conns, calls)
	}
	return ""
}

// remembered is how many calls of procOnce a server recognizes: more than clients may still be resending.
const remembered = 1 << 15

// once records the latest executed calls.
type once struct {
	mu    sync.Mutex
	known map[uint64]bool
	order []uint64 // as a ring
	next  int
}

// first records a call, and reports whether it is new.
func (o *once) first(id uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known[id] {
		return false
	}
	if o.order == nil {
		o.known, o.order = make(map[uint64]bool, remembered), make([]uint64, remembered)
	}
	delete(o.known, o.order[o.next])
	o.known[id], o.order[o.next] = true, id
	o.next = (o.next + 1) % remembered
	return true
}
