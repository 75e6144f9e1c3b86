package dirwatch

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
)

// create handles a new name. It watches a directory before reporting it, so that later changes in it are not reported
// twice.
func (w *Watcher) create(d *watched, name string, isDir bool) {
	w.addName(d, name, isDir)
	if isDir && w.names <= w.maxNames && d.covered() {
		w.must(d, w.descend(d, name, w.created))
		return
	}
	w.created(d, name)
	if w.names > w.maxNames {
		w.must(d, notify.StatusTooMuch)
	}
}

func (w *Watcher) created(d *watched, name string) { w.emit(notify.Created, d, name, d.names[name]) }

// enter watches a directory that was reported before, if an interest covers it, and reports its contents.
func (w *Watcher) enter(d *watched, name string) {
	if d.covered() {
		w.must(d, w.descend(d, name, func(dir *watched, below string) {
			if dir != d {
				w.created(dir, below)
			}
		}))
	}
}

// vanish handles a removed name.
func (w *Watcher) vanish(d *watched, name string) {
	isDir := d.names[name]
	if next := d.dirs[name]; next != nil {
		w.drop(next)
	}
	w.forgetName(d, name)
	w.emit(notify.Removed, d, name, isDir)
}

func (w *Watcher) addName(d *watched, name string, isDir bool) {
	if _, known := d.names[name]; !known {
		w.names++
	}
	d.names[name] = isDir
}

func (w *Watcher) forgetName(d *watched, name string) {
	if _, known := d.names[name]; known {
		w.names--
		delete(d.names, name)
	}
}

// must ends the interests in a directory that an error makes impossible to serve.
func (w *Watcher) must(d *watched, err error) {
	if err == nil {
		return
	}
	for _, i := range d.interested() {
		w.ending = append(w.ending, ending{i, notify.StatusOf(err)})
	}
}

// descend watches a directory and everything below it. It calls found first for the directory, once it is watched, and
// then for its contents. A name that is no longer a directory, or that may not be read, is not an error.
func (w *Watcher) descend(parent *watched, name string, found func(dir *watched, name string)) error {
	d, err := w.add(parent, name)
	if found != nil {
		found(parent, name)
	}
	if err != nil {
		for _, fatal := range []error{notify.StatusTooMuch, notify.StatusSystem, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO} {
			if errors.Is(err, fatal) {
				return err
			}
		}
		w.log.Debug("not watched", "dir", parent.below(name), "err", err)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if d.names[name] {
			if err := w.descend(d, name, found); err != nil {
				return err
			}
		} else if found != nil {
			found(d, name)
		}
	}
	return nil
}

// add watches one directory and then reads it. parent is nil for the root. If it fails because the name changes
// meanwhile, an event of parent will report that.
func (w *Watcher) add(parent *watched, name string) (*watched, error) {
	path := parent.below(name)
	if len(w.watched) >= w.maxDirs || len(path) > notify.MaxPath {
		return nil, notify.StatusTooMuch
	}
	f, info, err := w.openDir(parent, name)
	if err != nil {
		return nil, err
	}
	d := &watched{name: name, parent: parent, names: make(map[string]bool), dirs: make(map[string]*watched)}
	if d.file, d.key, err = w.slots.keep(f, filepath.Join(w.dir, filepath.FromSlash(path))); err != nil {
		return nil, err
	}
	if err := w.source.Add(d.key); err != nil {
		d.file.Close()
		return nil, w.cannotWatch(path, err)
	}
	w.watched[d.key] = d
	if id, ok := idOf(info); ok {
		d.id = id
		w.byID[id] = d
	}
	if parent != nil {
		w.addName(parent, name, true)
		parent.dirs[name] = d
	}
	err = still(d.key, info)
	if err == nil {
		err = d.list(func(name string, isDir bool) error {
			if w.addName(d, name, isDir); w.names > w.maxNames {
				return notify.StatusTooMuch
			}
			return nil
		})
	}
	if err != nil {
		w.drop(d)
		return nil, err
	}
	return d, nil
}

// openDir opens the directory called name, which must not be watched yet. The caller must close the file.
func (w *Watcher) openDir(parent *watched, name string) (*os.File, fs.FileInfo, error) {
	in := w.root
	if parent == nil {
		name = "."
	} else {
		var err error
		if in, err = w.open(parent); err != nil {
			return nil, nil, err
		}
		defer in.Close()
	}
	info, err := in.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		return nil, nil, syscall.ENOTDIR
	}
	if id, ok := idOf(info); ok && !w.alone(id) {
		return nil, nil, errReplaced
	}
	f, err := in.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	// The open file is the one that Lstat saw, so no link was followed.
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		f.Close()
		return nil, nil, errReplaced
	}
	return f, info, nil
}

// cannotWatch returns the error for a directory that the system cannot watch.
func (w *Watcher) cannotWatch(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w.log.Warn("cannot watch", "dir", path, "err", err)
	if errors.Is(err, syscall.ENOSPC) { // the user's limit: inotify_add_watch(2)
		return notify.StatusTooMuch
	}
	return notify.StatusSystem
}

// alone reports whether a directory to be watched is not already watched under another name, because the system would
// not watch it twice. A directory mounted in two places is. A renamed directory is dropped under its old name; the
// event of the rename is still to come, or lost.
func (w *Watcher) alone(id fileID) bool {
	d := w.byID[id]
	if d == nil {
		return true
	}
	for _, g := range slices.Clone(w.gone) {
		if g.node != nil && d.within(g.node) {
			w.flush(g)
			return true
		}
	}
	if d.parent == nil {
		return false
	}
	if info, err := w.lstat(d.parent, d.name); err == nil && d.is(info) {
		return false
	}
	w.vanish(d.parent, d.name)
	return true
}

// drop stops watching a directory and everything below it.
func (w *Watcher) drop(d *watched) {
	for _, g := range slices.Clone(w.gone) {
		if g.dir == d {
			w.flush(g)
		}
	}
	for _, next := range d.dirs {
		w.drop(next)
	}
	if w.source != nil {
		_ = w.source.Remove(d.key) // fails if the directory and its watch are gone
	}
	d.file.Close()
	delete(w.watched, d.key)
	if w.byID[d.id] == d {
		delete(w.byID, d.id)
	}
	w.names -= len(d.names)
	if d.parent != nil && d.parent.dirs[d.name] == d {
		delete(d.parent.dirs, d.name)
	}
	for _, i := range d.interests {
		w.ending = append(w.ending, ending{i, notify.StatusGone})
	}
}

// endBelow ends the interests in a directory and below it after it has been removed.
func (w *Watcher) endBelow(d *watched) {
	for _, i := range d.interests {
		w.ending = append(w.ending, ending{i, notify.StatusGone})
	}
	for _, next := range d.dirs {
		w.endBelow(next)
	}
}

// emit reports a change of a name in a directory to the interests.
func (w *Watcher) emit(kind notify.Kind, d *watched, name string, isDir bool) {
	for i, path := range d.audience(name) {
		i.tell(notify.Event{Kind: kind, IsDir: isDir, Path: path})
	}
}

// audience returns the interests that may see a name in a directory, with its path for each.
func (d *watched) audience(name string) iter.Seq2[*interest, string] {
	return func(yield func(*interest, string) bool) {
		for a, path := d, name; a != nil; a, path = a.parent, a.name+"/"+path {
			for _, i := range a.interests {
				if (a == d || i.recursive) && i.sees(d) && !yield(i, path) {
					return
				}
			}
		}
	}
}

// sees reports whether the interest may list d, which is its own directory or below it, and those in between.
func (i *interest) sees(d *watched) bool {
	for i.may != nil {
		if !i.may(d.file, true) {
			return false
		}
		if d == i.dir {
			break
		}
		d = d.parent
	}
	return true
}

// interested returns the interests in the contents of a directory.
func (d *watched) interested() (all []*interest) {
	for a := d; a != nil; a = a.parent {
		for _, i := range a.interests {
			if a == d || i.recursive {
				all = append(all, i)
			}
		}
	}
	return all
}

// covered reports whether a recursive interest covers d.
func (d *watched) covered() bool {
	for a := d; a != nil; a = a.parent {
		for _, i := range a.interests {
			if i.recursive {
				return true
			}
		}
	}
	return false
}

// each calls f for every known name below a directory.
func (d *watched) each(f func(dir *watched, name string, isDir bool)) {
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		f(d, name, d.names[name])
		if next := d.dirs[name]; next != nil {
			next.each(f)
		}
	}
}

// within reports whether d is dir or below it.
func (d *watched) within(dir *watched) bool {
	for ; d != nil; d = d.parent {
		if d == dir {
			return true
		}
	}
	return false
}

// path returns the path below the root, in the form that os.Root accepts.
func (d *watched) path() string {
	if d.parent == nil {
		return "."
	}
	return d.parent.below(d.name)
}

// below returns the path of a name in d, or of the root if d is nil.
func (d *watched) below(name string) string {
	if d == nil {
		return "."
	}
	if d.parent == nil {
		return name
	}
	return d.path() + "/" + name
}

// is reports whether info describes the same directory.
func (d *watched) is(info fs.FileInfo) bool {
	mine, err := d.file.Stat()
	return err == nil && os.SameFile(mine, info)
}

// lstat describes a name in a directory, without following links.
func (w *Watcher) lstat(d *watched, name string) (fs.FileInfo, error) {
	in, err := w.open(d)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return in.Lstat(name)
}

// list calls f for every entry until f fails.
func (d *watched) list(f func(name string, isDir bool) error) error {
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for {
		entries, err := d.file.ReadDir(1024)
		for _, e := range entries {
			if err := f(e.Name(), e.IsDir()); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
