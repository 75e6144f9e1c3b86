package dirfs

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// locate returns the object with an id by its place. The object is there, or in the same directory under another name,
// or must be searched for. During a search, and after an unsuccessful one, the directory is not examined again.
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

// atPlace opens an object at its place. It returns ESTALE if the object is not there.
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
	// Another program has renamed or removed it.
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

// named returns the object with a name in a directory if it has the id i.
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

// seeker searches for inodes in the whole tree. One search serves all calls so far. Searches follow one another, with
// pauses as long as the work. Only a few calls wait for a search: the others return EAGAIN, and their clients retry.
type seeker struct {
	fs   *FS
	done sync.WaitGroup

	since time.Time // end of the last pause; used only by the search

	mu      sync.Mutex
	wanted  map[id]*quest
	asked   map[netip.Prefix]int  // number of wanted inodes by host
	waiting map[netip.Prefix]bool // hosts with a waiting call
	running bool
	gone    map[id]bool // known to be gone: no need to search again
	order   []id        // entries of gone, as a ring
	oldest  int
}

// quest is an inode being searched for.
type quest struct {
	host  netip.Prefix  // host of its first call: see nfsd.Caller.Net
	ended chan struct{} // closed when it has ended
	err   error         // valid then
}

const (
	maxWanted  = 1024
	maxWaiting = 8 // waiting calls, one per host
	maxGone    = 16384
	// patience is how long a call waits for a search before its client must retry.
	patience = 2 * time.Second
	// stint is how long a search works before it pauses.
	stint = 2 * time.Millisecond
	// rounds is how often the tree is searched before an inode counts as gone: it may have been moved to where the
	// first round had already been.
	rounds = 2
)

func newSeeker(f *FS) *seeker {
	return &seeker{
		fs: f, wanted: make(map[id]*quest), asked: make(map[netip.Prefix]int),
		waiting: make(map[netip.Prefix]bool), gone: make(map[id]bool),
	}
}

// seek waits, on behalf of a host, until the quest for an inode has ended. If start is set, it begins one if necessary.
// It returns ESTALE if the inode has no place, and EAGAIN if the search continues.
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

// want adds a quest. It returns nil if there are too many, and no other host has more of them. mu is held.
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

// makeRoom ends a quest of the host with the most, in favor of another host, unless that would then have more. mu is
// held.
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

// found ends the quest for an inode that was seen.
func (s *seeker) found(i *id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(i, nil)
	delete(s.gone, *i)
}

// lost records that an inode is gone.
func (s *seeker) lost(i *id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose(i)
}

// lose does the work of lost. mu is held.
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

// end ends the quest for an inode, if there is one. mu is held.
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

// run searches until no inode is wanted.
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

// settle ends the quests of a search that have not ended yet. Inodes found meanwhile, for instance by name, are not
// gone.
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

// search walks the tree, records the places of wanted objects, and removes them from want. It returns false if it has
// not seen the whole tree.
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
			// The directory was removed or replaced, cannot be entered, or lies too deep. Its contents count as gone.
			// Otherwise one such directory would make clients retry forever for every removed file.
		default:
			whole = false
		}
		for _, name := range below {
			ahead = append(ahead, &step{above: dir, name: name, path: dir.path + "/" + name})
		}
	}
	return whole
}

// step is a directory that a search visits.
type step struct {
	above *step // nil: the root
	name  string
	path  string // relative to the root
	id    id     // set once it is open
}

// look visits one directory and returns its subdirectories.
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

// match records the place of an entry if it is wanted, and the places of the directories above it.
func (s *seeker) match(fd int, dir *step, name string, ino uint64, want map[uint64][]id) {
	ids := want[ino]
	for k := range ids {
		if i := ids[k]; s.fs.isAt(fd, name, &i) {
			for at := dir; at.above != nil; at = at.above {
				s.fs.places.note(&at.id, &at.above.id, at.name, nil)
			}
			s.fs.places.note(&i, &dir.id, name, nil)
			s.found(&i) // perhaps only the directories above it had moved
			if ids = append(ids[:k], ids[k+1:]...); len(ids) == 0 {
				delete(want, ino)
			} else {
				want[ino] = ids
			}
			return
		}
	}
}
