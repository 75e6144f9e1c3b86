// Package rdmacm contains bindings for librdmacm, and on top of them the provider that carries connections of package
// fabric over RDMA devices: InfiniBand, RoCE and iWARP, in hardware or the kernel's rxe and siw.
//
// # The connection manager
//
// An [EventChannel] reports events, and an [ID] is one end of a connection or a listener. One goroutine waits for the
// channel's descriptor in Go's poller and queues each event with its ID. Calls that block have a context parameter, and
// end when their ID is closed.
//
// [ID.CreateQP] gives an ID its queue pair, which package ibv then posts to. An ID of [PortSpaceUDP] learns where
// datagrams to its peer go from the reply to [ID.Connect], and joins groups by [ID.JoinMulticast].
//
// # The provider
//
// [New] makes a [Provider]. Each connection has a protection domain of its own: a handle of one connection is invalid
// in another. The device chooses handles, and offsets are virtual addresses. A peer that knows an address can try to
// guess a handle it was not given, which has 8 random bits on rxe and 24 on siw. A wrong guess ends the connection, so
// there is one try per connection.
//
// There is no goroutine between the device and the waiter: Wait polls the completion queue, for a while if that has
// recently paid off, then requests an event and parks in Go's poller ([WaitAdaptive]; [WaitEvent] and [WaitPoll] do
// only one of the two).
//
// Without cgo, or on systems other than Linux, New fails with [ErrNotBuilt].
//
// # Ownership
//
// The creator of an object closes it, children first: windows, queue pair, completion queue, completion channel,
// regions, ID, protection domain, event channel. Conn.Close of the provider does so for its connection,
// [Provider.Close] for its listeners.
package rdmacm
