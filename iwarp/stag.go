package iwarp

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// An STag has 20 bits of index and 12 bits of key (RFC 5040 section 1.1.4 leaves the split to the adapter). Index 0 is
// never used, because with key 0 it would be fabric.LocalDMAKey. The highest index is reserved for the data sinks of
// Reads by this side, see sinkSTag.
const (
	stagKeyBits = 12
	keyMask     = 1<<stagKeyBits - 1
	maxIndex    = 1<<20 - 2
)

// sinkSTag returns the data sink STag of Read number seq. The STag is in no table: a Read Response is checked against
// the oldest outstanding Read, and a Write to the STag is refused. It gives access to nothing, so it need not be hard
// to guess.
func sinkSTag(seq uint64) uint32 { return (maxIndex+1)<<stagKeyBits | uint32(seq&keyMask) }

// sinkTO returns the data sink tagged offset of Read number seq. Successive Reads have different offsets, so that a
// response to the wrong Read is detected.
func sinkTO(seq uint64) uint64 { return (seq & 0xffff) << 40 }

type stagKind uint8

const (
	kindFree stagKind = iota
	kindRegion
	kindWindow   // allocated, not bound
	kindPrepared // a window that the next OpBindMW will bind
	kindBound    // a window that is bound
)

// An entry of the table is a region or a window.
type entry struct {
	buf     []byte
	base    uint64 // tagged offset of buf[0]
	epoch   uint32 // changes with every change of the entry
	parent  ref    // region that contains a window's memory; zero for LocalDMAKey
	tweak   tweak  // makes the slots of the entry differ from those of other entries
	uses    uint32 // number of tokens drawn with this tweak
	key     uint16
	kind    stagKind
	access  fabric.Access
	foreign *mapping // of a region registered with RegForeign
	byPeer  bool     // invalidated by the peer's Send with Invalidate, and not prepared since
	byUs    bool     // invalidated only by this side, and not prepared since
}

// A ref identifies an entry in its state at the time of a lookup. The zero ref is for memory that needs no check, and is
// always valid.
type ref struct{ index, epoch uint32 }

// A table is the STag table of a connection, which is its own protection domain. Any goroutine
// may use it.
//
// Invalidation has two steps. First the entry is changed under the lock, after which no lookup finds it and no ref to it
// is valid. Then the caller's fence waits until no earlier lookup is in use.
type table struct {
	gen     atomic.Uint64 // incremented whenever a ref may have become invalid
	entries lockorder.Value[entries]
}

// Entries holds the entries of a table, under the lock of table.entries.
type entries struct {
	gen      *atomic.Uint64 // table.gen
	e        []entry
	free     []uint32
	tokens   *tokens // nil before the first entry
	live     live
	mappings map[*mapping]struct{} // of regions of foreign memory; nil before the first
}

// live counts open regions and windows.
type live struct{ mrs, mws int64 }

// alloc returns the index of a free entry.
func (t *entries) alloc() (uint32, error) {
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		return i, nil
	}
	if len(t.e) > maxIndex {
		return 0, &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("more than %d regions and windows", maxIndex)}
	}
	if t.tokens == nil {
		t.tokens = newTokens()
	}
	if len(t.e) == 0 {
		t.e = append(t.e, entry{}) // index 0 is never used
	}
	t.e = append(t.e, entry{tweak: t.tokens.tweak()})
	return uint32(len(t.e) - 1), nil
}

// name assigns a new token for size bytes of memory to an entry.
func (t *entries) name(e *entry, size int) {
	tok := t.tokens.draw(e.tweak, e.uses, uint32(size), e.key)
	e.key, e.base = tok.key, tok.base
	if e.uses++; e.uses == 0 {
		e.tweak = t.tokens.tweak()
	}
}

// release frees an entry. The next use of the entry continues its sequence of tokens.
func (t *entries) release(i uint32) {
	e := &t.e[i]
	*e = entry{key: e.key, tweak: e.tweak, uses: e.uses, epoch: e.epoch + 1}
	t.free = append(t.free, i)
	t.gen.Add(1)
}

func (t *entries) stag(i uint32) uint32 { return i<<stagKeyBits | uint32(t.e[i].key) }

// entry returns the entry of stag, if its index is in use and its key matches.
func (t *entries) entry(stag uint32) (uint32, *entry) {
	i := stag >> stagKeyBits
	if i == 0 || int64(i) >= int64(len(t.e)) {
		return 0, nil
	}
	e := &t.e[i]
	if e.kind == kindFree || uint32(e.key) != stag&keyMask {
		return 0, nil
	}
	return i, e
}

// A fault is the reason why the peer may not access memory.
type fault uint8

const (
	faultNone fault = iota
	faultSTag
	faultBounds
	faultAccess
	faultWrap
)

func (f fault) String() string {
	switch f {
	case faultNone:
		return "none"
	case faultSTag:
		return "invalid STag"
	case faultBounds:
		return "outside the memory of the STag"
	case faultAccess:
		return "STag without the access right"
	case faultWrap:
		return "tagged offset wraps"
	}
	return fmt.Sprintf("fault %d", uint8(f))
}

// writeCause returns the Terminate cause for a Write with fault f. RFC 5041 section 8.2 has no code for access rights,
// but RFC 5040 section 4.8 does.
func (f fault) writeCause() rdmap.Cause {
	c := rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.TypeTagged)}
	switch f {
	case faultSTag:
		c.Code = ddp.TaggedInvalidSTag
	case faultBounds:
		c.Code = ddp.TaggedBaseBounds
	case faultWrap:
		c.Code = ddp.TaggedTOWrap
	default:
		return f.readCause()
	}
	return c
}

// readCause returns the Terminate cause for a Read Request with fault f. RFC 5040 section 4.8.
func (f fault) readCause() rdmap.Cause {
	c := rdmap.Cause{Layer: rdmap.LayerRDMA, Type: uint8(rdmap.TypeProtection)}
	switch f {
	case faultSTag:
		c.Code = uint8(rdmap.CodeInvalidSTag)
	case faultBounds:
		c.Code = uint8(rdmap.CodeBaseBounds)
	case faultWrap:
		c.Code = uint8(rdmap.CodeTOWrap)
	case faultAccess:
		c.Code = uint8(rdmap.CodeAccess)
	default:
		c.Code = uint8(rdmap.CodeUnspecified)
	}
	return c
}

// An exposure is memory that the peer may access with an STag.
type exposure struct {
	buf  []byte
	base uint64 // tagged offset of buf[0]
	ref  ref
}

// at returns the n bytes at tagged offset to.
func (e *exposure) at(to uint64, n uint32) ([]byte, fault) {
	if to+uint64(n) < to {
		return nil, faultWrap
	}
	// off wraps to a huge value if to is below the base.
	off, size := to-e.base, uint64(len(e.buf))
	if off > size || uint64(n) > size-off {
		return nil, faultBounds
	}
	return e.buf[off : off+uint64(n) : off+uint64(n)], faultNone
}

// exposed looks up stag for the peer.
func (t *table) exposed(stag uint32, need fabric.Access) (x exposure, flt fault) {
	l := t.entries.Lock()
	switch i, e := l.entry(stag); {
	case e == nil || e.kind != kindRegion && e.kind != kindBound:
		flt = faultSTag
	case e.access&need == 0:
		flt = faultAccess
	default:
		x = exposure{e.buf, e.base, ref{i, e.epoch}}
	}
	t.entries.Unlock()
	return x, flt
}

// remote looks up the n bytes at tagged offset to for the peer.
func (t *table) remote(stag uint32, to uint64, n uint32, need fabric.Access) ([]byte, ref, fault) {
	e, flt := t.exposed(stag, need)
	if flt != faultNone {
		return nil, ref{}, flt
	}
	buf, flt := e.at(to, n)
	return buf, e.ref, flt
}

// local checks an SGE: its memory must be inside the region of its key. If write is set, the region must allow local
// writes.
func (t *table) local(sge *fabric.SGE, write bool) (ref, bool) {
	if sge.LKey == fabric.LocalDMAKey {
		return ref{}, true
	}
	return t.keyed(sge, write)
}

// keyed implements local for memory of a region.
func (t *table) keyed(sge *fabric.SGE, write bool) (ref, bool) {
	r, ok := t.entries.Lock().local(sge, write)
	t.entries.Unlock()
	return r, ok
}

func (t *entries) local(sge *fabric.SGE, write bool) (ref, bool) {
	i, e := t.entry(sge.LKey)
	if e == nil || e.kind != kindRegion || write && e.access&fabric.AccessLocalWrite == 0 || !within(sge.Buf, e.buf) {
		return ref{}, false
	}
	return ref{i, e.epoch}, true
}

// within reports whether b is inside m.
func within(b, m []byte) bool {
	if len(b) == 0 {
		return true
	}
	lo, base := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(m)))
	return lo >= base && uintptr(len(b)) <= uintptr(len(m)) && lo-base <= uintptr(len(m)-len(b))
}

// valid reports whether the entry of r is unchanged since the lookup.
func (t *table) valid(r ref) bool {
	if r.index == 0 {
		return true
	}
	ok := t.entries.Lock().valid(r)
	t.entries.Unlock()
	return ok
}

func (t *entries) valid(r ref) bool {
	return r.index == 0 || int64(r.index) < int64(len(t.e)) && t.e[r.index].epoch == r.epoch
}

// bind executes an OpBindMW.
func (t *entries) bind(w *MW) bool {
	if w.closed.Load() {
		return false
	}
	e := &t.e[w.index]
	if e.kind != kindPrepared || !t.valid(e.parent) {
		return false
	}
	e.kind = kindBound
	return true
}

// invalidate unbinds the window that stag names.
//
// This side may post the invalidation of a window that the peer has just invalidated, before it has polled the
// completion that reports this: for example when a call is canceled while its reply arrives. Conversely, the peer may
// invalidate a window without knowing that this side has invalidated it: for example with the reply to a canceled call.
// Both succeed, because the window is unbound and stays unbound: the peer's once, this side's until the window is
// prepared again. RFC 5040 leaves to the adapter which STags cannot be invalidated, and the RDMA verbs allow
// invalidating an STag that is already invalid.
func (t *entries) invalidate(stag uint32, peer bool) bool {
	_, e := t.entry(stag)
	switch {
	case e == nil:
		return false
	case e.kind == kindBound:
		t.unbind(e)
		e.byPeer, e.byUs = peer, !peer
		return true
	case e.kind != kindWindow:
		return false
	case peer:
		crossed := e.byUs
		e.byUs = false
		return crossed
	}
	return e.byPeer
}

// bind executes an OpBindMW.
func (t *table) bind(w *MW) bool {
	ok := t.entries.Lock().bind(w)
	t.entries.Unlock()
	return ok
}

// invalidate unbinds the window that stag names. The caller must fence.
func (t *table) invalidate(stag uint32, peer bool) bool {
	ok := t.entries.Lock().invalidate(stag, peer)
	t.entries.Unlock()
	return ok
}

// unbind returns a window to the allocated state.
func (t *entries) unbind(e *entry) {
	e.kind = kindWindow
	e.buf = nil
	e.access = 0
	e.parent = ref{}
	e.epoch++
	t.gen.Add(1)
}

// clear frees all entries, for Conn.Close, when nothing uses them anymore. It returns what was live.
func (t *table) clear() live {
	l := t.entries.Lock()
	defer t.entries.Unlock()
	was := l.live
	for m := range l.mappings {
		m.unmap()
	}
	l.mappings = nil
	l.live = live{}
	l.e, l.free = nil, nil
	t.gen.Add(1)
	return was
}

// An MR is a registered region. It is a fabric.MR.
type MR struct {
	c       *Conn
	buf     []byte
	index   uint32
	stag    uint32
	base    uint64
	remote  bool
	foreign bool // buf is a mapping, which Bytes does not return
	closed  atomic.Bool
}

var _ fabric.MR = (*MR)(nil)

// RegMR implements fabric.Conn. buf may be on the Go heap, since only this process accesses
// it.
func (c *Conn) RegMR(buf []byte, access fabric.Access) (fabric.MR, error) {
	mr, err := c.regMR(buf, access, nil)
	if err != nil {
		return nil, err
	}
	return mr, nil
}

// regMR registers buf. If foreign is not nil, buf is its memory.
func (c *Conn) regMR(buf []byte, access fabric.Access, foreign *mapping) (*MR, error) {
	if access&^(fabric.AccessLocalWrite|fabric.AccessRemoteWrite|fabric.AccessRemoteRead) != 0 {
		return nil, c.p.lacks(fmt.Sprintf("access right %#x", uint8(access)))
	}
	remote := access&(fabric.AccessRemoteRead|fabric.AccessRemoteWrite) != 0
	if remote && uint64(len(buf)) > math.MaxUint32 {
		return nil, c.p.lacks("exposed region of 4 GiB or more")
	}
	if access&fabric.AccessRemoteWrite != 0 && access&fabric.AccessLocalWrite == 0 {
		// ibv_reg_mr(3): remote write needs local write.
		return nil, fmt.Errorf("%w: remote write without local write", ErrMisuse)
	}
	if err := c.alive(); err != nil {
		return nil, err
	}
	t := c.stags.entries.Lock()
	defer c.stags.entries.Unlock()
	if c.shut.Load() {
		return nil, c.connErr()
	}
	i, err := t.alloc()
	if err != nil {
		return nil, err
	}
	e := &t.e[i]
	e.kind, e.buf, e.access, e.foreign = kindRegion, buf, access, foreign
	size := len(buf)
	if !remote {
		size = 0 // not exposed, may have any size
	}
	t.name(e, size)
	t.live.mrs++
	if foreign != nil {
		if t.mappings == nil {
			t.mappings = make(map[*mapping]struct{})
		}
		t.mappings[foreign] = struct{}{}
	}
	c.p.open.mrs.Add(1)
	return &MR{c: c, buf: buf, index: i, stag: t.stag(i), base: e.base, remote: remote, foreign: foreign != nil}, nil
}

// Bytes implements fabric.MR.
func (m *MR) Bytes() []byte {
	if m.foreign {
		return nil
	}
	return m.buf
}

// LKey implements fabric.MR.
func (m *MR) LKey() uint32 { return m.stag }

// Segment implements fabric.MR.
func (m *MR) Segment() fabric.Segment {
	if !m.remote {
		return fabric.Segment{Length: uint32(min(uint64(len(m.buf)), math.MaxUint32))}
	}
	return fabric.Segment{Handle: m.stag, Length: uint32(len(m.buf)), Offset: m.base}
}

// Close implements fabric.MR. Windows over the region are unbound with it.
func (m *MR) Close() error {
	t := m.c.stags.entries.Lock()
	if m.closed.Swap(true) || int64(m.index) >= int64(len(t.e)) {
		m.c.stags.entries.Unlock()
		return nil
	}
	self := ref{m.index, t.e[m.index].epoch}
	for i := range t.e {
		if e := &t.e[i]; e.parent == self && (e.kind == kindBound || e.kind == kindPrepared) {
			t.unbind(e)
		}
	}
	foreign := t.e[m.index].foreign
	delete(t.mappings, foreign)
	t.release(m.index)
	t.live.mrs--
	m.c.stags.entries.Unlock()
	m.c.p.open.mrs.Add(-1)
	m.c.fence()
	foreign.unmap()
	return nil
}

// An MW is a type-2 memory window. It is a fabric.MW.
type MW struct {
	c      *Conn
	index  uint32
	closed atomic.Bool
}

var _ fabric.MW = (*MW)(nil)

// AllocMW implements fabric.Conn.
func (c *Conn) AllocMW() (fabric.MW, error) {
	if err := c.alive(); err != nil {
		return nil, err
	}
	t := c.stags.entries.Lock()
	defer c.stags.entries.Unlock()
	if c.shut.Load() {
		return nil, c.connErr()
	}
	i, err := t.alloc()
	if err != nil {
		return nil, err
	}
	t.e[i].kind = kindWindow
	t.live.mws++
	c.p.open.mws.Add(1)
	return &MW{c: c, index: i}, nil
}

// Errors of MW.Prepare.
var (
	// ErrBound: the window is bound and must be invalidated first.
	ErrBound = fmt.Errorf("%w: the window is bound", ErrMisuse)
	// ErrBadMemory: the SGE does not lie in a region that allows the access.
	ErrBadMemory = fmt.Errorf("%w: memory outside its region, or without the right", ErrMisuse)
)

// Prepare implements fabric.MW.
func (w *MW) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	access &^= fabric.AccessLocalWrite
	if access&^(fabric.AccessRemoteRead|fabric.AccessRemoteWrite) != 0 || access == 0 {
		return fabric.Segment{}, ErrBadMemory
	}
	t := w.c.stags.entries.Lock()
	defer w.c.stags.entries.Unlock()
	if !t.resolve(&mem) || uint64(len(mem.Buf)) > math.MaxUint32 {
		return fabric.Segment{}, ErrBadMemory
	}
	if w.closed.Load() || int64(w.index) >= int64(len(t.e)) {
		return fabric.Segment{}, w.c.connErr()
	}
	e := &t.e[w.index]
	if e.kind == kindBound {
		return fabric.Segment{}, ErrBound
	}
	var parent ref
	if mem.LKey != fabric.LocalDMAKey {
		var ok bool
		if parent, ok = t.local(&mem, access&fabric.AccessRemoteWrite != 0); !ok {
			return fabric.Segment{}, ErrBadMemory
		}
	}
	e.epoch++
	e.kind, e.buf, e.access, e.parent = kindPrepared, mem.Buf, access, parent
	e.byPeer, e.byUs = false, false
	t.name(e, len(mem.Buf))
	return fabric.Segment{Handle: t.stag(w.index), Length: uint32(len(mem.Buf)), Offset: e.base}, nil
}

// Close implements fabric.MW.
func (w *MW) Close() error {
	t := w.c.stags.entries.Lock()
	if w.closed.Swap(true) || int64(w.index) >= int64(len(t.e)) {
		w.c.stags.entries.Unlock()
		return nil
	}
	t.release(w.index)
	t.live.mws--
	w.c.stags.entries.Unlock()
	w.c.p.open.mws.Add(-1)
	w.c.fence()
	return nil
}
