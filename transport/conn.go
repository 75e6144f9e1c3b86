package transport

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
	"github.com/rpcrdma/rpcrdma/transport/internal/replycache"
)

// A conn is one connection, either end of it. It has a requester's half, which
// makes calls, and a responder's half, which answers them.
//
// One goroutine at a time holds the progress token: the leader. Everything that
// is marked "leader" below is touched by it alone; the rest that changes is
// guarded by mu. See progress.go.
type conn struct {
	fc       fabric.Conn
	provider string
	cfg      *Config
	role     role
	caps     fabric.Capabilities // final after set-up
	arena    *arena.Arena
	exposes  expose.Adapter
	stats    *counters

	// Agreed on at set-up, constant afterwards but for what ccp.go and version.go do.
	peerHost  string              // see host
	life      *replycache.Lineage // at a server
	priv      rpcrdma.PrivateData // the peer's
	hasPriv   bool
	vers      atomic.Uint32 // of the protocol; 0: no call has come yet
	sendLimit atomic.Int32  // longest Send we may make
	recvLimit atomic.Int32  // longest Send the peer may make
	raise     atomic.Int32  // what sendLimit becomes with the first reply; 0: it has been sent
	remoteInv atomic.Bool   // both ends allow it, for replies to the client's calls
	conf      configuration
	offered   bool // the client has told its properties; leader
	told      bool // both have; mu

	mu      sync.Mutex
	leading bool        // somebody holds the progress token
	aside   bool        // the keeper does not want it
	keeper  waiter      // a server's own goroutine, when it stands aside
	waiters waitList    // goroutines that wait for their slot or for the token
	tick    *time.Timer // see progress.go; nil: it has not been needed yet
	ticking bool
	leads   uint64 // times the token was taken
	seen    uint64 // of those, at the last tick
	leadCtx context.Context
	unwatch func() bool
	closing bool  // no new calls
	broken  error // what the adapter would not do
	ended   bool
	err     error // why, once ended
	done    chan struct{}
	drain   atomic.Pointer[context.Context] // set by a server's Shutdown
	onEnd   func()                          // called once the connection has ended

	req   requester
	rsp   responder
	sq    sendQueue
	reads readQueue

	heard   atomic.Uint64 // messages from the peer; calls taken, in the upper half
	watched atomic.Bool   // a client's: see keepWatch
	watch   watch

	// leader
	wcs     []fabric.WC     // of one poll; see step
	hdr     rpcrdma.Header  // scratch for incoming headers
	rbufs   []*recvBuf      // all receive buffers, by number
	repost  []fabric.RecvWR // consumed receives to post again
	replies []*exch         // made in this pass, to be posted together
	wakes   []*waiter       // goroutines to wake after that
	streak  int             // backward calls answered since the last forward one, at a server
	fatal   error           // this end's reason to end the connection
}

// A recvBuf is a receive buffer. It is posted, or holds a message.
type recvBuf struct {
	*arena.Buffer
	idx uint32
}

// Work request IDs: a kind, and the number of what it belongs to.
type wrKind uint8

const (
	wrRecv  wrKind = iota // receive buffer
	wrCall                // slot: bind or Send of a call
	wrInv                 // slot: local invalidation
	wrRead                // exchange: Read of a chunk
	wrWrite               // exchange: Write in front of a reply
	wrReply               // exchange: Send of a reply
	wrPull                // slot: Read of a chunk of its reply
	wrDone                // slot: RDMA_DONE for its reply
	wrLoan                // exchange: local invalidation of a chunk of its reply
)

func wrID(k wrKind, n uint32) uint64 { return uint64(k)<<32 | uint64(n) }

// newConn makes a connection that is not set up. usage, which may be nil, counts the memory
// of its arena with that of others.
func newConn(fc fabric.Conn, provider string, cfg *Config, r role, usage *arena.Usage) *conn {
	c := &conn{
		fc: fc, provider: provider, cfg: cfg, role: r,
		caps:  fc.Capabilities(),
		stats: new(counters),
		done:  make(chan struct{}),
	}
	c.exposes = expose.Adapter{Conn: fc, Windows: c.caps.MemoryWindows, LocalDMA: c.caps.LocalDMA}
	c.arena = arena.New(fc, arena.Options{
		LocalDMA: c.caps.LocalDMA, Small: max(cfg.sendSize, cfg.recvSize), MaxBulk: cfg.MaxMemory,
		Usage: usage, OnBulk: c.keepWatch,
	})
	c.waiters.init()
	if r == roleServer {
		c.keeper.wake = make(chan bool, 1)
	}
	c.wcs = make([]fabric.WC, firstPoll)
	c.sq.init(c)
	c.reads = readQueue{c: c, most: maxReads}
	c.req.init(c)
	c.rsp.init(c)
	return c
}

// windows tells whether all memory that calls of this end expose is exposed
// through windows, which the peer may invalidate.
func (c *conn) windows() bool { return c.caps.MemoryWindows }

// privateData is what this end offers.
func (c *conn) privateData() []byte {
	if c.cfg.NoPrivateData || c.caps.MaxPrivateData < rpcrdma.PrivateDataSize {
		return nil
	}
	return rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{
		RemoteInvalidation: c.offersInvalidation(),
		SendSize:           c.cfg.InlineSend,
		RecvSize:           c.cfg.InlineRecv,
	})
}

// offersInvalidation decides our R bit. For the requester it promises that
// every handle of the connection may be invalidated (RFC 8797 section 3.2),
// for the responder that it is able to.
func (c *conn) offersInvalidation() bool {
	return !c.cfg.NoRemoteInvalidation && c.caps.RemoteInvalidate && (c.role == roleServer || c.windows())
}

// connect sets up a client's connection. Receives are posted first: a peer that
// has accepted may send, and one Send too many ends the connection. There is one for
// each reply that may come, pending being the calls to send at once, and the full set
// for calls from the server (RFC 8167 section 4.3.1).
func (c *conn) connect(ctx context.Context, pending int) error {
	c.req.recvs = min(max(initialGrant, pending), c.cfg.Credits)
	if err := c.rsp.grow(c.cfg.backward(roleClient)); err != nil {
		return err
	}
	if err := c.fc.Connect(ctx, c.privateData()); err != nil {
		return err
	}
	c.negotiate()
	c.mu.Lock()
	c.arm()
	c.mu.Unlock()
	return nil
}

// accept sets up a server's connection.
func (c *conn) accept(ctx context.Context) error {
	if err := c.rsp.grow(min(initialGrant, c.cfg.Credits)); err != nil {
		return err
	}
	c.negotiate()
	return c.fc.Accept(ctx, c.privateData())
}

// negotiate settles the thresholds and the use of remote invalidation (RFC
// 8797 sections 4.1, 4.2, 5.1).
func (c *conn) negotiate() {
	c.caps = c.fc.Capabilities()
	c.exposes.Windows, c.exposes.LocalDMA = c.caps.MemoryWindows, c.caps.LocalDMA
	c.priv, c.hasPriv = rpcrdma.FindPrivateData(c.fc.PeerPrivateData())
	peerSend, peerRecv := rpcrdma.DefaultInline, rpcrdma.DefaultInline
	if c.hasPriv {
		peerSend, peerRecv = c.priv.SendSize, c.priv.RecvSize
	}
	ownSend, ownRecv := c.cfg.InlineSend, c.cfg.InlineRecv
	if c.privateData() == nil {
		ownRecv = rpcrdma.DefaultInline
	}
	c.sendLimit.Store(int32(min(ownSend, peerRecv)))
	c.recvLimit.Store(int32(min(ownRecv, peerSend)))
	c.reads.most = min(maxReads, c.caps.OutboundReads)
	c.remoteInv.Store(c.hasPriv && c.priv.RemoteInvalidation && c.privateData() != nil && c.offersInvalidation())
	c.startConfig()
}

// sendMax and recvMax are the thresholds: the longest Sends that we and the peer may
// make, in bytes.
func (c *conn) sendMax() int { return int(c.sendLimit.Load()) }
func (c *conn) recvMax() int { return int(c.recvLimit.Load()) }

func (c *conn) info() ConnInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	credits, backward := c.req.grant, int(c.rsp.grant.Load())
	if c.role == roleServer {
		credits, backward = backward, credits
	}
	if c.cfg.backward(c.role) == 0 {
		backward = 0
	}
	i := ConnInfo{
		Provider: c.provider, LocalAddr: c.fc.LocalAddr(), RemoteAddr: c.fc.RemoteAddr(),
		Version:     max(c.vers.Load(), rpcrdma.Version1),
		Properties:  c.told,
		PrivateData: c.hasPriv, PeerSend: c.priv.SendSize, PeerRecv: c.priv.RecvSize,
		InlineSend: c.sendMax(), InlineRecv: c.recvMax(),
		RemoteInvalidation: c.remoteInv.Load(),
		Credits:            credits,
		BackwardCredits:    backward,
		Capabilities:       c.caps,
	}
	c.conf.fill(&i)
	return i
}

// growReceives posts receives until there are as many as both halves need: one for
// each reply that may come, one for each call that the peer has credits for, and the
// slack (RFC 8167 section 4.3). Leader, or before the connection is set up.
func (c *conn) growReceives() error {
	n := c.req.recvs + c.rsp.posted + slack(c.role)
	if n <= len(c.rbufs) {
		return nil
	}
	c.rbufs = slices.Grow(c.rbufs, n-len(c.rbufs))
	wrs := make([]fabric.RecvWR, min(n-len(c.rbufs), postBatch))
	for len(c.rbufs) < n {
		more := make([]recvBuf, min(n-len(c.rbufs), len(wrs)))
		var err error
		k := 0
		for ; k < len(more); k++ {
			rb := &more[k]
			if rb.Buffer, err = c.arena.Get(c.cfg.recvSize); err != nil {
				break
			}
			rb.idx = uint32(len(c.rbufs) + k)
			wrs[k] = c.recvWR(rb)
		}
		if err == nil {
			err = c.fc.PostRecv(wrs[:k])
		}
		if err != nil {
			for i := range more[:k] {
				c.arena.Put(more[i].Buffer)
			}
			return err
		}
		for i := range more {
			c.rbufs = append(c.rbufs, &more[i])
		}
	}
	return nil
}

func (c *conn) recvWR(rb *recvBuf) fabric.RecvWR {
	return fabric.RecvWR{
		ID:  wrID(wrRecv, rb.idx),
		SGE: fabric.SGE{Buf: rb.Bytes[:c.cfg.recvSize], LKey: rb.LKey},
	}
}

// receiveDone gives a receive buffer back. A few of them may wait to be posted
// together: the slack stands in for them. More must not, not even to the end of the
// leader's pass, since a credit that has come back may be used at once. Leader.
func (c *conn) receiveDone(rb *recvBuf) {
	c.repost = append(c.repost, c.recvWR(rb))
	if len(c.repost) < recvBatch {
		return
	}
	if err := c.fc.PostRecv(c.repost); err != nil {
		c.breakOff(err)
	}
	clear(c.repost)
	c.repost = c.repost[:0]
}

// complete dispatches one completion. Leader.
func (c *conn) complete(wc *fabric.WC) {
	n := uint32(wc.ID)
	switch wrKind(wc.ID >> 32) {
	case wrRecv:
		if wc.Status == fabric.WCSuccess {
			c.message(c.rbufs[n], wc)
		}
	case wrInv:
		c.req.invalidated(n, wc.Status == fabric.WCSuccess)
	case wrRead:
		c.reads.completed(&c.rsp.exchs[n].fetch, wc)
	case wrReply:
		c.rsp.sent(c.rsp.exchs[n])
	case wrPull:
		c.reads.completed(&c.req.slot(n).pull, wc)
	case wrDone:
		c.req.slot(n).fence() // the call's own memory is next
	case wrLoan:
		c.rsp.loanRevoked(c.rsp.exchs[n])
	}
}

// message takes a received message apart. Whether it is a call or a reply is the word
// of the RPC message in it, and of nothing else: both ends use what xids they like (RFC
// 8167 section 2.4). Leader.
func (c *conn) message(rb *recvBuf, wc *fabric.WC) {
	taken := c.rsp.taken
	c.read(rb, wc)
	c.heard.Add(1 + uint64(c.rsp.taken-taken)<<32)
}

// read is message but for the count. Leader.
func (c *conn) read(rb *recvBuf, wc *fabric.WC) {
	b := rb.Bytes[:wc.Len]
	n, err := rpcrdma.ConsumeHeader(b, &c.hdr, &c.cfg.Limits)
	if err != nil {
		c.badHeader(rb, b, err)
		return
	}
	h, payload := &c.hdr, b[n:]
	if c.vers.Load() == 0 {
		c.settle(h)
	}
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcMsgp:
		xid, dir, ok := oncrpc.Peek(payload)
		reply := ok && dir != oncrpc.Call || !ok && c.role == roleClient
		switch {
		case h.Proc == rpcrdma.ProcMsgp && (c.cfg.RFC5666 == nil || c.role == roleClient):
			// RFC 8166 section 4.6 took padded messages out of the protocol, and before
			// that they were for calls to servers.
			if c.rsp.serves() && !reply {
				c.rsp.refuse(rb, h.XID, h.Vers, rpcrdma.ErrChunk)
				return
			}
			c.req.malformed(h.XID, "it is an RDMA_MSGP")
		case ok && dir == oncrpc.Reply && xid == h.XID:
			c.req.reply(h, payload, wc)
		case reply:
			c.req.malformed(h.XID, "it is not a reply to the call")
		case !c.rsp.serves():
			c.stats.dropped.Add(1)
		case !ok:
			// Too short to tell its direction: a server's peer sends calls.
			c.rsp.refuse(rb, h.XID, h.Vers, rpcrdma.ErrChunk)
			return
		default:
			c.called(rb, h, payload, xid == h.XID, wc)
			return
		}
	case rpcrdma.ProcNomsg:
		if c.rsp.serves() && c.longCall(h) {
			c.called(rb, h, nil, true, wc)
			return
		}
		c.req.reply(h, nil, wc)
	case rpcrdma.ProcError:
		c.req.rdmaError(h)
	case rpcrdma.ProcOptional:
		if c.optional(rb, h, payload) {
			return // the receive is in use
		}
	default: // RDMA_DONE: taken out, too, and ignored unless we ask for it
		if c.cfg.RFC5666 != nil && c.role == roleServer {
			c.rsp.clientDone(h.XID)
		} else {
			c.stats.dropped.Add(1)
		}
	}
	c.receiveDone(rb)
}

// called takes a call. It is for replies to invalidate what our calls have exposed. Leader.
func (c *conn) called(rb *recvBuf, h *rpcrdma.Header, payload []byte, xidOK bool, wc *fabric.WC) {
	if wc.WithInv && c.req.exposes(wc.InvalidatedKey) {
		c.die(errInvalidate)
	}
	c.rsp.call(rb, h, payload, xidOK)
}

// longCall tells whether an RDMA_NOMSG is a call: its RPC message is in a read chunk
// then, and a reply's in the reply chunk. Replies in read chunks, which a client gets
// that does as RFC 5666 does, are known by their xids. Leader.
func (c *conn) longCall(h *rpcrdma.Header) bool {
	known := c.req.knows(h.XID)
	if len(h.Reads) > 0 {
		return !known || c.role == roleServer || c.cfg.RFC5666 == nil
	}
	return !known && c.role == roleServer
}

// badHeader reacts to a message whose transport header is malformed: a call is
// answered, anything else is not (RFC 5666 section 4.2). Which of them it is cannot be
// read any more. If it names one of our calls it ends that call. Leader.
func (c *conn) badHeader(rb *recvBuf, b []byte, err error) {
	he, ok := err.(*rpcrdma.HeaderError)
	switch {
	case !ok || !he.HaveXID || he.Code == 0:
		c.stats.dropped.Add(1)
	case !c.rsp.serves() || c.req.knows(he.XID):
		c.req.malformed(he.XID, he.Error())
	default:
		c.rsp.refuse(rb, he.XID, he.Vers, he.Code)
		return
	}
	c.receiveDone(rb)
}

// die makes the connection end for a reason of this end's. Leader.
func (c *conn) die(reason error) {
	if c.fatal == nil {
		c.fatal = reason
	}
}

// breakOff ends the connection because the adapter refused a request: calls would
// wait for it for ever. Most often the connection has ended already, and that is
// why: then the leader finds out, and takes in first what had come before the end.
func (c *conn) breakOff(err error) {
	if errors.Is(err, net.ErrClosed) {
		c.fc.Wake()
		return
	}
	c.mu.Lock()
	if c.broken == nil {
		c.broken = err
	}
	c.mu.Unlock()
	c.fc.Close() // the leader finds out
}

// finish ends the connection: first the adapter lets go of all memory, then
// everybody who waits learns of it. Leader, once.
func (c *conn) finish(reason error) {
	c.fc.Close()
	c.mu.Lock()
	if c.closing && c.fatal == nil {
		reason = nil
	}
	if c.broken != nil {
		reason = c.broken
	}
	if c.fatal != nil {
		reason = c.fatal
	}
	c.ended = true
	c.err = &ClosedError{Addr: c.addr(), Reason: reason}
	if c.unwatch != nil {
		c.unwatch()
		c.unwatch = nil
	}
	if c.tick != nil {
		c.tick.Stop()
	}
	c.req.fail(c.err)
	for w := c.waiters.pop(); w != nil; w = c.waiters.pop() {
		c.wakes = append(c.wakes, w)
	}
	if c.aside {
		c.aside = false
		c.wakes = append(c.wakes, &c.keeper)
	}
	unused := c.req.inUse == 0 // else the last call drops the arena
	onEnd := c.onEnd
	c.mu.Unlock()
	c.wakeAll()
	c.rsp.abort()
	c.rsp.tenant.Leave()
	if c.exposes.Regions != nil {
		c.exposes.Regions.Forget(&c.exposes)
	}
	if unused {
		c.arena.Drop()
	}
	close(c.done)
	if onEnd != nil {
		onEnd()
	}
}

// lives tells whether the connection has not ended.
func (c *conn) lives() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ended
}

// host is the peer's address without the port.
func (c *conn) host() string {
	if c.peerHost == "" {
		c.peerHost = hostOf(c.addr())
	}
	return c.peerHost
}

func (c *conn) addr() string {
	if a := c.fc.RemoteAddr(); a != nil {
		return a.String()
	}
	return "peer"
}

func (c *conn) endErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// discard ends a connection whose set-up failed: nobody leads it yet.
func (c *conn) discard() {
	c.mu.Lock()
	c.closing = true
	c.leading = true
	c.mu.Unlock()
	c.finish(nil)
}

// shutdown ends a client's connection in order.
func (c *conn) shutdown(ctx context.Context) error {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	w := newWaiter()
	if c.req.inUse > 0 {
		c.req.drained = w
	} else {
		w.wake <- false
	}
	c.mu.Unlock()
	select {
	case <-w.wake:
	case <-ctx.Done():
		c.close()
		return ctx.Err()
	}
	// The token must be ours: Disconnect makes progress by itself.
	if c.take() {
		err := c.fc.Disconnect(ctx)
		c.finish(nil)
		return err
	}
	return nil
}

// take waits for the progress token. It returns false when the connection has
// ended.
func (c *conn) take() bool {
	for {
		c.mu.Lock()
		if c.ended {
			c.mu.Unlock()
			return false
		}
		if !c.leading {
			c.startLeading(context.Background())
			c.mu.Unlock()
			return true
		}
		w := newWaiter()
		c.waiters.push(w)
		c.mu.Unlock()
		c.fc.Wake() // the background leader gives way to waiters
		<-w.wake
	}
}

// close ends the connection at once. The adapter lets go of memory in Close of
// the fabric's Conn, and whoever leads finds out; if nobody does, we do.
func (c *conn) close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.fc.Close()
	w := newWaiter()
	c.await(context.Background(), w)
	<-c.done
	return nil
}
