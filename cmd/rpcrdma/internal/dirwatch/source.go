package dirwatch

import (
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
)

// moveTime is how long the two halves of a rename may be apart.
const moveTime = 100 * time.Millisecond

// maxUnread is how many events of the system may be waiting.
const maxUnread = 1 << 16

// source is an fsnotify watcher. Its goroutine queues the events: fsnotify must not wait for a goroutine that itself
// waits for fsnotify to add a directory.
type source struct {
	*fsnotify.Watcher
	kick chan struct{} // capacity 1: unread or lost has changed
	done chan struct{} // closed after the watcher is

	mu     sync.Mutex
	unread []notice
	lost   bool // events are missing
	last   time.Time
}

// notice is an event of fsnotify.
type notice struct {
	fsnotify.Event
	since time.Time // time of the previous event
}

// start creates the source unless there is one. mu is held.
func (w *Watcher) start() error {
	if w.source != nil {
		return nil
	}
	fw, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("cannot watch", "err", err)
		return notify.StatusSystem
	}
	s := &source{Watcher: fw, kick: make(chan struct{}, 1), done: make(chan struct{}), last: time.Now()}
	w.source = s
	w.running.Go(s.run)
	w.running.Go(func() { w.run(s) })
	w.top, err = w.add(nil, "")
	return err
}

// stop closes the source and all directories. mu is held.
func (w *Watcher) stop() {
	if w.source == nil {
		return
	}
	_ = w.source.Watcher.Close() // ends its goroutines and all watches
	w.source = nil
	for _, g := range w.gone {
		if g.node != nil {
			w.drop(g.node)
		}
	}
	w.gone = nil
	if w.top != nil {
		w.drop(w.top)
		w.top = nil
	}
}

func (s *source) run() {
	defer close(s.done)
	for {
		select {
		case ev, ok := <-s.Events:
			if !ok {
				return
			}
			s.mu.Lock()
			now := time.Now()
			if len(s.unread) < maxUnread {
				s.unread = append(s.unread, notice{ev, s.last})
			} else {
				s.unread, s.lost = nil, true
			}
			s.last = now
			s.mu.Unlock()
		case _, ok := <-s.Errors:
			if !ok {
				return
			}
			// Whatever the error is, events may be missing.
			s.mu.Lock()
			s.lost = true
			s.mu.Unlock()
		}
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}

// take returns the queue, and whether events are missing from it.
func (s *source) take() (unread []notice, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unread, lost = s.unread, s.lost
	s.unread, s.lost = nil, false
	return unread, lost
}

// run handles the events of a source until it is closed.
func (w *Watcher) run(s *source) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.kick:
		case <-timer.C:
		case <-s.done:
			return
		}
		w.mu.Lock()
		if w.source != s {
			w.mu.Unlock()
			return
		}
		unread, lost := s.take()
		for _, n := range unread {
			w.handle(n)
			if w.settle(); w.source != s {
				break
			}
		}
		if lost && w.source == s {
			w.lost()
			w.settle()
		}
		now := time.Now()
		for len(w.gone) > 0 && now.Sub(w.gone[0].at) >= moveTime {
			w.flush(w.gone[0])
		}
		w.settle()
		if len(w.gone) > 0 {
			timer.Reset(moveTime)
		}
		w.mu.Unlock()
	}
}
