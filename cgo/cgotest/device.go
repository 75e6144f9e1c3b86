//go:build linux && cgo

package cgotest

import (
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A Device is a fake RDMA device. Set its exported fields before it is used.
type Device struct {
	Info cgo.DeviceInfo
	Attr cgo.DeviceAttr
	Ex   cgo.DeviceAttrEx
	Port cgo.PortAttr

	// MaxInline is the maximum inline data of a queue pair in bytes.
	MaxInline uint32

	// CleansCQ: destroying a queue pair removes its completions, even those not polled yet.
	CleansCQ bool

	// NoWindows: no memory window can be allocated, whatever Attr says.
	NoWindows bool

	// NoConnections: the device supports only datagrams, and the connection manager does not know it.
	NoConnections bool

	// Nature, if not nil, makes the device execute requests by itself.
	Nature *Nature

	f    *Library
	addr netip.Addr
	cm   *context // librdmacm's, which stays open
}

// Vendors and transports that differ in behavior.
const (
	TransportIWARP = 1
	VendorSIW      = 0x626d74
	VendorRXE      = 0xffffff
)

// AddDevice adds a device with an IPv4 address: InfiniBand, with everything that ibv and rdmacm use. Set its transport
// and vendor to make it a different device.
func (f *Library) AddDevice(name string, addr netip.Addr) *Device {
	d := &Device{
		Info: cgo.DeviceInfo{Name: name, NodeType: 1},
		Attr: cgo.DeviceAttr{
			VendorID: 0x1234, CapFlags: memMgtExtensions | windowType2B, PhysPortCount: 1,
			MaxQP: 100, MaxQPWR: 4096, MaxSGE: 16, MaxSGERd: 16, MaxCQ: 100, MaxCQE: 65536, MaxMR: 100, MaxPD: 100, MaxMW: 100,
			MaxSRQ: 100, MaxSRQWR: 4096, MaxSRQSGE: 16, MaxQPRdAtom: 16, MaxQPInitRdAtom: 16, MaxMRSize: 1 << 40,
		},
		Port:      cgo.PortAttr{State: 4, MaxMsgSize: 1 << 30},
		MaxInline: 512, f: f, addr: addr,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.Info.Index = int32(len(f.devices))
	f.devices = append(f.devices, d)
	return d
}

// Unplug removes the device from the list. Open contexts stay usable.
func (d *Device) Unplug() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.devices = slices.DeleteFunc(d.f.devices, func(o *Device) bool { return o == d })
}

func (d *Device) handle() *cgo.Device { return (*cgo.Device)(unsafe.Pointer(d)) }

func deviceOf(h *cgo.Device) *Device { return (*Device)(unsafe.Pointer(h)) }

// A context is an open device.
type context struct {
	object
	d      *Device
	async  *signal
	events []cgo.AsyncEvent
}

func (c *context) handle() *cgo.Context { return (*cgo.Context)(unsafe.Pointer(c)) }

func contextOf(h *cgo.Context) *context { return (*context)(unsafe.Pointer(h)) }

// RaiseAsync raises an asynchronous event on a context of the device.
func (f *Library) RaiseAsync(ctx *cgo.Context, e cgo.AsyncEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := contextOf(ctx)
	c.events = append(c.events, e)
	c.async.raise()
}

// GetDeviceList implements cgo.Verbs.
func (f *Library) GetDeviceList() (devices []*cgo.Device, free func(), errno syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.failing("ibv_get_device_list"); errno != 0 {
		return nil, nil, errno
	}
	for _, d := range f.devices {
		devices = append(devices, d.handle())
	}
	return devices, func() {}, 0
}

// DeviceInfo implements cgo.Verbs.
func (f *Library) DeviceInfo(d *cgo.Device) cgo.DeviceInfo { return deviceOf(d).Info }

// OpenDevice implements cgo.Verbs.
func (f *Library) OpenDevice(d *cgo.Device) (*cgo.Context, syscall.Errno) {
	errno := f.enter("ibv_open_device")
	defer f.mu.Unlock()
	if errno != 0 {
		return nil, errno
	}
	c, err := f.open(deviceOf(d))
	if err != nil {
		return nil, syscall.EMFILE
	}
	f.begin(&c.object, "context")
	return c.handle(), 0
}

func (f *Library) open(d *Device) (*context, error) {
	s, err := newSignal()
	return &context{d: d, async: s}, err
}

// CloseDevice implements cgo.Verbs.
func (f *Library) CloseDevice(ctx *cgo.Context) syscall.Errno {
	errno := f.enter("ibv_close_device")
	defer f.mu.Unlock()
	if errno != 0 {
		return errno
	}
	c := contextOf(ctx)
	if errno := f.end(&c.object); errno != 0 {
		return errno
	}
	c.async.close()
	return 0
}

// ContextDevice implements cgo.Verbs.
func (f *Library) ContextDevice(ctx *cgo.Context) *cgo.Device { return contextOf(ctx).d.handle() }

// NumCompVectors implements cgo.Verbs.
func (f *Library) NumCompVectors(*cgo.Context) int { return 1 }

// QueryDevice implements cgo.Verbs.
func (f *Library) QueryDevice(ctx *cgo.Context) (cgo.DeviceAttr, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.failing("ibv_query_device"); errno != 0 {
		return cgo.DeviceAttr{}, errno
	}
	return contextOf(ctx).d.Attr, 0
}

// QueryPort implements cgo.Verbs.
func (f *Library) QueryPort(ctx *cgo.Context, port uint8) (cgo.PortAttr, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	errno := f.failing("ibv_query_port")
	if errno == 0 && port != 1 {
		errno = syscall.EINVAL
	}
	if errno != 0 {
		return cgo.PortAttr{}, errno
	}
	return contextOf(ctx).d.Port, 0
}

// QueryGIDTable implements cgo.Verbs. The table is empty.
func (f *Library) QueryGIDTable(*cgo.Context, int) ([]cgo.GIDEntry, syscall.Errno) { return nil, 0 }

// QueryGID implements cgo.Verbs.
func (f *Library) QueryGID(*cgo.Context, uint8, int) (gid [16]byte, errno syscall.Errno) {
	return gid, syscall.EINVAL
}

// QueryGIDEx implements cgo.Verbs. The table is empty.
func (f *Library) QueryGIDEx(*cgo.Context, uint8, int) (e cgo.GIDEntry, errno syscall.Errno) {
	return e, syscall.ENODATA
}

// PkeyIndex implements cgo.Verbs. There are no keys.
func (f *Library) PkeyIndex(*cgo.Context, uint8, uint16) (int, syscall.Errno) {
	return 0, syscall.EINVAL
}

// ResolveEthL2 implements cgo.Verbs. No address is known.
func (f *Library) ResolveEthL2(*cgo.Context, *cgo.AHAttr) (mac [6]byte, vlan uint16, errno syscall.Errno) {
	return mac, 0, syscall.EHOSTUNREACH
}

// QueryPkey implements cgo.Verbs.
func (f *Library) QueryPkey(*cgo.Context, uint8, int) (uint16, syscall.Errno) {
	return 0, syscall.EINVAL
}

// AsyncFD implements cgo.Verbs.
func (f *Library) AsyncFD(ctx *cgo.Context) int { return contextOf(ctx).async.fd }

// GetAsyncEvent implements cgo.Verbs.
func (f *Library) GetAsyncEvent(ctx *cgo.Context, out *cgo.AsyncEvent) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.failing("ibv_get_async_event"); errno != 0 {
		return errno
	}
	c := contextOf(ctx)
	if !c.async.take() {
		return syscall.EAGAIN
	}
	*out, c.events = c.events[0], c.events[1:]
	return 0
}
