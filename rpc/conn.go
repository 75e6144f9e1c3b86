package rpc

import (
	"context"
	"net"
	"net/netip"
)

// A Conn is one connection as a handler sees it: the way to the end that has called. It may be kept,
// and used by many goroutines at once, beyond the call. A connection has one Conn, which can be
// compared and be the key of a map. Transports implement it, and it may get more methods.
type Conn interface {
	// Call makes a call to the other end, in the way of a client's, with these differences:
	//
	//   - before AllowBackward a server's call fails with a *NotReadyError;
	//   - over RDMA, a server's call has no chunks unless its PeerChunks is AllChunks: a call that
	//     does not fit inline, or may have a reply that does not, fails with a *SizeError;
	//   - it ends with the connection. See transport.Backchannel for calls that do not.
	//
	// Over TCP the reply may come after calls of the peer that have to wait for their turn or for
	// memory. Until it comes, such calls are read ahead and kept: at most Config.MaxMemory bytes of
	// a connection, on top of what running calls hold, and within MaxTotalMemory. A call of up to 4
	// KiB counts as 8 KiB, a longer one as up to twice its length. If there is no room for another
	// one for StallTimeout, the connection is closed with a *StallError. For handlers that call their
	// client, all calls that the client has in flight should fit: its Credits times their length.
	//
	// A handler that is Inline gets an error: see [Program].Inline.
	Caller

	// Start makes a call that no goroutine waits for. ended is called once, with what Call would have
	// returned, mostly by the goroutine that moves the connection, and must not wait. Until then the Call,
	// and all that it points to, belong to the connection. Start returns false, and does nothing, if the
	// call cannot be sent at once: without a credit, over TCP, and with an Observer.
	Start(call *Call, ended func(error)) bool

	// Null calls procedure 0 of a program, which every program answers.
	Null(ctx context.Context, prog, vers uint32) error

	// AllowBackward permits up to calls concurrent calls to the client; 0 is Config.BackwardCredits,
	// which also bounds it. The client may grant fewer. Call it once the client has announced, in the
	// program's own protocol and on this connection, that its callbacks are registered (RFC 8167
	// section 6). It does nothing on a client's Conn.
	AllowBackward(calls int)

	// NewWaiter returns a Waiter of the connection.
	NewWaiter() Waiter

	// Info returns what the connection's set-up agreed on, and the credits granted.
	Info() ConnInfo

	// Stats returns the connection's counters and what goes on at the moment. It takes the locks
	// of the data path for a moment: it is for people and monitors.
	Stats() ConnStats

	// Peer returns what is known of the other end, whatever it calls: its address, TLS, certificate and
	// process. Principal and Sys are those of calls: see [Request.Peer].
	Peer() Peer

	// RemoteAddr returns the address of the other end.
	RemoteAddr() net.Addr

	// RemoteAddrPort returns the address of the other end as a value, for comparisons and keys: IPv4
	// in four bytes, and without a zone. It is the zero AddrPort if the address is not one of IP.
	RemoteAddrPort() netip.AddrPort

	// Host returns the peer's host, as limits and shares of hosts count it: an IPv4 address, or the
	// first Config.HostBits bits of an IPv6 address. It is the zero Prefix if the peer's address is
	// not an IP address.
	Host() netip.Prefix

	// Done returns a channel that is closed when the connection has ended. Err then returns why.
	Done() <-chan struct{}

	// Err returns nil while the connection lives, and then the *ClosedError.
	Err() error

	// Close ends the connection at once. It does not wait: Done is closed when the adapter has
	// released all memory.
	Close() error
}

// A Waiter lets a goroutine wait for something that an Inline handler brings: the goroutine moves the connection
// meanwhile, if no other does, so that none has to be woken for it. One goroutine at a time waits.
type Waiter interface {
	// Wait returns nil after Wake, be it called before or meanwhile; several calls of Wake count as one.
	// Otherwise it returns the error of ctx, or that of the connection when it has ended.
	Wait(ctx context.Context) error

	// Wake never waits. inline says that it is called by an Inline handler of the connection.
	Wake(inline bool)
}
