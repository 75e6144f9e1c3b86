//go:build linux && cgo

package rdmacm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// ErrNotConnected is returned by calls that need an established connection before there
// is one.
var ErrNotConnected = errors.New("rdmacm: not connected yet")

// ErrMisuse is wrapped by errors of calls that are invalid in the state of the connection, such as Connect on a Conn
// from a Listener.
var ErrMisuse = errors.New("rdmacm: call out of place")

// ErrRejected is the cause in the ConnError of a Conn on which Reject was called.
var ErrRejected = errors.New("rdmacm: the request was rejected")

// ErrWithdrawn is the cause in the ConnError of a Conn if the peer withdrew its request before Accept.
var ErrWithdrawn = errors.New("rdmacm: the peer has withdrawn its request")

// A CallError is a failed call of librdmacm. It unwraps to its errno.
type CallError struct {
	Op    string // the C function
	Addr  string // the address concerned, or empty
	Errno syscall.Errno
}

func (e *CallError) Error() string {
	s := "rdmacm: " + e.Op
	if e.Addr != "" {
		s += " " + e.Addr
	}
	return s + ": " + e.Errno.Error() + e.advice()
}

// advice returns the likely fault and its remedy, or nothing.
func (e *CallError) advice() string {
	switch {
	case e.Op == "rdma_create_event_channel" && (e.Errno == syscall.ENODEV || e.Errno == syscall.ENOENT || e.Errno == syscall.ENOSYS):
		return " (there is no RDMA device, or the kernel's rdma_ucm module is not loaded: modprobe rdma_ucm)"
	case e.Op == "rdma_bind_addr" && e.Errno == syscall.EADDRNOTAVAIL:
		return " (no RDMA device has this address, or the port is taken on all addresses; 'rpcrdma devices' lists what there is)"
	case e.Op == "rdma_bind_addr" && e.Errno == syscall.EACCES:
		return " (a port below 1024 takes CAP_NET_BIND_SERVICE)"
	case e.Errno == syscall.EACCES || e.Errno == syscall.EPERM:
		return " (no permission on /dev/infiniband/rdma_cm: give the process its group, or the container the device)"
	case e.Op == "rdma_bind_addr" && (e.Errno == syscall.EADDRINUSE || e.Errno == syscall.EADDRNOTAVAIL && e.about(netip.Addr.IsUnspecified)):
		return " (the port is taken)"
	case e.Op == "rdma_connect" && e.Errno == syscall.EADDRNOTAVAIL:
		return " (the local port is taken: a TCP connection from it to this address ended a moment ago)"
	case e.Errno == syscall.EINVAL && e.about(netip.Addr.IsLoopback):
		return " (the loopback interface has no RDMA device: take an address that 'rpcrdma devices' lists)"
	case e.Errno == syscall.ENODEV || e.Errno == syscall.EADDRNOTAVAIL:
		return " (no RDMA device has this address; 'rpcrdma devices' lists what there is, and the loopback interface is none)"
	case e.Errno == syscall.ENETUNREACH || e.Errno == syscall.EHOSTUNREACH:
		return " (no RDMA device has a route to this address; 'rpcrdma devices' lists what there is)"
	case e.Errno == syscall.ECONNREFUSED:
		return " (nobody listens there)"
	}
	return ""
}

// about reports whether the call concerned an address that satisfies kind.
func (e *CallError) about(kind func(netip.Addr) bool) bool {
	ap, err := netip.ParseAddrPort(e.Addr)
	return err == nil && kind(ap.Addr())
}

func (e *CallError) Unwrap() error { return e.Errno }

func callError(op, addr string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return &CallError{Op: op, Addr: addr, Errno: errno}
}

// errClosed is the error of calls on a closed ID or channel.
func errClosed(what string) error { return fmt.Errorf("rdmacm: %s: %w", what, net.ErrClosed) }

// A DeviceError is the cause in the ConnError if the device failed or was removed. It unwraps to the errno of the call
// that failed.
type DeviceError struct {
	Device string
	Op     string // the C function, empty for an event
	Errno  syscall.Errno
}

func (e *DeviceError) Error() string {
	if e.Errno == syscall.ENODEV && e.Op == "" {
		return fmt.Sprintf("rdmacm: device %s has been removed", e.Device)
	}
	return fmt.Sprintf("rdmacm: device %s: %s: %v", e.Device, e.Op, e.Errno)
}

func (e *DeviceError) Unwrap() error { return e.Errno }

// A WCError is the cause in the ConnError if a request failed.
type WCError struct {
	Status    fabric.WCStatus
	VendorErr uint32 // a code of the device's vendor
	Op        fabric.WCOpcode
}

func (e *WCError) Error() string {
	if e.VendorErr != 0 {
		return fmt.Sprintf("rdmacm: request failed: %v (vendor error %#x)", e.Status, e.VendorErr)
	}
	return fmt.Sprintf("rdmacm: request failed: %v", e.Status)
}
