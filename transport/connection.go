package transport

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
)

// A connection is one connection to a peer, over RDMA ([conn]) or TCP ([tcpConn]), for code that does not need to know
// which: Client, Backchannel, Conn.
type connection interface {
	// Calls.

	call(ctx context.Context, call *pendingCall) error
	openLane() lane                                  // for a Pipeline's calls
	start(call *pendingCall, ended func(error)) bool // see rpc.Conn
	allow(calls int)                                 // see Conn.AllowBackward
	inherit(from connection)                         // continues with the xids of the previous connection
	counter() *xids                                  // of the calls of this end
	proven() bool                                    // a call has been answered
	good() bool                                      // calls of either end have been answered
	load() load
	credits() int // calls that a client may currently have in flight
	info() rpc.ConnInfo

	// The connection's life.

	lives() bool                        // it has not ended
	leaves() bool                       // it accepts no new calls, though it may not have ended
	endErr() error                      // why it ended, nil before that
	ended() <-chan struct{}             // closed when it has ended
	whenEnded(f func())                 // arranges for f to be called when it has ended
	breakOff(err error)                 // ends it for this reason
	abort()                             // ends it at once, without waiting
	close() error                       // ends it at once
	shutdown(ctx context.Context) error // lets the calls in flight return, then ends it
	leaveIdle() bool                    // makes it accept no new calls, unless some are in flight
	drainFor(ctx context.Context)       // makes a server's connection end when its calls are answered

	// Other state of the connection.

	local() net.Addr
	remote() net.Addr
	addr() string // the peer's address, for messages
	connStats() rpc.ConnStats
	newWaiter() rpc.Waiter
	encryption() *tls.ConnectionState // nil without TLS
	seen() *Conn                      // the connection as users see it

	// activity returns a number that changes when the peer shows that it is alive: while calls of this end are in
	// flight by answering one, and otherwise by any message.
	activity() uint64
}

// A served is a connection of a server.
type served interface {
	connection

	hosts.Conn

	// look checks the connection for progress, and its memory for use. It reports whether this end is waiting for the
	// peer.
	look(now time.Time) (awaits bool)
}

// A load is the number of calls that this end has in flight.
type load struct {
	used int  // calls without a reply
	room bool // for another call
	dead bool // there are calls, but no goroutine waits for any of them
}

// A Conn is this package's [rpc.Conn]. A connection has exactly one Conn: pointers to it can be compared, and be map
// keys.
type Conn struct {
	c     connection
	cfg   *config
	peer  atomic.Pointer[netip.AddrPort]
	known atomic.Pointer[rpc.Peer]

	life   connLife
	server bool // the other end opened it
}

// A connLife is the part of a connection that an Observer sees.
type connLife struct {
	began time.Time // set by the goroutine that set it up

	mu    sync.Mutex
	known bool // ConnBegan has returned
	over  bool
}

// AllowBackward permits up to calls concurrent calls to the client: see [rpc.Conn].
func (cn *Conn) AllowBackward(calls int) { cn.c.allow(calls) }

// Call makes a call to the other end: see [rpc.Conn].
func (cn *Conn) Call(ctx context.Context, call *rpc.Call) error { return cn.make(ctx, pendingOf(call)) }

// Start makes a call that no goroutine waits for: see [rpc.Conn].
func (cn *Conn) Start(call *rpc.Call, ended func(error)) bool {
	if cn.cfg.observation != nil {
		return false
	}
	p := pendingOf(call)
	p.begin()
	return cn.c.start(p, ended)
}

func (cn *Conn) make(ctx context.Context, call *pendingCall) error {
	if rpc.IsInline(ctx) {
		return errInline
	}
	call.begin()
	if o := cn.cfg.observation; o != nil && call.op == nil {
		return o.made(call, cn.server, func() error { return cn.c.call(ctx, call) })
	}
	return cn.c.call(ctx, call)
}

// Null calls procedure 0, which every program answers.
func (cn *Conn) Null(ctx context.Context, prog, vers uint32) error {
	return cn.Call(ctx, &rpc.Call{Prog: prog, Vers: vers})
}

// Info returns what was agreed on at connection setup, and the credits granted.
func (cn *Conn) Info() rpc.ConnInfo { return cn.c.info() }

// Stats returns the connection's counters and its current state. It briefly acquires the locks of the data path: it is
// meant for people and monitors.
func (cn *Conn) Stats() rpc.ConnStats { return cn.c.connStats() }

// RemoteAddrPort returns the address of the other end as a value, for comparisons and keys: IPv4 in four bytes, and
// without a zone. It returns the zero AddrPort if the address is not an IP address. The value is computed once.
func (cn *Conn) RemoteAddrPort() netip.AddrPort {
	if p := cn.peer.Load(); p != nil {
		return *p
	}
	var p netip.AddrPort
	switch a := cn.RemoteAddr().(type) {
	case nil:
		return p
	case *net.TCPAddr:
		p = a.AddrPort()
	default:
		p, _ = netip.ParseAddrPort(a.String())
	}
	p = netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
	cn.peer.Store(&p)
	return p
}

// Host returns the peer's host, the unit of per-host limits and shares: an IPv4 address, or the first Config.HostBits
// bits of an IPv6 address. It returns the zero Prefix if the peer's address is not an IP address.
func (cn *Conn) Host() netip.Prefix {
	return hosts.Prefix(cn.RemoteAddrPort().Addr(), cn.cfg.HostBits)
}

// Peer returns what is known about the other end: see [rpc.Conn].
func (cn *Conn) Peer() rpc.Peer {
	state := cn.c.encryption()
	p := cn.known.Load()
	if p == nil || p.TLS != state { // a server's connection may have been asked before it had TLS
		p = rpc.PeerOf(cn.RemoteAddr(), state)
		cn.known.Store(p)
	}
	return *p
}

// RemoteAddr returns the address of the other end.
func (cn *Conn) RemoteAddr() net.Addr { return cn.c.remote() }

// Done returns a channel that is closed when the connection has ended. Err then returns why.
func (cn *Conn) Done() <-chan struct{} { return cn.c.ended() }

// Err returns nil while the connection is up, and the *ClosedError afterwards.
func (cn *Conn) Err() error { return cn.c.endErr() }

// Close ends the connection at once. It does not wait: Done is closed when the adapter has
// released all memory.
func (cn *Conn) Close() error {
	cn.c.abort()
	return nil
}
