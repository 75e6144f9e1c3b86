package rpc

import (
	"context"
	"net"
	"net/netip"
)

// A Conn is one connection as a handler sees it: the way back to the caller. It may be kept after the call, and used by
// many goroutines at once. A connection has exactly one Conn, which is comparable and can be a map key. Transports
// implement it, and it may get more methods.
type Conn interface {
	// Call makes a call to the other end, as a client does, with these differences:
	//
	//   - before AllowBackward a server's call fails with a *NotReadyError;
	//   - over RDMA, a server's call has no chunks unless its PeerChunks is AllChunks: a call that does not fit inline,
	//     or may have a reply that does not, fails with a *SizeError;
	//   - it fails when the connection ends. See transport.Backchannel for calls that survive it.
	//
	// Over TCP the reply may arrive after calls of the peer that must wait for their turn or for memory. Until it
	// arrives, those calls are read ahead and buffered: up to Config.MaxMemory bytes per connection, in addition to the
	// memory of running calls, and within MaxTotalMemory. A call of up to 4 KiB counts as 8 KiB, a longer one as up to
	// twice its length. If there is no room for another call for StallTimeout, the connection is closed with a
	// *StallError. If handlers call their client, there should be room for all calls that the client has in flight: its
	// Credits times their length.
	//
	// In an Inline handler, Call returns an error: see [Program].Inline.
	Caller

	// Start makes a call that no goroutine waits for. ended is called exactly once with the error that Call would have
	// returned, usually on the goroutine that drives the connection, and must not block. Until then the Call, and
	// everything it points to, belong to the connection. Start returns false, and does nothing, if the call cannot be
	// sent at once: if no credit is available, over TCP, or with an Observer.
	Start(call *Call, ended func(error)) bool

	// Null calls procedure 0, which every program answers.
	Null(ctx context.Context, prog, vers uint32) error

	// AllowBackward permits up to calls concurrent calls to the client; 0 means Config.BackwardCredits, which is also
	// the upper bound. The client may grant fewer. Call it once the client has announced, in the program's own protocol
	// and on this connection, that its callbacks are registered (RFC 8167 section 6). It does nothing on a client's
	// Conn.
	AllowBackward(calls int)

	// NewWaiter returns a Waiter of the connection.
	NewWaiter() Waiter

	// Info returns what was agreed on at connection setup, and the credits granted.
	Info() ConnInfo

	// Stats returns the connection's counters and its current state. It briefly acquires the locks of the data path: it
	// is meant for people and monitors.
	Stats() ConnStats

	// Peer returns what is known about the other end independent of any call: its address, TLS, certificate and
	// process. Principal and Sys belong to calls: see [Request.Peer].
	Peer() Peer

	// RemoteAddr returns the address of the other end.
	RemoteAddr() net.Addr

	// RemoteAddrPort returns the address of the other end as a value, for comparisons and keys: IPv4 in four bytes, and
	// without a zone. It returns the zero AddrPort if the address is not an IP address.
	RemoteAddrPort() netip.AddrPort

	// Host returns the peer's host, the unit of per-host limits and shares: an IPv4 address, or the first
	// Config.HostBits bits of an IPv6 address. It returns the zero Prefix if the peer's address is not an IP address.
	Host() netip.Prefix

	// Done returns a channel that is closed when the connection has ended. Err then returns why.
	Done() <-chan struct{}

	// Err returns nil while the connection is up, and the *ClosedError afterwards.
	Err() error

	// Close ends the connection at once. It does not wait: Done is closed when the adapter has
	// released all memory.
	Close() error
}

// A Waiter lets a goroutine wait for something that an Inline handler delivers. Meanwhile the goroutine drives the
// connection, if no other does, so that no goroutine has to be woken for it. Only one goroutine may wait at a time.
type Waiter interface {
	// Wait returns nil after Wake, whether Wake was called before or during Wait; several calls of Wake count as one.
	// Otherwise Wait returns the error of ctx, or that of the connection once it has ended.
	Wait(ctx context.Context) error

	// Wake never blocks. inline reports whether an Inline handler of the connection calls it.
	Wake(inline bool)
}
