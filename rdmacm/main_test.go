//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
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
	for _, kind := range []string{"RXE", "SIW"} {
		if l, err := p.Listen(context.Background(), os.Getenv("RPCRDMA_"+kind+"_ADDR")+":0", fabric.ConnAttr{}); err == nil {
			l.Close()
		}
	}
}

// device returns an address of an RDMA device of the kind "rxe" or "siw", as
// scripts/vm and scripts/rdma set them up.
func device(t testing.TB, kind string) string {
	t.Helper()
	addr := os.Getenv("RPCRDMA_" + strings.ToUpper(kind) + "_ADDR")
	if addr != "" {
		return addr
	}
	if slices.Contains(strings.Split(os.Getenv("RPCRDMA_REQUIRE"), ","), kind) {
		t.Fatalf("RPCRDMA_REQUIRE names %s, and RPCRDMA_%s_ADDR is not set", kind, strings.ToUpper(kind))
	}
	devices, _ := os.ReadDir("/sys/class/infiniband")
	if len(devices) == 0 {
		t.Skipf("no RDMA device on this machine (/sys/class/infiniband is empty): run it with scripts/vm")
	}
	t.Skipf("RPCRDMA_%s_ADDR does not tell an address of a %s device", strings.ToUpper(kind), kind)
	return ""
}
