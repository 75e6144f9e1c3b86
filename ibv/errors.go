//go:build linux && cgo

package ibv

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// ErrClosed is returned by calls on a closed object. It matches net.ErrClosed and os.ErrClosed with errors.Is.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string { return "ibv: closed" }

func (closedError) Is(target error) bool { return target == net.ErrClosed || target == os.ErrClosed }

// An Error is a failed call of libibverbs. It unwraps to its errno.
type Error struct {
	Call   string // the C function
	Device string // such as "rxe0"; empty if the call concerns no device
	Err    error  // a syscall.Errno
}

func (e *Error) Error() string {
	if e.Device == "" {
		return fmt.Sprintf("ibv: %s: %v", e.Call, e.Err)
	}
	return fmt.Sprintf("ibv: %s on %s: %v", e.Call, e.Device, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// A BusyError is the error of closing an object that is in use. The object stays open. It unwraps to EBUSY.
type BusyError struct {
	Call   string
	Device string
	Object string   // the object, such as "protection domain"
	Users  []string // its users, such as "2 memory regions"; empty if unknown
}

func (e *BusyError) Error() string {
	users := "an object that this package has not created"
	if len(e.Users) > 0 {
		users = strings.Join(e.Users, ", ")
	}
	return fmt.Sprintf("ibv: %s on %s: the %s is still used by %s: close its users first", e.Call, e.Device, e.Object, users)
}

func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// A NoDeviceError means that there is no such device, or no device at all. It unwraps to ENODEV.
type NoDeviceError struct {
	Name     string   // of the device; empty if any device is acceptable
	Devices  []string // names of the available devices
	InKernel []string // names of the kernel's devices that libibverbs does not support
}

func (e *NoDeviceError) Error() string {
	msg := "ibv: no RDMA device"
	if e.Name != "" {
		msg = fmt.Sprintf("ibv: no RDMA device %q", e.Name)
	}
	switch {
	case len(e.Devices) > 0:
		return msg + "; there are: " + strings.Join(e.Devices, ", ")
	case len(e.InKernel) > 0:
		return fmt.Sprintf("%s: the kernel has %s, but libibverbs offers none of them: load module ib_uverbs, "+
			"install the provider (package ibverbs-providers; libibverbs on Fedora), and give a container its files in /dev/infiniband", msg, strings.Join(e.InKernel, ", "))
	}
	return msg + ": the kernel has none either; load the adapter's module, or for a software device rdma_rxe or siw, " +
		"followed by: rdma link add rxe0 type rxe netdev NETDEV"
}

func (e *NoDeviceError) Unwrap() error { return syscall.ENODEV }

// A PermissionError means that the process has no permission to open a device. It unwraps to EACCES or EPERM.
type PermissionError struct {
	Device string
	Path   string // the character device
	Err    error
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("ibv: ibv_open_device on %s: %v: this process may not read and write %s (udev's default is mode 0666; "+
		"a container needs it as --device, and its cgroup's leave)", e.Device, e.Err, e.Path)
}

func (e *PermissionError) Unwrap() error { return e.Err }
