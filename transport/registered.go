package transport

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Memory is memory of the program that stays registered with the connections of a
// Client: see [Client.RegisterMemory].
type Memory struct {
	of  *memories
	buf []byte

	mu      sync.Mutex
	regions map[*conn]*region
	closed  bool
}

// A region is a Memory as one connection's adapter knows it. Guarded by the Memory's mu.
type region struct {
	m     *Memory
	c     *conn
	mr    fabric.MR
	users int // exposures
}

// RegisterMemory keeps mem registered with the client's adapter, on this connection and on
// those that take its place, until Close of the Memory. Calls whose ReadItems and
// WriteItems lie in it, anywhere, then need not register them, which costs two system calls
// for each item and the longer the longer it is. mem must not be empty, nor overlap what is
// registered already. The Memory refers to it: it is not collected before Close.
//
// What that exposes depends on the adapter (ConnInfo.Capabilities). With MemoryWindows a
// call opens a window over its items for itself alone, as always. Without them the server
// can read and write all of mem, at any time before Close has returned: this is for servers
// that are trusted with it. Call still is a fence in so far as a call that is given up
// takes the registration with it, the next one making it anew; other calls that have
// items in mem at that moment lose their connection. Adapters with LocalDMA take any
// memory as it is, and nothing is registered.
//
// It fails as registering does: with an *ibv.MemlockError from devices when the limit of
// locked memory is too low.
func (cl *Client) RegisterMemory(mem []byte) (*Memory, error) {
	m := &Memory{of: &cl.memories, buf: mem, regions: make(map[*conn]*region)}
	if err := cl.memories.add(m); err != nil {
		return nil, err
	}
	c := cl.conn()
	if c.caps.LocalDMA {
		return m, nil
	}
	r, err := m.borrow(c)
	switch {
	case err == nil:
		r.giveBack()
	case !errors.Is(err, net.ErrClosed): // the next connection's turn comes with its calls
		cl.memories.remove(m)
		return nil, err
	}
	return m, nil
}

// Bytes is what has been registered.
func (m *Memory) Bytes() []byte { return m.buf }

// Close ends the registration. On return no peer can reach the memory, as far as the
// adapter revokes (Capabilities.WeakRevocation), but for what calls under way have in it:
// the last of these ends the registration when it returns. Closing twice is harmless.
func (m *Memory) Close() error {
	m.of.remove(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, r := range m.regions {
		if r.users == 0 {
			r.end()
		}
	}
	return nil
}

// borrow returns the memory as c knows it, registering it if need be. Whoever borrows
// gives back. It returns nil if the Memory is closed.
func (m *Memory) borrow(c *conn) (*region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil
	}
	r := m.regions[c]
	if r == nil {
		access := fabric.AccessLocalWrite
		if !c.windows() {
			access |= fabric.AccessRemoteRead | fabric.AccessRemoteWrite
		}
		mr, err := c.fc.RegMR(m.buf, access)
		if err != nil {
			return nil, err
		}
		r = &region{m: m, c: c, mr: mr}
		m.regions[c] = r
	}
	r.users++
	return r, nil
}

func (r *region) giveBack() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.users--; r.users == 0 && r.m.closed {
		r.end()
	}
}

// withdraw ends the registration under whoever else uses it.
func (r *region) withdraw() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.end()
}

// end deregisters. The Memory's mu is held.
func (r *region) end() {
	if r.m.regions[r.c] == r {
		delete(r.m.regions, r.c)
	}
	r.mr.Close()
}

// segment names a part of the memory for the peer.
func (r *region) segment(part []byte) fabric.Segment {
	seg := r.mr.Segment()
	seg.Offset += uint64(startOf(part) - startOf(r.m.buf))
	seg.Length = uint32(len(part))
	return seg
}

// memories are those of a Client. They are read with every item that a call exposes, and
// change now and then.
type memories struct {
	mu     sync.Mutex
	sorted atomic.Pointer[[]*Memory] // by address; copied to be changed
}

func (ms *memories) list() []*Memory {
	if l := ms.sorted.Load(); l != nil {
		return *l
	}
	return nil
}

func (ms *memories) add(m *Memory) error {
	if len(m.buf) == 0 {
		return errors.New("transport: no memory to register")
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	l := ms.list()
	i := firstAfter(l, startOf(m.buf))
	if i > 0 && endOf(l[i-1].buf) > startOf(m.buf) || i < len(l) && startOf(l[i].buf) < endOf(m.buf) {
		return errors.New("transport: memory to register overlaps memory that is registered")
	}
	l = slices.Insert(slices.Clone(l), i, m)
	ms.sorted.Store(&l)
	return nil
}

func (ms *memories) remove(m *Memory) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	l := slices.DeleteFunc(slices.Clone(ms.list()), func(o *Memory) bool { return o == m })
	ms.sorted.Store(&l)
}

// find returns the Memory in which b lies, nil if there is none.
func (ms *memories) find(b []byte) *Memory {
	l := ms.list()
	if len(l) == 0 || len(b) == 0 {
		return nil
	}
	if i := firstAfter(l, startOf(b)); i > 0 && endOf(b) <= endOf(l[i-1].buf) {
		return l[i-1]
	}
	return nil
}

// forget drops what a connection knew, which has ended.
func (ms *memories) forget(c *conn) {
	for _, m := range ms.list() {
		m.mu.Lock()
		delete(m.regions, c)
		m.mu.Unlock()
	}
}

// firstAfter returns the index of the first Memory behind an address.
func firstAfter(l []*Memory, at uintptr) int {
	i, found := slices.BinarySearchFunc(l, at, func(m *Memory, at uintptr) int { return cmp.Compare(startOf(m.buf), at) })
	if found {
		i++
	}
	return i
}

// startOf and endOf are addresses, to compare and to subtract: whoever has b keeps the memory
// where it is.
func startOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
func endOf(b []byte) uintptr   { return startOf(b) + uintptr(len(b)) }
