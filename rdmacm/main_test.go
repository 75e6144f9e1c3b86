//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/internal/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

func TestMain(m *testing.M) {
	openDevices()
	os.Exit(leak.Main(m))
}

// openDevices has librdmacm open the devices that tests use. It keeps them open as
// long as the process lives, and would seem to leak their descriptors.
func openDevices() {
	p, err := rdmacm.New(rdmacm.Config{})
	if err != nil {
		return // there are none
	}
	for _, addr := range rdmatest.Addrs() {
		if l, err := p.Listen(context.Background(), addr+":0", fabric.ConnAttr{}); err == nil {
			l.Close()
		}
	}
}
