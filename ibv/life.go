//go:build linux && cgo

package ibv

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// A kind is what an object is, for errors about who uses whom.
type kind uint8

const (
	aContext kind = iota
	aPD
	aMR
	aMW
	aChannel
	aCQ
	anSRQ
	aQP
	kinds
)

var kindNames = [kinds]string{
	aContext: "device context", aPD: "protection domain", aMR: "memory region", aMW: "memory window",
	aChannel: "completion channel", aCQ: "completion queue", anSRQ: "shared receive queue", aQP: "queue pair",
}

// A life is the part of every object that begins and ends. The library frees an
// object's memory on close, so whoever passes the object to C is inside the life
// meanwhile, and close waits until nobody is. Those who come while it waits are
// turned away, so that it does end; they do not wait for it (as they would for a
// sync.RWMutex), because one goroutine may be inside several lives, or inside one of
// them twice.
//
// While a child is created its parents are entered; closing it only counts down.
type life struct {
	mu      sync.Mutex
	change  *sync.Cond // of what follows
	inside  int
	closing bool
	closed  bool

	kind     kind
	device   string
	parents  []*life
	children [kinds]atomic.Int32
}

// begin makes l the life of a new object. The parents are entered; nil is none.
func (l *life) begin(k kind, device string, parents ...*life) {
	l.kind, l.device = k, device
	l.change = sync.NewCond(&l.mu)
	for _, p := range parents {
		if p != nil {
			p.children[k].Add(1)
			l.parents = append(l.parents, p)
		}
	}
}

// enter keeps the object open until leave, unless it is closed or about to be.
func (l *life) enter(call string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || l.closed {
		return &Error{Call: call, Device: l.device, Err: ErrClosed}
	}
	l.inside++
	return nil
}

func (l *life) leave() {
	l.mu.Lock()
	l.inside--
	if l.inside == 0 && l.closing {
		l.change.Broadcast()
	}
	l.mu.Unlock()
}

// enterAll enters all of the lives, or none; nil is none.
func enterAll(call string, lives ...*life) error {
	for i, l := range lives {
		if l == nil {
			continue
		}
		if err := l.enter(call); err != nil {
			leaveAll(lives[:i]...)
			return err
		}
	}
	return nil
}

func leaveAll(lives ...*life) {
	for _, l := range lives {
		if l != nil {
			l.leave()
		}
	}
}

// end closes the object with destroy, unless it has been closed or has children.
func (l *life) end(call string, destroy func() syscall.Errno) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.closing {
		l.change.Wait()
	}
	if l.closed {
		return nil
	}
	if busy := l.busy(call); busy != nil {
		return busy
	}
	l.closing = true
	defer func() {
		l.closing = false
		l.change.Broadcast()
	}()
	for l.inside > 0 {
		l.change.Wait()
	}
	if busy := l.busy(call); busy != nil {
		return busy // by a child of somebody who was inside
	}
	if errno := destroy(); errno == syscall.EBUSY {
		return &BusyError{Call: call, Device: l.device, Object: kindNames[l.kind]}
	} else if errno != 0 {
		return &Error{Call: call, Device: l.device, Err: errno}
	}
	l.closed = true
	for _, p := range l.parents {
		p.children[l.kind].Add(-1)
	}
	return nil
}

// busy is nil when the object has no children. mu is locked.
func (l *life) busy(call string) error {
	var users []string
	for k := range l.children {
		if n := l.children[k].Load(); n == 1 {
			users = append(users, "1 "+kindNames[k])
		} else if n > 1 {
			users = append(users, fmt.Sprintf("%d %ss", n, kindNames[k]))
		}
	}
	if users == nil {
		return nil
	}
	return &BusyError{Call: call, Device: l.device, Object: kindNames[l.kind], Users: users}
}
