// Package testbed provides tests with a fabric provider to run on: the software adapter, or an RDMA device that
// [rdmatest] finds.
package testbed

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// OpenDevices makes librdmacm open the devices that tests use. It keeps them open until the process exits, so a leak
// check must not see the first use. Call it from TestMain. Without devices it does nothing; tests that need one report
// that.
func OpenDevices() {
	p, err := rdmacm.New(rdmacm.Config{})
	if err != nil {
		return
	}
	defer p.Close()
	for _, addr := range rdmatest.Addrs() {
		if l, err := p.Listen(context.Background(), net.JoinHostPort(addr, "0"), fabric.ConnAttr{}); err == nil {
			l.Close()
		}
	}
}

// A Bed is a provider for both ends of a test.
type Bed struct {
	Provider fabric.Provider
	Host     string // IP address on which servers listen

	live func() (conns, mrs, mws int) // number of objects that the provider holds open
}

// Iwarp returns a Bed with the software adapter on the loopback interface.
func Iwarp() *Bed {
	p := iwarp.New(iwarp.Config{})
	return &Bed{Provider: p, Host: "127.0.0.1", live: func() (conns, mrs, mws int) {
		l := p.OpenObjects()
		return l.Conns, l.MRs, l.MWs
	}}
}

// Device returns a Bed with an RDMA device of the given kind, see [rdmatest.Kinds]. If none exists, it skips the test,
// or fails it if [rdmatest] requires the device.
func Device(t testing.TB, kind string) *Bed {
	t.Helper()
	host := rdmatest.Device(t, kind)
	p, err := rdmacm.New(rdmacm.Config{})
	if errors.Is(err, rdmacm.ErrNotBuilt) {
		rdmatest.Lacking(t, kind, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Bed{Provider: p, Host: host, live: func() (conns, mrs, mws int) {
		l := p.OpenObjects()
		return l.Conns, l.MRs, l.MWs
	}}
}

// Check fails the test if goroutines, descriptors or the provider's objects outlive it. Call
// it first: cleanups registered later run before the check.
func (b *Bed) Check(t testing.TB) {
	t.Helper()
	leak.Check(t)
	t.Cleanup(func() {
		if conns, mrs, mws := b.live(); conns != 0 || mrs != 0 || mws != 0 {
			t.Errorf("left open: %d connections, %d regions, %d windows", conns, mrs, mws)
		}
	})
}
