// Package fabric is the interface between RPC-over-RDMA and RDMA adapters: the abstract RDMA of RFC 5666 section 2, as
// Go interfaces and plain types.
//
// A [Provider] makes connections, and a [Conn] is one reliable connection with its queue pair, completion queue and
// protection domain. The names are those of the verbs man pages. The package contains only what the transport needs:
// Send with and without invalidation, Receive, RDMA Write, RDMA Read, registered memory and memory windows, private
// data at connection setup, and the reason that a connection ended.
//
// # Progress
//
// No background goroutine is involved on the hot path. The goroutine that waits on a Conn makes progress: Poll returns
// completions, and Wait blocks until there are some. Only one goroutine at a time may be in Poll or Wait of a Conn; all
// other methods may be called concurrently, at any time.
//
// # Posting never waits for the peer
//
// Post and PostRecv queue requests and return. Requests that the adapter cannot execute at once stay queued; Poll and
// Wait make progress in both directions.
//
// # Completions
//
// The requests of a queue complete in the order in which they were posted: a completion implies that all requests
// before it in its queue are complete, too. The adapter chooses which completions a device reports, since it has to
// free queue entries and notice failures. The caller chooses what it wants to be notified of:
//
//   - [Signaled]: the caller waits for the request. It has a completion.
//   - [Deferred]: the caller does not wait, but has something to release. The completion of a later deferred request
//     may stand for this one. At most [MaxDeferred] deferred requests in a row have no completion, whatever signaled
//     requests are between them.
//   - neither: the request has a completion only if it fails.
//
// # The end
//
// A request that fails ends the connection, and the end of the connection makes outstanding requests fail with
// WCFlushErr. The first request of the send queue that is known to have failed has a completion, and so do all requests
// after it, whatever their flags. A request before it has a completion only if its flags ask for one, and then it
// reports success. A request without a completion may or may not have been executed: devices differ in what they report
// about unsignaled requests.
//
// # Ownership
//
// The memory of a work request belongs to the adapter from Post until its completion, or a later one of the same queue,
// has been polled, or until Close has returned. A Send that the peer has answered is over as well: at most
// retransmissions remain, which the peer discards. The caller owns the request itself and its SGL slice again when Post
// returns. Memory that a peer may access belongs to the window or region that exposes it until that is invalidated or
// deregistered. Both are fences: afterwards no byte of the memory is read or written on the peer's behalf, unless
// Capabilities.WeakRevocation is set.
package fabric

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
)

// A Provider makes connections on one kind of adapter. There is no registry: a program creates the provider it needs.
type Provider interface {
	// Name returns the provider's short name, such as "iwarp" or "rdma".
	Name() string

	// Resolve prepares a connection to addr ("host:port"). It does not send the connection request, so that receives
	// can be posted before Conn.Connect sends it: the peer may send as soon as it has accepted, and a Send without a
	// receive ends the connection.
	Resolve(ctx context.Context, addr string, attr ConnAttr) (Conn, error)

	// Listen listens at addr. Port 0 selects a free port.
	Listen(ctx context.Context, addr string, attr ConnAttr) (Listener, error)

	// Close closes the listeners. From then on Resolve and Listen fail with net.ErrClosed. Conns are not affected,
	// connected or not: their users close them, and shared resources are released with the last. Close may be called
	// more than once, from any goroutine.
	Close() error
}

// A Listener accepts connection requests.
type Listener interface {
	// Accept returns the next connection request as a Conn that is neither accepted nor rejected yet, with the peer's
	// private data in PeerPrivateData. A peer that never completes its request does not block other requests.
	Accept(ctx context.Context) (Conn, error)

	// Addr returns the local address, with the actual port.
	Addr() net.Addr

	// Close stops listening, drops requests that Accept has not returned, and unblocks Accept,
	// which then fails with net.ErrClosed. Existing connections are not affected.
	Close() error
}

// ConnAttr sizes a connection's queues. Zero fields mean the provider's defaults. Values that
// a provider does not support fail with a *CapabilityError when the Conn is made.
type ConnAttr struct {
	SendDepth int // outstanding work requests in the send queue
	RecvDepth int // outstanding receives

	// InboundReads (IRD) bounds the concurrent RDMA Reads of the peer, and OutboundReads (ORD) those of this end. Both
	// are offers: Conn.Capabilities has the negotiated values.
	InboundReads  int
	OutboundReads int
}

// Capabilities describes a connection. The last two fields are final only once the connection
// is established.
type Capabilities struct {
	MaxSendSGE     int    // gather elements of a Send or Write
	MaxReadSGE     int    // scatter elements of a Read: 1 on iWARP
	MaxMessage     uint64 // longest Send, Write or Read, in bytes
	MaxPrivateData int    // longest private data at connection setup, in bytes

	// MemoryWindows: AllocMW, OpBindMW and OpLocalInv are supported.
	MemoryWindows bool
	// RemoteInvalidate: OpSendInv is supported, and the peer may invalidate windows of this Conn.
	RemoteInvalidate bool
	// LocalDMA: an SGE with LKey LocalDMAKey may name any memory of the
	// process, registered or not.
	LocalDMA bool

	// WeakRevocation: invalidation, and closing a region or window, prevent later accesses, but an access already in
	// progress may still complete. Only the end of the Conn is a fence then. This is the case for siw, and for the
	// windows of rxe.
	WeakRevocation bool

	SendDepth     int // work requests that may be outstanding in the send queue
	InboundReads  int // effective IRD
	OutboundReads int // effective ORD
}

// LocalDMAKey is the local key of all memory of the process on connections with
// Capabilities.LocalDMA.
const LocalDMAKey uint32 = 0

// A Conn is one reliable connection: queue pair, completion queue and protection domain. Its life cycle is: Resolve or
// Listener.Accept; register memory and post receives; Connect, Accept or Reject; transfer data; Disconnect; Close.
// Post, Poll and Wait fail before the connection is established.
type Conn interface {
	// Connect sends the connection request of a resolved Conn and waits for the answer. A rejection by the peer is a
	// *RejectError; private data longer than Capabilities.MaxPrivateData is a *CapabilityError. After Close it fails
	// with net.ErrClosed.
	Connect(ctx context.Context, privateData []byte) error

	// Accept and Reject answer the request of a Conn from a Listener.
	// Reject also closes.
	Accept(ctx context.Context, privateData []byte) error
	Reject(privateData []byte) error

	// PeerPrivateData returns the private data of the peer's request or answer. Some fabrics pad it or prepend bytes of
	// their own (RFC 8797 section 5.2). The caller must not modify it. It remains valid.
	PeerPrivateData() []byte

	// Capabilities returns the capabilities of the adapter on this connection. LocalAddr and RemoteAddr return the
	// addresses of its two ends. They do not change.
	Capabilities() Capabilities
	LocalAddr() net.Addr
	RemoteAddr() net.Addr

	// RegMR registers buf, which must stay reachable and must not move until the region is closed. Without remote
	// rights the region can only be used in local SGEs; with them the peer can access all of it as soon as RegMR
	// returns.
	RegMR(buf []byte, access Access) (MR, error)

	// RegForeign is RegMR for memory that is not a Go slice. It fails for memory that the adapter cannot reach: devices
	// return a system error, such as EOPNOTSUPP, and other adapters a *CapabilityError.
	RegForeign(mem Foreign, access Access) (MR, error)

	// AllocMW allocates an unbound memory window.
	AllocMW() (MW, error)

	// Post appends work requests to the send queue, in order, with at most one doorbell. It does not wait for the peer.
	// If the queue has no room for all of them, it queues none and returns ErrQueueFull; on a Conn that has ended it
	// returns the *ConnError. Execution errors are reported as completions. A malformed request is refused either by
	// Post or by its completion.
	//
	// The queue entry of a request is freed when its completion is polled. If it has no completion, the adapter frees
	// the entry by itself: a queue full of such requests has room again without another request.
	Post(wrs []SendWR) error

	// PostRecv appends receives. They may be posted before the connection is established.
	PostRecv(wrs []RecvWR) error

	// Poll makes progress without waiting, and stores up to len(wc) completions. When the connection ends, outstanding
	// receives complete with WCFlushErr, and requests of the send queue as described under "The end" in the package
	// documentation. After that Poll returns 0 and the *ConnError.
	Poll(wc []WC) (int, error)

	// Wait blocks, making progress, until Poll would return something or Wake is called. After Post has returned
	// ErrQueueFull, Wait also returns when requests without completions have freed queue entries. It returns the
	// *ConnError when Poll would.
	Wait() error

	// Wake makes the current Wait, or else the next one, return at once.
	Wake()

	// Disconnect closes the connection in order: it waits until all requests have been sent, notifies the peer, and
	// waits until the peer has closed its end or ctx is done. It makes progress itself, so no goroutine may be in Poll
	// or Wait. Outstanding receives are flushed.
	Disconnect(ctx context.Context) error

	// Close ends the connection at once and releases everything. When it returns, the adapter uses no memory of the
	// caller, and the windows and regions of the Conn are closed. Completions that were not polled are lost. Close
	// unblocks Wait. It may be called more than once, from any goroutine.
	Close() error
}

// Access is the set of rights of a region or window (ibv_reg_mr(3)). Local read access is
// always allowed.
type Access uint8

const (
	AccessLocalWrite  Access = 1 << iota // receives and Reads may write to it
	AccessRemoteWrite                    // the peer may RDMA Write
	AccessRemoteRead                     // the peer may RDMA Read
)

// A Segment identifies exposed memory on the wire (RFC 5666 section 3.4): the handle is an
// rkey or STag, the offset an opaque token.
type Segment struct {
	Handle uint32
	Length uint32
	Offset uint64
}

// An MR is a registered memory region.
type MR interface {
	// Bytes returns the memory, which the caller keeps owning, or nil if it is foreign. LKey returns its local key, for
	// an SGE.
	Bytes() []byte
	LKey() uint32

	// Segment describes the whole region for the peer. The handle is zero if the region was registered without remote
	// rights.
	Segment() Segment

	// Close deregisters the region. It is a fence: when it has returned, the region is neither read nor written. It may
	// be called more than once, and after the Conn was closed. Windows on the region must be closed first.
	Close() error
}

// Allocator is implemented by Conns that may have memory of their own, from which Writes move data with fewer copies
// than from the program's memory.
type Allocator interface {
	// AllocMR returns a region of n bytes with undefined content, for local SGEs. Close returns the memory to the Conn.
	// It must be called even after Conn.Close; until then the memory can be used. An error means that there is no such
	// memory, or not enough: use any other memory instead.
	AllocMR(n int) (MR, error)
}

// An MW is a type-2 memory window: it exposes part of local memory between the
// execution of an OpBindMW and its invalidation by OpLocalInv or by the peer's
// Send with Invalidate.
type MW interface {
	// Prepare sets what the next OpBindMW of this window will expose, and returns the segment
	// to send to the peer. Each Prepare changes the key part of the handle, so that a stale
	// handle does not give access to the new binding. The window must not be bound.
	Prepare(mem SGE, access Access) (Segment, error)

	// Close unbinds the window, which is a fence, and frees the window.
	Close() error
}

// A Foreign is memory that is not a Go slice: an accelerator's, a C library's, or a mapped file. The adapter moves data
// from and to it directly, without going through the program's memory. The memory must stay in place until it is
// deregistered.
type Foreign struct {
	// File exports the memory: a DMA-BUF or, with software adapters, any file that can be mapped. If File is nil, the
	// memory is mapped in this process. The file may be closed once the memory is registered.
	File *os.File
	Addr uint64 // of the first byte: an offset in File, or an address of this process
	Len  uint64 // bytes
}

// Slice returns the n bytes of f from offset on. It panics if they are out of range.
func (f Foreign) Slice(offset, n uint64) Foreign {
	if offset > f.Len || n > f.Len-offset {
		panic(fmt.Sprintf("fabric: %d bytes at offset %d of %d bytes of foreign memory", n, offset, f.Len))
	}
	return Foreign{File: f.File, Addr: f.Addr + offset, Len: n}
}

// In reports whether f is part of other: in the same *os.File, if any.
func (f Foreign) In(other Foreign) bool {
	return f.File == other.File && f.Addr >= other.Addr && f.Len <= other.Len && f.Addr-other.Addr <= other.Len-f.Len
}

// An SGE is one element of a gather or scatter list: local memory inside a region. The adapter owns it while a request
// that contains it is outstanding.
type SGE struct {
	Buf     []byte   // the memory, unless it is foreign
	LKey    uint32   // local key of the region
	Foreign *Foreign // the memory, if not nil: part of a region of Conn.RegForeign; read until Post returns
}

// Len returns the number of bytes of the element. If that does not fit in an int, it returns the largest int, which no
// adapter can move.
func (s *SGE) Len() int {
	if s.Foreign != nil {
		return int(min(s.Foreign.Len, math.MaxInt))
	}
	return len(s.Buf)
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
	// Signaled: the request has a completion. A request that fails always has one.
	Signaled SendFlags = 1 << iota
	// Solicited asks for an event at the receiver (Send only).
	Solicited
	// Fence delays the request until all earlier Reads have completed.
	Fence
	// Deferred: the request has a completion, or that of a later Deferred request stands for it. Signaled takes
	// precedence.
	Deferred
)

// MaxDeferred is the maximum number of consecutive Deferred requests without a completion.
const MaxDeferred = 15

// Deferrals decide for an adapter which requests of a send queue have a completion if they succeed. The zero value is
// for an empty queue.
type Deferrals struct {
	n int // Deferred requests since the last one that has a completion
}

// Reports reports whether a request with these flags has a completion. Call it once for each request, in queue order.
func (d *Deferrals) Reports(f SendFlags) bool {
	switch {
	case f&Signaled != 0:
		// Its completion stands for no Deferred request: the caller may not know which of them precede it.
		return true
	case f&Deferred == 0:
		return false
	case d.n < MaxDeferred:
		d.n++
		return false
	}
	d.n = 0
	return true
}

// A SendWR is a request for the send queue. Requests execute in order: the peer does not see a
// Send before the data of earlier Writes has been placed, and a bind or invalidation takes
// effect between the requests before and after it.
type SendWR struct {
	ID    uint64 // returned in the completion
	Op    Opcode
	Flags SendFlags

	// SGL is gathered (Send, Write) or filled (Read). A Send may be empty.
	SGL []SGE

	RKey         uint32 // Write, Read: the peer's handle; SendInv, LocalInv: the handle to invalidate
	RemoteOffset uint64 // Write, Read
	MW           MW     // BindMW
}

// A RecvWR is a buffer for one incoming Send. ID is returned in the completion.
type RecvWR struct {
	ID  uint64
	SGE SGE
}

// WCOpcode is the kind of request that completed.
type WCOpcode uint8

const (
	WCRecv WCOpcode = iota
	WCSend          // OpSend or OpSendInv
	WCWrite
	WCRead
	WCBindMW
	WCLocalInv
)

// Completion returns the opcode of the completions of requests with op.
func (op Opcode) Completion() WCOpcode {
	switch op {
	case OpWrite:
		return WCWrite
	case OpRead:
		return WCRead
	case OpBindMW:
		return WCBindMW
	case OpLocalInv:
		return WCLocalInv
	}
	return WCSend
}

// A WC is a work completion (ibv_poll_cq(3)). Unless Status is WCSuccess, only ID, Status and
// VendorErr are valid; Op distinguishes receives from sends.
type WC struct {
	ID        uint64
	Status    WCStatus
	VendorErr uint32
	Op        WCOpcode

	// Len is the number of bytes received or read.
	Len uint32

	// WithInv: the Send invalidated the local window with the handle InvalidatedKey.
	WithInv        bool
	InvalidatedKey uint32
}

// WaitContext is Wait with a context: it returns the context's error if ctx ends first. If there is something to poll,
// it may return nil even if ctx has already ended.
func WaitContext(ctx context.Context, c Conn) error {
	stop := context.AfterFunc(ctx, c.Wake)
	err := c.Wait()
	if !stop() && err == nil {
		return ctx.Err()
	}
	return err
}
