//go:build linux && cgo

package rdmacm

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// Bits of enum ibv_access_flags.
const (
	accessLocalWrite  = 1 << 0
	accessRemoteWrite = 1 << 1
	accessRemoteRead  = 1 << 2
	accessMWBind      = 1 << 4
)

func accessBits(a fabric.Access) (bits ibv.Access) {
	if a&fabric.AccessLocalWrite != 0 {
		bits |= accessLocalWrite
	}
	if a&fabric.AccessRemoteWrite != 0 {
		bits |= accessRemoteWrite
	}
	if a&fabric.AccessRemoteRead != 0 {
		bits |= accessRemoteRead
	}
	return bits
}

// A memory tracks the registered memory of a connection. Any goroutine may use it.
type memory struct {
	recent atomic.Pointer[region] // the region last used by a request
	making sync.WaitGroup         // regions and windows being created or freed; see make
	keys   lockorder.Value[keys]
}

// keys are the regions and windows of a memory, guarded by memory.keys. Close and the end of the queue pair set the
// maps to nil.
type keys struct {
	mrs   map[*region]struct{}
	mws   map[*window]struct{}
	byKey map[uint32]*region // by local key
	bound map[uint32]*window // bound windows by key
}

// A region is a fabric.MR.
type region struct {
	c      *Conn
	mr     *ibv.MR
	remote bool
	once   sync.Once
}

// RegMR implements fabric.Conn.
func (c *Conn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	return c.register(access, func(bits ibv.Access) (*ibv.MR, error) { return c.pd.RegMR(buf, bits) })
}

// RegForeign implements fabric.Conn. The region has the addresses of mem, for requests and for the peer.
func (c *Conn) RegForeign(mem fabric.Foreign, access fabric.Access) (fabric.MR, error) {
	return c.register(access, func(bits ibv.Access) (mr *ibv.MR, err error) {
		if mem.File == nil {
			return c.pd.RegMRAt(mem.Addr, mem.Len, mem.Addr, bits)
		}
		conn, err := mem.File.SyscallConn()
		if err != nil {
			return nil, err
		}
		if failed := conn.Control(func(fd uintptr) { mr, err = c.pd.RegDmabufMR(int(fd), mem.Addr, mem.Len, mem.Addr, bits) }); failed != nil {
			return nil, failed
		}
		return mr, err
	})
}

// register creates a region for the memory that reg registers with the access bits.
func (c *Conn) register(access fabric.Access, reg func(bits ibv.Access) (*ibv.MR, error)) (fabric.MR, error) {
	bits := accessBits(access)
	remote := access&(fabric.AccessRemoteRead|fabric.AccessRemoteWrite) != 0
	if access&fabric.AccessRemoteWrite != 0 {
		bits |= accessLocalWrite // ibv_reg_mr(3) requires both
	}
	if access&fabric.AccessLocalWrite != 0 {
		bits |= c.dev.sinkBits
	}
	if c.dev.windows && !remote {
		bits |= accessMWBind
	}
	if !c.memory.make() {
		return nil, c.connErr()
	}
	defer c.memory.making.Done()
	mr, err := reg(bits)
	if err != nil {
		if c.shut.Load() {
			return nil, c.connErr()
		}
		return nil, err
	}
	r := &region{c: c, mr: mr, remote: remote}
	c.p.open.mrs.Add(1)
	k := c.memory.keys.Lock()
	open := k.mrs != nil
	if open {
		k.mrs[r] = struct{}{}
		k.byKey[mr.LKey()] = r
	}
	c.memory.keys.Unlock()
	if !open {
		r.free()
		return nil, c.connErr()
	}
	return r, nil
}

// make starts creating a region or window. It returns false once Close has taken the maps. Close frees what the maps
// hold, then waits for pending calls. An object created meanwhile finds no map, and its creator frees it. Until then
// the protection domain cannot be deallocated.
func (m *memory) make() (open bool) {
	defer m.keys.Unlock()
	if m.keys.Lock().mrs == nil {
		return false
	}
	m.making.Add(1)
	return true
}

// Bytes implements fabric.MR.
func (r *region) Bytes() []byte { return r.mr.Bytes() }

// LKey implements fabric.MR.
func (r *region) LKey() uint32 { return r.mr.LKey() }

// Segment implements fabric.MR.
func (r *region) Segment() fabric.Segment {
	s := fabric.Segment{Length: uint32(r.mr.Len()), Offset: r.mr.Addr()}
	if r.remote {
		s.Handle = r.mr.RKey()
	}
	return s
}

// Close implements fabric.MR.
func (r *region) Close() error {
	k := r.c.memory.keys.Lock()
	_, mine := k.mrs[r]
	if mine {
		delete(k.mrs, r)
		delete(k.byKey, r.mr.LKey())
		r.c.memory.making.Add(1) // Close also waits for this
	}
	r.c.memory.keys.Unlock()
	if !mine {
		return nil // closed, or the Conn is closing it
	}
	defer r.c.memory.making.Done()
	return r.free()
}

// covers reports whether the memory lies within the region of its local key.
func (m *memory) covers(sge *fabric.SGE) bool {
	r := m.recent.Load()
	if r == nil || r.mr.LKey() != sge.LKey {
		r = m.keys.Lock().byKey[sge.LKey]
		m.keys.Unlock()
		if r == nil {
			return false
		}
		m.recent.Store(r)
	}
	return r.has(spanOf(sge))
}

// free deregisters the region once.
func (r *region) free() (err error) {
	r.c.memory.recent.CompareAndSwap(r, nil)
	r.once.Do(func() {
		err = r.mr.Close()
		r.c.p.open.mrs.Add(-1)
	})
	return err
}

// A window is a fabric.MW: a memory window of type 2.
type window struct {
	c       *Conn
	mw      *ibv.MW
	binding lockorder.Part[keys, binding]
}

// A binding is the memory that a window grants access to. It is guarded by memory.keys.
type binding struct {
	freed  bool
	ready  bool   // prepared, bind not posted yet
	bound  bool   // from posting the bind to posting the invalidation, or to the peer's invalidation
	key    uint32 // of the last Prepare
	under  *region
	mem    span
	access ibv.Access
}

// AllocMW implements fabric.Conn.
func (c *Conn) AllocMW() (fabric.MW, error) {
	if !c.dev.windows {
		return nil, &fabric.CapabilityError{Provider: name, Capability: "memory windows on " + c.dev.name}
	}
	if !c.memory.make() {
		return nil, c.connErr()
	}
	defer c.memory.making.Done()
	mw, err := c.pd.AllocMW(2)
	if err != nil {
		if c.shut.Load() {
			return nil, c.connErr()
		}
		return nil, err
	}
	w := &window{c: c, mw: mw}
	w.binding.Init().key = mw.RKey()
	c.p.open.mws.Add(1)
	k := c.memory.keys.Lock()
	open := k.mws != nil
	if open {
		k.mws[w] = struct{}{}
	}
	c.memory.keys.Unlock()
	if !open {
		w.Close()
		return nil, c.connErr()
	}
	return w, nil
}

// Prepare implements fabric.MW.
func (w *window) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	k := w.c.memory.keys.Lock()
	key, err := w.binding.Of(k).prepare(k, mem, access)
	w.c.memory.keys.Unlock()
	switch {
	case err == errFreed && w.c.ended():
		return fabric.Segment{}, w.c.connErr()
	case err != nil:
		return fabric.Segment{}, err
	}
	at := spanOf(&mem)
	return fabric.Segment{Handle: key, Length: uint32(at.n), Offset: at.addr}, nil
}

// A span is a memory range in the device's address space.
type span struct{ addr, n uint64 }

func spanOf(sge *fabric.SGE) span {
	if f := sge.Foreign; f != nil {
		return span{f.Addr, f.Len}
	}
	return span{addressOf(sge.Buf), uint64(len(sge.Buf))}
}

// has reports whether s lies within the region.
func (r *region) has(s span) bool {
	return s.addr >= r.mr.Addr() && s.n <= r.mr.Len() && s.addr-r.mr.Addr() <= r.mr.Len()-s.n
}

var errFreed = fmt.Errorf("%w: Prepare on a closed window", ErrMisuse)

// prepare gives a window new memory and a new key, for the next bind.
func (b *binding) prepare(k *keys, mem fabric.SGE, access fabric.Access) (key uint32, err error) {
	switch {
	case b.freed:
		return 0, errFreed
	case b.bound:
		return 0, fmt.Errorf("%w: Prepare on a window that is bound", ErrMisuse)
	}
	r := k.byKey[mem.LKey]
	if r == nil || !r.has(spanOf(&mem)) {
		return 0, fmt.Errorf("%w: Prepare of memory outside the region with the local key %#x", ErrMisuse, mem.LKey)
	}
	b.key = cgo.IncRKey(b.key)
	b.under, b.mem, b.access, b.ready = r, spanOf(&mem), accessBits(access)&^accessLocalWrite, true
	return b.key, nil
}

// bind fills in the request that binds a prepared window. The sender keeps the window
// allocated.
func (w *window) bind(_ *sender, to *cgo.SendWR) {
	k := w.c.memory.keys.Lock()
	b, raw := w.binding.Of(k), w.mw.Raw()
	to.Opcode, to.MW, to.MR, to.RKey = wrBindMW, raw.Word(), b.under.mr.Raw().Word(), b.key
	to.Arg1, to.Arg2, to.BindAccess = b.mem.addr, b.mem.n, uint32(b.access)
	b.ready, b.bound = false, true
	k.bound[b.key] = w
	w.c.memory.keys.Unlock()
}

// stored sets the rkey of a posted bind in the library's window. Providers read the old key while they post a
// bind, and some refuse the next bind if the key is out of date.
func (w *window) stored(key uint32) { w.c.dev.lib.SetRKey(w.mw.Raw(), key) }

// checkBind rejects a bind of a window that has not been prepared.
func (c *Conn) checkBind(mw fabric.MW) error {
	w, ok := mw.(*window)
	if !ok || w.c != c {
		return fmt.Errorf("%w: OpBindMW with a window of another connection", ErrMisuse)
	}
	b := w.binding.Of(c.memory.keys.Lock())
	ready := !b.freed && b.ready
	c.memory.keys.Unlock()
	if !ready {
		return fmt.Errorf("%w: OpBindMW without Prepare", ErrMisuse)
	}
	return nil
}

// isBound reports whether key belongs to a window that is bound, or will be after the requests in before.
func (m *memory) isBound(key uint32, before []fabric.SendWR) bool {
	k := m.keys.Lock()
	defer m.keys.Unlock()
	bound := k.bound[key] != nil
	for i := range before {
		switch wr := &before[i]; {
		case wr.Op == fabric.OpLocalInv && wr.RKey == key:
			bound = false
		case wr.Op == fabric.OpBindMW:
			if w, ok := wr.MW.(*window); ok && w.binding.Of(k).key == key {
				bound = true
			}
		}
	}
	return bound
}

// unbind records that the window with the key is being invalidated, or that the peer has invalidated it.
func (m *memory) unbind(key uint32) {
	k := m.keys.Lock()
	if w := k.bound[key]; w != nil {
		delete(k.bound, key)
		w.binding.Of(k).bound = false
	}
	m.keys.Unlock()
}

// Close implements fabric.MW.
func (w *window) Close() error {
	defer w.c.send.Unlock()
	return w.free(w.c.send.Lock())
}

// free deallocates the window, which unbinds it. The sender lock keeps the window from being bound meanwhile.
func (w *window) free(*sender) error {
	k := w.c.memory.keys.Lock()
	b := w.binding.Of(k)
	freed := b.freed
	b.freed = true
	delete(k.mws, w)
	if b.bound {
		delete(k.bound, b.key)
		b.bound = false
	}
	w.c.memory.keys.Unlock()
	if freed {
		return nil
	}
	w.c.p.open.mws.Add(-1)
	return w.mw.Close()
}
