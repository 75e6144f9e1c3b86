//go:build linux && cgo

package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
)

const name = "rdma"

// OpenObjects counts the objects of a provider that have not been closed: Conns, Listeners, memory regions (MRs) and
// memory windows (MWs).
type OpenObjects struct {
	Conns, Listeners, MRs, MWs int
}

// A Provider makes connections over RDMA devices. It is a fabric.Provider. It has one event channel with one goroutine
// while it has connections or listeners, and for 100 ms after that unless it is closed.
type Provider struct {
	cfg Config
	lib cgo.Library

	open struct{ conns, listeners, mrs, mws atomic.Int64 }

	held lockorder.Value[holdings]
}

// holdings are the objects of a Provider, guarded by Provider.held.
type holdings struct {
	channel   *EventChannel // kept while users > 0, and for linger afterwards
	users     int
	retirer   *time.Timer // closes an unused channel
	devices   map[*cgo.Context]*device
	listeners map[*Listener]struct{}
	closed    bool
}

// New returns a new Provider. It fails if the machine has no RDMA device or the process has no permission to use it.
func New(cfg Config) (*Provider, error) { return NewOn(cgo.RDMACore{}, cfg) }

// NewOn is New with an implementation of the libraries other than rdma-core. Tests of programs without a device can use
// package cgotest, with adapters that exist only in memory.
func NewOn(lib cgo.Library, cfg Config) (*Provider, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, lib: lib}
	*p.held.Init(lockorder.RdmacmProvider) = holdings{devices: make(map[*cgo.Context]*device), listeners: make(map[*Listener]struct{})}
	// Open the channel once to fail now rather than with the first connection.
	if _, err := p.acquire(); err != nil {
		return nil, err
	}
	p.release()
	return p, nil
}

// Name implements fabric.Provider.
func (p *Provider) Name() string { return name }

// Close implements fabric.Provider. The event channel is closed when the last connection
// is. The error is nil.
func (p *Provider) Close() error {
	h := p.held.Lock()
	h.closed = true
	list := slices.Collect(maps.Keys(h.listeners))
	p.held.Unlock()
	for _, l := range list {
		l.Close()
	}
	p.retire()
	return nil
}

// mayOpen returns nil until Close. The error names the operation and addr.
func (p *Provider) mayOpen(op, addr string) error {
	defer p.held.Unlock()
	if p.held.Lock().closed {
		return &net.OpError{Op: op, Net: name, Addr: opAddr(addr), Err: net.ErrClosed}
	}
	return nil
}

// An opAddr is an address as the caller passed it.
type opAddr string

func (opAddr) Network() string  { return name }
func (a opAddr) String() string { return string(a) }

// OpenObjects returns the current counts, for tests that check for leaks.
func (p *Provider) OpenObjects() OpenObjects {
	return OpenObjects{
		Conns: int(p.open.conns.Load()), Listeners: int(p.open.listeners.Load()),
		MRs: int(p.open.mrs.Load()), MWs: int(p.open.mws.Load()),
	}
}

// linger is how long an unused event channel stays open. Opening and closing a channel needs a tenth of the time of a
// connection's set-up.
const linger = 100 * time.Millisecond

// acquire returns a reference to the event channel, opening it if necessary.
func (p *Provider) acquire() (*EventChannel, error) {
	h := p.held.Lock()
	defer p.held.Unlock()
	if h.channel == nil {
		ch, err := newEventChannel(p.lib)
		if err != nil {
			return nil, err
		}
		h.channel = ch
	}
	h.users++
	return h.channel, nil
}

// release drops a reference. The last release starts the timer that closes the channel, or closes the channel if the
// provider is closed.
func (p *Provider) release() {
	h := p.held.Lock()
	h.users--
	closed := h.closed
	switch {
	case h.users > 0 || closed:
	case h.retirer == nil:
		h.retirer = time.AfterFunc(linger, p.retire)
	default:
		h.retirer.Reset(linger)
	}
	p.held.Unlock()
	if closed {
		p.retire()
	}
}

// retire closes the event channel if it has no user.
func (p *Provider) retire() {
	h := p.held.Lock()
	defer p.held.Unlock()
	if h.users == 0 && h.channel != nil {
		h.channel.leave()
		h.channel = nil
	}
}

// A device holds what the provider knows about an RDMA device.
type device struct {
	lib      cgo.Library
	ctx      *ibv.Context
	name     string
	iwarp    bool
	siw, rxe bool
	attr     cgo.DeviceAttr
	maxMsg   uint32
	windows  bool
	resizes  bool // completion queues can be resized
	weak     bool // invalidation does not stop an access in progress
	sendInv  bool
	withInv  uint32     // the flag of a completion that invalidated a window
	sinkBits ibv.Access // additional access rights for the sink of a Read

	inline atomic.Int32 // inline data to request, in bytes

	use    lockorder.Part[holdings, use]
	queues lockorder.Value[queues]
}

// A use tracks the provider's users of a device. It is guarded by Provider.held.
type use struct {
	users int     // connections, and listeners on this device only
	gone  bool    // the kernel removed it
	plug  *ibv.CQ // siw, while there are users; see plugEntries
}

// enterDevice counts a listener, or a connection before its objects are created, as a user of the device.
func (p *Provider) enterDevice(d *device) {
	u := d.use.Of(p.held.Lock())
	defer p.held.Unlock()
	u.users++
	if u.users == 1 && d.siw {
		// If this fails, connections may fail later with the reason.
		u.plug, _ = d.ctx.CreateCQ(plugEntries, nil, 0)
	}
}

// plugEntries makes a completion queue of siw 0x91 pages long. siw's library mistakes the map offset of page 0x90 for
// an invalid offset. The kernel assigns offsets from the first page on. Unless a mapping covers that page, the queue
// that would begin there cannot be created, and no connection can be created either.
//
// The plug is created with the first connection, although that doubles the time of its set-up. A plug created later
// might begin at that page itself, because all providers of a process share the offsets of a context. A listener
// creates the plug earlier.
const plugEntries = 0x91*4096/32 + 1

// leaveDevice stops counting a connection after its objects have been destroyed, or a listener while its ID still keeps
// the device.
func (p *Provider) leaveDevice(d *device) {
	u := d.use.Of(p.held.Lock())
	u.users--
	last := u.users == 0
	plug := u.plug
	if last {
		u.plug = nil
	}
	let := last && u.gone
	p.held.Unlock()
	if last && plug != nil {
		plug.Close()
	}
	if let {
		p.letGo()
	}
}

// removed records that the kernel removes the device. A device that appears later is another one, even if its context
// has the same address.
func (p *Provider) removed(d *device) {
	h := p.held.Lock()
	defer p.held.Unlock()
	d.use.Of(h).gone = true
	if h.devices[d.ctx.Raw()] == d {
		delete(h.devices, d.ctx.Raw())
	}
}

// letGo makes librdmacm update its list of devices, which closes removed devices. Until then the kernel cannot finish
// the removal.
//
// Implements: struct ibv_context **rdma_get_devices(int *num_devices)
// Implements: void rdma_free_devices(struct ibv_context **list)
func (p *Provider) letGo() {
	if list, _, errno := p.lib.GetDevices(); errno == 0 {
		p.lib.FreeDevices(list)
	}
}

// Bits of enum ibv_device_cap_flags.
const (
	capMemMgtExtensions = 1 << 21
	capWindowType2A     = 1 << 23
	capWindowType2B     = 1 << 24
)

const (
	transportIWARP = 1
	vendorSIW      = 0x626d74
	vendorRXE      = 0xffffff
)

// device returns the device that id is bound to.
func (p *Provider) device(id *ID) (d *device, err error) {
	ctx := id.Verbs()
	if ctx == nil {
		return nil, &CallError{Op: "rdma_resolve_addr", Addr: id.PeerAddr().String(), Errno: syscall.ENODEV}
	}
	h := p.held.Lock()
	defer p.held.Unlock()
	if d := h.devices[ctx.Raw()]; d != nil {
		return d, nil
	}
	attr, errno := p.lib.QueryDevice(ctx.Raw())
	if errno != 0 {
		return nil, callError("ibv_query_device", "", errno)
	}
	port, errno := p.lib.QueryPort(ctx.Raw(), id.Port())
	if errno != 0 {
		return nil, callError("ibv_query_port", "", errno)
	}
	info := p.lib.DeviceInfo(p.lib.ContextDevice(ctx.Raw()))
	d = &device{lib: p.lib, ctx: ctx, name: info.Name, attr: attr, maxMsg: port.MaxMsgSize, iwarp: info.Transport == transportIWARP}
	d.queues.Init(lockorder.RdmacmDevice)
	d.inline.Store(int32(p.cfg.MaxInline))
	d.windows = attr.MaxMW > 0 && attr.CapFlags&(capWindowType2A|capWindowType2B) != 0
	d.sendInv = attr.CapFlags&capMemMgtExtensions != 0
	d.withInv = wcWithInv
	if d.rxe = attr.VendorID == vendorRXE && !d.iwarp; d.rxe {
		d.windows = d.windows && p.cfg.UnsafeWindows
		d.withInv = rxeWithInv | wcWithInv
	}
	d.siw = d.iwarp && attr.VendorID == vendorSIW
	if !d.siw {
		if d.resizes, err = d.canResize(); err != nil {
			return nil, err
		}
	}
	if d.windows {
		if d.windows, err = d.makesWindows(); err != nil {
			return nil, err
		}
	}
	d.weak = d.siw || d.windows && attr.VendorID == vendorRXE
	if d.iwarp && !d.siw {
		// A Read response is a tagged message. Adapters check it against the peer's rights (RFC 5040 section 4.4). siw
		// does not.
		d.sinkBits = accessRemoteWrite
	}
	if d.maxMsg == 0 {
		d.maxMsg = 1 << 30
	}
	h.devices[ctx.Raw()] = d
	return d, nil
}

// canResize reports whether the driver can make completion queues longer. No attribute reports this.
func (d *device) canResize() (bool, error) {
	cq, err := d.ctx.CreateCQ(1, nil, 0)
	if err != nil {
		return false, err
	}
	defer cq.Close()
	return cq.Resize(2) == nil, nil
}

// makesWindows reports whether the library can create memory windows. The kernel's driver may announce support that the
// library lacks, as bnxt_re does.
func (d *device) makesWindows() (bool, error) {
	pd, err := d.ctx.AllocPD()
	if err != nil {
		return false, err
	}
	defer pd.Close()
	mw, err := pd.AllocMW(2)
	if err == nil {
		mw.Close()
	}
	return !errors.Is(err, errors.ErrUnsupported), nil
}

// Resolve implements fabric.Provider.
func (p *Provider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	if err := p.mayOpen("resolve", addr); err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, addr)
	if err != nil {
		return nil, err
	}
	var first error
	for _, ap := range addrs {
		c, err := p.resolve(ctx, ap, attr)
		if err == nil {
			return c, nil
		}
		first = cmp.Or(first, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (p *Provider) resolve(ctx context.Context, ap netip.AddrPort, attr fabric.ConnAttr) (*Conn, error) {
	ch, err := p.acquire()
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID()
	if err != nil {
		p.release()
		return nil, err
	}
	c, err := p.resolveID(ctx, id, ap, attr)
	if err != nil {
		id.Close()
		p.release()
		return nil, err
	}
	return c, nil
}

func (p *Provider) resolveID(ctx context.Context, id *ID, ap netip.AddrPort, attr fabric.ConnAttr) (*Conn, error) {
	if p.cfg.TOS != 0 {
		if err := id.SetTOS(p.cfg.TOS); err != nil {
			return nil, err
		}
	}
	if err := id.ResolveAddr(ctx, netip.AddrPort{}, ap, p.cfg.ResolveTimeout); err != nil {
		return nil, err
	}
	if err := id.ResolveRoute(ctx, p.cfg.ResolveTimeout); err != nil {
		return nil, err
	}
	c, err := p.newConn(id, attr, false)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return c, err
}

// lookup resolves "host:port" into addresses.
func lookup(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return nil, &net.AddrError{Err: "missing host", Addr: addr}
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	out := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return out, nil
}

// A Listener accepts connections to one address, or on all devices if that address is unspecified.
type Listener struct {
	p    *Provider
	id   *ID
	dev  *device // nil: of all devices
	attr fabric.ConnAttr
	addr net.Addr

	second *ID // for the other address family, or nil; forwards its requests to id

	stop  chan struct{} // closed by Close
	stand lockorder.Value[stand]
}

// A stand is the state of a Listener, guarded by Listener.stand. siw drops unanswered requests with their listener, so
// the listening ID stays open until they are answered.
type stand struct {
	unanswered int
	closed     bool
	cause      error // why the listener has ended without Close
}

// Listen implements fabric.Provider. An empty host listens on all devices, with
// IPv4 and IPv6.
func (p *Provider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	if err := p.mayOpen("listen", addr); err != nil {
		return nil, err
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	var listen func() (*Listener, error)
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		listen = func() (*Listener, error) { return p.listenBoth(uint16(port), attr) }
	} else {
		addrs, err := lookup(ctx, addr)
		if err != nil {
			return nil, err
		}
		listen = func() (*Listener, error) { return p.listen(addrs[0], attr) }
	}
	for try := 1; ; try++ {
		l, err := listen()
		if err == nil {
			return p.keep(l, addr)
		}
		if port != 0 || try == pickTries || !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return nil, err
		}
	}
}

// keep registers the listener, so that Close closes it. If Close has already been called, keep closes the listener.
func (p *Provider) keep(l *Listener, addr string) (fabric.Listener, error) {
	h := p.held.Lock()
	closed := h.closed
	if !closed {
		h.listeners[l] = struct{}{}
	}
	p.held.Unlock()
	if closed {
		l.Close()
		return nil, p.mayOpen("listen", addr)
	}
	return l, nil
}

// pickTries bounds the attempts to pick a free port. The port must be free for both address families and, on iWARP, for
// TCP.
const pickTries = 8

// listenBoth listens on all devices, with an ID for each address family. On iWARP an IPv6 listener receives no requests
// over IPv4.
func (p *Provider) listenBoth(port uint16, attr fabric.ConnAttr) (*Listener, error) {
	l, err := p.listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port), attr)
	if err != nil {
		return p.listen(netip.AddrPortFrom(netip.IPv4Unspecified(), port), attr) // without IPv6
	}
	v4, err := p.listenID(netip.AddrPortFrom(netip.IPv4Unspecified(), l.id.LocalAddr().Port()))
	if err != nil {
		l.Close()
		return nil, err
	}
	v4.box.Lock().forward = l.id
	v4.box.Unlock()
	l.second = v4
	return l, nil
}

func (p *Provider) listen(ap netip.AddrPort, attr fabric.ConnAttr) (*Listener, error) {
	id, err := p.listenID(ap)
	if err != nil {
		return nil, err
	}
	p.open.listeners.Add(1)
	l := &Listener{p: p, id: id, attr: attr, addr: netAddr(id.LocalAddr()), stop: make(chan struct{})}
	l.stand.Init(lockorder.RdmacmListener)
	if id.Verbs() != nil {
		if l.dev, err = p.device(id); err == nil {
			p.enterDevice(l.dev)
		} // otherwise connections may fail, with the reason
	}
	id.Notify(l.event)
	return l, nil
}

// event closes the listener if its device is removed.
func (l *Listener) event(ev Event) {
	if ev.Type != EventDeviceRemoval {
		return
	}
	go func() { // not on the channel's goroutine
		if l.dev != nil {
			l.p.removed(l.dev)
		}
		if s := l.stand.Lock(); !s.closed {
			s.cause = &DeviceError{Device: l.addr.String(), Errno: syscall.ENODEV}
		}
		l.stand.Unlock()
		l.Close()
		l.p.letGo()
	}()
}

// listenID creates a listening ID that holds a reference to the provider's channel.
func (p *Provider) listenID(ap netip.AddrPort) (*ID, error) {
	ch, err := p.acquire()
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID()
	if err != nil {
		p.release()
		return nil, err
	}
	if err := listenOn(id, ap, p.cfg.Backlog); err != nil {
		id.Close()
		p.release()
		return nil, err
	}
	return id, nil
}

func listenOn(id *ID, ap netip.AddrPort, backlog int) error {
	if ap.Addr().Is6() {
		if err := id.SetAFOnly(true); err != nil {
			return err
		}
	}
	if err := id.BindAddr(ap); err != nil {
		return err
	}
	if !ap.Addr().IsUnspecified() && id.Verbs() == nil {
		// Bound, but not to a device: no request could arrive.
		return &CallError{Op: "rdma_bind_addr", Addr: ap.String(), Errno: syscall.ENODEV}
	}
	return id.Listen(backlog)
}

// Addr implements fabric.Listener.
func (l *Listener) Addr() net.Addr { return l.addr }

// Accept implements fabric.Listener. A request that cannot be served for lack of resources, such as locked memory, is
// rejected and logged.
func (l *Listener) Accept(ctx context.Context) (fabric.Conn, error) {
	for {
		id, err := l.next(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := l.p.acquire(); err != nil {
			return nil, err // cannot happen: the listener has a reference
		}
		c, err := l.p.newConn(id, l.attr, true)
		if err == nil {
			if c.dev.iwarp {
				c.listener = l
				return c, nil
			}
			l.answered()
			return c, nil
		}
		l.answered()
		peer := slog.String("peer", id.PeerAddr().String())
		// Creating a queue pair for a withdrawn request fails with EINVAL.
		if id.withdrawn() && errors.Is(err, syscall.EINVAL) {
			l.p.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "connection request withdrawn", peer)
		} else {
			l.p.cfg.Logger.LogAttrs(ctx, slog.LevelError, "connection request rejected", peer, slog.Any("err", err))
		}
		id.Close()
		l.p.release()
	}
}

// next waits for a request, which from then on counts as unanswered.
func (l *Listener) next(ctx context.Context) (*ID, error) {
	for {
		s := l.stand.Lock()
		if s.closed {
			defer l.stand.Unlock()
			return nil, &net.OpError{Op: "accept", Net: name, Addr: l.addr, Err: cmp.Or(s.cause, net.ErrClosed)}
		}
		if id := l.id.takeRequest(); id != nil {
			s.unanswered++
			l.stand.Unlock()
			return id, nil
		}
		l.stand.Unlock()
		select {
		case <-l.id.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.stop:
		}
	}
}

// answered counts a request as answered. It destroys a closed listener after the last request.
func (l *Listener) answered() {
	s := l.stand.Lock()
	s.unanswered--
	last := s.closed && s.unanswered == 0
	l.stand.Unlock()
	if last {
		l.shut()
	}
}

// Close implements fabric.Listener. On iWARP the address stays in use, and requests are
// rejected, until all connections returned by Accept are accepted, rejected or closed.
func (l *Listener) Close() error {
	s := l.stand.Lock()
	if s.closed {
		l.stand.Unlock()
		return nil
	}
	s.closed = true
	last := s.unanswered == 0
	close(l.stop)
	l.stand.Unlock()
	delete(l.p.held.Lock().listeners, l)
	l.p.held.Unlock()
	l.id.refuseRequests()
	if last {
		l.shut()
	}
	return nil
}

func (l *Listener) shut() {
	if l.second != nil {
		l.second.Close()
		l.p.release()
	}
	if l.dev != nil {
		l.p.leaveDevice(l.dev)
	}
	l.id.Close()
	l.p.open.listeners.Add(-1)
	l.p.release()
}

// size replaces zeros with defaults and rejects values that exceed the device's limits.
func (d *device) size(attr fabric.ConnAttr) (fabric.ConnAttr, error) {
	maxWR := min(int(d.attr.MaxQPWR), maxDepth)
	maxIn := min(int(d.attr.MaxQPRdAtom), 255)
	maxOut := min(int(d.attr.MaxQPInitRdAtom), 255)
	for _, f := range []struct {
		what           string
		field          *int
		standard, most int
	}{
		{"send queue", &attr.SendDepth, d.standardSends(), maxWR - 1},
		{"receive queue", &attr.RecvDepth, 128, maxWR},
		{"inbound reads", &attr.InboundReads, 16, maxIn},
		{"outbound reads", &attr.OutboundReads, 16, maxOut},
	} {
		if *f.field == 0 {
			*f.field = min(f.standard, f.most)
		}
		if *f.field < 0 || *f.field > f.most {
			return attr, &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("%s of %d on %s: at most %d", f.what, *f.field, d.name, f.most)}
		}
	}
	return attr, nil
}

// standardSends returns a depth that, with the one internal request and the one entry that devices keep, makes a queue
// of a power of two. On rxe a request takes half a kilobyte, and a longer queue gains almost nothing: requests that do
// not fit are posted with the next completion. On siw a request takes 128 bytes. With a queue of 32, a call with 32
// outstanding takes 1.4 times the instructions.
func (d *device) standardSends() int {
	if d.rxe {
		return 30
	}
	return 126
}

// maxDepth bounds the memory of a work queue.
const maxDepth = 1 << 20

var _ fabric.Provider = (*Provider)(nil)
