package serving

import (
	"io/fs"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
)

// watched is the directories of all exports as one notify.Source: paths begin with the name of
// an export, as in URLs. newWatched makes one.
type watched struct {
	mu      sync.Mutex
	exports []watchedExport
	watches map[*exportWatch]struct{} // those under way
}

type watchedExport struct {
	name   string // without the slashes around it
	source notify.Source
}

func newWatched() *watched { return &watched{watches: make(map[*exportWatch]struct{})} }

// An exportWatch is a call of Watch.
type exportWatch struct {
	dir    string
	source notify.Source
	tell   func(notify.Event)

	mu    sync.Mutex
	stop  func()
	ended bool
}

// find returns the export that a directory is in, and the rest of the path. mu is held.
func (w *watched) find(dir string) (found *watchedExport, rest string) {
	for i := range w.exports {
		e := &w.exports[i]
		below, ok := strings.CutPrefix(strings.TrimLeft(dir, "/"), e.name)
		if ok && (e.name == "" || below == "" || below[0] == '/') && (found == nil || len(e.name) > len(found.name)) {
			found, rest = e, strings.TrimLeft(below, "/")
		}
	}
	return found, rest
}

// Watch reports changes in a directory of the export that it is in, as long as it is in that.
func (w *watched) Watch(dir string, recursive bool, tell func(notify.Event)) (stop func(), err error) {
	w.mu.Lock()
	e, rest := w.find(dir)
	w.mu.Unlock()
	if e == nil {
		return nil, fs.ErrNotExist
	}
	watch := &exportWatch{dir: dir, source: e.source, tell: tell}
	if watch.stop, err = e.source.Watch(rest, recursive, tell); err != nil { // after a while, maybe
		return nil, err
	}
	w.mu.Lock()
	now, _ := w.find(dir)
	same := now != nil && now.source == watch.source
	if same {
		w.watches[watch] = struct{}{}
	}
	w.mu.Unlock()
	if !same {
		watch.end(nil)
		return nil, fs.ErrNotExist
	}
	return func() {
		w.mu.Lock()
		delete(w.watches, watch)
		w.mu.Unlock()
		watch.end(nil)
	}, nil
}

// end stops the watch, unless it has been, and tells the client with last. Nothing is reported when it
// has returned.
func (w *exportWatch) end(last *notify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	w.stop()
	if last != nil {
		w.tell(*last)
	}
}

// set replaces the exports. Watches in those that are not among them end, and those in a directory
// that belongs to another one now. Sources that are not among them are not in use any more when it
// returns.
func (w *watched) set(exports []watchedExport) {
	w.mu.Lock()
	w.exports = exports
	var gone []*exportWatch
	for watch := range w.watches {
		if e, _ := w.find(watch.dir); e == nil || e.source != watch.source {
			gone = append(gone, watch)
			delete(w.watches, watch)
		}
	}
	w.mu.Unlock()
	for _, watch := range gone {
		watch.end(&notify.Event{Kind: notify.Ended, Status: notify.StatusGone})
	}
}
