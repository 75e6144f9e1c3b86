//go:build linux && cgo

package ibv

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
)

// A kind is the kind of an object. Errors that list an object's users name it.
type kind uint8

const (
	aContext kind = iota
	aPD
	aMR
	aDM
	aMW
	anAH
	aChannel
	aCQ
	anSRQ
	aQP
	aTD
	anXRCD
	aWQ
	aTable
	aFlow
	someCounters
	aPool
	aBuffer
	kinds
)

var kindNames = [kinds]string{
	aContext: "device context", aPD: "protection domain", aMR: "memory region", aDM: "block of device memory", aMW: "memory window",
	anAH: "address handle", aChannel: "completion channel", aCQ: "completion queue", anSRQ: "shared receive queue", aQP: "queue pair",
	aTD: "thread domain", anXRCD: "XRC domain", aWQ: "work queue", aTable: "indirection table", aFlow: "flow", someCounters: "set of counters", aPool: "memory pool", aBuffer: "buffer",
}

// A life tracks the use of an object. Closing an object frees its C memory. So every call that passes the object to C
// enters the life, and closing waits until all calls have left. Calls that arrive while closing waits fail, so that
// closing cannot starve. Unlike with a sync.RWMutex they do not wait, because a goroutine may have entered several
// lives, or one of them twice.
//
// Creating a child enters its parents. Closing it only decrements their counts.
type life struct {
	// inside is how many calls have entered, plus shut once the object closes. Entering adds one and leaving subtracts
	// one. A call that finds it negative leaves again.
	inside atomic.Int64

	mu      sync.Mutex
	change  *sync.Cond // signals that a call has left after shut, or that closing has changed
	closing bool
	closed  bool

	kind     kind
	device   string
	parents  []*life
	children [kinds]atomic.Int32
}

// begin initializes the life of a new object. The parents must have been entered. A nil parent is ignored.
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

// enter keeps the object open until leave. It fails if the object is closed or closing.
func (l *life) enter(call string) error {
	if l.inside.Add(1) < 0 {
		l.leave()
		return &Error{Call: call, Device: l.device, Err: ErrClosed}
	}
	return nil
}

func (l *life) leave() {
	if l.inside.Add(-1) == shut {
		l.mu.Lock()
		l.change.Broadcast()
		l.mu.Unlock()
	}
}

// shut makes inside negative for any number of calls. Adding it twice has no effect.
const shut = math.MinInt64

// enterAll enters all lives, or none if one fails. It skips nil.
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

// do makes a call with all lives entered.
func (c *Context) do(call string, f func() syscall.Errno, lives ...*life) error {
	if err := enterAll(call, lives...); err != nil {
		return err
	}
	defer leaveAll(lives...)
	if errno := f(); errno != 0 {
		return &Error{Call: call, Device: c.device, Err: errno}
	}
	return nil
}

// made makes a call that creates an object, whose life begins as a child of parents.
func (c *Context) made(call string, k kind, l *life, create func() syscall.Errno, parents ...*life) error {
	return c.do(call, func() syscall.Errno {
		errno := create()
		if errno == 0 {
			l.begin(k, c.device, parents...)
		}
		return errno
	}, parents...)
}

// end closes the object with destroy. It does nothing if the object is closed, and fails if the object has children.
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
	l.inside.Add(shut)
	defer func() {
		if !l.closed {
			l.inside.Add(shut)
		}
		l.closing = false
		l.change.Broadcast()
	}()
	for l.inside.Load() != shut {
		l.change.Wait()
	}
	if busy := l.busy(call); busy != nil {
		return busy // a call that was still inside has created a child
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

// busy returns nil if the object has no children. The caller must hold mu.
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
