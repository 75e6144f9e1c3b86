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
// object's memory on close, so whoever passes the object to C holds the life for
// reading meanwhile, and close holds it for writing. While a child is created
// every parent is held; closing a child only counts down.
type life struct {
	mu       sync.RWMutex
	kind     kind
	closed   bool
	device   string
	parents  []*life
	children [kinds]atomic.Int32
}

// enter holds the object open until leave, unless it is closed already.
func (l *life) enter(call string) error {
	l.mu.RLock()
	if l.closed {
		l.mu.RUnlock()
		return &Error{Call: call, Device: l.device, Err: ErrClosed}
	}
	return nil
}

func (l *life) leave() { l.mu.RUnlock() }

// enterAll enters each of the lives, which may repeat and may be nil.
func enterAll(call string, lives ...*life) (leave func(), err error) {
	held := make([]*life, 0, len(lives))
	leave = func() {
		for _, l := range held {
			l.leave()
		}
	}
next:
	for _, l := range lives {
		if l == nil {
			continue
		}
		for _, h := range held {
			// Entering twice would wait for a Close in between, which waits for us.
			if h == l {
				continue next
			}
		}
		if err := l.enter(call); err != nil {
			leave()
			return nil, err
		}
		held = append(held, l)
	}
	return leave, nil
}

// begin makes l the life of a new object. The parents are entered.
func (l *life) begin(k kind, device string, parents ...*life) {
	l.kind, l.device = k, device
	for _, p := range parents {
		if p != nil {
			p.children[k].Add(1)
			l.parents = append(l.parents, p)
		}
	}
}

// end closes the object with destroy, unless it has been closed or has children.
func (l *life) end(call string, destroy func() syscall.Errno) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	busy := &BusyError{Call: call, Device: l.device, Object: kindNames[l.kind]}
	for k := range l.children {
		if n := l.children[k].Load(); n == 1 {
			busy.Users = append(busy.Users, "1 "+kindNames[k])
		} else if n > 1 {
			busy.Users = append(busy.Users, fmt.Sprintf("%d %ss", n, kindNames[k]))
		}
	}
	if len(busy.Users) > 0 {
		return busy
	}
	if errno := destroy(); errno == syscall.EBUSY {
		return busy
	} else if errno != 0 {
		return &Error{Call: call, Device: l.device, Err: errno}
	}
	l.closed = true
	for _, p := range l.parents {
		p.children[l.kind].Add(-1)
	}
	return nil
}
