//go:build linux && cgo

package rdmacm_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

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
