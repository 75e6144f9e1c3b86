package transport

import (
	"math"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/reads"
)

// An exch is an exchange over RDMA. The leader changes its states, as does a service on its own goroutine, under the
// lock of the connection's state:
//
//	free -> pulling -> executing -> (posting) -> replying -> (lent) -> free
//
// The leader owns the memory of an exchange while it is pulling, the service while it is executing, and the adapter
// while it is replying.
//
// A call is executed by the leader itself or, after [exchange.detach], on its own goroutine, which cannot reach the
// leader: see [exch.lead].
type exchState uint8

const (
	exchFree exchState = iota
	exchPulling
	exchExecuting
	exchPosting // the service has answered, on its own goroutine
	exchReplying
	exchLent // the client may read the reply's read chunks until RDMA_DONE
)

type exch struct {
	exchange
	reads.Message // the call
	c             *conn
	leader        *leader // used by the leading goroutine: see lead
	idx           uint32
	state         exchState

	hdr    *rpcrdma.Header // of the call: the chunks to use
	rb     *recvBuf        // the receive buffer that Msg is in; nil when it is in Mem
	covers uint64          // deferred replies up to this one; see sendQueue
	passed passed          // of a bridge without middleware

	outgoing
	lending lending
}

// outgoing is the reply of an exchange: see reply.go.
type outgoing struct {
	out    *arena.Buffer  // the reply as sent
	rh     rpcrdma.Header // its header
	base   int            // offset of the RPC message in out
	failed bool           // there was no memory for an item
	parts  []fabric.SGE
	sges   []fabric.SGE
	wrs    []fabric.SendWR
	recv   [1]fabric.RecvWR
}

// A passed call was made readable by a bridge, and has no reply yet.
type passed struct {
	x     *exch
	xid   uint32
	place uint64      // of the record in the stream
	reply chan []byte // has capacity for the reply, or nil without a reply; a nil channel: the goroutine that writes the reply sends it
}

// lending is the state of an exchange for a reply with read chunks: see rfc5666.go.
type lending struct {
	allowed bool        // the program allows read chunks in its replies
	loan    expose.Loan // memory of the reply
	acked   bool        // RDMA_DONE has arrived
	fences  int         // local invalidations in flight
	timer   *time.Timer // for RDMA_DONE
}

// ---- executing

// dispatch executes a complete call, on the leader. It answers, refuses or drops the call, now or later.
func (x *exch) dispatch() {
	n, err := oncrpc.ConsumeCall(x.Msg, &x.call)
	if err != nil || x.call.XID != x.hdr.XID {
		x.c.public.refused(x.hdr.XID, errBadCall)
		x.refuse(rpcrdma.ErrChunk)
		return
	}
	if x.begin() != nil {
		x.refuse(rpcrdma.ErrChunk)
		return
	}
	x.msg, x.at, x.pad = x.Msg, n, xdr.Padding{Align: x.hdr.Align, Thresh: x.hdr.Thresh}
	x.kept = x.Mem != nil && x.Mem.Loose()
	if ln := x.c.lineage; ln != nil {
		ln.Called(x.leader.posted)
	}
	if x.c.cfg.observation != nil {
		x.observeCall(x.transfer())
	}
	p := x.core.reg.programs[x.call.Prog]
	if x.pad.Align > 1 && x.call.RPCVers == oncrpc.Version && (p == nil || !p.Padded) {
		x.refuse(rpcrdma.ErrChunk) // the program would not find the data
		return
	}
	// Write chunks of protected calls are returned unused: see chunksFit.
	if x.call.Cred.Protected() {
		x.hdr.Writes = x.hdr.Writes[:0]
	}
	x.lending.allowed = p != nil && p.ReadReplies
	x.exchange.dispatch(p)
}

func (x *exch) other() bool {
	if others := x.core.reg.others; others == nil || !others(x) {
		return false
	}
	x.leader.endPace()
	return true
}

func (x *exch) endPace() { x.leader.endPace() }

// proceed executes the call: memory for its results was reserved before the call was pulled.
func (x *exch) proceed() { x.execute() }

// apart makes the keeper execute a call that has arrived alone, like many before it.
func (x *exch) apart() {
	if l := x.leader; l.isKeeper && l.singles >= manySingles && l.own == nil {
		l.own = x
	} else {
		go x.start()
	}
}

func (x *exch) fits(p *rpc.Program) bool { return x.chunksFit(p.Binding) }

// goOn continues as the leader.
func (x *exch) goOn() { x.leader.takeOver(x) }

// chunksFit compares the read chunks of a call with the binding: each must be an item that may be one, and must have
// the length in its length word, with or without padding (RFC 5666 section 3.4). A call protected by a security service
// has no read chunks (RFC 8166 section 8.2.2).
func (x *exch) chunksFit(b rpc.Binding) bool {
	reads := x.hdr.Reads
	for len(reads) > 0 && reads[0].Position == 0 {
		reads = reads[1:]
	}
	call, n := &x.call, x.at
	switch {
	case len(reads) == 0:
		return true
	case call.Cred.Protected():
		return false
	case call.Cred.Sealed():
		x.ranges = sealedItems(x.msg[n:], x.ranges[:0])
	case b == nil:
		return true
	default:
		x.ranges, _ = b.Call(rpc.Procedure{Prog: call.Prog, Vers: call.Vers, Proc: call.Proc}, x.msg[n:], x.ranges[:0])
	}
	for items := x.ranges; len(reads) > 0; {
		at, sum := int(reads[0].Position), 0
		for len(reads) > 0 && int(reads[0].Position) == at {
			sum += int(reads[0].Length)
			reads = reads[1:]
		}
		for len(items) > 0 && n+items[0].Offset < at {
			items = items[1:]
		}
		if len(items) == 0 || n+items[0].Offset != at || sum != items[0].Length && sum != xdr.Padded(items[0].Length) {
			return false
		}
	}
	return true
}

// sealedItems appends the items of the arguments or results of a call with Auth.Sealed. Items beyond the number that a
// client seals are left out: the peer may send anything.
func sealedItems(b []byte, items []rpc.Range) []rpc.Range {
	d := xdr.NewDecoder(b)
	d.Opaque(math.MaxUint32)
	for d.Remaining() > 0 && len(items) < oncrpc.MaxSealed {
		it := d.Opaque(math.MaxUint32)
		if d.Err() != nil {
			break
		}
		items = append(items, rpc.Range{Offset: d.Offset() - xdr.Padded(len(it)), Length: len(it)})
	}
	return items
}

// ---- memory

func (x *exch) unrefused() int {
	if x.c.lends() {
		return math.MaxInt
	}
	return x.c.cfg.sendSize
}

// release returns the resources of an exchange. taken reports whether the peer has taken its reply.
func (x *exch) release(taken bool) {
	x.drop()
	if x.Mem != nil {
		x.arena.Put(x.Mem)
		x.Mem = nil
	}
	x.failed = false
	ln := &x.lending
	ln.loan.End()
	if ln.timer != nil {
		ln.timer.Stop()
		ln.timer = nil
	}
	ln.acked = false
	x.Msg = nil
	clear(x.parts)
	if taken { // otherwise a goroutine may be about to post it, in vain
		for i := range x.sges {
			x.sges[i].Buf = nil
		}
	}
	x.settle(taken)
}

// ---- the exchange's owner

// lead returns the leader to the goroutine that leads, and nil to the exchange's own goroutine.
func (x *exch) lead() *leader {
	if x.detached {
		return nil
	}
	return x.leader
}

// takeBack takes the exchange back from its service, to build the reply. It returns false if the connection has ended
// and there is nothing left to do.
func (x *exch) takeBack() bool {
	if !x.detached {
		return true // the leader, which would end it, is this goroutine
	}
	c := x.c
	ended := c.state.Lock().ended()
	x.state = exchPosting
	c.state.Unlock()
	if ended {
		x.abandon()
	}
	return !ended
}

// leave leaves an unanswered exchange to the end of its connection, which is imminent.
func (x *exch) leave() {
	c := x.c
	ended := c.state.Lock().ended()
	if !ended {
		x.state = exchReplying // see abort
	}
	c.state.Unlock()
	if ended {
		x.abandon()
	} else {
		c.arena.Drop()
	}
}

// abandon ends an exchange after the end of its connection.
func (x *exch) abandon() {
	x.release(false)
	if x.detached {
		x.c.arena.Drop()
	}
}

// lean reports whether a reply holds only its message.
func (x *exch) lean() bool {
	return len(x.wrs) == 1 && x.lending.loan.Len() == 0 && x.held == 0 && x.Mem == nil && len(x.items) == 0 && len(x.mems) == 0 && len(x.after) == 0
}

// deferred reports whether the completion of a later reply may show that this one was sent.
func (x *exch) deferred() bool { return x.wrs[len(x.wrs)-1].Flags&fabric.Deferred != 0 }

// post sends the exchange's list of requests. The receive that its call used is posted first, because the reply allows
// the client to send another call. Once the list is queued, the leader owns the exchange.
func (x *exch) post() {
	if x.event != nil {
		x.observeEnd(nil)
	}
	c, rb := x.c, x.rb
	x.rb = nil
	if l := x.lead(); l != nil {
		if rb != nil {
			l.receiveDone(rb)
		}
		x.state = exchReplying
		l.replies = append(l.replies, x) // the end of the pass posts them
		return
	}
	if rb != nil {
		x.recv[0] = c.recvWR(rb)
		if err := c.fc.PostRecv(x.recv[:]); err != nil {
			c.breakOff(err)
		}
	}
	if c.state.Lock().ended() {
		c.state.Unlock()
		x.abandon()
		return
	}
	x.state = exchReplying
	c.sends.addReply(x)
	c.state.Unlock()
	c.sends.post(nil, true)
	c.arena.Drop()
}
