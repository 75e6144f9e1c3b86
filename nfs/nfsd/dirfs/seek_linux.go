package dirfs

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// locate returns the object with an id, by its place: it is there, or in the same directory
// under another name, or has to be searched. While it is searched, and when that was in vain, its
// directory is not looked through again.
func (f *FS) locate(ctx context.Context, host netip.Prefix, i *id) (*node, error) {
	if err := f.seeker.seek(ctx, host, i, false); err != nil {
		return nil, err
	}
	n, err := f.atPlace(ctx, i, 0)
	if err != unix.ESTALE {
		return n, err
	}
	if err := f.seeker.seek(ctx, host, i, true); err != nil {
		return nil, err
	}
	return f.atPlace(ctx, i, 0)
}

// atPlace opens an object at its place. ESTALE: it is not there.
func (f *FS) atPlace(ctx context.Context, i *id, depth int) (*node, error) {
	if n := f.cache.get(i); n != nil {
		return n, nil
	}
	at, name, ok := f.places.get(i)
	if !ok || depth > maxDepth {
		return nil, unix.ESTALE
	}
	dir, err := f.atPlace(ctx, &at, depth+1)
	if err != nil {
		return nil, err
	}
	defer dir.Release()
	if n := f.named(dir, i, name); n != nil {
		return n, nil
	}
	// It has been renamed by another program, or removed.
	if name, err = dir.entryOf(i); err != nil {
		if err == unix.EACCES || err == unix.ENOTDIR {
			err = unix.ESTALE
		}
		return nil, err
	}
	f.places.note(i, &at, name, nil)
	if n := f.named(dir, i, name); n != nil {
		return n, nil
	}
	return nil, unix.ESTALE
}

// named returns what a directory has under a name, if it is the one.
func (f *FS) named(dir *node, i *id, name string) *node {
	fd, err := f.at.open(dir.path, name, unix.O_PATH)
	if err != nil {
		return nil
	}
	n, err := f.adopt(fd, nil, nil, "", nil)
	if err != nil {
		return nil
	}
	if n.id != *i {
		n.Release()
		return nil
	}
	return n
}

// A seeker looks for inodes in the whole tree. One search is for all calls that have asked so far. Searches
// follow one another, with pauses as long as they work. Few calls wait for one: the others return
// EAGAIN, and their clients try again.
type seeker struct {
	fs   *FS
	done sync.WaitGroup

	since time.Time // the last pause; the search's alone

	mu      sync.Mutex
	wanted  map[id]*quest
	asked   map[netip.Prefix]int  // how many of wanted are a host's
	waiting map[netip.Prefix]bool // hosts of which a call waits
	running bool
	gone    map[id]bool // no need to look again
	order   []id        // of gone, as a ring
	oldest  int
}

// A quest is an inode that is looked for.
type quest struct {
	host  netip.Prefix  // of the first call for it: see nfsd.Caller.Net
	ended chan struct{} // closed when it has been found or not
	err   error         // then
}

const (
	maxWanted  = 1024
	maxWaiting = 8 // calls, one of each host
	maxGone    = 16384
	// patience is how long a call waits for a search, before its client has to try again.
	patience = 2 * time.Second
	// stint is how long a search works before it pauses.
	stint = 2 * time.Millisecond
	// rounds is how often the tree is searched before something counts as gone: it may have been moved
	// to where the first round had been already.
	rounds = 2
)

func newSeeker(f *FS) *seeker {
	return &seeker{
		fs: f, wanted: make(map[id]*quest), asked: make(map[netip.Prefix]int),
		waiting: make(map[netip.Prefix]bool), gone: make(map[id]bool),
	}
}

// seek waits, on behalf of a host, until an inode is not looked for any more; with start, it has it looked
// for. ESTALE: there is no place; EAGAIN: it is still looked for.
func (s *seeker) seek(ctx context.Context, host netip.Prefix, i *id, start bool) error {
	s.mu.Lock()
	q, gone := s.wanted[*i], s.gone[*i]
	if q == nil && start && !gone {
		q = s.want(host, i)
	}
	wait := q != nil && !s.waiting[host] && len(s.waiting) < maxWaiting
	if wait {
		s.waiting[host] = true
	}
	s.mu.Unlock()
	switch {
	case gone:
		return unix.ESTALE
	case q == nil && !start:
		return nil
	case !wait:
		return unix.EAGAIN
	}
	defer func() {
		s.mu.Lock()
		delete(s.waiting, host)
		s.mu.Unlock()
	}()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-q.ended:
		return q.err
	case <-timer.C:
		return unix.EAGAIN
	case <-ctx.Done():
		return ctx.Err()
	case <-s.fs.ctx.Done():
		return unix.EAGAIN
	}
}

// want has an inode looked for. It returns nil if too many are, and no other host has more of them.
// mu is held.
func (s *seeker) want(host netip.Prefix, i *id) *quest {
	if len(s.wanted) >= maxWanted && !s.makeRoom(host) {
		return nil
	}
	q := &quest{host: host, ended: make(chan struct{})}
	s.wanted[*i] = q
	s.asked[host]++
	if !s.running {
		s.running = true
		s.done.Go(s.run)
	}
	return q
}

// makeRoom ends a quest of the host with the most, for one of another host, if that then does not have more.
// mu is held.
func (s *seeker) makeRoom(host netip.Prefix) bool {
	most := host
	for h, n := range s.asked {
		if n > s.asked[most] {
			most = h
		}
	}
	if s.asked[most] <= s.asked[host]+1 {
		return false
	}
	for i, q := range s.wanted {
		if q.host == most {
			s.end(&i, unix.EAGAIN)
			return true
		}
	}
	return false
}

// found ends the quest for an inode that has been seen.
func (s *seeker) found(i *id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(i, nil)
	delete(s.gone, *i)
}

// lost notes that an inode is gone.
func (s *seeker) lost(i *id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose(i)
}

// lose is lost. mu is held.
func (s *seeker) lose(i *id) {
	s.end(i, unix.ESTALE)
	if s.gone[*i] {
		return
	}
	if len(s.order) < maxGone {
		s.order = append(s.order, *i)
	} else {
		delete(s.gone, s.order[s.oldest])
		s.order[s.oldest] = *i
		s.oldest = (s.oldest + 1) % maxGone
	}
	s.gone[*i] = true
}

// end ends a quest, if there is one. mu is held.
func (s *seeker) end(i *id, err error) {
	if q := s.wanted[*i]; q != nil {
		q.err = err
		delete(s.wanted, *i)
		if s.asked[q.host]--; s.asked[q.host] <= 0 {
			delete(s.asked, q.host)
		}
		close(q.ended)
	}
}

// run searches until nothing is wanted.
func (s *seeker) run() {
	for {
		s.mu.Lock()
		all := make(map[uint64][]id) // by inode number
		quests := maps.Clone(s.wanted)
		for i := range quests {
			all[i.ino] = append(all[i.ino], i)
		}
		if len(all) == 0 || s.fs.ctx.Err() != nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()

		s.since = time.Now()
		whole := true
		for range rounds {
			whole = s.search(all) && whole
		}
		s.settle(quests, whole)
		s.pause()
	}
}

// pause pauses a search for as long as it has worked since the last pause.
func (s *seeker) pause() {
	select {
	case <-time.After(time.Since(s.since)):
	case <-s.fs.ctx.Done():
	}
	s.since = time.Now()
}

// settle ends the quests that a search was for, except those that are over: what has been found
// meanwhile, maybe by its name, is not gone.
func (s *seeker) settle(quests map[id]*quest, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range quests {
		switch {
		case s.wanted[i] != q:
		case whole:
			s.lose(&i)
		default:
			s.end(&i, unix.EAGAIN)
		}
	}
}

// search goes through the tree, notes the places of wanted objects, and removes them from want. It
// returns false if it has not seen everything.
func (s *seeker) search(want map[uint64][]id) (whole bool) {
	whole = true
	ahead := []*step{{path: "."}}
	for len(ahead) > 0 && len(want) > 0 {
		if s.fs.ctx.Err() != nil {
			return false
		}
		dir := ahead[len(ahead)-1]
		ahead = ahead[:len(ahead)-1]
		below, err := s.look(dir, want)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EXDEV, unix.ELOOP, unix.ENAMETOOLONG:
			// It has been removed or replaced, or cannot be entered, or lies too deep. Its contents
			// count as gone: otherwise one such directory would make clients retry forever, for every
			// removed file.
		default:
			whole = false
		}
		for _, name := range below {
			ahead = append(ahead, &step{above: dir, name: name, path: dir.path + "/" + name})
		}
	}
	return whole
}

// A step is a directory that a search goes through.
type step struct {
	above *step // nil: it is the root
	name  string
	path  string // from the root
	id    id     // once it is open
}

// look goes through one directory and returns the directories in it.
func (s *seeker) look(dir *step, want map[uint64][]id) (below []string, err error) {
	f := s.fs
	fd, err := f.at.open(f.root.path, dir.path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var self unix.Stat_t
	if err := fstat(fd, &self); err != nil {
		return nil, err
	}
	if dir.id, err = f.ids.of(fd, "", &self); err != nil {
		return nil, err
	}
	buf := make([]byte, 32<<10)
	for {
		if time.Since(s.since) > stint {
			s.pause()
		}
		size, err := unix.Getdents(fd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || size == 0:
			return below, err
		}
		for b := buf[:size]; len(b) > 0; {
			var d dirent
			b = d.next(b)
			name := string(d.name)
			if name == "." || name == ".." {
				continue
			}
			s.match(fd, dir, name, d.ino, want)
			if d.typ == unix.DT_DIR || d.typ == unix.DT_UNKNOWN {
				below = append(below, name)
			}
		}
	}
}

// match notes the place of an entry if it is wanted, and those of the directories above it.
func (s *seeker) match(fd int, dir *step, name string, ino uint64, want map[uint64][]id) {
	ids := want[ino]
	for k := range ids {
		if i := ids[k]; s.fs.isAt(fd, name, &i) {
			for at := dir; at.above != nil; at = at.above {
				s.fs.places.note(&at.id, &at.above.id, at.name, nil)
			}
			s.fs.places.note(&i, &dir.id, name, nil)
			s.found(&i) // it may have been the directories above that were elsewhere
			if ids = append(ids[:k], ids[k+1:]...); len(ids) == 0 {
				delete(want, ino)
			} else {
				want[ino] = ids
			}
			return
		}
	}
}
