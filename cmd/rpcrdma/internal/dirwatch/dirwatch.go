// Package dirwatch reports changes in a tree of directories on this machine, whichever program makes them, as events of
// package notify.
//
// All access is through an [os.Root] and no symbolic link is followed, so nothing outside of the tree can be watched.
// Subdirectories are watched as they appear, including what was created in them before that. If the system loses
// events, an overflow is reported in their place.
//
// The package is in the command's module because it uses fsnotify, which the library does not require.
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

// Limits of a Watcher for all its users together.
const (
	// MaxDirs is how many directories a Watcher watches, or fewer if the system permits few descriptors.
	MaxDirs = 8192
	// MaxNames is how many names of entries a Watcher keeps. They use some 40 MB, or 150 MB if all names have the
	// maximum length.
	MaxNames = 1 << 19
)

// errReplaced is the error for a directory that was replaced by something else.
var errReplaced = fmt.Errorf("replaced meanwhile: %w", fs.ErrNotExist)

// A Watcher reports changes in a tree. Its methods are safe for concurrent use. While nothing is watched it uses no
// descriptor and no goroutine.
//
// The system reports changes of the names in one directory, not below it. Every directory of interest is therefore
// watched separately, and so are the directories above it, because only they report when it is removed or renamed. The
// names in a directory are kept: what was created in a new directory before it was watched is found by reading it, and
// reported once.
type Watcher struct {
	root *os.Root
	dir  string // absolute path
	log  *slog.Logger

	maxDirs, maxNames int

	mu      sync.Mutex
	running sync.WaitGroup
	closed  bool
	source  *source             // nil: nothing is watched
	top     *watched            // the root; set if source is
	watched map[string]*watched // by key
	byID    map[fileID]*watched // on systems with file IDs
	names   int                 // number in all directories
	gone    []*departed         // oldest first
	ending  []ending            // to be reported once the tree is consistent
	slots   slots               // allocates descriptors of directories
}

// watched is a directory being watched.
type watched struct {
	name      string
	parent    *watched // nil for the root
	file      *os.File
	key       string // its path in fsnotify's events
	id        fileID
	names     map[string]bool     // its entries; true for a directory
	dirs      map[string]*watched // watched subdirectories
	interests []*interest
}

// interest is a call of Watch.
type interest struct {
	dir       *watched // nil: ended
	recursive bool
	may       May // nil: always true
	tell      func(notify.Event)
}

// departed is a name that was renamed, to a name not known yet.
type departed struct {
	key   string // its path in fsnotify's events
	dir   *watched
	name  string
	isDir bool
	node  *watched // nil: not watched
	at    time.Time
}

// ending is an interest that ends.
type ending struct {
	interest *interest
	status   notify.Status
}

// New returns a Watcher of the tree below root. The caller keeps owning root, which must not be closed before the
// Watcher. log may be nil.
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

// Close ends all watches without events.
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

// Watch calls tell for each change in the directory at a slash-separated path below the root, and with recursive also
// below it, until stop is called. The last event is of kind [notify.Ended] if the directory is removed or a limit is
// reached. tell must neither block nor call the Watcher.
//
// The caller needs the right to look up each name of the path, and to list the directory. Otherwise the error is
// fs.ErrPermission, whether or not the rest of the path exists. A change is reported if, at that time, the caller may
// list the directories from there up to the watched one. A nil may permits everything. Other errors are a
// [notify.Status] or an error of the file system.
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

// split returns the names in a path below the root. ".." never leads above the root.
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

// reach watches the directories that an interest requires. mu is held.
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

// forget removes an interest, and stops watching what only it required. mu is held.
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

// prune stops watching what no interest requires. covered is set if a recursive interest above requires everything
// below. It reports whether d is required; if not, the caller drops it.
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

// settle reports ended interests. It is the last step of every operation that changes the tree. mu is held.
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
