//go:build linux && cgo

package cgotest

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A Library is a cgo.Library without rdma-core. Methods that are not in the interface are for tests, which may call
// them at any time and from any goroutine.
type Library struct {
	// Manual leaves the events of setup and of Disconnect to the test.
	Manual bool

	t         testing.TB
	mu        sync.Mutex
	acked     *sync.Cond // signals acknowledged events of completion queues
	devices   []*Device
	fail      map[string][]syscall.Errno
	calls     []string
	live      []*object
	qps       map[uint32]*QP // by number
	mws       map[uint64]*window
	mrs       map[uint64]*region
	ahs       map[uint64]*AH
	lkeys     map[uint32]*region
	rkeys     map[uint32]*region
	listeners []*ID  // on working devices
	key       uint32 // last one assigned
	qpNum     uint32 // last one assigned
	port      uint16 // last one assigned
	clock     uint64
}

var _ cgo.Library = (*Library)(nil)

// New returns a Library without devices. At the end of the test all objects must have been destroyed, except the
// contexts that librdmacm keeps.
func New(t testing.TB) *Library {
	f := &Library{
		t: t, fail: make(map[string][]syscall.Errno), qps: make(map[uint32]*QP),
		mws: make(map[uint64]*window), mrs: make(map[uint64]*region), ahs: make(map[uint64]*AH), lkeys: make(map[uint32]*region), rkeys: make(map[uint32]*region), qpNum: 16, port: 40000,
	}
	f.acked = sync.NewCond(&f.mu)
	t.Cleanup(func() {
		if left := f.Live(); len(left) > 0 && !t.Failed() {
			t.Errorf("cgotest: not destroyed: %q", left)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, d := range f.devices {
			if d.cm != nil {
				d.cm.async.close()
			}
		}
	})
	return f
}

// Fail makes the next calls of a C function, such as "ibv_reg_mr", return these errors, one per call. Zero is a call
// that succeeds.
func (f *Library) Fail(call string, errs ...syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[call] = append(f.fail[call], errs...)
}

// Calls returns the C functions that have created or destroyed objects, or changed a connection, since the last Calls,
// in order.
func (f *Library) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// Live returns the kinds of the objects that have not been destroyed, in the order of their creation.
func (f *Library) Live() (kinds []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.live {
		kinds = append(kinds, o.kind)
	}
	return kinds
}

// enter begins a logged call and returns the error that the test has set for it. It returns with mu held.
func (f *Library) enter(call string) syscall.Errno {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	return f.failing(call)
}

// failing removes and returns the next error set for a call. The caller must hold mu.
func (f *Library) failing(call string) (errno syscall.Errno) {
	if errs := f.fail[call]; len(errs) > 0 {
		errno, f.fail[call] = errs[0], errs[1:]
	}
	return errno
}

func (f *Library) wrong(format string, args ...any) {
	f.t.Errorf("cgotest: "+format, args...)
}

// An object is the part that all objects of the libraries share. It is guarded by Library.mu.
type object struct {
	kind    string
	parents []*object
	users   int
	gone    bool
}

// begin creates an object that keeps its parents in use. A nil parent is ignored. The caller must hold mu.
func (f *Library) begin(o *object, kind string, parents ...*object) {
	o.kind = kind
	for _, p := range parents {
		if p == nil {
			continue
		}
		if p.gone {
			f.wrong("a %s is made of a %s that has been destroyed", kind, p.kind)
		}
		p.users++
		o.parents = append(o.parents, p)
	}
	f.live = append(f.live, o)
}

// end destroys an object that is not in use. The caller must hold mu.
func (f *Library) end(o *object) syscall.Errno {
	f.usable(o)
	if o.users > 0 {
		f.wrong("a %s is destroyed that %d objects use", o.kind, o.users)
		return syscall.EBUSY
	}
	o.gone = true
	for _, p := range o.parents {
		p.users--
	}
	f.live = slices.DeleteFunc(f.live, func(l *object) bool { return l == o })
	return 0
}

// usable fails the test if the object has been destroyed. The caller must hold mu.
func (f *Library) usable(o *object) {
	if o.gone {
		f.wrong("a %s is used that has been destroyed", o.kind)
	}
}

// nextKey returns a new key of a region or window. The last eight bits change with each bind. The caller must hold mu.
func (f *Library) nextKey() uint32 {
	f.key++
	return f.key << 8
}
