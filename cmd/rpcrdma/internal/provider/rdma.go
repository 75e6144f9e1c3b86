//go:build linux && cgo

package provider

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// HasDevices reports whether the kernel has RDMA devices, usable or not.
func HasDevices() bool {
	entries, _ := os.ReadDir("/sys/class/infiniband")
	return len(entries) > 0
}

// DeviceTo returns the name of the RDMA device that has a route to addr, HOST:PORT.
func DeviceTo(ctx context.Context, addr string) (name string, err error) {
	const timeout = 2 * time.Second // that of rdmacm
	return firstDevice(ctx, addr, func(id *rdmacm.ID, ap netip.AddrPort) error {
		if err := id.ResolveAddr(ctx, netip.AddrPort{}, ap, timeout); err != nil {
			return err
		}
		return id.ResolveRoute(ctx, timeout)
	})
}

// DeviceAt returns the name of the RDMA device that has the address of addr, HOST:PORT.
func DeviceAt(ctx context.Context, addr string) (name string, err error) {
	return firstDevice(ctx, addr, func(id *rdmacm.ID, ap netip.AddrPort) error {
		// Do not bind the port, which may be in use, and must stay free for the listener.
		return id.BindAddr(netip.AddrPortFrom(ap.Addr(), 0))
	})
}

// firstDevice binds an ID to each address of addr until one has a device.
func firstDevice(ctx context.Context, addr string, bind func(*rdmacm.ID, netip.AddrPort) error) (string, error) {
	addrs, err := lookup(ctx, addr)
	if err != nil {
		return "", err
	}
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return "", err
	}
	defer ch.Close()
	var first error
	for _, ap := range addrs {
		name, _, err := boundTo(ch, func(id *rdmacm.ID) error { return bind(id, ap) })
		if err == nil {
			return name, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

// boundTo returns the device and port of an ID after bind has bound it.
func boundTo(ch *rdmacm.EventChannel, bind func(*rdmacm.ID) error) (name string, port uint8, err error) {
	id, err := ch.NewID()
	if err != nil {
		return "", 0, err
	}
	defer id.Close()
	if err := bind(id); err != nil {
		return "", 0, err
	}
	verbs := id.Verbs() // nil for all addresses, including those of the loopback interface
	if verbs == nil {
		return "", 0, &rdmacm.CallError{Op: "rdma_bind_addr", Addr: id.LocalAddr().Addr().String(), Errno: syscall.ENODEV}
	}
	return verbs.Info().Name, id.Port(), nil
}

// CheckServing fails if a listener on addr, [HOST]:PORT, could not serve connections, which the server would otherwise
// notice only with the first client. The connection manager listens on an address of the loopback interface, which no
// other machine can reach, and a device is useless if this process may not lock memory for a message.
func CheckServing(ctx context.Context, addr string) error {
	var names []string
	if !Unspecified(addr) {
		name, err := DeviceAt(ctx, addr)
		if err != nil {
			return err
		}
		names = append(names, name)
	} else if devices, err := ibv.Devices(); err == nil {
		for _, d := range devices {
			names = append(names, d.Name)
		}
	}
	var first error
	for _, name := range names {
		err := tryMemory(name)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// tryMemory registers memory for one message.
func tryMemory(device string) error {
	dev, err := ibv.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	return tryMemoryOn(dev)
}

func tryMemoryOn(dev *ibv.Context) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	mr, err := pd.RegMR(make([]byte, transport.DefaultMaxMessage), ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	return mr.Close()
}

// lookup resolves HOST:PORT.
func lookup(ctx context.Context, addr string) (addrs []netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return addrs, nil
}
