//go:build !linux || !cgo

package rdmacm

import (
	"context"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Provider cannot be created in this build.
type Provider struct{}

// New fails with [ErrNotBuilt].
func New(Config) (*Provider, error) { return nil, ErrNotBuilt }

// OpenObjects counts the objects of a provider that have not been closed: Conns, Listeners, memory regions (MRs) and
// memory windows (MWs).
type OpenObjects struct {
	Conns, Listeners, MRs, MWs int
}

// OpenObjects returns zero counts.
func (*Provider) OpenObjects() OpenObjects { return OpenObjects{} }

// Close does nothing.
func (*Provider) Close() error { return nil }

// Name implements fabric.Provider.
func (*Provider) Name() string { return "rdma" }

// Resolve fails with [ErrNotBuilt].
func (*Provider) Resolve(context.Context, string, fabric.ConnAttr) (fabric.Conn, error) {
	return nil, ErrNotBuilt
}

// Listen fails with [ErrNotBuilt].
func (*Provider) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return nil, ErrNotBuilt
}

var _ fabric.Provider = (*Provider)(nil)
