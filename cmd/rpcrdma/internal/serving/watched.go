package serving

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/dirwatch"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// watched presents the directories of all exports as one notify.Source. Paths begin with the name of an export, as in
// URLs. Use newWatched to create one.
type watched struct {
	mu      sync.Mutex
	exports []watchedExport
	watches map[*exportWatch]struct{} // watches in progress
}

type watchedExport struct {
	name   string       // without leading and trailing slashes
	export *nfsd.Export // determines its clients and users
	source source
}

// source is a [dirwatch.Watcher].
type source interface {
	Watch(dir string, recursive bool, may dirwatch.May, tell func(notify.Event)) (stop func(), err error)
}

// same reports whether a watch in e may continue if e has become now.
func (e *watchedExport) same(now *watchedExport) bool {
	return now != nil && now.source == e.source && slices.Equal(now.export.Allow, e.export.Allow) &&
		(now.export.Allow == nil) == (e.export.Allow == nil) && now.export.Squash == e.export.Squash &&
		now.export.AnonUID == e.export.AnonUID && now.export.AnonGID == e.export.AnonGID &&
		slices.Equal(now.export.Flavors, e.export.Flavors)
}

func newWatched() *watched { return &watched{watches: make(map[*exportWatch]struct{})} }

// exportWatch is a call of Watch.
type exportWatch struct {
	dir    string
	export watchedExport
	tell   func(notify.Event)

	mu    sync.Mutex
	stop  func()
	ended bool
}

// find returns the export that contains a directory, and the rest of the path. mu is held.
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

// Watch reports changes in a directory of the export that contains it, as long as it does, to callers with the
// necessary rights. A server that is not root acts as itself for all users.
func (w *watched) Watch(req *rpc.Request, dir string, recursive bool, tell func(notify.Event)) (stop func(), err error) {
	w.mu.Lock()
	e, rest := w.find(dir)
	w.mu.Unlock()
	if e == nil {
		return nil, fs.ErrNotExist
	}
	who, ok := e.export.Caller(req)
	if !ok {
		return nil, fs.ErrNotExist // the client need not know more
	}
	var may dirwatch.May
	if os.Geteuid() == 0 {
		may = func(dir *os.File, list bool) bool { return permits(dir, list, who) }
	}
	watch := &exportWatch{dir: dir, export: *e, tell: withoutParts(tell)}
	if watch.stop, err = e.source.Watch(rest, recursive, may, watch.tell); err != nil { // this may be slow
		return nil, err
	}
	w.mu.Lock()
	now, _ := w.find(dir)
	same := watch.export.same(now)
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

// withoutParts hides the temporary names of incomplete copies: a file is created when it gets its final name.
func withoutParts(tell func(notify.Event)) func(notify.Event) {
	return func(e notify.Event) {
		to, from := remote.IsPart(path.Base(e.Path)), remote.IsPart(path.Base(e.From))
		switch {
		case e.Kind == notify.Renamed && from && !to:
			e.Kind, e.From = notify.Created, ""
		case e.Kind == notify.Renamed && to && !from:
			e.Kind, e.Path, e.From = notify.Removed, e.From, ""
		case to:
			return
		}
		tell(e)
	}
}

// end stops the watch, unless it has already ended, and sends last to the client. After it returns, nothing more is
// reported.
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

// set replaces the exports. It ends watches in exports that were removed, and in directories that now belong to another
// export. Sources that are not in exports are no longer in use when it returns.
func (w *watched) set(exports []watchedExport) {
	w.mu.Lock()
	w.exports = exports
	var gone []*exportWatch
	for watch := range w.watches {
		if e, _ := w.find(watch.dir); !watch.export.same(e) {
			gone = append(gone, watch)
			delete(w.watches, watch)
		}
	}
	w.mu.Unlock()
	for _, watch := range gone {
		watch.end(&notify.Event{Kind: notify.Ended, Status: notify.StatusGone})
	}
}
