//go:build linux && cgo

package rdmacm_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// TestPersonalities runs the conformance suite on adapters that are not at hand, as far as their
// drivers describe them. The cost of the fake is not that of an adapter.
func TestPersonalities(t *testing.T) {
	groups := []string{"Setup", "Message", "Memory", "Window", "Fence", "Progress", "End"}
	for _, a := range cgotest.Personalities {
		if !a.Carries {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			var p *rdmacm.Provider
			var d *cgotest.Device
			provider := func(t testing.TB) fabric.Provider {
				lib := cgotest.New(t)
				d = lib.AddAdapter(&a, fakeAddr)
				var err error
				if p, err = rdmacm.NewOn(lib, rdmacm.Config{}); err != nil {
					t.Fatal(err)
				}
				return p
			}
			limits := fabrictest.Limits{Shortage: fabrictest.ShortageWaits, PaddedPrivateData: true}
			provider(t).Close()
			if d.Info.Transport == cgotest.TransportIWARP {
				limits = fabrictest.Limits{Shortage: fabrictest.ShortageEnds, CoarseEnd: true, CoarseStatus: true}
			}
			fabrictest.Run(t, fabrictest.Config{
				New: provider, Addr: fakeAddr.String() + ":0", Timeout: 10 * time.Second, Bulk: 1 << 20, Groups: groups, Limits: limits,
				Live: func() (conns, mrs, mws int) {
					l := p.OpenObjects()
					return l.Conns, l.MRs, l.MWs
				},
			})
		})
	}
}

// TestWithoutConnections: an adapter that has none is refused, and the error says why.
func TestWithoutConnections(t *testing.T) {
	for _, a := range cgotest.Personalities {
		if a.Carries {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			lib := cgotest.New(t)
			lib.AddAdapter(&a, fakeAddr)
			p, err := rdmacm.NewOn(lib, rdmacm.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if _, err := p.Resolve(soon(t), fakePeer, fabric.ConnAttr{}); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Resolve: %v", err)
			}
			if _, err := p.Listen(soon(t), fakeAddr.String()+":0", fabric.ConnAttr{}); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Listen: %v", err)
			}
		})
	}
}

// TestLies: an adapter with queue pairs that have less than it says works with that, or fails in words.
func TestLies(t *testing.T) {
	for _, tt := range []struct {
		name string
		lie  func(*cgotest.Device)
		sges int // that there are; 0: it fails
	}{
		{"none", func(*cgotest.Device) {}, 16},
		{"elements", func(d *cgotest.Device) { d.Nature.MaxSGE = 3 }, 2},
		{"one element", func(d *cgotest.Device) { d.Nature.MaxSGE = 1 }, 1},
		{"entries", func(d *cgotest.Device) { d.Nature.MaxWR = 10 }, 0},
		{"inline data", func(d *cgotest.Device) { d.MaxInline = 0 }, 16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lib := cgotest.New(t)
			d := lib.AddAdapter(&cgotest.Personalities[0], fakeAddr)
			tt.lie(d)
			p, err := rdmacm.NewOn(lib, rdmacm.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			for range 2 {
				c, err := p.Resolve(soon(t), fakePeer, fabric.ConnAttr{})
				if tt.sges == 0 {
					if !errors.Is(err, syscall.EINVAL) {
						t.Errorf("the error is %v", err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := c.Capabilities().MaxSendSGE; got != tt.sges {
					t.Errorf("%d elements, want %d", got, tt.sges)
				}
				c.Close()
			}
			if open := p.OpenObjects(); open != (rdmacm.OpenObjects{}) {
				t.Errorf("left open: %+v", open)
			}
		})
	}
}
