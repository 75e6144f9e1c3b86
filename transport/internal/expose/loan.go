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
// either case.
package expose

import "github.com/rpcrdma/rpcrdma/fabric"

// An Adapter is a connection's adapter, as far as it exposes memory.
type Adapter struct {
	Conn     fabric.Conn
	Windows  bool // all memory is exposed through windows
	LocalDMA bool // the adapter takes any memory
	// Regions, if not nil, is memory that stays registered.
	Regions *Regions
}

// Invalidatable tells whether the peer can invalidate all that is exposed, as a requester
// promises with its R bit (RFC 8797 section 3.2).
func (a *Adapter) Invalidatable() bool { return a.Windows }

// A Loan is the memory that one message exposes to the peer: the chunks of a call, or the
// read chunks of a reply. It belongs to one goroutine at a time.
type Loan struct {
	a     *Adapter
	parts []exposure // windows are kept, and bound again
	n     int        // parts in use
}

// An exposure is one piece of memory that the peer can reach.
type exposure struct {
	mw     fabric.MW
	mr     fabric.MR     // the memory under the window, or what the peer reaches
	region *registration // instead of mr, which is nil
	seg    fabric.Segment
	open   bool // bound, or registered for the peer
}

// NewLoan returns a Loan that exposes nothing.
func NewLoan(a *Adapter) Loan { return Loan{a: a} }

// Len is how many pieces of memory have been exposed since the last End.
func (l *Loan) Len() int { return l.n }

// Expose exposes mem with one right and returns its name. Where that takes a bind, the
// request, with the given ID, is appended to wrs: it must be posted before the name is
// sent.
func (l *Loan) Expose(wrs *[]fabric.SendWR, id uint64, mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	if l.n == len(l.parts) {
		l.parts = append(l.parts, exposure{})
	}
	e := &l.parts[l.n]
	local := access
	if access&fabric.AccessRemoteWrite != 0 {
		local |= fabric.AccessLocalWrite // ibv_reg_mr(3), ibv_bind_mw(3)
	}
	if !l.a.Windows {
		if err := e.register(l.a, mem, local); err != nil {
			return fabric.Segment{}, err
		}
		if e.open = true; e.region != nil {
			e.seg = e.region.segment(mem.Buf)
		} else {
			e.seg = e.mr.Segment()
		}
		l.n++
		return e.seg, nil
	}
	if e.mw == nil {
		mw, err := l.a.Conn.AllocMW()
		if err != nil {
			return fabric.Segment{}, err
		}
		e.mw = mw
	}
	if mem.LKey == fabric.LocalDMAKey && !l.a.LocalDMA {
		if err := e.register(l.a, mem, local&fabric.AccessLocalWrite); err != nil {
			return fabric.Segment{}, err
		}
		mem.LKey = e.lkey()
	}
	seg, err := e.mw.Prepare(mem, access)
	if err != nil {
		e.deregister()
		return fabric.Segment{}, err
	}
	e.seg, e.open = seg, true
	*wrs = append(*wrs, fabric.SendWR{ID: id, Op: fabric.OpBindMW, MW: e.mw})
	l.n++
	return seg, nil
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
	for i := range l.parts[:l.n] {
		e := &l.parts[i]
		e.deregister()
		e.open = false
	}
	l.n = 0
}

// Abandon leaves the windows to the end of the connection: an invalidation has failed, so
// they may be bound still, and cannot serve another message.
func (l *Loan) Abandon() {
	for i := range l.parts {
		l.parts[i].mw = nil
	}
}

// register makes memory known to the adapter: as part of a Region, if it lies in one,
// otherwise for this loan, with the given rights.
func (e *exposure) register(a *Adapter, mem fabric.SGE, access fabric.Access) (err error) {
	if a.Regions != nil && mem.LKey == fabric.LocalDMAKey {
		if m := a.Regions.find(mem.Buf); m != nil {
			if e.region, err = m.borrow(a); err != nil || e.region != nil {
				return err
			}
		}
	}
	e.mr, err = a.Conn.RegMR(mem.Buf, access)
	return err
}

func (e *exposure) lkey() uint32 {
	if e.region != nil {
		return e.region.mr.LKey()
	}
	return e.mr.LKey()
}

func (e *exposure) deregister() {
	switch {
	case e.region != nil:
		e.region.giveBack()
		e.region = nil
	case e.mr != nil:
		e.mr.Close()
		e.mr = nil
	}
}
