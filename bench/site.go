package bench

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A Site is an adapter and an address on this machine, for both ends of a workload of this
// module.
type Site struct {
	Name    string  `json:"name"` // of the adapter and its configuration: siw/mode=event
	Host    string  `json:"host"`
	Adapter Adapter `json:"adapter"`

	over fabric.Provider // replaces the adapter; nil in a server-only process
}

// An Adapter has the parameters of a provider, for use in any process.
type Adapter struct {
	Device bool `json:"device,omitempty"` // an RDMA device, instead of the software adapter
	Shared bool `json:"shared,omitempty"` // shared memory, instead of either

	// For the software adapter.
	CRC     bool `json:"crc,omitempty"`
	TLS     bool `json:"tls,omitempty"`
	MaxFPDU int  `json:"max_fpdu,omitempty"` // bytes

	// For RDMA devices.
	Wait     rdmacm.WaitMode `json:"wait,omitempty"`
	Windows  bool            `json:"windows,omitempty"`   // even if they do not protect memory
	SharedCQ int             `json:"shared_cq,omitempty"` // entries
}

// provider returns a new provider.
func (a Adapter) provider() (fabric.Provider, error) {
	if a.Shared {
		return shm.New(shm.Config{}), nil
	}
	if !a.Device {
		cfg := iwarp.Config{CRC: a.CRC, MaxFPDU: a.MaxFPDU}
		if a.TLS {
			var err error
			if cfg.TLS, err = selfSigned(); err != nil {
				return nil, err
			}
		}
		return iwarp.New(cfg), nil
	}
	return rdmacm.New(rdmacm.Config{Wait: a.Wait, UnsafeWindows: a.Windows, SharedCQ: a.SharedCQ})
}

// Software is the software adapter on the loopback interface.
func Software(a Adapter) Site {
	s := Site{Name: "iwarp", Host: "127.0.0.1", Adapter: a}
	if a.CRC {
		s.Name += "/crc=on"
	}
	if a.TLS {
		s.Name += "/tls=on"
	}
	if a.MaxFPDU != 0 {
		s.Name += fmt.Sprintf("/mulpdu=%d", a.MaxFPDU)
	}
	return s
}

// Shared is shared memory.
func Shared() Site { return Site{Name: "shm", Adapter: Adapter{Shared: true}} }

// listen returns the address on which servers listen.
func (s Site) listen() string {
	if s.Adapter.Shared {
		return "@"
	}
	return net.JoinHostPort(s.Host, "0")
}

// OnDevice returns an RDMA device, of a kind such as rxe, at one of its addresses.
func OnDevice(kind, host string, a Adapter) Site {
	a.Device = true
	s := Site{Name: fmt.Sprintf("%s/mode=%v", kind, a.Wait), Host: host, Adapter: a}
	if a.Windows {
		s.Name += "/reg=mw"
	}
	return s
}

// Over returns a site with a provider that both ends share in this process, such as a simulated one or transport.TCP,
// at an address. Its workloads cannot be split.
func Over(name, host string, p fabric.Provider) Site { return Site{Name: name, Host: host, over: p} }

// tap is a provider that keeps its connections, to read their counters.
type tap struct {
	fabric.Provider
	mu    sync.Mutex
	conns []fabric.Conn
}

// tap returns the provider for one end of a workload.
func (s Site) tap() (*tap, error) {
	if s.over != nil {
		return &tap{Provider: s.over}, nil
	}
	p, err := s.Adapter.provider()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return &tap{Provider: p}, nil
}

// through returns the tap as a provider. For a provider of streams, it returns the provider itself.
func (t *tap) through() fabric.Provider {
	if p, ok := t.Provider.(transport.StreamProvider); ok {
		return p
	}
	return t
}

// maxTapped limits the connections that a tap keeps.
const maxTapped = 16

func (t *tap) add(c fabric.Conn, err error) (fabric.Conn, error) {
	if err == nil {
		t.mu.Lock()
		if len(t.conns) < maxTapped {
			t.conns = append(t.conns, c)
		}
		t.mu.Unlock()
	}
	return c, err
}

// forget drops all connections.
func (t *tap) forget() {
	t.mu.Lock()
	t.conns = nil
	t.mu.Unlock()
}

// Resolve implements fabric.Provider.
func (t *tap) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	return t.add(t.Provider.Resolve(ctx, addr, attr))
}

// Listen implements fabric.Provider.
func (t *tap) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	l, err := t.Provider.Listen(ctx, addr, attr)
	return tapListener{l, t}, err
}

type tapListener struct {
	fabric.Listener
	t *tap
}

// Accept implements fabric.Listener.
func (l tapListener) Accept(ctx context.Context) (fabric.Conn, error) {
	return l.t.add(l.Listener.Accept(ctx))
}

// counters returns the sum of the connections' counters.
func (t *tap) counters() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	var sum Counters
	for _, c := range t.conns {
		var n Counters
		if sw, ok := c.(*iwarp.Conn); ok {
			s := sw.Stats()
			n = Counters{Doorbells: s.Doorbells, Syscalls: s.Writev + s.Readv, Wakes: s.Wakes}
		} else {
			n = deviceCounters(c)
		}
		sum.Doorbells += n.Doorbells
		sum.CgoCalls += n.CgoCalls
		sum.Syscalls += n.Syscalls
		sum.Wakes += n.Wakes
	}
	return sum
}
