// Package expose makes memory reachable for the peer, one message at a time.
//
// # The life of an exposure
//
//	unused -> open -> closed -> unused
//
// An exposure opens when a message is formed that names memory in a chunk, with the one
// right that the chunk needs. It closes before the call that lent the memory returns, and
// closing is a fence: afterwards the peer cannot reach the memory.
//
// How that is done is a choice between two rungs of the registration ladder. Where the
// adapter has memory windows, a window is bound in front of the Send, in the same list of
// requests, and is closed by invalidation: the peer's, with its Send with Invalidate, or
// our own. Windows are kept from message to message. Elsewhere the memory is registered
// for the message and deregistered at its end.
//
// A window lies over memory that the adapter knows: any memory where it has LocalDMA;
// elsewhere a registered arena, and other memory is registered for the message, without
// rights for the peer. Memory of a [Region] stays registered from message to message, in
// either case. Foreign memory is registered everywhere, and never bounces.
//
// # Bounce buffers
//
// To register memory costs two system calls, more than copying some KiB. So where the adapter does
// not take any memory, short pieces of the program's are not exposed: the peer reads and writes a
// bounce buffer, of an arena that stays registered, which the program's memory is copied to or from.
// Without windows the peer reaches that arena all the time. It belongs to one connection, so it holds
// only data that this peer is meant to read or has written. The danger is another message in a buffer
// that the peer still uses: the buffers of a message that is given up are kept until its reply or the
// end of the connection ([Loan.GiveUp], [Loan.Settle]).
package expose

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// An Adapter is a connection's adapter, as far as it exposes memory.
type Adapter struct {
	Conn     fabric.Conn
	Windows  bool // all memory is exposed through windows
	LocalDMA bool // the adapter takes any memory
	// Regions, if not nil, is memory that stays registered.
	Regions *Regions
	// Bounce, if not nil, has bounce buffers for memory of the program of up to BounceMax
	// bytes. Without Windows it is Remote.
	Bounce    *arena.Arena
	BounceMax int
	// OnRegister, if not nil, is called when so many bytes of the program's memory have been
	// registered. No lock is held.
	OnRegister func(bytes int)
}

// regMR registers memory that has no key.
func (a *Adapter) regMR(mem *fabric.SGE, access fabric.Access) (fabric.MR, error) {
	if mem.Foreign != nil {
		return a.Conn.RegForeign(*mem.Foreign, access)
	}
	return a.Conn.RegMR(mem.Buf, access)
}

// registered reports that n bytes have been registered.
func (a *Adapter) registered(n int) {
	if a.OnRegister != nil {
		a.OnRegister(n)
	}
}

// Invalidatable reports whether the peer can invalidate all that is exposed, as a requester
// promises with its R bit (RFC 8797 section 3.2).
func (a *Adapter) Invalidatable() bool { return a.Windows }

// A Loan is the memory that one message exposes to the peer: the chunks of a call, or the
// read chunks of a reply. It belongs to one goroutine at a time.
type Loan struct {
	a     *Adapter
	parts []exposure      // windows are kept, and bound again
	n     int             // parts in use
	late  []*arena.Buffer // of messages given up, which the peer may still use

	bounces bool // it may have bounce buffers
}

// An exposure is one piece of memory that the peer can reach.
type exposure struct {
	mw     fabric.MW
	mr     fabric.MR     // the memory under the window, or what the peer reaches
	region *registration // instead of mr, which is nil
	bounce *arena.Buffer // instead of the program's memory
	copied []byte        // where what the peer writes to bounce belongs
	seg    fabric.Segment
	open   bool // bound, or registered for the peer
}

// NewLoan returns a Loan that exposes nothing, and never has bounce buffers.
func NewLoan(a *Adapter) Loan { return Loan{a: a} }

// NewBouncingLoan returns a Loan that exposes nothing and may have bounce buffers: a reply
// tells when the peer has done with them.
func NewBouncingLoan(a *Adapter) Loan { return Loan{a: a, bounces: true} }

// Len is how many pieces of memory have been exposed since the last End.
func (l *Loan) Len() int { return l.n }

// Expose exposes mem with one right and returns its name. Where that needs a bind, the request, with
// the given ID, is appended to wrs: it must be posted before the name is sent.
func (l *Loan) Expose(wrs *[]fabric.SendWR, id uint64, mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	if l.n == len(l.parts) {
		l.parts = append(l.parts, exposure{})
	}
	e := &l.parts[l.n]
	if l.bounces {
		mem = e.bounceOff(l.a, mem, access)
	}
	local := access
	if access&fabric.AccessRemoteWrite != 0 {
		local |= fabric.AccessLocalWrite // ibv_reg_mr(3), ibv_bind_mw(3)
	}
	if !l.a.Windows {
		if err := e.register(l.a, mem, local); err != nil {
			return fabric.Segment{}, err
		}
		switch e.open = true; {
		case e.bounce != nil:
			e.seg = e.bounce.Segment(len(mem.Buf))
		case e.region != nil:
			e.seg = e.region.segment(&mem)
		default:
			e.seg = e.mr.Segment()
		}
		l.n++
		return e.seg, nil
	}
	if e.mw == nil {
		mw, err := l.a.Conn.AllocMW()
		if err != nil {
			e.deregister(l.a)
			return fabric.Segment{}, err
		}
		e.mw = mw
	}
	if mem.LKey == fabric.LocalDMAKey && (!l.a.LocalDMA || mem.Foreign != nil) {
		if err := e.register(l.a, mem, local&fabric.AccessLocalWrite); err != nil {
			return fabric.Segment{}, err
		}
		mem.LKey = e.lkey()
	}
	seg, err := e.mw.Prepare(mem, access)
	if err != nil {
		e.deregister(l.a)
		return fabric.Segment{}, err
	}
	e.seg, e.open = seg, true
	*wrs = append(*wrs, fabric.SendWR{ID: id, Op: fabric.OpBindMW, MW: e.mw})
	l.n++
	return seg, nil
}

// Buffer is a bounce buffer of n bytes that the message itself uses, exposed until End: what
// is to be exposed can be formed there, or taken from there. It returns nil without bounce buffers,
// or if windows make registered memory do.
func (l *Loan) Buffer(n int) ([]byte, fabric.Segment) {
	a := l.a
	if !l.bounces || a.Bounce == nil || a.Windows || n > a.BounceMax {
		return nil, fabric.Segment{}
	}
	b, err := a.Bounce.Get(n)
	if err != nil {
		return nil, fabric.Segment{}
	}
	if l.n == len(l.parts) {
		l.parts = append(l.parts, exposure{})
	}
	e := &l.parts[l.n]
	e.bounce, e.seg, e.open = b, b.Segment(n), true
	l.n++
	return b.Bytes, e.seg
}

// Invalidated notes that the peer has invalidated the window with this handle. It returns
// false when the loan has no such window open.
func (l *Loan) Invalidated(key uint32) bool {
	for i := range l.parts[:l.n] {
		if e := &l.parts[i]; e.mw != nil && e.open && e.seg.Handle == key {
			e.open = false
			return true
		}
	}
	return false
}

// Revoke appends the requests that invalidate the windows still open, signaled and with
// the given ID. The loan is fenced when all of them have completed.
func (l *Loan) Revoke(wrs []fabric.SendWR, id uint64) []fabric.SendWR {
	for i := range l.parts[:l.n] {
		if e := &l.parts[i]; e.mw != nil && e.open {
			e.open = false
			wrs = append(wrs, fabric.SendWR{ID: id, Op: fabric.OpLocalInv, Flags: fabric.Signaled, RKey: e.seg.Handle})
		}
	}
	return wrs
}

// Withdraw ends registrations of regions that the loan uses, for a call that is given up
// before its reply: without windows nothing less keeps the peer from the call's part.
// Other calls that use the same region lose it, too.
func (l *Loan) Withdraw() {
	if l.a.Windows {
		return
	}
	for i := range l.parts[:l.n] {
		if r := l.parts[i].region; r != nil {
			r.withdraw()
		}
	}
}

// End deregisters what has been registered for the loan. Windows are closed by then:
// invalidated, or never bound.
func (l *Loan) End() {
	if l.n > 0 {
		l.end()
	}
}

func (l *Loan) end() {
	for i := range l.parts[:l.n] {
		e := &l.parts[i]
		e.deregister(l.a)
		e.open = false
	}
	l.n = 0
}

// Fetch copies the first n bytes that the peer has written to the i-th piece of memory that
// was exposed to where they belong, if they are in a bounce buffer.
func (l *Loan) Fetch(i, n int) {
	if e := &l.parts[i]; e.bounce != nil {
		copy(e.copied, e.bounce.Bytes[:n])
	}
}

// Direct reports whether memory is exposed that is not in a bounce buffer.
func (l *Loan) Direct() bool {
	for i := range l.parts[:l.n] {
		if l.parts[i].bounce == nil {
			return true
		}
	}
	return false
}

// GiveUp is End for a message that still gets a reply: its bounce buffers are kept until Settle.
func (l *Loan) GiveUp() {
	for i := range l.parts[:l.n] {
		if e := &l.parts[i]; e.bounce != nil {
			l.late = append(l.late, e.bounce)
			e.bounce, e.copied = nil, nil
		}
	}
	l.End()
}

// Late is how many bounce buffers are kept until Settle.
func (l *Loan) Late() int { return len(l.late) }

// Settle gives the bounce buffers back that GiveUp has kept: the reply has arrived, or the connection
// has ended.
func (l *Loan) Settle() {
	for _, b := range l.late {
		l.a.Bounce.Put(b)
	}
	clear(l.late)
	l.late = l.late[:0]
}

// Abandon leaves the windows to the end of the connection: an invalidation has failed, so
// they may be bound still, and cannot serve another message.
func (l *Loan) Abandon() {
	for i := range l.parts {
		l.parts[i].mw = nil
	}
}

// bounceOff returns a bounce buffer for memory that is to have one, otherwise mem. When there
// is no room left mem is exposed as longer memory is.
func (e *exposure) bounceOff(a *Adapter, mem fabric.SGE, access fabric.Access) fabric.SGE {
	switch {
	case a.Bounce == nil, mem.LKey != fabric.LocalDMAKey: // it is registered already
		return mem
	case mem.Foreign != nil, len(mem.Buf) > a.BounceMax:
		return mem
	case a.Regions != nil && a.Regions.find(&mem) != nil:
		return mem
	}
	b, err := a.Bounce.Get(len(mem.Buf))
	if err != nil {
		return mem
	}
	e.bounce = b
	if access&fabric.AccessRemoteWrite != 0 {
		e.copied = mem.Buf
	} else {
		copy(b.Bytes, mem.Buf)
	}
	return fabric.SGE{Buf: b.Bytes[:len(mem.Buf)], LKey: b.LKey}
}

// register makes memory known to the adapter: as part of a Region, if it lies in one,
// otherwise for this loan, with the given rights.
func (e *exposure) register(a *Adapter, mem fabric.SGE, access fabric.Access) (err error) {
	if e.bounce != nil {
		return nil
	}
	if a.Regions != nil && mem.LKey == fabric.LocalDMAKey {
		if m := a.Regions.find(&mem); m != nil {
			if e.region, err = m.borrow(a); err != nil || e.region != nil {
				return err
			}
		}
	}
	if e.mr, err = a.regMR(&mem, access); err == nil {
		a.registered(mem.Len())
	}
	return err
}

func (e *exposure) lkey() uint32 {
	if e.region != nil {
		return e.region.mr.LKey()
	}
	return e.mr.LKey()
}

func (e *exposure) deregister(a *Adapter) {
	if e.bounce != nil {
		a.Bounce.Put(e.bounce)
		e.bounce, e.copied = nil, nil
	}
	switch {
	case e.region != nil:
		e.region.giveBack()
		e.region = nil
	case e.mr != nil:
		e.mr.Close()
		e.mr = nil
	}
}
