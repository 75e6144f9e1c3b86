//go:build linux && cgo

package rdmacm

import (
	"fmt"
	"sync"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
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

// A region is a fabric.MR.
type region struct {
	c      *Conn
	mr     *ibv.MR
	remote bool
	once   sync.Once
}

// RegMR implements fabric.Conn.
func (c *Conn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	bits := accessBits(access)
	remote := access&(fabric.AccessRemoteRead|fabric.AccessRemoteWrite) != 0
	if access&fabric.AccessRemoteWrite != 0 {
		bits |= accessLocalWrite // ibv_reg_mr(3) wants both
	}
	if access&fabric.AccessLocalWrite != 0 {
		bits |= c.dev.sinkBits
	}
	if c.dev.windows && !remote {
		bits |= accessMWBind
	}
	// Close takes the set of regions before it frees them. A region that is registered
	// after that is freed below.
	if c.shut.Load() {
		return nil, c.connErr()
	}
	mr, err := c.pd.RegMR(buf, bits)
	if err != nil {
		if c.shut.Load() {
			return nil, c.connErr()
		}
		return nil, err
	}
	r := &region{c: c, mr: mr, remote: remote}
	c.p.open.mrs.Add(1)
	c.mu.Lock()
	if c.mrs == nil {
		err = c.connErrLocked()
	} else {
		c.mrs[r] = struct{}{}
		c.byKey[mr.LKey()] = r
	}
	c.mu.Unlock()
	if err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

// Bytes implements fabric.MR.
func (r *region) Bytes() []byte { return r.mr.Bytes() }

// LKey implements fabric.MR.
func (r *region) LKey() uint32 { return r.mr.LKey() }

// Segment implements fabric.MR.
func (r *region) Segment() fabric.Segment {
	s := fabric.Segment{Length: uint32(len(r.mr.Bytes())), Offset: addressOf(r.mr.Bytes())}
	if r.remote {
		s.Handle = r.mr.RKey()
	}
	return s
}

// Close implements fabric.MR.
func (r *region) Close() error {
	r.c.mu.Lock()
	_, mine := r.c.mrs[r]
	if mine {
		delete(r.c.mrs, r)
		delete(r.c.byKey, r.mr.LKey())
	}
	r.c.mu.Unlock()
	if !mine {
		return nil // closed, or the Conn is doing it
	}
	return r.free()
}

// covers reports whether the memory lies in the region of its local key.
func (c *Conn) covers(sge *fabric.SGE) bool {
	r := c.recent.Load()
	if r == nil || r.mr.LKey() != sge.LKey {
		c.mu.Lock()
		r = c.byKey[sge.LKey]
		c.mu.Unlock()
		if r == nil {
			return false
		}
		c.recent.Store(r)
	}
	return within(sge.Buf, r.mr.Bytes())
}

// free deregisters, once.
func (r *region) free() (err error) {
	r.c.recent.CompareAndSwap(r, nil)
	r.once.Do(func() {
		err = r.mr.Close()
		r.c.p.open.mrs.Add(-1)
	})
	return err
}

// A window is a fabric.MW: a memory window of type 2.
type window struct {
	c  *Conn
	mw *ibv.MW

	// Guarded by Conn.mu.
	freed  bool
	ready  bool   // prepared, bind not posted yet
	bound  bool   // from the post of the bind to that of the invalidation, or the peer's invalidation
	key    uint32 // of the last Prepare
	under  *region
	mem    []byte
	access ibv.Access
}

// AllocMW implements fabric.Conn.
func (c *Conn) AllocMW() (fabric.MW, error) {
	if !c.dev.windows {
		return nil, &fabric.CapabilityError{Provider: name, Capability: "memory windows on " + c.dev.name}
	}
	if c.shut.Load() {
		return nil, c.connErr()
	}
	mw, err := c.pd.AllocMW(2)
	if err != nil {
		if c.shut.Load() {
			return nil, c.connErr()
		}
		return nil, err
	}
	w := &window{c: c, mw: mw, key: mw.RKey()}
	c.p.open.mws.Add(1)
	c.mu.Lock()
	if c.mws == nil {
		err = c.connErrLocked()
	} else {
		c.mws[w] = struct{}{}
	}
	c.mu.Unlock()
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Prepare implements fabric.MW.
func (w *window) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case w.freed && c.state == stateOver:
		return fabric.Segment{}, c.connErrLocked()
	case w.freed:
		return fabric.Segment{}, fmt.Errorf("%w: Prepare on a closed window", ErrMisuse)
	case w.bound:
		return fabric.Segment{}, fmt.Errorf("%w: Prepare on a window that is bound", ErrMisuse)
	}
	r := c.byKey[mem.LKey]
	if r == nil || !within(mem.Buf, r.mr.Bytes()) {
		return fabric.Segment{}, fmt.Errorf("%w: Prepare of memory outside the region with the local key %#x", ErrMisuse, mem.LKey)
	}
	w.key = cgo.IncRKey(w.key)
	w.under, w.mem, w.access, w.ready = r, mem.Buf, accessBits(access)&^accessLocalWrite, true
	return fabric.Segment{Handle: w.key, Length: uint32(len(mem.Buf)), Offset: addressOf(mem.Buf)}, nil
}

// within reports whether a lies in b.
func within(a, b []byte) bool {
	from, start := addressOf(a), addressOf(b)
	return from >= start && from-start+uint64(len(a)) <= uint64(len(b))
}

// bind fills in the request that binds a prepared window. sendMu is held, which keeps
// the window allocated.
func (w *window) bind(to *cgo.SendWR) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	raw := w.mw.Raw()
	to.Opcode, to.MW, to.MR, to.RKey = wrBindMW, raw.Word(), w.under.mr.Raw().Word(), w.key
	to.Arg1, to.Arg2, to.BindAccess = addressOf(w.mem), uint64(len(w.mem)), uint32(w.access)
	w.ready, w.bound = false, true
	w.c.windows[w.key] = w
}

// stored stores the key of a posted bind in the library's window. Providers read the old
// key while they post the bind, and some refuse the next bind if it is not up to date.
func (w *window) stored() { w.c.dev.lib.SetRKey(w.mw.Raw(), w.key) }

// checkBind refuses a bind of a window that is not prepared. sendMu is held.
func (c *Conn) checkBind(mw fabric.MW) error {
	w, ok := mw.(*window)
	if !ok || w.c != c {
		return fmt.Errorf("%w: OpBindMW with a window of another connection", ErrMisuse)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.freed || !w.ready {
		return fmt.Errorf("%w: OpBindMW without Prepare", ErrMisuse)
	}
	return nil
}

// isBound reports whether key is that of a window that is bound, or will be after the
// requests before. sendMu is held.
func (c *Conn) isBound(key uint32, before []fabric.SendWR) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	bound := c.windows[key] != nil
	for i := range before {
		switch wr := &before[i]; {
		case wr.Op == fabric.OpLocalInv && wr.RKey == key:
			bound = false
		case wr.Op == fabric.OpBindMW:
			if w, ok := wr.MW.(*window); ok && w.key == key {
				bound = true
			}
		}
	}
	return bound
}

// unbind records that the window with the key is being invalidated, or has been by the
// peer.
func (c *Conn) unbind(key uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.windows[key]; w != nil {
		delete(c.windows, key)
		w.bound = false
	}
}

// Close implements fabric.MW.
func (w *window) Close() error {
	w.c.sendMu.Lock()
	defer w.c.sendMu.Unlock()
	return w.free()
}

// free deallocates the window, which unbinds it. sendMu is held.
func (w *window) free() error {
	w.c.mu.Lock()
	freed := w.freed
	w.freed = true
	delete(w.c.mws, w)
	if w.bound {
		delete(w.c.windows, w.key)
		w.bound = false
	}
	w.c.mu.Unlock()
	if freed {
		return nil
	}
	w.c.p.open.mws.Add(-1)
	return w.mw.Close()
}
