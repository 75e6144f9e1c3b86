//go:build linux && cgo

package ibv

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// ErrClosed is what calls on a closed object return. It is a net.ErrClosed and an
// os.ErrClosed, too.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string { return "ibv: closed" }

func (closedError) Is(target error) bool { return target == net.ErrClosed || target == os.ErrClosed }

// An Error is a call of libibverbs that failed.
type Error struct {
	Call   string // the C function
	Device string // as in "rxe0", empty when the call is about none
	Err    error  // a syscall.Errno
}

func (e *Error) Error() string {
	if e.Device == "" {
		return fmt.Sprintf("ibv: %s: %v", e.Call, e.Err)
	}
	return fmt.Sprintf("ibv: %s on %s: %v", e.Call, e.Device, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// A BusyError says that an object was closed before others that need it, and
// lives on. It unwraps to EBUSY.
type BusyError struct {
	Call   string
	Device string
	Object string   // what was to be closed, as in "protection domain"
	Users  []string // what needs it, as in "2 memory regions"; empty when only the kernel knows
}

func (e *BusyError) Error() string {
	users := "something that this package has not created"
	if len(e.Users) > 0 {
		users = strings.Join(e.Users, ", ")
	}
	return fmt.Sprintf("ibv: %s on %s: the %s is still used by %s: close users first", e.Call, e.Device, e.Object, users)
}

func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// A NoDeviceError says that there is no such device, or none at all. It unwraps
// to ENODEV.
type NoDeviceError struct {
	Name     string   // what was asked for, empty when anything would have done
	Devices  []string // those that there are
	InKernel []string // RDMA devices of the kernel that libibverbs does not offer
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

// A PermissionError says that the device may not be opened by this process. It
// unwraps to EACCES or EPERM.
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
