package simfabric

import (
	"errors"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
)

const remote = fabric.AccessRemoteRead | fabric.AccessRemoteWrite

// region implements fabric.MR.
type region struct {
	e      *end
	buf    []byte
	key    uint32
	offset uint64 // of its first byte, for the peer
	access fabric.Access
	closed bool
}

// window implements fabric.MW.
type window struct {
	e        *end
	key      uint32
	offset   uint64
	prepared bool
	bound    bool
	closed   bool
	mem      fabric.SGE
	access   fabric.Access
}

// key returns a key that this end has not used yet.
func (e *end) key() uint32 {
	for {
		k := uint32(e.f.random())
		if k != 0 && e.regions[k] == nil && e.windows[k] == nil {
			return k
		}
	}
}

// RegMR implements fabric.Conn.
func (e *end) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	e.f.mu.Lock()
	defer e.f.unlock()
	if e.err != nil {
		return nil, e.err
	}
	v := e.decide(RegMR, 0)
	if v.CutBefore {
		e.cut()
		return nil, e.gone()
	}
	if v.Err != nil {
		return nil, v.Err
	}
	r := &region{e: e, buf: buf, key: e.key(), offset: e.f.random() >> 16, access: access}
	e.regions[r.key] = r
	e.f.openMRs++
	if v.CutAfter {
		e.cut()
	}
	return r, nil
}

// RegForeign implements fabric.Conn. A simulation has only its own memory.
func (e *end) RegForeign(fabric.Foreign, fabric.Access) (fabric.MR, error) {
	return nil, &fabric.CapabilityError{Provider: e.f.Name(), Capability: "foreign memory"}
}

func (r *region) Bytes() []byte { return r.buf }
func (r *region) LKey() uint32  { return r.key }

func (r *region) Segment() fabric.Segment {
	if r.access&remote == 0 {
		return fabric.Segment{}
	}
	return fabric.Segment{Handle: r.key, Length: uint32(len(r.buf)), Offset: r.offset}
}

func (r *region) Close() error {
	e := r.e
	e.f.mu.Lock()
	defer e.f.unlock()
	if r.closed {
		return nil
	}
	for _, w := range e.windows {
		if w.mem.LKey == r.key && e.err == nil {
			e.f.violation("connection %d: the %v closes a region under an open window", e.no, e.side)
		}
	}
	if e.err == nil {
		for _, q := range e.sq {
			e.notIn(r, q.sgl, "a request")
		}
		for i := range e.rq {
			e.notIn(r, []fabric.SGE{e.rq[i].SGE}, "a receive")
		}
	}
	r.end()
	return nil
}

// notIn reports a violation if a list uses a region that is being closed.
func (e *end) notIn(r *region, sgl []fabric.SGE, what string) {
	for i := range sgl {
		if len(sgl[i].Buf) > 0 && sgl[i].LKey == r.key {
			e.f.violation("connection %d: the %v closes a region that %s uses", e.no, e.side, what)
		}
	}
}

func (r *region) end() {
	if !r.closed {
		r.closed = true
		r.e.f.openMRs--
		delete(r.e.regions, r.key)
	}
}

// AllocMW implements fabric.Conn.
func (e *end) AllocMW() (fabric.MW, error) {
	e.f.mu.Lock()
	defer e.f.unlock()
	if e.f.cfg.NoWindows {
		return nil, e.f.lacks("memory windows")
	}
	if e.err != nil {
		return nil, e.err
	}
	v := e.decide(AllocMW, 0)
	if v.CutBefore {
		e.cut()
		return nil, e.gone()
	}
	if v.Err != nil {
		return nil, v.Err
	}
	w := &window{e: e}
	e.all = append(e.all, w)
	e.f.openMWs++
	if v.CutAfter {
		e.cut()
	}
	return w, nil
}

// Prepare implements fabric.MW.
func (w *window) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	e := w.e
	e.f.mu.Lock()
	defer e.f.unlock()
	switch {
	case w.closed && e.err != nil:
		return fabric.Segment{}, e.err
	case w.closed:
		return fabric.Segment{}, errors.New("simfabric: the window is closed")
	case w.bound:
		e.f.violation("connection %d: the %v prepares a window that is open", e.no, e.side)
		return fabric.Segment{}, errors.New("simfabric: the window is bound")
	}
	w.prepared, w.mem, w.access = true, mem, access
	w.key, w.offset = e.key(), e.f.random()>>16
	return fabric.Segment{Handle: w.key, Length: uint32(len(mem.Buf)), Offset: w.offset}, nil
}

// Close implements fabric.MW.
func (w *window) Close() error {
	w.e.f.mu.Lock()
	defer w.e.f.unlock()
	w.end()
	return nil
}

func (w *window) end() {
	w.unbind()
	if !w.closed {
		w.closed, w.prepared = true, false
		w.e.f.openMWs--
	}
}

func (w *window) unbind() {
	if w.bound {
		w.bound = false
		delete(w.e.windows, w.key)
	}
}

// bind executes an OpBindMW.
func (e *end) bind(w *window) bool {
	if w == nil || w.e != e || w.closed || !w.prepared || w.bound {
		return false
	}
	need := fabric.Access(0)
	if w.access&fabric.AccessRemoteWrite != 0 {
		need = fabric.AccessLocalWrite
	}
	if !e.allows(w.mem, need) {
		return false
	}
	w.prepared, w.bound = false, true
	e.windows[w.key] = w
	return true
}

// allows checks a local element.
func (e *end) allows(s fabric.SGE, need fabric.Access) bool {
	if len(s.Buf) == 0 || s.LKey == fabric.LocalDMAKey && !e.f.cfg.NoLocalDMA {
		return true
	}
	r := e.regions[s.LKey]
	return r != nil && r.access&need == need && inside(r.buf, s.Buf)
}

func inside(all, part []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(all)))
	return at <= uintptr(len(all)) && uintptr(len(part)) <= uintptr(len(all))-at
}

// overlap reports whether two slices have bytes in common.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	pa, pb := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return pa < pb+uintptr(len(b)) && pb < pa+uintptr(len(a))
}

// reach returns n bytes of this end's memory for the peer.
func (e *end) reach(handle uint32, offset uint64, n int, need fabric.Access) ([]byte, bool) {
	if n == 0 {
		return nil, true
	}
	if e.err != nil || e.closed {
		return nil, false
	}
	var buf []byte
	var base uint64
	var access fabric.Access
	if r := e.regions[handle]; r != nil {
		buf, base, access = r.buf, r.offset, r.access
	} else if w := e.windows[handle]; w != nil && e.allows(w.mem, 0) {
		buf, base, access = w.mem.Buf, w.offset, w.access
	} else {
		return nil, false
	}
	at := offset - base
	if access&need != need || at > uint64(len(buf)) || uint64(n) > uint64(len(buf))-at {
		return nil, false
	}
	return buf[at:][:n], true
}

// Try reports whether the peer of an end could read or write the first byte of a segment that the end exposed at any
// time.
func (f *Fabric) Try(conn int, side Side, seg fabric.Segment) (read, write bool) {
	f.mu.Lock()
	defer f.unlock()
	e := f.conns[conn-1]
	if side == Taken {
		e = e.peer
	}
	if e == nil {
		return false, false
	}
	_, read = e.reach(seg.Handle, seg.Offset, 1, fabric.AccessRemoteRead)
	_, write = e.reach(seg.Handle, seg.Offset, 1, fabric.AccessRemoteWrite)
	return read, write
}

// Reached counts the regions and windows that expose bytes of mem to a peer.
func (f *Fabric) Reached(mem []byte) (n int) {
	f.mu.Lock()
	defer f.unlock()
	for _, c := range f.conns {
		for _, e := range []*end{c, c.peer} {
			if e == nil || e.err != nil {
				continue
			}
			for _, r := range e.regions {
				if r.access&remote != 0 && overlap(r.buf, mem) {
					n++
				}
			}
			for _, w := range e.windows {
				if overlap(w.mem.Buf, mem) {
					n++
				}
			}
		}
	}
	return n
}

// Exposed counts the regions and windows that expose memory of one side to peers.
func (f *Fabric) Exposed(side Side) (n int) {
	f.mu.Lock()
	defer f.unlock()
	for _, c := range f.conns {
		e := c
		if side == Taken {
			e = c.peer
		}
		if e == nil || e.err != nil {
			continue
		}
		n += len(e.windows)
		for _, r := range e.regions {
			if r.access&remote != 0 {
				n++
			}
		}
	}
	return n
}
