//go:build linux && cgo

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

// An ID is one end of a connection or of an exchange of datagrams, or a listener: a struct rdma_cm_id.
// One goroutine at a time may wait on it. Close may be
// called by any goroutine at any time, and ends the wait.
type ID struct {
	lib cgo.Library
	ch  *EventChannel
	num uint64

	// life guards raw against Close: calls into librdmacm hold it for reading.
	life sync.RWMutex
	raw  *cgo.CMID
	qp   atomic.Bool // it has a queue pair

	groupMu sync.Mutex
	groups  []netip.Addr // joined or joining

	request  Event       // of an ID from GetRequest
	stranger atomic.Bool // not yet taken by a listener

	wake chan struct{} // holds a token when an event or request has been added
	gone chan struct{} // closed by Close
	box  lockorder.Value[mailbox]
}

// A mailbox holds the events received for an ID, guarded by ID.box.
type mailbox struct {
	events   []Event
	children []*ID // IDs of connection requests not taken yet
	notify   func(Event)
	forward  *ID  // receives the connection requests instead, or nil
	refuse   bool // reject connection requests
	closed   bool
}

// A PortSpace is the namespace of an ID's port numbers, see rdma_create_id(3). It determines which queue pairs the ID
// can have.
type PortSpace int32

// Port spaces.
const (
	PortSpaceIPoIB PortSpace = 0x0002 // datagrams to the queue pairs of IP over InfiniBand
	PortSpaceTCP   PortSpace = 0x0106 // connections
	PortSpaceUDP   PortSpace = 0x0111 // datagrams
	PortSpaceIB    PortSpace = 0x013f // any service of InfiniBand
)

func (ps PortSpace) String() string {
	switch ps {
	case PortSpaceIPoIB:
		return "RDMA_PS_IPOIB"
	case PortSpaceTCP:
		return "RDMA_PS_TCP"
	case PortSpaceUDP:
		return "RDMA_PS_UDP"
	case PortSpaceIB:
		return "RDMA_PS_IB"
	}
	return fmt.Sprintf("rdma_port_space %#x", int32(ps))
}

// NewID creates an ID for connections on the channel. The caller closes it.
func (ch *EventChannel) NewID() (*ID, error) { return ch.NewIDOf(PortSpaceTCP) }

// NewIDOf creates an ID of a port space on the channel. The caller closes it.
//
// Implements: int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
func (ch *EventChannel) NewIDOf(ps PortSpace) (*ID, error) {
	all := ch.ids.Lock()
	defer ch.ids.Unlock()
	if all.closed {
		return nil, errClosed("event channel")
	}
	id := all.adopt(ch, nil)
	raw, errno := ch.lib.CreateID(ch.raw, id.num, int32(ps))
	if errno != 0 {
		delete(all.by, id.num)
		return nil, callError("rdma_create_id", "", errno)
	}
	id.raw = raw
	return id, nil
}

// use calls f with the C object, which stays valid during the call. It fails if the ID is closed.
func (id *ID) use(op, addr string, f func(*cgo.CMID) syscall.Errno) error {
	id.life.RLock()
	defer id.life.RUnlock()
	if id.raw == nil {
		return errClosed(op)
	}
	return callError(op, addr, f(id.raw))
}

// deliver queues an event or passes it to the Notify function. It runs on the channel's goroutine.
func (id *ID) deliver(ev Event) {
	box := id.box.Lock()
	notify := box.notify
	if notify == nil {
		box.events = append(box.events, ev)
	}
	id.box.Unlock()
	if notify != nil {
		notify(ev)
		return
	}
	id.signal()
}

func (id *ID) signal() {
	select {
	case id.wake <- struct{}{}:
	default:
	}
}

// requested queues a connection request for its listener. It returns false if the listener does not accept requests.
func (id *ID) requested(child *ID) bool {
	box := id.box.Lock()
	if to := box.forward; to != nil {
		id.box.Unlock()
		return to.requested(child)
	}
	defer id.box.Unlock()
	if box.closed || box.refuse {
		return false
	}
	child.stranger.Store(false)
	box.children = append(box.children, child)
	id.signal()
	return true
}

// Notify makes every event from now on a call of f instead of queueing it. First f is called with the queued events. It
// runs on the channel's goroutine and must neither block nor call Close.
func (id *ID) Notify(f func(Event)) {
	box := id.box.Lock()
	queued := box.events
	box.events = nil
	box.notify = f
	id.box.Unlock()
	for _, ev := range queued {
		f(ev)
	}
}

// Event waits for the next event of the ID other than a connection request. It
// fails with the context's error, or net.ErrClosed after Close.
func (id *ID) Event(ctx context.Context) (Event, error) {
	for {
		box := id.box.Lock()
		if len(box.events) > 0 {
			ev := box.events[0]
			box.events = box.events[1:]
			id.box.Unlock()
			return ev, nil
		}
		id.box.Unlock()
		if err := id.pause(ctx); err != nil {
			return Event{}, err
		}
	}
}

// pause waits until an event or request has been added.
func (id *ID) pause(ctx context.Context) error {
	select {
	case <-id.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-id.gone:
		return errClosed("ID")
	}
}

// expect waits for the event that ends an operation. Events that do not concern the operation are skipped. Any other
// event than want is an error.
func (id *ID) expect(ctx context.Context, op, addr string, want EventType) (Event, error) {
	for {
		ev, err := id.Event(ctx)
		if err != nil {
			return ev, err
		}
		switch ev.Type {
		case want:
			return ev, nil
		case EventAddrChange, EventTimewaitExit:
			continue
		}
		return ev, &EventError{Op: op, Addr: addr, Event: ev}
	}
}

// BindAddr binds the ID to a local address. Port 0 selects a free port.
//
// Implements: int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
func (id *ID) BindAddr(addr netip.AddrPort) error {
	return id.use("rdma_bind_addr", addr.String(), func(raw *cgo.CMID) syscall.Errno { return id.lib.BindAddr(raw, sockaddr(addr)) })
}

// ResolveAddr finds the device with a route to dst and binds the ID to it. src may be the
// zero AddrPort. timeout bounds the kernel's resolution of the neighbor's address, ctx
// the wait for its result.
//
// Implements: int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr, int timeout_ms)
func (id *ID) ResolveAddr(ctx context.Context, src, dst netip.AddrPort, timeout time.Duration) error {
	var from *cgo.Sockaddr
	if src.IsValid() {
		from = sockaddr(src)
	}
	if err := id.use("rdma_resolve_addr", dst.String(), func(raw *cgo.CMID) syscall.Errno {
		return id.lib.ResolveAddr(raw, from, sockaddr(dst), milliseconds(timeout))
	}); err != nil {
		return err
	}
	_, err := id.expect(ctx, "resolving the address of", dst.String(), EventAddrResolved)
	return err
}

// ResolveRoute resolves the route to the address given to ResolveAddr, which must be called first.
//
// Implements: int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
func (id *ID) ResolveRoute(ctx context.Context, timeout time.Duration) error {
	peer := id.PeerAddr().String()
	if err := id.use("rdma_resolve_route", peer, func(raw *cgo.CMID) syscall.Errno {
		return id.lib.ResolveRoute(raw, milliseconds(timeout))
	}); err != nil {
		return err
	}
	_, err := id.expect(ctx, "resolving the route to", peer, EventRouteResolved)
	return err
}

func milliseconds(d time.Duration) int { return int(max(d.Milliseconds(), 1)) }

// A ConnParam holds the parameters of a connection request or reply, see
// rdma_connect(3).
type ConnParam struct {
	PrivateData        []byte // at most 56 bytes on InfiniBand and RoCE, 255 otherwise
	ResponderResources int    // Reads and atomics of the peer that this side serves at once, at most 255
	InitiatorDepth     int    // Reads and atomics of this side that may be outstanding, at most 255
	RetryCount         int    // 0 to 7: retransmissions if the peer does not acknowledge
	RNRRetryCount      int    // 0 to 7: retransmissions if the peer has no receive posted; 7 means no limit

	// For a queue pair that [ID.CreateQP] did not create:
	QPNum uint32
	SRQ   bool // it has a shared receive queue
}

func (p *ConnParam) raw() *cgo.ConnParam {
	return &cgo.ConnParam{
		PrivateData:        p.PrivateData,
		ResponderResources: uint8(min(p.ResponderResources, 255)), InitiatorDepth: uint8(min(p.InitiatorDepth, 255)),
		RetryCount: uint8(p.RetryCount), RNRRetry: uint8(p.RNRRetryCount), FlowControl: 1,
		QPNum: p.QPNum, SRQ: p.SRQ,
	}
}

// Connect sends the connection request and waits for the reply. The ID needs a queue pair. For datagrams the reply has
// the peer's address, see [Event]. A rejection, or any event other than EventEstablished, is an *EventError.
//
// Implements: int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param)
func (id *ID) Connect(ctx context.Context, p ConnParam) (Event, error) {
	peer := id.PeerAddr().String()
	if err := id.use("rdma_connect", peer, func(raw *cgo.CMID) syscall.Errno { return id.lib.Connect(raw, p.raw()) }); err != nil {
		return Event{}, err
	}
	return id.expect(ctx, "connecting to", peer, EventEstablished)
}

// Listen makes a bound ID a listener. The kernel queues up to backlog requests.
//
// Implements: int rdma_listen(struct rdma_cm_id *id, int backlog)
func (id *ID) Listen(backlog int) error {
	return id.use("rdma_listen", id.LocalAddr().String(), func(raw *cgo.CMID) syscall.Errno { return id.lib.Listen(raw, backlog) })
}

// GetRequest waits for the next connection request of a listener and returns its ID,
// which the caller accepts or rejects, and closes. Request returns what the peer sent.
func (id *ID) GetRequest(ctx context.Context) (*ID, error) {
	for {
		if child := id.takeRequest(); child != nil {
			return child, nil
		}
		if err := id.pause(ctx); err != nil {
			return nil, err
		}
	}
}

func (id *ID) takeRequest() *ID {
	box := id.box.Lock()
	defer id.box.Unlock()
	if len(box.children) == 0 {
		return nil
	}
	child := box.children[0]
	box.children = box.children[1:]
	if len(box.children) > 0 {
		id.signal() // for the next waiter
	}
	return child
}

// refuseRequests rejects pending and future requests.
func (id *ID) refuseRequests() {
	box := id.box.Lock()
	box.refuse = true
	children := box.children
	box.children = nil
	id.box.Unlock()
	for _, child := range children {
		child.Reject(nil)
		child.Close()
	}
}

// Request returns the connection request of an ID from GetRequest.
func (id *ID) Request() Event { return id.request }

// Accept accepts the request and waits until the connection is established. The ID needs
// a queue pair, with receives posted for the peer's first messages.
//
// Implements: int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param)
func (id *ID) Accept(ctx context.Context, p ConnParam) (Event, error) {
	peer := id.PeerAddr().String()
	if err := id.use("rdma_accept", peer, func(raw *cgo.CMID) syscall.Errno { return id.lib.Accept(raw, p.raw()) }); err != nil {
		return Event{}, err
	}
	return id.expect(ctx, "accepting", peer, EventEstablished)
}

// Reject rejects the request. Private data is at most 148 bytes on InfiniBand and RoCE,
// 255 otherwise.
//
// Implements: int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
func (id *ID) Reject(privateData []byte) error {
	return id.use("rdma_reject", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.Reject(raw, privateData) })
}

// withdrawn rejects a request that could not be served, and reports whether the peer had already withdrawn it. The
// kernel raises no event for a withdrawal on an ID that has not been accepted, but rejecting the request fails with
// EINVAL.
func (id *ID) withdrawn() bool { return errors.Is(id.Reject(nil), syscall.EINVAL) }

// Disconnect ends the connection: the queue pair enters its error state, and both ends
// get EventDisconnected.
//
// Implements: int rdma_disconnect(struct rdma_cm_id *id)
func (id *ID) Disconnect() error {
	return id.use("rdma_disconnect", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.Disconnect(raw) })
}

// Migrate moves the ID to another channel, with its pending events. It must not be called
// from a Notify function.
//
// Implements: int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
func (id *ID) Migrate(to *EventChannel) error {
	id.life.Lock()
	defer id.life.Unlock()
	if id.raw == nil {
		return errClosed("rdma_migrate_id")
	}
	from := id.ch
	if from == to {
		return nil
	}
	// Both channels know the ID by its new number until it has moved. The old channel keeps the old number, because its
	// goroutine may hold an event with it.
	num := to.enter(id, 0, 0)
	if num == 0 {
		return errClosed("event channel")
	}
	for old := from.enter(id, 0, num); old != num; {
		if num < old {
			num = to.enter(id, num, old)
		} else {
			old = from.enter(id, old, num)
		}
	}
	id.lib.SetContext(id.raw, num)

	errno := id.lib.MigrateID(id.raw, to.raw)
	stays, leaves := to, from
	if errno != 0 {
		stays, leaves = from, to
	}
	leaves.forget(num)
	from.forget(id.num)
	id.ch, id.num = stays, num
	// The kernel moves pending events without waking pollers of the new channel.
	to.fd.Wake()
	return callError("rdma_migrate_id", "", errno)
}

// Options of rdma_set_option(3) at the level RDMA_OPTION_ID.
const (
	optionTOS = iota
	optionReuseAddr
	optionAFOnly
	optionAckTimeout
)

// SetTOS sets the type of service (RFC 2474) of the packets that the connection sends. It must be called before
// ResolveAddr.
//
// Implements: int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
func (id *ID) SetTOS(tos uint8) error { return id.setOption(optionTOS, int32(tos), 1) }

// SetReuseAddr allows binding to an address in use, as SO_REUSEADDR does.
func (id *ID) SetReuseAddr(on bool) error { return id.setOption(optionReuseAddr, toInt(on), 4) }

// SetAFOnly restricts a listener on an IPv6 address to IPv6, as IPV6_V6ONLY does. It must be called before BindAddr.
func (id *ID) SetAFOnly(on bool) error { return id.setOption(optionAFOnly, toInt(on), 4) }

// SetAckTimeout sets the time that the queue pair waits for an acknowledgement to 4.096 us * 2^exp, with exp from 0 to
// 31, instead of what the path suggests. It must be called before Connect or Accept. iWARP does not support it.
func (id *ID) SetAckTimeout(exp uint8) error { return id.setOption(optionAckTimeout, int32(exp), 1) }

func (id *ID) setOption(option int, value int32, size int) error {
	return id.use("rdma_set_option", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.SetOption(raw, 0, option, value, size) })
}

func toInt(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// LocalAddr returns the address that the ID is bound to.
//
// Implements: struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id)
// Implements: __be16 rdma_get_src_port(struct rdma_cm_id *id)
func (id *ID) LocalAddr() netip.AddrPort {
	return id.addr(id.lib.LocalAddr)
}

// PeerAddr returns the address of the peer.
//
// Implements: struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id)
// Implements: __be16 rdma_get_dst_port(struct rdma_cm_id *id)
func (id *ID) PeerAddr() netip.AddrPort {
	return id.addr(id.lib.PeerAddr)
}

func (id *ID) addr(get func(*cgo.CMID) cgo.Sockaddr) netip.AddrPort {
	id.life.RLock()
	defer id.life.RUnlock()
	if id.raw == nil {
		return netip.AddrPort{}
	}
	s := get(id.raw)
	return addrPort(&s)
}

// Verbs returns the device that the ID is bound to, or nil before it is bound. librdmacm owns the device's context and
// keeps it open.
func (id *ID) Verbs() *ibv.Context {
	id.life.RLock()
	defer id.life.RUnlock()
	if id.raw == nil {
		return nil
	}
	raw := id.lib.IDVerbs(id.raw)
	if raw == nil {
		return nil
	}
	return ibv.WrapOf(id.lib, raw)
}

// Port returns the port of the device that the ID is bound to, 0 for a closed ID.
func (id *ID) Port() uint8 {
	id.life.RLock()
	defer id.life.RUnlock()
	if id.raw == nil {
		return 0
	}
	return id.lib.IDPort(id.raw)
}

// Close destroys the ID. Its queue pair must be closed first: otherwise the error is syscall.EBUSY. A goroutine that
// waits on the ID gets net.ErrClosed, and pending requests of a listener are rejected. Closing twice is harmless. It
// must not be called from a Notify function.
//
// Implements: int rdma_destroy_id(struct rdma_cm_id *id)
func (id *ID) Close() error {
	id.life.Lock()
	raw, ch, num := id.raw, id.ch, id.num
	if raw != nil && id.qp.Load() {
		id.life.Unlock()
		return callError("rdma_destroy_id", "with a queue pair", syscall.EBUSY)
	}
	id.raw = nil
	id.life.Unlock()
	if raw == nil {
		return nil
	}
	box := id.box.Lock()
	box.closed = true
	close(id.gone)
	id.box.Unlock()
	id.refuseRequests()
	// Blocks until all events of the ID have been acknowledged.
	errno := id.lib.DestroyID(raw)
	if ch.forget(num) {
		go ch.Close() // waits for the channel's goroutine, which may be this one
	}
	return callError("rdma_destroy_id", "", errno)
}

// A cmAddr is an address in a port space of librdmacm, which is separate from TCP's.
type cmAddr struct{ netip.AddrPort }

// Network implements net.Addr.
func (cmAddr) Network() string { return "rdma" }

func netAddr(ap netip.AddrPort) net.Addr {
	if !ap.IsValid() {
		return nil
	}
	return cmAddr{ap}
}
