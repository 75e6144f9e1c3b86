package dirwatch

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
)

// lost handles a loss of events: it reports the loss and reads all directories again.
func (w *Watcher) lost() {
	w.log.Debug("changes have come too fast for the system to tell them all")
	var all []*watched
	for _, d := range w.watched {
		for _, i := range d.interests {
			i.tell(notify.Event{Kind: notify.Overflow, IsDir: true})
		}
		all = append(all, d)
	}
	// Parents first: the removal of a directory removes those below it.
	slices.SortFunc(all, func(a, b *watched) int { return strings.Compare(a.path(), b.path()) })
	for _, d := range all {
		if w.watched[d.key] == d {
			w.resync(d, time.Time{})
		}
	}
}

// handle handles one event. mu is held.
func (w *Watcher) handle(n notice) {
	if d := w.watched[filepath.Dir(n.Name)]; d != nil {
		w.entry(d, filepath.Base(n.Name), n)
	} else if d := w.watched[n.Name]; d != nil && n.Has(fsnotify.Rename) {
		w.movedSelf(d, n)
	}
}

// entry handles an event about a name in a directory.
func (w *Watcher) entry(d *watched, name string, n notice) {
	for _, g := range slices.Clone(w.gone) {
		// The name is in use again, or a renamed directory reports its contents.
		if g.dir == d && g.name == name || g.node != nil && d.within(g.node) {
			w.flush(g)
		}
	}
	if w.watched[d.key] != d {
		return
	}
	isDir, known := d.names[name]
	if n.Has(fsnotify.Rename) && known {
		w.depart(d, name, n.Name)
	}
	if n.Has(fsnotify.Remove) && known {
		w.vanish(d, name)
	}
	if n.Has(fsnotify.Create) {
		w.arrive(d, name, renamedFrom(n.Event))
		return
	}
	if n.Has(fsnotify.Write) && known && !isDir {
		w.emit(notify.Modified, d, name, false)
	}
	if n.Has(fsnotify.Chmod) && known {
		w.emit(notify.Attributes, d, name, isDir)
		if isDir && d.dirs[name] == nil {
			w.enter(d, name) // perhaps it is now readable
		}
	}
}

// renamedFrom returns the old path of a Create event for a rename. fsnotify exposes it only in the event's text.
func renamedFrom(ev fsnotify.Event) string {
	_, from, ok := strings.Cut(ev.String(), strconv.Quote(ev.Name)+" ← ")
	if !ok {
		return ""
	}
	from, err := strconv.Unquote(from)
	if err != nil {
		return ""
	}
	return from
}

// depart handles the first half of a rename.
func (w *Watcher) depart(d *watched, name, key string) {
	g := &departed{key: key, dir: d, name: name, isDir: d.names[name], node: d.dirs[name], at: time.Now()}
	w.forgetName(d, name)
	delete(d.dirs, name)
	w.gone = append(w.gone, g)
}

// flush stops waiting for the second half of a rename: the name has left the tree, or its watched part.
func (w *Watcher) flush(g *departed) {
	at := slices.Index(w.gone, g)
	if at < 0 {
		return
	}
	w.gone = slices.Delete(w.gone, at, at+1)
	w.emit(notify.Removed, g.dir, g.name, g.isDir)
	if g.node != nil {
		w.drop(g.node)
	}
}

// arrive handles a new name. from is its old key if fsnotify knows that it was renamed.
func (w *Watcher) arrive(d *watched, name, from string) {
	info, err := w.lstat(d, name)
	isDir := err == nil && info.IsDir()
	for _, g := range w.gone {
		if g.key == from && from != "" || isDir && g.node != nil && g.node.is(info) {
			w.moved(g, d, name, isDir)
			return
		}
	}
	was, known := d.names[name]
	switch {
	case !known:
		w.create(d, name, isDir)
	case err != nil:
		// It is gone again: another event will report that.
	case isDir && was && d.dirs[name] == nil:
		w.enter(d, name)
	case isDir && was && d.dirs[name].is(info):
		// It was already found when the directory was read.
	case !isDir && !was:
		// That may be the case for a file too, or another file has taken its place.
		w.emit(notify.Modified, d, name, false)
	default:
		w.vanish(d, name)
		w.create(d, name, isDir)
	}
}

// moved handles a complete rename. isDir reports whether the new name is now a directory; that may have changed again.
func (w *Watcher) moved(g *departed, d *watched, name string, isDir bool) {
	w.gone = slices.DeleteFunc(w.gone, func(h *departed) bool { return h == g })
	if old := d.dirs[name]; old != nil {
		w.drop(old)
	}
	g.isDir = isDir || g.node != nil
	w.addName(d, name, g.isDir)

	// A client that sees only one end of the rename gets a removal or a creation.
	from, to := maps.Collect(g.dir.audience(g.name)), maps.Collect(d.audience(name))
	var entered []*interest
	for i, path := range to {
		if old, ok := from[i]; ok {
			i.tell(notify.Event{Kind: notify.Renamed, IsDir: g.isDir, Path: path, From: old})
		} else {
			i.tell(notify.Event{Kind: notify.Created, IsDir: g.isDir, Path: path})
			entered = append(entered, i)
		}
	}
	for i, path := range from {
		if _, ok := to[i]; !ok {
			i.tell(notify.Event{Kind: notify.Removed, IsDir: g.isDir, Path: path})
		}
	}
	switch {
	case !g.isDir:
		return
	case g.node == nil:
		w.enter(d, name)
		return
	case !d.covered():
		w.drop(g.node)
		return
	case keysFollow:
		w.endBelow(g.node)
		g.node.name, g.node.parent = name, d
		d.dirs[name] = g.node
	default:
		w.drop(g.node)
		w.must(d, w.descend(d, name, nil))
	}
	if node := d.dirs[name]; node != nil && len(entered) > 0 {
		node.each(func(dir *watched, name string, isDir bool) {
			for i, path := range dir.audience(name) {
				if slices.Contains(entered, i) {
					i.tell(notify.Event{Kind: notify.Created, IsDir: isDir, Path: path})
				}
			}
		})
	}
}

// movedSelf handles a renamed directory's own event, which follows those of its old and new parents. fsnotify has
// stopped watching the directory.
func (w *Watcher) movedSelf(d *watched, n notice) {
	for _, g := range slices.Clone(w.gone) {
		if g.node == d {
			w.flush(g) // it has left the tree; otherwise it would have arrived before
			return
		}
	}
	err := w.source.Add(d.key)
	if errors.Is(err, fs.ErrNotExist) {
		return // removed meanwhile: another event will report that
	}
	if err != nil {
		w.log.Warn("cannot watch", "dir", d.path(), "err", err)
		for _, i := range d.interested() {
			w.ending = append(w.ending, ending{i, notify.StatusSystem})
		}
		return
	}
	// The file system's clock may lag by a tick of up to 10 ms.
	w.resync(d, n.since.Add(-10*time.Millisecond))
}

// resync reads a directory and reports its changes, including files written after since.
func (w *Watcher) resync(d *watched, since time.Time) {
	now := make(map[string]bool)
	if err := d.list(func(name string, isDir bool) error {
		now[name] = isDir
		if len(now) > w.maxNames {
			return notify.StatusTooMuch
		}
		return nil
	}); err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // another event will report that
			w.must(d, err)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		isDir, there := now[name]
		if there && isDir == d.names[name] {
			next := d.dirs[name]
			if next == nil {
				continue
			}
			if info, err := w.lstat(d, name); err == nil && next.is(info) {
				continue
			}
		}
		w.vanish(d, name)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, known := d.names[name]; !known {
			w.create(d, name, now[name])
		} else if !now[name] && !since.IsZero() {
			if info, err := w.lstat(d, name); err == nil && !info.ModTime().Before(since) {
				w.emit(notify.Modified, d, name, false)
			}
		}
	}
}
