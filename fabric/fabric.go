// Package fabric is the seam between RPC-over-RDMA and the adapters that carry
// it: the abstract RDMA of RFC 5666 section 2, as interfaces and plain types.
//
// A [Provider] makes connections, a [Conn] is one reliable connection with its
// queue pair, its completion queue and its protection domain. The names are
// those of the verbs man pages; what the package asks for is no more than the
// transport needs: Send with and without invalidation, Receive, RDMA Write,
// RDMA Read, registered memory and memory windows, private data at set-up, and
// an end with a reason.
//
// # Progress
//
// Nothing runs behind the caller's back on the hot path. Whoever waits on a
// Conn moves it forward: Poll takes what is there, Wait blocks until there is
// something. One goroutine at a time may be in Poll or Wait of a Conn; all
// other methods may be called by anybody at any time, also meanwhile.
//
// # Posting never waits for the peer
//
// Post and PostRecv queue work and return. What the adapter does not take at
// once stays queued, and whoever drives progress drives both directions.
//
// # Ownership
//
// The memory a work request names belongs to the adapter from Post until its
// completion has been polled (an unsignaled request: until a later signaled
// one of the same queue has completed), or until Close has returned. The
// request itself and its SGL slice are the caller's again when Post returns.
// Memory that a peer may reach belongs to the window or region that exposes it
// until that has been invalidated or deregistered: both are fences, after
// which no byte of it is read or written on the peer's behalf, unless
// Capabilities say WeakRevocation.
package fabric

import (
	"context"
	"net"
)

// A Provider makes connections of one kind of adapter. It holds no global
// state: a program names the provider it wants.
type Provider interface {
	// Name is the provider's short name, such as "iwarp" or "rdma".
	Name() string

	// Resolve prepares a connection to addr ("host:port"). Nothing has been
	// offered to the peer when it returns: receives can be posted before
	// Conn.Connect sends the request, since a peer may send as soon as it has
	// accepted, and one Send too many ends a connection.
	Resolve(ctx context.Context, addr string, attr ConnAttr) (Conn, error)

	// Listen announces a service at addr. Port 0 picks a free one.
	Listen(ctx context.Context, addr string, attr ConnAttr) (Listener, error)
}

// A Listener hands out the connections that peers ask for.
type Listener interface {
	// Accept returns the next connection request as a Conn that is neither
	// accepted nor rejected yet: PeerPrivateData tells what the peer sent.
	// A peer that never finishes its request does not hold up others.
	Accept(ctx context.Context) (Conn, error)

	// Addr is the address listened on, with the real port.
	Addr() net.Addr

	// Close stops listening, drops requests not handed out yet and unblocks
	// Accept, which then fails with net.ErrClosed. Connections live on.
	Close() error
}

// ConnAttr sizes a connection's queues. Zero fields take the provider's
// defaults; what a provider cannot give is refused with a *CapabilityError when
// the Conn is made.
type ConnAttr struct {
	SendDepth int // work requests in the send queue at once
	RecvDepth int // receives posted at once

	// InboundReads (IRD) is how many RDMA Reads of the peer are served at
	// once, OutboundReads (ORD) how many of ours may be outstanding. Both are
	// offers: Conn.Capabilities has what set-up agreed on.
	InboundReads  int
	OutboundReads int
}

// Capabilities states what a connection can do. The last two fields are final
// only once the connection is established.
type Capabilities struct {
	MaxSendSGE     int    // gather elements of a Send or Write
	MaxReadSGE     int    // scatter elements of a Read: 1 on iWARP
	MaxMessage     uint64 // longest Send, Write or Read, in bytes
	MaxPrivateData int    // longest private data at set-up, in bytes

	// MemoryWindows: AllocMW works, and OpBindMW and OpLocalInv with it.
	MemoryWindows bool
	// RemoteInvalidate: OpSendInv works, and windows of this Conn may be
	// invalidated by the peer.
	RemoteInvalidate bool
	// LocalDMA: an SGE with LKey LocalDMAKey may name any memory of the
	// process, registered or not.
	LocalDMA bool

	// WeakRevocation: invalidation, and closing a region or window, stop every
	// access that begins afterwards, but the part of one that is being placed
	// or fetched at that moment may still finish. Only the end of the Conn is a
	// fence then. Kernel siw works like that, and so do the windows of rxe.
	WeakRevocation bool

	InboundReads  int // IRD in force
	OutboundReads int // ORD in force
}

// LocalDMAKey is the local key that stands for all memory of the process on
// connections whose Capabilities say LocalDMA.
const LocalDMAKey uint32 = 0

// A Conn is one reliable connection: queue pair, completion queue and
// protection domain. Its life is: Resolve or Listener.Accept; register memory
// and post receives; Connect, Accept or Reject; work; Disconnect; Close. Before
// it is established nothing can be sent or polled: those calls fail.
type Conn interface {
	// Connect sends the connection request of a resolved Conn and waits for
	// the answer. A peer's rejection is a *RejectError, private data that is
	// longer than Capabilities says a *CapabilityError. Close ends it with
	// net.ErrClosed.
	Connect(ctx context.Context, privateData []byte) error

	// Accept and Reject answer the request of a Conn from a Listener.
	// Reject also closes.
	Accept(ctx context.Context, privateData []byte) error
	Reject(privateData []byte) error

	// PeerPrivateData is what the peer sent in its request or its answer.
	// Some fabrics pad it or put bytes of their own in front (RFC 8797
	// section 5.2). It must not be modified and stays valid.
	PeerPrivateData() []byte

	Capabilities() Capabilities
	LocalAddr() net.Addr
	RemoteAddr() net.Addr

	// RegMR registers buf, which must stay reachable and in place until the
	// region is closed. Without remote rights the region can only be named
	// in local SGEs; with them the peer can reach all of it at once.
	RegMR(buf []byte, access Access) (MR, error)

	// AllocMW allocates a memory window, unbound.
	AllocMW() (MW, error)

	// Post appends work requests to the send queue, in order, with at most
	// one doorbell. It does not wait for the peer. A full queue is
	// ErrQueueFull and nothing is queued; on a Conn that has ended it is the
	// *ConnError. Errors of execution come as completions: a request that
	// fails ends the connection, and all requests behind it complete, whether
	// they are signaled or not. A malformed request may be refused by either.
	Post(wrs []SendWR) error

	// PostRecv appends receives. Those posted before the connection is
	// established count from its first message on.
	PostRecv(wrs []RecvWR) error

	// Poll moves the connection forward as far as it goes without waiting
	// and stores up to len(wc) completions. When the connection has ended,
	// every outstanding request completes with WCFlushErr first; only then
	// Poll returns 0 and the *ConnError.
	Poll(wc []WC) (int, error)

	// Wait blocks until Poll would return something or Wake is called, and
	// makes progress meanwhile. After Post has said ErrQueueFull it also returns
	// when requests of which no completion tells have made room. It returns the
	// *ConnError when Poll would.
	Wait() error

	// Wake makes the current Wait, or else the next one, return at once.
	Wake()

	// Disconnect ends the connection in order: it waits until what was
	// posted has left, tells the peer, and waits until the peer has ended
	// its side or ctx is done. It makes progress by itself, so nobody else
	// may be in Poll or Wait. Outstanding receives complete as flushed.
	Disconnect(ctx context.Context) error

	// Close ends the connection at once and gives everything back: on
	// return the adapter holds no memory, and windows and regions of the
	// Conn are closed. Completions not polled are gone. It unblocks Wait,
	// may be called twice and by anybody.
	Close() error
}

// Access is the set of rights of a region or window (ibv_reg_mr(3)). Reading by
// the local side is always allowed.
type Access uint8

const (
	AccessLocalWrite  Access = 1 << iota // receives and Reads may fill it
	AccessRemoteWrite                    // the peer may RDMA Write
	AccessRemoteRead                     // the peer may RDMA Read
)

// A Segment names exposed memory on the wire (RFC 5666 section 3.4): the
// handle is an rkey or STag, the offset an opaque token.
type Segment struct {
	Handle uint32
	Length uint32
	Offset uint64
}

// An MR is a registered memory region.
type MR interface {
	Bytes() []byte
	LKey() uint32

	// Segment names the first len(Bytes()) bytes for the peer. Its handle is
	// zero when the region was registered without remote rights.
	Segment() Segment

	// Close deregisters. It is a fence: on return nothing of the region is
	// read or written any more. Closing twice is harmless, and so is closing
	// after the Conn. Windows on the region are to be closed first.
	Close() error
}

// An MW is a type-2 memory window: it exposes part of local memory between the
// execution of an OpBindMW and its invalidation by OpLocalInv or by the peer's
// Send with Invalidate.
type MW interface {
	// Prepare sets what the next OpBindMW of this window will expose and
	// returns the name to put on the wire. Each Prepare changes the key part
	// of the handle, so that a stale name does not open the new binding. The
	// window must not be bound.
	Prepare(mem SGE, access Access) (Segment, error)

	// Close unbinds, as a fence, and frees the window.
	Close() error
}

// An SGE is one element of a gather or scatter list: local memory inside the
// region with the given local key.
type SGE struct {
	Buf  []byte
	LKey uint32
}

// Opcode is the operation of a SendWR (ibv_post_send(3)).
type Opcode uint8

const (
	OpSend     Opcode = iota
	OpSendInv         // Send with Invalidate of RKey
	OpWrite           // RDMA Write to RKey, RemoteOffset
	OpRead            // RDMA Read from RKey, RemoteOffset into SGL
	OpBindMW          // bind MW as prepared
	OpLocalInv        // invalidate the local window bound to RKey
)

// SendFlags of a SendWR.
type SendFlags uint8

const (
	// Signaled: completion of the request is reported. Failures always are.
	Signaled SendFlags = 1 << iota
	// Solicited asks for an event at the receiver (Send only).
	Solicited
	// Fence starts the request only after all earlier Reads have completed.
	Fence
)

// A SendWR is a request for the send queue. Requests execute in order: a Send
// is not seen by the peer before the Writes posted in front of it are placed,
// and a bind or invalidation takes effect between its neighbours.
type SendWR struct {
	ID    uint64 // returned in the completion
	Op    Opcode
	Flags SendFlags

	// SGL is gathered (Send, Write) or filled (Read). A Send may be empty.
	SGL []SGE

	RKey         uint32 // Write, Read: the peer's handle; SendInv, LocalInv: what to invalidate
	RemoteOffset uint64 // Write, Read
	MW           MW     // BindMW
}

// A RecvWR is a buffer for one incoming Send.
type RecvWR struct {
	ID  uint64
	SGE SGE
}

// WCOpcode says what a completion is about.
type WCOpcode uint8

const (
	WCRecv WCOpcode = iota
	WCSend          // OpSend or OpSendInv
	WCWrite
	WCRead
	WCBindMW
	WCLocalInv
)

// A WC is a work completion (ibv_poll_cq(3)). Unless Status is WCSuccess, only
// ID, Status and VendorErr mean anything, and Op as far as it tells receives
// from sends.
type WC struct {
	ID        uint64
	Status    WCStatus
	VendorErr uint32
	Op        WCOpcode

	// Len is the number of bytes received, or read.
	Len uint32

	// WithInv: the Send that filled this receive invalidated the local
	// window that InvalidatedKey named.
	WithInv        bool
	InvalidatedKey uint32
}

// WaitContext is Wait with a context: it returns the context's error when ctx
// ends first. A context that has ended already does not keep it from returning
// nil when there is something to poll.
func WaitContext(ctx context.Context, c Conn) error {
	stop := context.AfterFunc(ctx, c.Wake)
	err := c.Wait()
	if !stop() && err == nil {
		return ctx.Err()
	}
	return err
}
