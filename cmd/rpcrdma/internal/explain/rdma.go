//go:build linux && cgo

package explain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// RDMA is Text for the errors of provider rdma.
func RDMA(err error) (text string, ok bool) {
	var (
		call       *rdmacm.CallError
		event      *rdmacm.EventError
		memlock    *ibv.MemlockError
		permission *ibv.PermissionError
		none       *ibv.NoDeviceError
		verbs      *ibv.Error
	)
	switch {
	case errors.As(err, &memlock):
		return fmt.Sprintf("this process may lock %s of memory and needs %s more on %s: "+
			"raise the limit (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock=-1 of containers)",
			memorySize(memlock.Limit), memorySize(memlock.Requested), memlock.Device), true
	case errors.As(err, &permission):
		return fmt.Sprintf("no permission to use %s: this needs read and write access to %s", permission.Device, permission.Path), true
	case errors.As(err, &none):
		return noDeviceText(none, InContainer()), true
	case errors.As(err, &call):
		return callText(call), true
	case errors.As(err, &event):
		return eventText(event), true
	case errors.As(err, &verbs):
		return fmt.Sprintf("%s on %s: %v", verbs.Call, verbs.Device, verbs.Err), true
	}
	return "", false
}

func noDeviceText(e *ibv.NoDeviceError, contained bool) string {
	if len(e.InKernel) == 0 {
		return "this machine has no RDMA device"
	}
	text := fmt.Sprintf("the kernel has %s, but the library does not offer it: ", Printable(fmt.Sprint(e.InKernel)))
	if contained {
		return text + "start the container with '--device /dev/infiniband', and have package ibverbs-providers (libibverbs on Fedora) in its image"
	}
	return text + "module ib_uverbs, package ibverbs-providers (libibverbs on Fedora) or the files of /dev/infiniband are missing"
}

// managerText returns advice for a missing connection manager. librdmacm checks for its device file, and for those of
// the adapters.
func managerText(errno syscall.Errno, contained bool) string {
	text := fmt.Sprintf("the RDMA connection manager is not there (%v): ", errno)
	if contained {
		return text + "start the container with '--device /dev/infiniband'; it is its host that needs module rdma_ucm"
	}
	return text + "'modprobe rdma_ucm' loads it"
}

// callText returns the reason why a call of librdmacm failed.
func callText(e *rdmacm.CallError) string {
	const channel = "/dev/infiniband/rdma_cm"
	switch {
	case e.Op == "rdma_create_event_channel":
		switch {
		case e.Errno == syscall.EACCES || e.Errno == syscall.EPERM:
			return "no permission to use RDMA devices: this needs read and write access to " + channel
		case !provider.HasDevices():
			return "this machine has no RDMA device"
		}
		if f, err := os.OpenFile(channel, os.O_RDWR, 0); err == nil {
			f.Close()
		} else if errors.Is(err, fs.ErrPermission) {
			return "no permission to use RDMA devices: this needs read and write access to " + channel
		}
		return managerText(e.Errno, InContainer())
	case taken(e):
		return e.Addr + ": address already in use"
	case e.Errno == syscall.EINVAL && e.Op == "rdma_resolve_addr":
		// The kernel returns this error for the loopback interface if that has had a device.
		return "no RDMA device has a route there" + seeDevices
	case noDevice(e.Errno) || e.Errno == syscall.EPERM || e.Errno == syscall.EACCES:
		if err := denied(); err != nil {
			return Text(err)
		}
		switch {
		case noDevice(e.Errno) && e.Op == "rdma_bind_addr":
			return "no RDMA device has the address of " + e.Addr + seeDevices
		case noDevice(e.Errno):
			return "no RDMA device has a route there" + seeDevices
		case e.Op == "rdma_bind_addr":
			return e.Addr + ": permission denied: ports below 1024 are for root"
		}
		return fmt.Sprintf("%v (%s)", e.Errno, e.Op)
	case e.Errno == syscall.ECONNREFUSED:
		return "connection refused"
	case e.Addr != "":
		return fmt.Sprintf("%s: %v (%s)", e.Addr, e.Errno, e.Op)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Errno)
}

// taken reports whether a port is in use. If another listener has it on all addresses, the kernel reports instead that
// a device's address is not available.
func taken(e *rdmacm.CallError) bool {
	if e.Errno != syscall.EADDRNOTAVAIL {
		return e.Errno == syscall.EADDRINUSE
	}
	if provider.Unspecified(e.Addr) {
		return true
	}
	_, err := provider.DeviceAt(context.Background(), e.Addr)
	return err == nil
}

// denied returns the error of a device that this process may not open, or nil. librdmacm silently skips such devices.
func denied() error {
	devices, _ := ibv.Devices()
	for _, d := range devices {
		dev, err := ibv.Open(d.Name)
		if err == nil {
			dev.Close()
		} else if errors.As(err, new(*ibv.PermissionError)) {
			return err
		}
	}
	return nil
}

// noDevice reports whether errno means that no device has the address, or a route to it.
func noDevice(errno syscall.Errno) bool {
	return errno == syscall.ENODEV || errno == syscall.EADDRNOTAVAIL || errno == syscall.ENETUNREACH
}

const seeDevices = ": 'rpcrdma devices' lists the devices"

// NoAnswer reports whether a connection failed because no server answered at the address.
func NoAnswer(err error) bool {
	if event, ok := errors.AsType[*rdmacm.EventError](err); ok {
		errno, _ := event.Unwrap().(syscall.Errno)
		return event.Event.Type == rdmacm.EventUnreachable || errno == syscall.ETIMEDOUT || noDevice(errno)
	}
	if call, ok := errors.AsType[*rdmacm.CallError](err); ok {
		return call.Errno == syscall.ETIMEDOUT || noDevice(call.Errno)
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// memorySize formats a number of bytes in KiB or MiB.
func memorySize(n uint64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/(1<<20)), ".0") + " MiB"
}

// eventText returns the reason for an error event of the connection manager.
func eventText(e *rdmacm.EventError) string {
	var what string
	switch errno, _ := e.Unwrap().(syscall.Errno); {
	case errno == syscall.EPERM || errno == syscall.EACCES || noDevice(errno):
		if err := denied(); err != nil {
			return Text(err)
		}
		if noDevice(errno) {
			return "no RDMA device has a route there" + seeDevices
		}
		what = errno.Error()
	case errno == syscall.ECONNREFUSED:
		what = "connection refused"
	case errno == syscall.ETIMEDOUT || e.Event.Type == rdmacm.EventUnreachable:
		what = "no answer"
	case errno != 0:
		what = errno.Error()
	default:
		what = fmt.Sprintf("status %d", e.Event.Status)
	}
	return fmt.Sprintf("%s (%v)", what, e.Event.Type)
}
