//go:build linux && cgo

package ibv

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// TestMain looks for leaked goroutines and descriptors, and, where there are devices, for objects
// that the kernel still has.
func TestMain(m *testing.M) {
	before := resources()
	code := leak.Main(m)
	if code == 0 {
		after := resources()
		for end := time.Now().Add(5 * time.Second); after != before && time.Now().Before(end); after = resources() {
			time.Sleep(10 * time.Millisecond) // rxe frees objects after their last packet
		}
		if after != before {
			fmt.Fprintf(os.Stderr, "RDMA objects are left behind:\nbefore\n%safter\n%s", before, after)
			code = 99
		}
	}
	os.Exit(code)
}

// resources returns the kernel's counts of each kind of object, on every device.
func resources() string {
	out, err := exec.Command("rdma", "resource", "show").Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// patience bounds every wait in the tests.
const patience = 20 * time.Second

// soon is a context that ends when patience does.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// kindOf is the sort of a device by its name, as in "rxe" for "rxe0".
func kindOf(device string) string { return strings.TrimRight(device, "0123456789") }

// deviceNames lists the devices of the given kinds, or all devices if no kind is given. It skips the
// test when there is no device, unless RPCRDMA_REQUIRE says that there is.
func deviceNames(t testing.TB, kinds ...string) []string {
	t.Helper()
	var names []string
	for _, name := range inKernel() {
		if len(kinds) == 0 || slices.Contains(kinds, kindOf(name)) {
			names = append(names, name)
		}
	}
	for _, want := range rdmatest.Kinds() {
		if !rdmatest.Required(want) || len(kinds) > 0 && !slices.Contains(kinds, want) {
			continue
		}
		if !slices.ContainsFunc(names, func(n string) bool { return kindOf(n) == want }) {
			t.Fatalf("RPCRDMA_REQUIRE asks for %s, but %s has %q", want, sysDevices, inKernel())
		}
	}
	if len(names) == 0 {
		t.Skipf("no RDMA device in /sys/class/infiniband, of %s", cmp.Or(strings.Join(kinds, " or "), "any kind"))
	}
	return names
}

// onDevices runs f on each of the devices of those kinds, of any if none is named.
func onDevices(t *testing.T, kinds []string, f func(t *testing.T, c *Context)) {
	for _, name := range deviceNames(t, kinds...) {
		t.Run(name, func(t *testing.T) {
			c, err := Open(name)
			if err != nil {
				t.Fatal(err)
			}
			closing(t, c)
			f(t, c)
		})
	}
}

// closing closes something at the end of the test, and tells when that fails.
func closing(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing %T: %v", c, err)
		}
	})
}

// must unwraps the result of a call that may not fail, and has it closed.
func must[T interface{ Close() error }](t testing.TB) func(T, error) T {
	return func(x T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		closing(t, x)
		return x
	}
}

// mmapped is memory of its own.
func mmapped(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}
