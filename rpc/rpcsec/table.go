package rpcsec

import (
	"crypto/rand"
	"net/netip"
	"sync"
	"time"
)

// handle identifies a context. It cannot be guessed.
type handle [16]byte

// hostShare is the divisor for one host's share of a table.
const hostShare = 4

// table is a bounded set of contexts, in which each host has a share.
type table struct {
	max int

	mu      sync.Mutex
	entries map[handle]*entry
	shares  map[netip.Prefix]*share
	uses    int64
}

// share holds the contexts of a host.
type share struct {
	host    netip.Prefix
	entries map[*entry]struct{}
}

func (t *table) init(n int) {
	t.max, t.entries, t.shares = max(n, 1), make(map[handle]*entry), make(map[netip.Prefix]*share)
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// add adds e, a context of host. It assigns a handle if e has none, and drops another context if there is no room.
func (t *table) add(e *entry, host netip.Prefix) {
	if e.handle == (handle{}) {
		rand.Read(e.handle[:])
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.shares[host]
	switch {
	case of != nil && len(of.entries) >= max(t.max/hostShare, 1):
		t.drop(of.oldest())
	case len(t.entries) >= t.max:
		most := of
		for _, s := range t.shares {
			if most == nil || len(s.entries) > len(most.entries) {
				most = s
			}
		}
		t.drop(most.oldest())
	}
	if of = t.shares[host]; of == nil {
		of = &share{host: host, entries: make(map[*entry]struct{})}
		t.shares[host] = of
	}
	t.uses++
	e.of, e.at = of, t.uses
	of.entries[e] = struct{}{}
	t.entries[e.handle] = e
}

// oldest returns an expired entry of a share, or else the least recently used one.
func (s *share) oldest() (found *entry) {
	now := time.Now()
	for e := range s.entries {
		if !e.expires.IsZero() && now.After(e.expires) {
			return e
		}
		if found == nil || e.at < found.at {
			found = e
		}
	}
	return found
}

// drop removes an entry from the table.
func (t *table) drop(e *entry) {
	delete(t.entries, e.handle)
	delete(e.of.entries, e)
	if len(e.of.entries) == 0 {
		delete(t.shares, e.of.host)
	}
}

// use returns the entry with a handle, or nil. It removes the entry if it has expired.
func (t *table) use(h []byte) *entry {
	if len(h) != len(handle{}) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[handle(h)]
	if e == nil {
		return nil
	}
	if !e.expires.IsZero() && time.Now().After(e.expires) {
		t.drop(e)
		return nil
	}
	t.uses++
	e.at = t.uses
	return e
}

// take removes the entry with a handle and returns it, or nil.
func (t *table) take(h []byte) *entry {
	e := t.use(h)
	if e == nil || !t.remove(e) {
		return nil
	}
	return e
}

// remove removes e, and reports whether e was in the table.
func (t *table) remove(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries[e.handle] != e {
		return false
	}
	t.drop(e)
	return true
}
