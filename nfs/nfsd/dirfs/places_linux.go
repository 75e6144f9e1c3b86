package dirfs

import (
	"net/netip"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// places is where inodes have been seen last, for processes that cannot open them otherwise. It
// is bounded, and shared among clients: when it is full the client with the most places loses
// the one that was used longest ago, so that no caller can make it forget the files of others.
type places struct {
	fs    *FS
	max   int // bytes
	store Store

	mu      sync.Mutex
	size    int // bytes
	byID    map[id]*place
	clients map[netip.Prefix]*share
	unsaved map[id]*place // to be stored; nil: to be removed
	timer   *time.Timer
	closed  bool

	saving sync.Mutex // one Put at a time, in order
}

// A place is a name in a directory.
type place struct {
	id, dir    id
	name       string
	owner      *share
	prev, next *place // in the ring of the owner
}

// A share is the places that a client has brought up.
type share struct {
	client netip.Prefix // a host: see nfsd.Caller.Net
	size   int          // bytes
	ring   place        // ring.next was used last
}

const (
	placeSize  = 320 // bytes of a place in memory, about, without its name
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

// note keeps in mind where an inode has been seen, on behalf of a caller.
func (p *places) note(i, dir *id, name string, who *nfsd.Caller) {
	var client netip.Prefix
	if who != nil {
		client = who.Net
	}
	p.mu.Lock()
	old := p.byID[*i]
	// It may have been away, and looked for, meanwhile.
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
		p.save() // a caller that brings up places faster than they are stored waits for that
	}
}

// add adds a place. mu is held.
func (p *places) add(at *place, client netip.Prefix) {
	s := p.clients[client]
	if s == nil {
		if len(p.clients) >= maxShares {
			client = netip.Prefix{} // there are too many to tell them apart
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

// touch makes a place the one that was used last.
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

// evict makes room. Places that are not stored yet still will be. mu is held.
func (p *places) evict() {
	for p.size > p.max {
		var most *share
		for _, s := range p.clients {
			if most == nil || s.size > most.size {
				most = s
			}
		}
		// As much of it as leaves some room, so that the search for it is rare.
		for enough := p.max - p.max/64; p.size > enough && most.size > 0; {
			p.drop(most.ring.prev)
			if len(p.clients) > 1 && most.size <= p.max/(2*len(p.clients)) {
				break // it is not the one with the most any more
			}
		}
	}
}

// get returns where an inode is, if that is known.
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

// forget removes a place that is not true any more.
func (p *places) forget(i, dir *id, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.byID[*i]
	switch {
	case at == nil:
	case at.dir == *dir && at.name == name:
		p.drop(at)
	default:
		return // it has been seen elsewhere since
	}
	if p.store != nil {
		p.unsaved[*i] = nil
		if p.timer == nil && !p.closed {
			p.timer = time.AfterFunc(saveAfter, p.saveLater)
		}
	}
}

// ---- the Store

// appendPlace appends the value of a place: the length of the directory's id, the id, the name.
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

// save stores what has changed.
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
		// They are still in memory, or else have to be searched.
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

// close stores what has not been stored yet.
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
