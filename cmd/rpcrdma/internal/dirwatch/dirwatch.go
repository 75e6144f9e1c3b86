// Package dirwatch reports what changes in a tree of directories on this machine, whichever
// program changes it, as events of package notify.
//
// Everything goes through an [os.Root] and no symbolic link is followed, so nothing
// outside of the tree can be watched. Subdirectories are watched as they appear, with
// what was made in them before they could be; and where the system lost events, an
// overflow is reported instead of them.
//
// The package is in the command's module because it uses fsnotify, which the library does
// not require.
package dirwatch

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
)

// Limits of a Watcher, for all its users together.
const (
	// MaxDirs is how many directories it watches; fewer if the system allows few
	// descriptors.
	MaxDirs = 8192
	// MaxNames is how many names it keeps of what is in them. They take some 40 MB, or
	// 150 MB if each is as long as a name can be.
	MaxNames = 1 << 19
)

// errReplaced is a directory that something else has taken the place of.
var errReplaced = fmt.Errorf("replaced meanwhile: %w", fs.ErrNotExist)

// A Watcher reports what changes in a tree. Its methods may be called by many goroutines at
// once. While nothing is watched it takes no descriptor and no goroutine.
//
// The system reports changes of the names in one directory, not below it. So every directory of
// interest is watched by itself, and so are the directories above it, since only they tell when it is
// removed or renamed. The names in a directory are kept: what was made in a new directory before it
// was watched is found by reading it, and reported once.
type Watcher struct {
	root *os.Root
	dir  string // its absolute path
	log  *slog.Logger

	maxDirs, maxNames int

	mu      sync.Mutex
	running sync.WaitGroup
	closed  bool
	source  *source             // nil: nothing is watched
	top     *watched            // the root, with source
	watched map[string]*watched // by key
	byID    map[fileID]*watched // on systems that have file IDs
	names   int                 // in all directories
	gone    []*departed         // oldest first
	ending  []ending            // to be reported when the tree is consistent again
	slots   slots               // descriptors of directories
}

// A watched is a directory that is watched.
type watched struct {
	name      string
	parent    *watched // nil: the root
	file      *os.File
	key       string // its path in fsnotify's events
	id        fileID
	names     map[string]bool     // its entries; true: a directory
	dirs      map[string]*watched // its subdirectories that are watched
	interests []*interest
}

// An interest is a call of Watch.
type interest struct {
	dir       *watched // nil: it has ended
	recursive bool
	may       May // nil: always true
	tell      func(notify.Event)
}

// A departed is a name that was renamed, to what is not known yet.
type departed struct {
	key   string // its path in fsnotify's events
	dir   *watched
	name  string
	isDir bool
	node  *watched // nil: it is not watched
	at    time.Time
}

// An ending is an interest that ends.
type ending struct {
	interest *interest
	status   notify.Status
}

// New returns a Watcher of the tree below root, which remains the caller's and must not be
// closed before the Watcher. log may be nil.
func New(root *os.Root, log *slog.Logger) (*Watcher, error) {
	dir, err := filepath.Abs(root.Name())
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{
		root: root, dir: dir, log: log,
		maxDirs: watchLimit(), maxNames: MaxNames,
		watched: make(map[string]*watched), byID: make(map[fileID]*watched),
	}, nil
}

// Close ends all watches, without telling.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	w.stop()
	w.ending = nil
	w.mu.Unlock()
	w.running.Wait()
	return nil
}

// May reports whether the caller of a Watch may look up names in a directory and, with list, also list them. It
// does not keep dir, does not block, and does not call the Watcher.
type May func(dir *os.File, list bool) bool

// Watch calls tell for each change in the directory at a slash-separated path below the root, and with recursive
// below it, until stop is called. The last event is of kind [notify.Ended] if the directory goes away or a limit is
// reached. tell must not block, nor call the Watcher.
//
// The caller needs the right to look up each name of the path, and to list the directory; otherwise the error is
// fs.ErrPermission, whether the rest of the path exists or not. A change is reported if, when it happens, the caller
// may list the directories from there up to the one that is watched. A nil may permits everything. Other errors are a
// [notify.Status] or of the file system.
func (w *Watcher) Watch(dir string, recursive bool, may May, tell func(notify.Event)) (stop func(), err error) {
	i, err := w.watch(dir, &interest{recursive: recursive, may: may, tell: tell})
	if err != nil {
		return nil, err
	}
	return func() { w.unwatch(i) }, nil
}

func (w *Watcher) watch(path string, i *interest) (*interest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fs.ErrClosed
	}
	err := w.start()
	if err == nil {
		err = w.reach(i, split(path))
	}
	if err != nil {
		w.forget(i)
		return nil, err
	}
	w.settle()
	return i, nil
}

// split returns the names in a path below the root. No ".." leads above it.
func split(name string) []string {
	if name = strings.Trim(path.Clean("/"+name), "/"); name != "" {
		return strings.Split(name, "/")
	}
	return nil
}

// unwatch ends an interest, which may have ended before.
func (w *Watcher) unwatch(i *interest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(i)
}

// reach watches the directories that an interest needs. mu is held.
func (w *Watcher) reach(i *interest, path []string) error {
	d := w.top
	for _, name := range path {
		if i.may != nil && !i.may(d.file, false) {
			return fs.ErrPermission
		}
		next := d.dirs[name]
		if next == nil {
			var err error
			if next, err = w.add(d, name); err != nil {
				return err
			}
		}
		d = next
	}
	i.dir = d
	d.interests = append(d.interests, i)
	if !i.sees(d) {
		return fs.ErrPermission
	}
	if i.recursive {
		return w.grow(d)
	}
	return nil
}

// grow watches the directories below d that are not watched yet.
func (w *Watcher) grow(d *watched) error {
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if !d.names[name] {
			continue
		}
		var err error
		if next := d.dirs[name]; next != nil {
			err = w.grow(next)
		} else {
			err = w.descend(d, name, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget removes an interest, and stops watching what only it needed. mu is held.
func (w *Watcher) forget(i *interest) {
	if i.dir != nil {
		i.dir.interests = slices.DeleteFunc(i.dir.interests, func(j *interest) bool { return j == i })
		i.dir = nil
	}
	if w.source != nil && (w.top == nil || !w.prune(w.top, false)) {
		w.stop()
	}
	w.settle()
}

// prune stops watching what no interest needs. covered: a recursive interest above needs
// everything below. It returns whether d is needed; if not, the caller drops it.
func (w *Watcher) prune(d *watched, covered bool) bool {
	covered = covered || slices.ContainsFunc(d.interests, func(i *interest) bool { return i.recursive })
	needed := covered || len(d.interests) > 0
	for _, next := range d.dirs {
		if w.prune(next, covered) {
			needed = true
		} else {
			w.drop(next)
		}
	}
	return needed
}

// settle tells interests that they have ended. It is the last step of every operation
// that changes the tree. mu is held.
func (w *Watcher) settle() {
	for len(w.ending) > 0 {
		e := w.ending[0]
		w.ending = w.ending[1:]
		if e.interest.dir != nil {
			e.interest.tell(notify.Event{Kind: notify.Ended, Status: e.status})
			w.forget(e.interest)
		}
	}
}
