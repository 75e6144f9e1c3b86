//go:build !linux

package shm

import (
	"context"

	"github.com/rpcrdma/rpcrdma/fabric"
)

type state struct{}

var errNotLinux = &fabric.CapabilityError{Provider: name, Capability: "memory with seals, which Linux has"}

// Resolve implements fabric.Provider. It fails on systems other than Linux.
func (p *Provider) Resolve(context.Context, string, fabric.ConnAttr) (fabric.Conn, error) {
	return nil, errNotLinux
}

// Listen implements fabric.Provider. It fails on systems other than Linux.
func (p *Provider) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return nil, errNotLinux
}

// Close implements fabric.Provider. Its error is nil.
func (p *Provider) Close() error { return nil }

// OpenObjects returns the current counts, for tests that check for leaks.
func (p *Provider) OpenObjects() OpenObjects { return OpenObjects{} }
