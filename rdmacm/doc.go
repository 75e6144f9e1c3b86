// Package rdmacm is librdmacm for Go programmers, and on top of it the provider
// that carries package fabric's connections over RDMA devices: InfiniBand, RoCE
// and iWARP, hardware or the kernel's rxe and siw.
//
// # The connection manager
//
// An [EventChannel] reports events, an [ID] is one end of a connection or a
// listener. The channel's descriptor lies in Go's poller and one goroutine sorts
// events into a queue for each ID, so that an event of one connection never meets
// somebody who waits for another. Whatever waits takes a context, and Close of an
// ID ends it.
//
// # The provider
//
// [New] makes a [Provider]. Each connection has its own protection domain: a
// handle that leaks from one connection opens nothing in another. Handles are of
// the device's making, and offsets are virtual addresses: what a peer has not been
// told it can guess with one try for each connection, which a wrong one ends, at 8
// random bits on rxe and 24 on siw, if it knows the address. Nothing runs
// between the wire and whoever waits: Wait polls the completion queue, spins for
// a while if that has paid lately, then asks the device for an event and parks in
// Go's poller ([WaitAdaptive]; [WaitEvent] and [WaitPoll] are its two halves).
//
// Without cgo, or on another system than Linux, the package has New alone, which
// fails with [ErrNotBuilt].
//
// # Ownership
//
// Objects are closed by whoever made them, children first: queue pair, completion
// queue, completion channel, windows and regions, ID, event channel, protection
// domain. Conn.Close of the provider does all that for its connection.
package rdmacm
