//go:build linux && cgo

package ibv

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A Context is an open device. The opener closes it, after all objects created from it.
type Context struct {
	life
	lib  cgo.Library
	raw  *cgo.Context
	lent bool // librdmacm closes it
	info DeviceInfo

	rxe bool // an rxe device, whose library has faults to work around

	// turnover prevents objects from being created or destroyed between taking an event and looking up its object,
	// because the library reuses addresses.
	turnover sync.RWMutex
	objects  sync.Map // *QP, *CQ, *SRQ by Word

	asyncMu sync.Mutex
	async   *watch // created by the first AsyncEvent
}

// Open opens a device by name. The error for an unknown name is a [*NoDeviceError], which
// lists the names of the devices.
//
// Implements: struct ibv_context *ibv_open_device(struct ibv_device *device)
func Open(name string) (*Context, error) { return open(cgo.RDMACore{}, name) }

func open(lib cgo.Library, name string) (*Context, error) {
	var c *Context
	var names []string
	var failed error
	err := eachDevice(lib, func(d *cgo.Device) bool {
		info := infoOf(lib, d)
		names = append(names, info.Name)
		if info.Name != name {
			return true
		}
		raw, errno := lib.OpenDevice(d)
		if errno != 0 {
			failed = openError(name, errno)
		} else {
			c = newContext(lib, raw, info)
		}
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, failed
	case c == nil:
		slices.Sort(names)
		e := &NoDeviceError{Name: name, Devices: names}
		if len(names) == 0 {
			e.InKernel = inKernel()
		}
		return nil, e
	}
	return c, nil
}

// openError tries to open the device file itself. Without permission the library tries other ways and reports the errno
// of the last one.
func openError(name string, errno syscall.Errno) error {
	path := verbsPath(name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		f.Close()
	} else if errors.Is(err, fs.ErrPermission) {
		errors.As(err, &errno)
	}
	if errno == syscall.EACCES || errno == syscall.EPERM {
		return &PermissionError{Device: name, Path: path, Err: errno}
	}
	return &Error{Call: "ibv_open_device", Device: name, Err: errno}
}

// Wrap returns a Context for a device that librdmacm has opened and keeps owning: Close does not close the device. If
// there are several Contexts of a device, only one of them gets each asynchronous event.
func Wrap(raw *cgo.Context) *Context { return WrapOf(cgo.RDMACore{}, raw) }

// WrapOf is Wrap for a context of a library other than rdma-core: a fake, in tests.
func WrapOf(lib cgo.Library, raw *cgo.Context) *Context {
	c := newContext(lib, raw, infoOf(lib, lib.ContextDevice(raw)))
	c.lent = true
	return c
}

func newContext(lib cgo.Library, raw *cgo.Context, info DeviceInfo) *Context {
	const rxeVendor = 0xffffff
	attr, errno := lib.QueryDevice(raw)
	c := &Context{lib: lib, raw: raw, info: info, rxe: errno == 0 && attr.VendorID == rxeVendor}
	c.begin(aContext, info.Name)
	return c
}

// Raw returns the context for package cgo, valid until Close.
func (c *Context) Raw() *cgo.Context { return c.raw }

// Info returns what was known of the device before it was opened.
func (c *Context) Info() DeviceInfo { return c.info }

// Close closes the device and ends AsyncEvent. All objects created from the Context must be closed first.
//
// Implements: int ibv_close_device(struct ibv_context *context)
func (c *Context) Close() error {
	return c.end("ibv_close_device", func() syscall.Errno {
		c.asyncMu.Lock()
		defer c.asyncMu.Unlock()
		if c.async != nil {
			c.async.fd.Close()
		}
		if c.lent {
			return 0
		}
		return c.lib.CloseDevice(c.raw)
	})
}
