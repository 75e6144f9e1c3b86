//go:build linux && cgo

package cgotest

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// Events of the connection manager, see enum rdma_cm_event_type.
const (
	AddrResolved   = 0
	AddrError      = 1
	RouteResolved  = 2
	ConnectRequest = 4
	ConnectError   = 6
	Unreachable    = 7
	Rejected       = 8
	Established    = 9
	Disconnected   = 10
	DeviceRemoval  = 11
	MulticastJoin  = 12
	MulticastError = 13
)

type eventChannel struct {
	object
	signal *signal
	events []cmEvent
}

// A cmEvent is queued with its ID, and is delivered under the number that the ID has when the event is taken.
type cmEvent struct {
	cgo.CMEvent
	id, of *ID // of is the listener, for a connection request
}

func eventChannelOf(h *cgo.EventChannel) *eventChannel { return (*eventChannel)(unsafe.Pointer(h)) }

// An ID is a struct rdma_cm_id.
type ID struct {
	object

	f           *Library
	ch          *eventChannel
	context     uint64
	d           *Device
	local, peer netip.AddrPort
	qp          *QP
	param       *cgo.ConnParam
	ece         cgo.ECE

	other *ID  // the peer's, on a working device
	up    bool // the connection is established
	told  bool // notified that the peer has disconnected

	onDisconnect func()
}

func (id *ID) handle() *cgo.CMID { return (*cgo.CMID)(unsafe.Pointer(id)) }

// ID returns the ID for a handle.
func (f *Library) ID(h *cgo.CMID) *ID { return (*ID)(unsafe.Pointer(h)) }

// Requested returns the argument of Connect or Accept, or nil before that.
func (id *ID) Requested() *cgo.ConnParam {
	id.f.mu.Lock()
	defer id.f.mu.Unlock()
	return id.param
}

// OnDisconnect arranges for f to be called once within Disconnect, when the queue pair has failed: a device may
// complete and flush requests then.
func (id *ID) OnDisconnect(f func()) {
	id.f.mu.Lock()
	defer id.f.mu.Unlock()
	id.onDisconnect = f
}

// Raise raises an event of the ID.
func (id *ID) Raise(e cgo.CMEvent) {
	id.f.mu.Lock()
	defer id.f.mu.Unlock()
	id.raise(e)
}

func (id *ID) raise(e cgo.CMEvent) {
	if id.gone {
		return // as the kernel does
	}
	id.ch.events = append(id.ch.events, cmEvent{e, id, id})
	id.ch.signal.raise()
}

// auto raises an event of set-up, unless the test raises it. The caller must hold mu.
func (id *ID) auto(e cgo.CMEvent) {
	if !id.f.Manual {
		id.raise(e)
	}
}

// Request raises a connection request from a peer at a listener, through a device.
func (id *ID) Request(d *Device, peer netip.AddrPort, e cgo.CMEvent) {
	id.f.mu.Lock()
	defer id.f.mu.Unlock()
	child := &ID{f: id.f, ch: id.ch, d: d, local: netip.AddrPortFrom(d.addr, id.local.Port()), peer: peer}
	id.f.begin(&child.object, "id", &id.ch.object)
	e.Type = ConnectRequest
	id.ch.events = append(id.ch.events, cmEvent{e, child, id})
	id.ch.signal.raise()
}

// cmContext opens a device once and keeps it open, as librdmacm does.
func (f *Library) cmContext(d *Device) *context {
	if d.cm == nil {
		d.cm, _ = f.open(d)
	}
	return d.cm
}

// CreateEventChannel implements cgo.CM.
func (f *Library) CreateEventChannel() (*cgo.EventChannel, syscall.Errno) {
	errno := f.enter("rdma_create_event_channel")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	s, err := newSignal()
	if err != nil {
		return nil, syscall.EMFILE
	}
	ch := &eventChannel{signal: s}
	f.begin(&ch.object, "event channel")
	return (*cgo.EventChannel)(unsafe.Pointer(ch)), 0
}

// EventChannelFD implements cgo.CM.
func (f *Library) EventChannelFD(ch *cgo.EventChannel) int { return eventChannelOf(ch).signal.fd }

// DestroyEventChannel implements cgo.CM.
func (f *Library) DestroyEventChannel(ch *cgo.EventChannel) {
	f.destroy("rdma_destroy_event_channel", &eventChannelOf(ch).object)
	eventChannelOf(ch).signal.close()
}

// GetCMEvent implements cgo.CM.
func (f *Library) GetCMEvent(channel *cgo.EventChannel, out *cgo.CMEvent) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := eventChannelOf(channel)
	f.usable(&ch.object)
	if errno := f.failing("rdma_get_cm_event"); errno != 0 {
		return errno
	}
	if !ch.signal.take() {
		return syscall.EAGAIN
	}
	e := ch.events[0]
	ch.events = ch.events[1:]
	*out = e.CMEvent
	out.ID, out.Context = e.id.handle().Word(), e.of.context
	return 0
}

// CreateID implements cgo.CM.
func (f *Library) CreateID(ch *cgo.EventChannel, context uint64, ps int32) (*cgo.CMID, syscall.Errno) {
	errno := f.enter("rdma_create_id")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	id := &ID{f: f, ch: eventChannelOf(ch), context: context}
	f.begin(&id.object, "id", &id.ch.object)
	return id.handle(), 0
}

// SetContext implements cgo.CM.
func (f *Library) SetContext(id *cgo.CMID, context uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ID(id).context = context
}

// SetOption implements cgo.CM.
func (f *Library) SetOption(id *cgo.CMID, level, option int, value int32, size int) syscall.Errno {
	_, errno := f.use("rdma_set_option", id)
	f.mu.Unlock()
	return errno
}

// use begins a call on an ID. It returns with mu held.
func (f *Library) use(call string, h *cgo.CMID) (*ID, syscall.Errno) {
	errno := f.enter(call)
	id := f.ID(h)
	f.usable(&id.object)
	return id, errno
}

// MigrateID implements cgo.CM. Pending events move, too.
func (f *Library) MigrateID(h *cgo.CMID, ch *cgo.EventChannel) syscall.Errno {
	id, errno := f.use("rdma_migrate_id", h)
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	from, to := id.ch, eventChannelOf(ch)
	for _, e := range id.dropEvents() {
		to.events = append(to.events, e)
		to.signal.raise()
	}
	id.ch = to
	id.parents[0] = &to.object
	from.users--
	to.users++
	return 0
}

// dropEvents removes the events of the ID from its channel and returns them. The caller must hold mu.
func (id *ID) dropEvents() (mine []cmEvent) {
	id.ch.events = slices.DeleteFunc(id.ch.events, func(e cmEvent) bool {
		if e.id != id {
			return false
		}
		mine = append(mine, e)
		id.ch.signal.take()
		return true
	})
	return mine
}

// IDVerbs implements cgo.CM.
func (f *Library) IDVerbs(h *cgo.CMID) *cgo.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id := f.ID(h); id.d != nil {
		return f.cmContext(id.d).handle()
	}
	return nil
}

// IDPort implements cgo.CM.
func (f *Library) IDPort(*cgo.CMID) uint8 { return 1 }

// LocalAddr implements cgo.CM.
func (f *Library) LocalAddr(h *cgo.CMID) cgo.Sockaddr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sockaddr(f.ID(h).local)
}

// PeerAddr implements cgo.CM.
func (f *Library) PeerAddr(h *cgo.CMID) cgo.Sockaddr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sockaddr(f.ID(h).peer)
}

// sockaddr converts an IPv4 address to a struct sockaddr_in.
func sockaddr(ap netip.AddrPort) (s cgo.Sockaddr) {
	if !ap.IsValid() {
		return s
	}
	binary.NativeEndian.PutUint16(s[0:], syscall.AF_INET)
	binary.BigEndian.PutUint16(s[2:], ap.Port())
	addr := ap.Addr().As4()
	copy(s[4:], addr[:])
	return s
}

func addrPort(s *cgo.Sockaddr) netip.AddrPort {
	if binary.NativeEndian.Uint16(s[0:]) != syscall.AF_INET {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), binary.BigEndian.Uint16(s[2:]))
}

// DestroyID implements cgo.CM.
func (f *Library) DestroyID(h *cgo.CMID) syscall.Errno {
	id, errno := f.use("rdma_destroy_id", h)
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	if id.qp != nil {
		f.wrong("an ID is destroyed before its queue pair")
	}
	id.vanish()
	id.dropEvents()
	return f.end(&id.object)
}

// BindAddr implements cgo.CM. The fake supports only IPv4.
func (f *Library) BindAddr(h *cgo.CMID, addr *cgo.Sockaddr) syscall.Errno {
	id, errno := f.use("rdma_bind_addr", h)
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	ap := addrPort(addr)
	if !ap.IsValid() {
		return syscall.EAFNOSUPPORT
	}
	if !ap.Addr().IsUnspecified() {
		i := slices.IndexFunc(f.devices, func(d *Device) bool { return d.addr == ap.Addr() })
		if i < 0 {
			return syscall.EADDRNOTAVAIL
		}
		if !f.devices[i].NoConnections {
			id.d = f.devices[i]
		}
	}
	if ap.Port() != 0 && f.listener(&ID{peer: ap}) != nil {
		return syscall.EADDRINUSE
	}
	id.local = ap
	if ap.Port() == 0 {
		f.port++
		id.local = netip.AddrPortFrom(ap.Addr(), f.port)
	}
	return 0
}

// Listen implements cgo.CM.
func (f *Library) Listen(h *cgo.CMID, backlog int) syscall.Errno {
	id, errno := f.use("rdma_listen", h)
	defer f.mu.Unlock()
	if errno == 0 {
		f.listeners = append(f.listeners, id)
	}
	return errno
}

// ResolveAddr implements cgo.CM. The first device has a route to everywhere.
func (f *Library) ResolveAddr(h *cgo.CMID, src, dst *cgo.Sockaddr, timeout int) syscall.Errno {
	id, errno := f.use("rdma_resolve_addr", h)
	defer f.mu.Unlock()
	if errno == 0 && len(f.devices) == 0 {
		errno = syscall.ENODEV
	}
	if errno != 0 {
		return errno
	}
	f.port++
	id.d, id.peer = f.devices[0], addrPort(dst)
	if id.d.NoConnections {
		id.d = nil
		id.auto(cgo.CMEvent{Type: AddrError, Status: -int32(syscall.ENODEV)})
		return 0
	}
	id.local = netip.AddrPortFrom(id.d.addr, f.port)
	id.auto(cgo.CMEvent{Type: AddrResolved})
	return 0
}

// ResolveRoute implements cgo.CM.
func (f *Library) ResolveRoute(h *cgo.CMID, timeout int) syscall.Errno {
	return f.step("rdma_resolve_route", h, nil, cgo.CMEvent{Type: RouteResolved})
}

// step makes a call that leads to an event.
func (f *Library) step(call string, h *cgo.CMID, p *cgo.ConnParam, e cgo.CMEvent) syscall.Errno {
	id, errno := f.use(call, h)
	defer f.mu.Unlock()
	if errno == 0 {
		if p != nil {
			id.param = p
		}
		id.auto(e)
	}
	return errno
}

// CMCreateQP implements cgo.CM.
func (f *Library) CMCreateQP(h *cgo.CMID, pd *cgo.PD, init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
	return f.cmCreateQP("rdma_create_qp", h, pd, init)
}

// CMCreateQPEx implements cgo.CM.
func (f *Library) CMCreateQPEx(h *cgo.CMID, pd *cgo.PD, init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
	return f.cmCreateQP("rdma_create_qp_ex", h, pd, init)
}

func (f *Library) cmCreateQP(call string, h *cgo.CMID, pd *cgo.PD, init cgo.QPInit) (*cgo.QP, cgo.QPCap, syscall.Errno) {
	id, errno := f.use(call, h)
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, cgo.QPCap{}, errno
	}
	if id.qp != nil {
		return nil, cgo.QPCap{}, syscall.EINVAL
	}
	qp, errno := f.newQP(domainOf(pd).c, pd, init)
	if errno != 0 {
		return nil, cgo.QPCap{}, errno
	}
	id.qp = qp
	return qp.handle(), qp.cap, 0
}

// TakeQP implements cgo.CM.
func (f *Library) TakeQP(h *cgo.CMID) *cgo.QP {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.ID(h)
	f.usable(&id.object)
	qp := id.qp
	id.qp = nil
	return qp.handle()
}

// CMDestroyQP implements cgo.CM.
func (f *Library) CMDestroyQP(h *cgo.CMID) {
	id, _ := f.use("rdma_destroy_qp", h)
	defer f.mu.Unlock()
	if f.dropQP(id.qp) == 0 {
		id.qp = nil
	}
}

// Connect implements cgo.CM. The peer agrees to as many Reads as were requested.
func (f *Library) Connect(h *cgo.CMID, p *cgo.ConnParam) syscall.Errno {
	if id := f.ID(h); id.works() {
		id, errno := f.use("rdma_connect", h)
		defer f.mu.Unlock()
		if errno == 0 {
			errno = id.request(p)
		}
		return errno
	}
	return f.step("rdma_connect", h, p, cgo.CMEvent{Type: Established, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth})
}

// Accept implements cgo.CM.
func (f *Library) Accept(h *cgo.CMID, p *cgo.ConnParam) syscall.Errno {
	if id := f.ID(h); id.works() {
		id, errno := f.use("rdma_accept", h)
		defer f.mu.Unlock()
		if errno == 0 {
			errno = id.agree(p)
		}
		return errno
	}
	return f.step("rdma_accept", h, p, cgo.CMEvent{Type: Established})
}

// Reject implements cgo.CM.
func (f *Library) Reject(h *cgo.CMID, privateData []byte) syscall.Errno {
	id, errno := f.use("rdma_reject", h)
	defer f.mu.Unlock()
	if errno == 0 && id.works() {
		errno = id.refuse(privateData)
	}
	return errno
}

// RejectECE implements cgo.CM.
func (f *Library) RejectECE(h *cgo.CMID, privateData []byte) syscall.Errno {
	return f.used("rdma_reject_ece", h)
}

// SetLocalECE implements cgo.CM. The peer is the ID itself.
func (f *Library) SetLocalECE(h *cgo.CMID, ece cgo.ECE) syscall.Errno {
	id, errno := f.use("rdma_set_local_ece", h)
	defer f.mu.Unlock()
	if errno == 0 {
		id.ece = ece
	}
	return errno
}

// RemoteECE implements cgo.CM.
func (f *Library) RemoteECE(h *cgo.CMID) (cgo.ECE, syscall.Errno) {
	id, errno := f.use("rdma_get_remote_ece", h)
	defer f.mu.Unlock()
	return id.ece, errno
}

// used makes a call on an ID that changes nothing in the fake.
func (f *Library) used(call string, h *cgo.CMID) syscall.Errno {
	_, errno := f.use(call, h)
	f.mu.Unlock()
	return errno
}

// Establish implements cgo.CM.
func (f *Library) Establish(h *cgo.CMID) syscall.Errno {
	return f.used("rdma_establish", h)
}

// Disconnect implements cgo.CM.
func (f *Library) Disconnect(h *cgo.CMID) syscall.Errno {
	call(f, &f.ID(h).onDisconnect)
	if id := f.ID(h); id.works() {
		id, errno := f.use("rdma_disconnect", h)
		defer f.mu.Unlock()
		if errno == 0 {
			errno = id.part()
		}
		return errno
	}
	return f.step("rdma_disconnect", h, nil, cgo.CMEvent{Type: Disconnected})
}

// Notify implements cgo.CM.
func (f *Library) Notify(h *cgo.CMID, event int32) syscall.Errno {
	_, errno := f.use("rdma_notify", h)
	f.mu.Unlock()
	return errno
}

// InitQPAttr implements cgo.CM. It returns only the state.
func (f *Library) InitQPAttr(h *cgo.CMID, state int32) (attr cgo.QPAttr, mask int, errno syscall.Errno) {
	_, errno = f.use("rdma_init_qp_attr", h)
	f.mu.Unlock()
	return cgo.QPAttr{State: state}, 1, errno
}

// JoinMulticast implements cgo.CM. The group's identifier is its address.
func (f *Library) JoinMulticast(h *cgo.CMID, addr *cgo.Sockaddr, flags uint32) syscall.Errno {
	group := addrPort(addr).Addr()
	e := cgo.CMEvent{Type: MulticastJoin, QPNum: 0xffffff, Qkey: 0x01234567, AH: cgo.AHAttr{DGID: group.As16(), IsGlobal: 1, PortNum: 1}}
	return f.step("rdma_join_multicast", h, nil, e)
}

// LeaveMulticast implements cgo.CM.
func (f *Library) LeaveMulticast(h *cgo.CMID, addr *cgo.Sockaddr) syscall.Errno {
	_, errno := f.use("rdma_leave_multicast", h)
	f.mu.Unlock()
	return errno
}

// GetDevices implements cgo.CM. The list is empty.
func (f *Library) GetDevices() (list **cgo.Context, n int, errno syscall.Errno) {
	errno = f.enter("rdma_get_devices")
	f.mu.Unlock()
	return nil, 0, errno
}

// FreeDevices implements cgo.CM.
func (f *Library) FreeDevices(list **cgo.Context) {}
