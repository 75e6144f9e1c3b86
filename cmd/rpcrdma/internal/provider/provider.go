package provider

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The names of providers.
const (
	IWARP = "iwarp" // RDMA in software over TCP
	RDMA  = "rdma"  // a device of this machine
	Auto  = "auto"  // IWARP or RDMA: see [ForDial] and [ForListen]
	TCP   = "tcp"   // no RDMA: calls as records over TCP
)

// Reasons why Auto is not RDMA, in addition to errors of devices.
var (
	// ErrLoopback means that an address is on the loopback interface, which is not an RDMA device.
	ErrLoopback = errors.New("the loopback interface is not an RDMA device")
	// ErrNoUsableDevice means that there are devices, but [Devices] reports a problem with each of them.
	ErrNoUsableDevice = errors.New("none of the RDMA devices can be used")
)

// New returns the provider called name: IWARP, RDMA or TCP. cfg is used only by RDMA, and tls, which may be nil, only
// by IWARP. The error is [rdmacm.ErrNotBuilt] if this build does not have the provider.
func New(name string, cfg rdmacm.Config, tls *tls.Config) (fabric.Provider, error) {
	switch name {
	case IWARP:
		return iwarp.New(iwarp.Config{TLS: tls}), nil
	case RDMA:
		return rdmacm.New(cfg)
	case TCP:
		return transport.TCP{}, nil
	}
	return nil, fmt.Errorf("provider %q: want %s, %s or %s", name, IWARP, RDMA, TCP)
}

// A Choice is what Auto stands for.
type Choice struct {
	Name    string   // IWARP or RDMA
	Devices []string // for RDMA, names of the devices; not empty
	Err     error    // for IWARP, the reason why not RDMA; not nil
}

// ForDial chooses the provider for a connection to addr, HOST:PORT: RDMA if a device has a route to it. It takes up to
// 2 seconds for each of the host's addresses.
func ForDial(ctx context.Context, addr string) Choice {
	// For such an address the connection manager takes any device, and finds no route.
	if Unspecified(addr) || Loopback(addr) {
		return Choice{Name: IWARP, Err: ErrLoopback}
	}
	return choose(DeviceTo(ctx, addr))
}

// ForListen chooses the provider for a listener on addr, [HOST]:PORT: RDMA if a device has the address. On a machine
// with RDMA devices, all addresses means those of the devices; the others can only be reached by naming IWARP.
func ForListen(ctx context.Context, addr string) Choice {
	if !Unspecified(addr) {
		return choose(DeviceAt(ctx, addr))
	}
	devices, err := Devices()
	if err != nil {
		return Choice{Name: IWARP, Err: err}
	}
	names := Usable(devices)
	if len(names) == 0 {
		return Choice{Name: IWARP, Err: ErrNoUsableDevice}
	}
	return Choice{Name: RDMA, Devices: names}
}

func choose(device string, err error) Choice {
	if err != nil {
		return Choice{Name: IWARP, Err: err}
	}
	return Choice{Name: RDMA, Devices: []string{device}}
}

// Unspecified reports whether addr, [HOST]:PORT, has no host, or one that stands for all addresses.
func Unspecified(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// Loopback reports whether addr, HOST:PORT, is on the loopback interface.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
