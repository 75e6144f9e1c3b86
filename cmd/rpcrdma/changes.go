package main

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Bounds of what is watched, all clients together.
const (
	// maxWatched is how many directories, fewer where the system has few
	// descriptors.
	maxWatched = 8192
	// maxNames is how many names in them; at the bound they take some 40 MB, 150 MB if
	// all names are as long as can be.
	maxNames = 1 << 19
	// maxEventPath is the longest path below the export, in bytes.
	maxEventPath = 4096
	// maxUnread is how much the system may have told that nobody has looked at yet.
	maxUnread = 1 << 16
)

// moveTime is how long the two halves of a renaming may be apart.
const moveTime = 100 * time.Millisecond

// Why something cannot be watched, beside the errors of the file system.
var (
	errTooMuch  = errors.New("too many directories or names")
	errNotAlone = errors.New("the directory has been exchanged meanwhile")
	errNoWatch  = errors.New("the system cannot watch it")
)

// A changes tells what changes in an export, whoever changes it.
//
// The system tells what happens to the names in one directory, fsnotify. So each
// directory that somebody wants to know of is watched by itself, and so are those
// above it: only they tell when it goes away. No symbolic link is followed. A
// directory is known by what is in it as well: what was made in a new directory
// before it could be watched is found by reading it, and told once.
//
// Nothing of this takes anything, no descriptor and no goroutine, while nobody wants
// to know.
type changes struct {
	root *os.Root
	dir  string // its path, absolute
	log  *slog.Logger

	maxDirs, maxNames int

	mu      sync.Mutex
	running sync.WaitGroup
	closed  bool
	source  *source             // nil: nobody wants to know
	top     *watched            // the export, with source
	watched map[string]*watched // by key
	byID    map[fileID]*watched // where the system tells
	names   int                 // in all of them
	gone    []*departed         // oldest first
	ending  []ending            // what is to be told when the tree stands again
	slots   slots               // where descriptors of directories go
}

// A watched is a directory that is watched.
type watched struct {
	name      string
	parent    *watched // nil: the export
	file      *os.File
	key       string // what fsnotify calls it
	id        fileID
	names     map[string]bool     // what is in it; true: a directory
	dirs      map[string]*watched // those of them that are watched
	interests []*interest
}

// An interest is somebody who wants to know.
type interest struct {
	dir       *watched // nil: it has ended
	recursive bool
	// tell is called for each change. It must not block, nor call back. The last
	// event may be one of kind eventEnded.
	tell func(event)
}

// A departed is something that was renamed, and it is not known yet to what.
type departed struct {
	key   string // what fsnotify called it
	dir   *watched
	name  string
	isDir bool
	node  *watched // nil: it is not watched
	at    time.Time
}

// An ending is an interest that nothing can be told any more.
type ending struct {
	interest *interest
	status   notifyStatus
}

// newChanges watches what is below root, which stays the caller's. Close must be
// called first.
func newChanges(root *os.Root, log *slog.Logger) (*changes, error) {
	dir, err := filepath.Abs(root.Name())
	if err != nil {
		return nil, err
	}
	return &changes{
		root: root, dir: dir, log: log,
		maxDirs: watchLimit(), maxNames: maxNames,
		watched: make(map[string]*watched), byID: make(map[fileID]*watched),
	}, nil
}

// Close ends all of it. Nobody is told.
func (c *changes) Close() error {
	c.mu.Lock()
	c.closed = true
	c.stop()
	c.ending = nil
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

// watch has tell called for what changes in the directory at a path of the export,
// and with recursive below it.
func (c *changes) watch(path string, recursive bool, tell func(event)) (*interest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fs.ErrClosed
	}
	i := &interest{recursive: recursive, tell: tell}
	err := c.start()
	if err == nil {
		err = c.reach(i, split(path))
	}
	if err != nil {
		c.forget(i)
		return nil, err
	}
	c.settle()
	return i, nil
}

// unwatch ends an interest. It may have ended before.
func (c *changes) unwatch(i *interest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(i)
}

// reach sees to it that all is watched that an interest is in. mu is held.
func (c *changes) reach(i *interest, path []string) error {
	d := c.top
	for _, name := range path {
		next := d.dirs[name]
		if next == nil {
			var err error
			if next, err = c.add(d, name); err != nil {
				return err
			}
		}
		d = next
	}
	i.dir = d
	d.interests = append(d.interests, i)
	if i.recursive {
		return c.grow(d)
	}
	return nil
}

// grow watches everything below a directory that is not watched yet.
func (c *changes) grow(d *watched) error {
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if !d.names[name] {
			continue
		}
		var err error
		if next := d.dirs[name]; next != nil {
			err = c.grow(next)
		} else {
			err = c.descend(d, name, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget takes an interest away, with what is watched for it alone. mu is held.
func (c *changes) forget(i *interest) {
	if i.dir != nil {
		i.dir.interests = slices.DeleteFunc(i.dir.interests, func(j *interest) bool { return j == i })
		i.dir = nil
	}
	if c.source != nil && (c.top == nil || !c.prune(c.top, false)) {
		c.stop()
	}
	c.settle()
}

// prune stops watching what no interest needs. covered: somebody above wants to know
// of all below. It returns whether d is needed; the caller drops it if not.
func (c *changes) prune(d *watched, covered bool) bool {
	covered = covered || slices.ContainsFunc(d.interests, func(i *interest) bool { return i.recursive })
	needed := covered || len(d.interests) > 0
	for _, next := range d.dirs {
		if c.prune(next, covered) {
			needed = true
		} else {
			c.drop(next)
		}
	}
	return needed
}

// settle tells those that have to be told that it is over. It is how every operation
// ends that changes the tree. mu is held.
func (c *changes) settle() {
	for len(c.ending) > 0 {
		e := c.ending[0]
		c.ending = c.ending[1:]
		if e.interest.dir != nil {
			e.interest.tell(event{kind: eventEnded, status: e.status})
			c.forget(e.interest)
		}
	}
}

// ---- what fsnotify tells

// A source is an fsnotify watcher. Its goroutine takes what it tells and keeps it: who
// adds a directory must not keep the watcher from going on.
type source struct {
	*fsnotify.Watcher
	kick chan struct{} // capacity 1: there is something unread
	done chan struct{} // closed when the watcher is

	mu     sync.Mutex
	unread []notice
	lost   bool // something has been lost
	last   time.Time
}

// A notice is an event of the watcher.
type notice struct {
	fsnotify.Event
	since time.Time // when the one before it came
}

// start makes a watcher, unless there is one. mu is held.
func (c *changes) start() error {
	if c.source != nil {
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		c.log.Warn("cannot watch", "err", err)
		return errNoWatch
	}
	s := &source{Watcher: w, kick: make(chan struct{}, 1), done: make(chan struct{}), last: time.Now()}
	c.source = s
	c.running.Go(s.run)
	c.running.Go(func() { c.run(s) })
	c.top, err = c.add(nil, "")
	return err
}

// stop ends the watcher and closes all directories. mu is held.
func (c *changes) stop() {
	if c.source == nil {
		return
	}
	_ = c.source.Watcher.Close() // which ends its goroutines, and all watches
	c.source = nil
	for _, g := range c.gone {
		if g.node != nil {
			c.drop(g.node)
		}
	}
	c.gone = nil
	if c.top != nil {
		c.drop(c.top)
		c.top = nil
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
			// Whatever it is, something may not have been told.
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

// take returns what has not been read yet, and whether something is missing in it.
func (s *source) take() (unread []notice, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unread, lost = s.unread, s.lost
	s.unread, s.lost = nil, false
	return unread, lost
}

// run handles what a source tells until it is closed.
func (c *changes) run(s *source) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.kick:
		case <-timer.C:
		case <-s.done:
			return
		}
		c.mu.Lock()
		if c.source != s {
			c.mu.Unlock()
			return
		}
		unread, lost := s.take()
		for _, n := range unread {
			c.handle(n)
			if c.settle(); c.source != s {
				break
			}
		}
		if lost && c.source == s {
			c.lost()
			c.settle()
		}
		now := time.Now()
		for len(c.gone) > 0 && now.Sub(c.gone[0].at) >= moveTime {
			c.flush(c.gone[0])
		}
		c.settle()
		if len(c.gone) > 0 {
			timer.Reset(moveTime)
		}
		c.mu.Unlock()
	}
}

// lost is for when the system has not told everything.
func (c *changes) lost() {
	c.log.Debug("changes have come too fast for the system to tell them all")
	var all []*watched
	for _, d := range c.watched {
		for _, i := range d.interests {
			i.tell(event{kind: eventOverflow, isDir: true})
		}
		all = append(all, d)
	}
	// Those above first: what is not there any more takes with it what was below.
	slices.SortFunc(all, func(a, b *watched) int { return strings.Compare(a.path(), b.path()) })
	for _, d := range all {
		if c.watched[d.key] == d {
			c.resync(d, time.Time{})
		}
	}
}

// handle is given every event. mu is held.
func (c *changes) handle(n notice) {
	if d := c.watched[filepath.Dir(n.Name)]; d != nil {
		c.entry(d, filepath.Base(n.Name), n)
	} else if d := c.watched[n.Name]; d != nil && n.Has(fsnotify.Rename) {
		c.movedSelf(d, n)
	}
}

// entry is an event about a name in a directory.
func (c *changes) entry(d *watched, name string, n notice) {
	for _, g := range slices.Clone(c.gone) {
		// It has not come back, or something has come in its place.
		if g.dir == d && g.name == name || g.node != nil && d.within(g.node) {
			c.flush(g)
		}
	}
	if c.watched[d.key] != d {
		return
	}
	isDir, known := d.names[name]
	if n.Has(fsnotify.Rename) && known {
		c.depart(d, name, n.Name)
	}
	if n.Has(fsnotify.Remove) && known {
		c.vanish(d, name)
	}
	if n.Has(fsnotify.Create) {
		c.arrive(d, name, renamedFrom(n.Event))
		return
	}
	if n.Has(fsnotify.Write) && known && !isDir {
		c.emit(eventModified, d, name, false)
	}
	if n.Has(fsnotify.Chmod) && known {
		c.emit(eventAttributes, d, name, isDir)
		if isDir && d.dirs[name] == nil {
			c.enter(d, name) // perhaps it may be read now
		}
	}
}

// renamedFrom is what an event of kind Create was called before. fsnotify tells
// nobody but who prints the event.
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

// depart is the first half of a renaming.
func (c *changes) depart(d *watched, name, key string) {
	g := &departed{key: key, dir: d, name: name, isDir: d.names[name], node: d.dirs[name], at: time.Now()}
	c.forgetName(d, name)
	delete(d.dirs, name)
	c.gone = append(c.gone, g)
}

// flush is for what was renamed and has not come up again: it has left the export, or
// what of it is watched.
func (c *changes) flush(g *departed) {
	at := slices.Index(c.gone, g)
	if at < 0 {
		return
	}
	c.gone = slices.Delete(c.gone, at, at+1)
	c.emit(eventRemoved, g.dir, g.name, g.isDir)
	if g.node != nil {
		c.drop(g.node)
	}
}

// arrive is for a name that has come up. from is its key before, if it has been
// renamed and fsnotify knows.
func (c *changes) arrive(d *watched, name, from string) {
	info, err := c.lstat(d, name)
	isDir := err == nil && info.IsDir()
	for _, g := range c.gone {
		if g.key == from && from != "" || isDir && g.node != nil && g.node.is(info) {
			c.moved(g, d, name, isDir)
			return
		}
	}
	was, known := d.names[name]
	switch {
	case !known:
		c.create(d, name, isDir)
	case err != nil:
		// Of which there is more to come.
	case isDir && was && d.dirs[name] == nil:
		c.enter(d, name)
	case isDir && was && d.dirs[name].is(info):
		// It has been seen when the directory was read.
	case !isDir && !was:
		// That may be so here as well. Or something else has taken its place.
		c.emit(eventModified, d, name, false)
	default:
		c.vanish(d, name)
		c.create(d, name, isDir)
	}
}

// moved is a whole renaming. isDir is what there is now under the new name, which may
// be something else again.
func (c *changes) moved(g *departed, d *watched, name string, isDir bool) {
	c.gone = slices.DeleteFunc(c.gone, func(h *departed) bool { return h == g })
	if old := d.dirs[name]; old != nil {
		c.drop(old)
	}
	g.isDir = isDir || g.node != nil
	c.addName(d, name, g.isDir)

	// What it was and is for those who see only one end of it.
	from, to := g.dir.audience(g.name), d.audience(name)
	var entered []*interest
	for i, path := range to {
		if old, ok := from[i]; ok {
			i.tell(event{kind: eventRenamed, isDir: g.isDir, path: path, from: old})
		} else {
			i.tell(event{kind: eventCreated, isDir: g.isDir, path: path})
			entered = append(entered, i)
		}
	}
	for i, path := range from {
		if _, ok := to[i]; !ok {
			i.tell(event{kind: eventRemoved, isDir: g.isDir, path: path})
		}
	}
	switch {
	case !g.isDir:
		return
	case g.node == nil:
		c.enter(d, name)
		return
	case !d.covered():
		c.drop(g.node)
		return
	case keysFollow:
		c.endBelow(g.node)
		g.node.name, g.node.parent = name, d
		d.dirs[name] = g.node
	default:
		c.drop(g.node)
		c.must(d, c.descend(d, name, nil))
	}
	if node := d.dirs[name]; node != nil && len(entered) > 0 {
		node.each(func(dir *watched, name string, isDir bool) {
			for i, path := range dir.audience(name) {
				if slices.Contains(entered, i) {
					i.tell(event{kind: eventCreated, isDir: isDir, path: path})
				}
			}
		})
	}
}

// movedSelf is what a directory that was renamed tells itself, after those that it
// was in and is in. fsnotify has stopped watching it.
func (c *changes) movedSelf(d *watched, n notice) {
	for _, g := range slices.Clone(c.gone) {
		if g.node == d {
			c.flush(g) // it has left, or else this would have come after it had come up
			return
		}
	}
	err := c.source.Add(d.key)
	if errors.Is(err, fs.ErrNotExist) {
		return // it has been removed meanwhile, of which there is more to come
	}
	if err != nil {
		c.log.Warn("cannot watch", "dir", d.path(), "err", err)
		for _, i := range d.interested() {
			c.ending = append(c.ending, ending{i, notifySystem})
		}
		return
	}
	// The clock of the file system may be behind by a tick, which is 10 ms at most.
	c.resync(d, n.since.Add(-10*time.Millisecond))
}

// resync tells how a directory differs from what is known of it, and of its files
// those that have been written to since.
func (c *changes) resync(d *watched, since time.Time) {
	now := make(map[string]bool)
	if err := d.list(func(name string, isDir bool) error {
		now[name] = isDir
		if len(now) > c.maxNames {
			return errTooMuch
		}
		return nil
	}); err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // likewise
			c.must(d, err)
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
			if info, err := c.lstat(d, name); err == nil && next.is(info) {
				continue
			}
		}
		c.vanish(d, name)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, known := d.names[name]; !known {
			c.create(d, name, now[name])
		} else if !now[name] && !since.IsZero() {
			if info, err := c.lstat(d, name); err == nil && !info.ModTime().Before(since) {
				c.emit(eventModified, d, name, false)
			}
		}
	}
}

// ---- the tree

// create is for a name that is new. A directory is watched before anybody is told of it:
// what those who were told do in it is not found there once more.
func (c *changes) create(d *watched, name string, isDir bool) {
	c.addName(d, name, isDir)
	if isDir && c.names <= c.maxNames && d.covered() {
		c.must(d, c.descend(d, name, c.created))
		return
	}
	c.created(d, name)
	if c.names > c.maxNames {
		c.must(d, errTooMuch)
	}
}

func (c *changes) created(d *watched, name string) { c.emit(eventCreated, d, name, d.names[name]) }

// enter watches a directory that has been told of, if somebody wants to know what is in
// it, and tells of that.
func (c *changes) enter(d *watched, name string) {
	if d.covered() {
		c.must(d, c.descend(d, name, func(dir *watched, below string) {
			if dir != d {
				c.created(dir, below)
			}
		}))
	}
}

// vanish is for a name that is no more.
func (c *changes) vanish(d *watched, name string) {
	isDir := d.names[name]
	if next := d.dirs[name]; next != nil {
		c.drop(next)
	}
	c.forgetName(d, name)
	c.emit(eventRemoved, d, name, isDir)
}

func (c *changes) addName(d *watched, name string, isDir bool) {
	if _, known := d.names[name]; !known {
		c.names++
	}
	d.names[name] = isDir
}

func (c *changes) forgetName(d *watched, name string) {
	if _, known := d.names[name]; known {
		c.names--
		delete(d.names, name)
	}
}

// must ends the interests that cannot be kept for an error in a directory.
func (c *changes) must(d *watched, err error) {
	if err == nil {
		return
	}
	for _, i := range d.interested() {
		c.ending = append(c.ending, ending{i, notifyStatusOf(err)})
	}
}

// descend watches a directory and all below it, and calls found for it, once it is
// watched, and then for what is in there. What is no directory any more, or may not be
// read, is left alone.
func (c *changes) descend(parent *watched, name string, found func(dir *watched, name string)) error {
	d, err := c.add(parent, name)
	if found != nil {
		found(parent, name)
	}
	if err != nil {
		for _, fatal := range []error{errTooMuch, errNoWatch, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO} {
			if errors.Is(err, fatal) {
				return err
			}
		}
		c.log.Debug("not watched", "dir", parent.below(name), "err", err)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if d.names[name] {
			if err := c.descend(d, name, found); err != nil {
				return err
			}
		} else if found != nil {
			found(d, name)
		}
	}
	return nil
}

// add watches one directory, and then reads it. parent is nil for the export. When that
// fails because something happens to the name meanwhile, parent will tell.
func (c *changes) add(parent *watched, name string) (_ *watched, err error) {
	path := parent.below(name)
	if len(c.watched) >= c.maxDirs || len(path) > maxEventPath {
		return nil, errTooMuch
	}
	in := c.root
	if parent == nil {
		name = "."
	} else {
		if in, err = c.open(parent); err != nil {
			return nil, err
		}
		defer in.Close()
	}
	info, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, syscall.ENOTDIR
	}
	id, unique := idOf(info)
	if unique && !c.alone(id) {
		return nil, errNotAlone
	}
	f, err := in.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// What has been opened is what was looked at, and no link was followed.
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		f.Close()
		return nil, errNotAlone
	}
	d := &watched{name: name, parent: parent, names: make(map[string]bool), dirs: make(map[string]*watched)}
	if d.file, d.key, err = c.slots.keep(f, filepath.Join(c.dir, filepath.FromSlash(path))); err != nil {
		return nil, err
	}
	if err := c.source.Add(d.key); err != nil {
		d.file.Close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		c.log.Warn("cannot watch", "dir", path, "err", err)
		if errors.Is(err, syscall.ENOSPC) { // inotify_add_watch(2): the user's limit
			return nil, errTooMuch
		}
		return nil, errNoWatch
	}
	c.watched[d.key] = d
	if unique {
		d.id = id
		c.byID[id] = d
	}
	if parent != nil {
		c.addName(parent, name, true)
		parent.dirs[name] = d
	}
	err = still(d.key, info)
	if err == nil {
		err = d.list(func(name string, isDir bool) error {
			if c.addName(d, name, isDir); c.names > c.maxNames {
				return errTooMuch
			}
			return nil
		})
	}
	if err != nil {
		c.drop(d)
		return nil, err
	}
	return d, nil
}

// alone sees to it that a directory that is to be watched is not watched already: the
// system would not watch it twice. It returns false if it is, which happens when it is
// mounted at another place as well. Otherwise it was there and has been renamed since,
// which the system will tell or has lost.
func (c *changes) alone(id fileID) bool {
	d := c.byID[id]
	if d == nil {
		return true
	}
	for _, g := range slices.Clone(c.gone) {
		if g.node != nil && d.within(g.node) {
			c.flush(g)
			return true
		}
	}
	if d.parent == nil {
		return false
	}
	if info, err := c.lstat(d.parent, d.name); err == nil && d.is(info) {
		return false
	}
	c.vanish(d.parent, d.name)
	return true
}

// drop stops watching a directory and all below it.
func (c *changes) drop(d *watched) {
	for _, g := range slices.Clone(c.gone) {
		if g.dir == d {
			c.flush(g)
		}
	}
	for _, next := range d.dirs {
		c.drop(next)
	}
	if c.source != nil {
		_ = c.source.Remove(d.key) // it may be gone, and the watch with it
	}
	d.file.Close()
	delete(c.watched, d.key)
	if c.byID[d.id] == d {
		delete(c.byID, d.id)
	}
	c.names -= len(d.names)
	if d.parent != nil && d.parent.dirs[d.name] == d {
		delete(d.parent.dirs, d.name)
	}
	for _, i := range d.interests {
		c.ending = append(c.ending, ending{i, notifyGone})
	}
}

// endBelow ends the interests in a directory and below it: what they were asked for by
// name is not there any more.
func (c *changes) endBelow(d *watched) {
	for _, i := range d.interests {
		c.ending = append(c.ending, ending{i, notifyGone})
	}
	for _, next := range d.dirs {
		c.endBelow(next)
	}
}

// emit tells of something that happened to a name in a directory.
func (c *changes) emit(kind eventKind, d *watched, name string, isDir bool) {
	for a, path := d, name; a != nil; a, path = a.parent, a.name+"/"+path {
		for _, i := range a.interests {
			if a == d || i.recursive {
				i.tell(event{kind: kind, isDir: isDir, path: path})
			}
		}
	}
}

// audience is who is told of a name in a directory, and what it is called there.
func (d *watched) audience(name string) map[*interest]string {
	all := make(map[*interest]string)
	for a, path := d, name; a != nil; a, path = a.parent, a.name+"/"+path {
		for _, i := range a.interests {
			if a == d || i.recursive {
				all[i] = path
			}
		}
	}
	return all
}

// interested is who is told of what is in a directory.
func (d *watched) interested() (all []*interest) {
	for i := range d.audience("") {
		all = append(all, i)
	}
	return all
}

// covered tells whether somebody wants to know of all that is below a directory.
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

// each calls f for everything below a directory, as far as it is watched.
func (d *watched) each(f func(dir *watched, name string, isDir bool)) {
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		f(d, name, d.names[name])
		if next := d.dirs[name]; next != nil {
			next.each(f)
		}
	}
}

// within tells whether d is dir or below it.
func (d *watched) within(dir *watched) bool {
	for ; d != nil; d = d.parent {
		if d == dir {
			return true
		}
	}
	return false
}

// path is where it is in the export, as os.Root wants it.
func (d *watched) path() string {
	if d.parent == nil {
		return "."
	}
	return d.parent.below(d.name)
}

// below is the path of a name in a directory, or of the export without one.
func (d *watched) below(name string) string {
	if d == nil {
		return "."
	}
	if d.parent == nil {
		return name
	}
	return d.path() + "/" + name
}

// is tells whether it is the same directory as that of info.
func (d *watched) is(info fs.FileInfo) bool {
	mine, err := d.file.Stat()
	return err == nil && os.SameFile(mine, info)
}

// lstat tells what is under a name in a directory.
func (c *changes) lstat(d *watched, name string) (fs.FileInfo, error) {
	in, err := c.open(d)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return in.Lstat(name)
}

// list calls f for everything in it, until f fails.
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
