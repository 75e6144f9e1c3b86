//go:build !unix

package iwarp

import "github.com/rpcrdma/rpcrdma/fabric"

func (m *mapping) mapFile() error {
	return &fabric.CapabilityError{Provider: name, Capability: "foreign memory in a file on this system"}
}

func (m *mapping) unmap() {}
