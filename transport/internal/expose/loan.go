// Package expose makes memory reachable for the peer, one message at a time.
//
// # The life of an exposure
//
//	unused -> open -> closed -> unused
//
// An exposure opens when a message with the memory in a chunk is built, with the one right that the chunk needs. It
// closes before the call that lent the memory returns. Closing is a fence: afterwards the peer cannot reach the memory.
//
// There are two ways to do that. If the adapter has memory windows, a window is bound before the Send, in the same list
// of requests, and is closed by invalidation: by the peer's Send with Invalidate, or locally. Windows are reused for
// later messages. Otherwise the memory is registered for the message and deregistered at its end.
//
// A window covers memory that the adapter knows. With LocalDMA that is any memory. Otherwise it is a registered arena,
// or memory registered for the message without rights for the peer. The memory of a [Region] stays registered from
// message to message, in either case. Foreign memory is always registered, and never bounces.
//
// # Bounce buffers
//
// Registering memory costs two system calls, more than copying a few KiB. So if the adapter does not accept any memory,
// short pieces of program memory are not exposed. Instead the peer reads and writes a bounce buffer, from an arena that
// stays registered, and the data is copied to or from it. Without windows the peer can reach that arena at any time. It
// belongs to one connection, so it holds only data that this peer should read or has written. The danger is another
// message in a buffer that the peer still uses: the buffers of an abandoned message are kept until its reply or the end
// of the connection ([Loan.GiveUp], [Loan.Settle]).
package expose

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

// An Adapter is the part of a connection's adapter that exposes memory.
type Adapter struct {
	Conn     fabric.Conn
	Windows  bool // all memory is exposed through windows
	LocalDMA bool // the adapter accepts any memory
	// Regions, if not nil, is the memory that stays registered.
	Regions *Regions
	// Bounce, if not nil, has bounce buffers for program memory of up to BounceMax bytes. Without Windows it must be
	// Remote.
	Bounce    *arena.Arena
	BounceMax int
	// OnRegister, if not nil, is called when bytes of program memory have been registered. No lock is held.
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

// Invalidatable reports whether the peer can invalidate everything that is exposed, as a requester promises with its R
// bit (RFC 8797 section 3.2).
func (a *Adapter) Invalidatable() bool { return a.Windows }

// A Loan is the memory that one message exposes to the peer: the chunks of a call, or the
// read chunks of a reply. It belongs to one goroutine at a time.
type Loan struct {
	a     *Adapter
	parts []exposure      // windows are kept and bound again
	n     int             // parts in use
	late  []*arena.Buffer // of abandoned messages, which the peer may still use

	bounces bool // it may have bounce buffers
}

// An exposure is one piece of memory that the peer can reach.
type exposure struct {
	mw     fabric.MW
	mr     fabric.MR     // the memory under the window, or what the peer reaches
	region *registration // instead of mr, which is nil
	bounce *arena.Buffer // instead of the program's memory
	copied []byte        // destination of data that the peer writes to bounce
	seg    fabric.Segment
	open   bool // bound, or registered for the peer
}

// NewLoan returns a Loan that exposes nothing, and never has bounce buffers.
func NewLoan(a *Adapter) Loan { return Loan{a: a} }

// NewBouncingLoan returns a Loan that exposes nothing and may have bounce buffers: a reply shows when the peer no
// longer uses them.
func NewBouncingLoan(a *Adapter) Loan { return Loan{a: a, bounces: true} }

// Len returns the number of pieces of memory exposed since the last End.
func (l *Loan) Len() int { return l.n }

// Expose exposes mem with one right and returns its segment. If that needs a bind, the request, with the given ID, is
// appended to wrs: it must be posted before the segment is sent.
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

// Buffer returns a bounce buffer of n bytes for the message itself, exposed until End: exposed data can be built in it,
// or read from it. It returns nil if there are no bounce buffers, or if windows allow registered memory to be used
// instead.
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

// Invalidated records that the peer has invalidated the window with this handle. It returns false if the loan has no
// such window open.
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

// Withdraw ends the registrations of regions that the loan uses, for a call that is canceled before its reply: without
// windows nothing less keeps the peer from the call's part. Other calls that use the same region lose it, too.
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

// End deregisters memory registered for the loan. Windows are already closed: invalidated, or never bound.
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

// Fetch copies the first n bytes that the peer has written to the i-th piece of exposed memory to their destination, if
// they are in a bounce buffer.
func (l *Loan) Fetch(i, n int) {
	if e := &l.parts[i]; e.bounce != nil {
		copy(e.copied, e.bounce.Bytes[:n])
	}
}

// Direct reports whether any exposed memory is not in a bounce buffer.
func (l *Loan) Direct() bool {
	for i := range l.parts[:l.n] {
		if l.parts[i].bounce == nil {
			return true
		}
	}
	return false
}

// GiveUp is End for a message that may still get a reply: its bounce buffers are kept until Settle.
func (l *Loan) GiveUp() {
	for i := range l.parts[:l.n] {
		if e := &l.parts[i]; e.bounce != nil {
			l.late = append(l.late, e.bounce)
			e.bounce, e.copied = nil, nil
		}
	}
	l.End()
}

// Late returns the number of bounce buffers kept until Settle.
func (l *Loan) Late() int { return len(l.late) }

// Settle returns the bounce buffers that GiveUp has kept: the reply has arrived, or the connection has ended.
func (l *Loan) Settle() {
	for _, b := range l.late {
		l.a.Bounce.Put(b)
	}
	clear(l.late)
	l.late = l.late[:0]
}

// Abandon leaves the windows to the end of the connection: an invalidation has failed, so they may still be bound, and
// cannot be used for another message.
func (l *Loan) Abandon() {
	for i := range l.parts {
		l.parts[i].mw = nil
	}
}

// bounceOff returns a bounce buffer for memory that should have one, otherwise mem. If no buffer is left, mem is
// exposed like longer memory.
func (e *exposure) bounceOff(a *Adapter, mem fabric.SGE, access fabric.Access) fabric.SGE {
	switch {
	case a.Bounce == nil, mem.LKey != fabric.LocalDMAKey: // it is already registered
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
