package dirfs

import (
	"net/netip"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// places records where inodes were seen last, for processes that cannot open them by handle. It is bounded and shared
// among clients: when it is full, the client with the most places loses its least recently used one, so that no caller
// can make it forget the files of others.
type places struct {
	fs    *FS
	max   int // limit in bytes
	store Store

	mu      sync.Mutex
	size    int // bytes
	byID    map[id]*place
	clients map[netip.Prefix]*share
	unsaved map[id]*place // to be stored; nil: to be removed
	timer   *time.Timer
	closed  bool

	saving sync.Mutex // serializes calls of Put
}

// place is a name in a directory.
type place struct {
	id, dir    id
	name       string
	owner      *share
	prev, next *place // in the ring of the share
}

// share holds the places recorded for one client.
type share struct {
	client netip.Prefix // host: see nfsd.Caller.Net
	size   int          // bytes
	ring   place        // ring.next is the most recently used
}

const (
	placeSize  = 320 // approximate bytes of a place in memory, without its name
	maxShares  = 1024
	saveAfter  = time.Second
	maxUnsaved = 16384
)

func newPlaces(f *FS) *places {
	return &places{
		fs: f, max: f.cfg.MaxPlaces, store: f.cfg.Store,
		byID: make(map[id]*place), clients: make(map[netip.Prefix]*share), unsaved: make(map[id]*place),
	}
}

// note records where an inode was seen, on behalf of a caller.
func (p *places) note(i, dir *id, name string, who *nfsd.Caller) {
	var client netip.Prefix
	if who != nil {
		client = who.Net
	}
	p.mu.Lock()
	old := p.byID[*i]
	// It may have been moved away and searched for meanwhile.
	if old != nil && old.dir == *dir && old.name == name {
		old.touch()
		p.mu.Unlock()
		p.fs.seeker.found(i)
		return
	}
	if old != nil {
		p.drop(old)
	}
	at := &place{id: *i, dir: *dir, name: name}
	p.add(at, client)
	full := false
	if p.store != nil {
		p.unsaved[*i] = at
		full = len(p.unsaved) >= maxUnsaved
		if p.timer == nil && !p.closed {
			p.timer = time.AfterFunc(saveAfter, p.saveLater)
		}
	}
	p.evict()
	p.mu.Unlock()
	p.fs.seeker.found(i)
	if full {
		p.save() // a caller that adds places faster than they are stored waits here
	}
}

// add adds a place. mu is held.
func (p *places) add(at *place, client netip.Prefix) {
	s := p.clients[client]
	if s == nil {
		if len(p.clients) >= maxShares {
			client = netip.Prefix{} // too many clients to keep apart
			s = p.clients[client]
		}
		if s == nil {
			s = &share{client: client}
			s.ring.prev, s.ring.next = &s.ring, &s.ring
			p.clients[client] = s
		}
	}
	at.owner = s
	at.insert()
	p.byID[at.id] = at
	s.size += at.bytes()
	p.size += at.bytes()
}

func (at *place) bytes() int { return placeSize + len(at.name) }

// touch marks a place as most recently used.
func (at *place) touch() {
	at.prev.next, at.next.prev = at.next, at.prev
	at.insert()
}

func (at *place) insert() {
	front := &at.owner.ring
	at.prev, at.next = front, front.next
	at.prev.next, at.next.prev = at, at
}

// drop removes a place. mu is held.
func (p *places) drop(at *place) {
	at.prev.next, at.next.prev = at.next, at.prev
	delete(p.byID, at.id)
	at.owner.size -= at.bytes()
	p.size -= at.bytes()
	if at.owner.size == 0 {
		delete(p.clients, at.owner.client)
	}
}

// evict makes room. Evicted places that are not stored yet will still be stored. mu is held.
func (p *places) evict() {
	for p.size > p.max {
		var most *share
		for _, s := range p.clients {
			if most == nil || s.size > most.size {
				most = s
			}
		}
		// Evict enough to leave some room, so that the search for the largest share is rare.
		for enough := p.max - p.max/64; p.size > enough && most.size > 0; {
			p.drop(most.ring.prev)
			if len(p.clients) > 1 && most.size <= p.max/(2*len(p.clients)) {
				break // it is no longer the largest
			}
		}
	}
}

// get returns where an inode is. ok is false if that is unknown.
func (p *places) get(i *id) (dir id, name string, ok bool) {
	p.mu.Lock()
	at := p.byID[*i]
	if at != nil {
		at.touch()
	} else if at, ok = p.unsaved[*i]; ok && at == nil {
		p.mu.Unlock()
		return dir, "", false
	}
	p.mu.Unlock()
	if at != nil {
		return at.dir, at.name, true
	}
	if p.store == nil {
		return dir, "", false
	}
	value, err := p.store.Get(p.fs.appendHandle(nil, i))
	if err != nil {
		p.fs.log("places of files: read", "err", err)
		return dir, "", false
	}
	return parsePlace(value)
}

// forget removes a place that is no longer valid.
func (p *places) forget(i, dir *id, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.byID[*i]
	switch {
	case at == nil:
	case at.dir == *dir && at.name == name:
		p.drop(at)
	default:
		return // it has since been seen elsewhere
	}
	if p.store != nil {
		p.unsaved[*i] = nil
		if p.timer == nil && !p.closed {
			p.timer = time.AfterFunc(saveAfter, p.saveLater)
		}
	}
}

// ---- the Store

// appendPlace appends the encoded place: the length of the directory's id, the id, the name.
func appendPlace(b []byte, dir *id, name string) []byte {
	b = append(b, idHead+dir.size)
	b = dir.append(b)
	return append(b, name...)
}

func parsePlace(b []byte) (dir id, name string, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return dir, "", false
	}
	dir, ok = parseID(b[1:][:b[0]])
	return dir, string(b[1+int(b[0]):]), ok
}

func (p *places) saveLater() {
	p.mu.Lock()
	p.timer = nil
	p.mu.Unlock()
	p.save()
}

// save stores the changes.
func (p *places) save() error {
	p.saving.Lock()
	defer p.saving.Unlock()
	p.mu.Lock()
	list := make(map[id]*place, len(p.unsaved))
	pairs := make([]Pair, 0, len(p.unsaved))
	for i, at := range p.unsaved {
		list[i] = at
		pair := Pair{Key: p.fs.appendHandle(nil, &i)}
		if at != nil {
			pair.Value = appendPlace(nil, &at.dir, at.name)
		}
		pairs = append(pairs, pair)
	}
	p.mu.Unlock()
	if len(pairs) == 0 {
		return nil
	}
	err := p.store.Put(pairs)
	if err != nil {
		// They may still be in memory; otherwise the files must be searched for.
		p.fs.log("places of files: write", "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, at := range list {
		if now, ok := p.unsaved[i]; ok && now == at {
			delete(p.unsaved, i)
		}
	}
	return err
}

// close stores the remaining changes.
func (p *places) close() error {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	if p.store == nil {
		return nil
	}
	return p.save()
}
