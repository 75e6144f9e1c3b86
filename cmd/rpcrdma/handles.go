package main

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
)

// maxHandles bounds the handles that are valid at a time. The least recently
// used one becomes stale when it is exceeded; at the bound the table takes about
// 300 MB.
const maxHandles = 1 << 20

// handleSize is the size of a file handle in bytes: which run of the server it is
// from, and a number.
const handleSize = 16

// A handleTable gives the objects of an export the handles by which clients know
// them, for as long as the server runs. A handle stands for a path, not for what
// was there when it was given out: it follows renames that clients make, and does
// not notice those that are made behind the server's back.
type handleTable struct {
	instance [8]byte
	limit    int

	mu    sync.Mutex
	last  uint64 // number given out last
	byID  map[uint64]*object
	root  *object
	front object // ring: front.next was used last, front.prev is the oldest
}

// An object is a path that has a handle, or lies on the way to one that has.
type object struct {
	id         uint64
	name       string
	parent     *object // nil: the root, or forgotten
	children   map[string]*object
	prev, next *object
}

func newHandleTable(limit int) *handleTable {
	t := &handleTable{limit: limit, byID: make(map[uint64]*object)}
	rand.Read(t.instance[:]) // never fails
	t.front.prev, t.front.next = &t.front, &t.front
	t.root = &object{}
	t.byID[0] = t.root
	return t
}

// handle returns the handle of a path.
func (t *handleTable) handle(path []string) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.root
	for _, name := range path {
		child := o.children[name]
		if child == nil {
			t.last++
			child = &object{id: t.last, name: name}
			t.byID[child.id] = child
			o.adopt(child)
		}
		o = child
	}
	t.used(o)
	t.evict()
	h := make([]byte, 0, handleSize)
	h = append(h, t.instance[:]...)
	return binary.BigEndian.AppendUint64(h, o.id)
}

// path returns the path of a handle. It is the caller's.
func (t *handleTable) path(handle []byte) (path []string, ok bool) {
	if !t.wellFormed(handle) {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.byID[binary.BigEndian.Uint64(handle[len(t.instance):])]
	if o == nil {
		return nil, false
	}
	t.used(o)
	for o := o; o != t.root; o = o.parent {
		path = append(path, o.name)
	}
	slices.Reverse(path)
	// The server library appends to it, sometimes twice.
	return slices.Clip(path), true
}

// wellFormed tells whether a handle may be one of ours, of this run.
func (t *handleTable) wellFormed(handle []byte) bool {
	return len(handle) == handleSize && [8]byte(handle) == t.instance
}

// removed makes the handles of a path, and of all below it, stale.
func (t *handleTable) removed(path []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.find(path); o != nil && o != t.root {
		t.forget(o)
	}
}

// renamed makes handles follow an object to its new path. What was there before
// becomes stale.
func (t *handleTable) renamed(from, to []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Equal(from, to) || len(from) == 0 || len(to) == 0 {
		return
	}
	if old := t.find(to); old != nil {
		t.forget(old)
	}
	o := t.find(from)
	if o == nil {
		return
	}
	dir := t.find(to[:len(to)-1])
	if dir == nil || dir.within(o) {
		t.forget(o)
		return
	}
	delete(o.parent.children, o.name)
	o.name = to[len(to)-1]
	dir.adopt(o)
	t.used(o)
}

// find returns the object at a path, nil if it has no handle. mu is held.
func (t *handleTable) find(path []string) *object {
	o := t.root
	for _, name := range path {
		if o = o.children[name]; o == nil {
			return nil
		}
	}
	return o
}

// used moves an object to the front of the ring, and then the directories above
// it: none of them is ever older than what is in it. mu is held.
func (t *handleTable) used(o *object) {
	for ; o != t.root; o = o.parent {
		o.unlink()
		o.prev, o.next = &t.front, t.front.next
		o.prev.next, o.next.prev = o, o
	}
}

// evict forgets the oldest objects, which have nothing below them. mu is held.
func (t *handleTable) evict() {
	for len(t.byID) > t.limit && t.front.prev != &t.front {
		t.forget(t.front.prev)
	}
}

// forget takes an object and all below it out of the table. mu is held.
func (t *handleTable) forget(o *object) {
	for _, child := range o.children {
		t.forget(child)
	}
	delete(o.parent.children, o.name)
	delete(t.byID, o.id)
	o.unlink()
	o.parent = nil
}

// within tells whether o is dir or below it.
func (o *object) within(dir *object) bool {
	for ; o != nil; o = o.parent {
		if o == dir {
			return true
		}
	}
	return false
}

func (o *object) adopt(child *object) {
	if o.children == nil {
		o.children = make(map[string]*object)
	}
	o.children[child.name] = child
	child.parent = o
}

func (o *object) unlink() {
	if o.next != nil {
		o.prev.next, o.next.prev = o.next, o.prev
		o.prev, o.next = nil, nil
	}
}
