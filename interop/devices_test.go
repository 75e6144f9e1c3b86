package interop

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Tests with RDMA devices have RDMA in their names. Each begins with
// requireDevice and skips where there is none; what the environment variable
// RPCRDMA_REQUIRE lists ("rxe,siw") is there, so that a test which would skip
// for want of it fails.

// Kinds of RDMA devices, as in "rdma link add ... type KIND".
const (
	rxe = "rxe" // RoCE, over UDP
	siw = "siw" // iWARP, over TCP
)

// descriptions is what the kernel's drivers write into node_desc. Daemons may
// write something else there, so a device of the usual name counts as well.
var descriptions = map[string]string{rxe: "rxe", siw: "Software iWARP stack"}

// sysfs is where the kernel lists RDMA devices.
const sysfs = "/sys/class/infiniband"

// requireDevice returns an IPv4 address at which a device of this kind is, or
// skips the test.
func requireDevice(t *testing.T, kind string) (addr string) {
	t.Helper()
	return require(t, kind, "ADDR")
}

// requireDevice6 is requireDevice with an IPv6 address.
func requireDevice6(t *testing.T, kind string) (addr string) {
	t.Helper()
	return require(t, kind, "ADDR6")
}

func require(t *testing.T, kind, which string) string {
	t.Helper()
	addr, lack := deviceAddr(sysfs, kind, which, os.Getenv)
	if lack != "" {
		lacking(t, kind, lack)
	}
	return addr
}

// requireProgram returns the path of a program that a test with a device of
// this kind needs, or skips the test.
func requireProgram(t *testing.T, kind, name, debian string) (path string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		lacking(t, kind, fmt.Sprintf("%v (Debian package %s)", err, debian))
	}
	return path
}

// lacking skips the test, or fails it where there must not be a lack.
func lacking(t *testing.T, kind, lack string) {
	t.Helper()
	if required(os.Getenv("RPCRDMA_REQUIRE"), kind) {
		t.Fatalf("RPCRDMA_REQUIRE lists %s, but %s", kind, lack)
	}
	t.Skipf("no test with %s here: %s", kind, lack)
}

// required reports whether a comma-separated list has kind in it.
func required(list, kind string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == kind })
}

// deviceAddr finds the address of a device: the kernel has to list one of the
// kind, and the environment has to say where it is, in RPCRDMA_KIND_ADDR or
// RPCRDMA_KIND_ADDR6. (The network device below siw cannot be found in sysfs.)
// It returns the address, or what is lacking.
func deviceAddr(sysfs, kind, which string, getenv func(string) string) (addr, lack string) {
	devices, err := os.ReadDir(sysfs)
	if err != nil || len(devices) == 0 {
		return "", fmt.Sprintf("%s lists no RDMA device", sysfs)
	}
	var others []string
	found := ""
	for _, d := range devices {
		desc, _ := os.ReadFile(filepath.Join(sysfs, d.Name(), "node_desc"))
		if strings.HasPrefix(d.Name(), kind) || strings.TrimSpace(string(desc)) == descriptions[kind] {
			found = cmp.Or(found, d.Name())
		} else {
			others = append(others, d.Name())
		}
	}
	if found == "" {
		return "", fmt.Sprintf("none of the RDMA devices %s is of that kind", strings.Join(others, ", "))
	}
	name := "RPCRDMA_" + strings.ToUpper(kind) + "_" + which
	ip, err := netip.ParseAddr(getenv(name))
	if err != nil || ip.Is6() != (which == "ADDR6") {
		return "", fmt.Sprintf("%s does not say where device %s is, but %q", name, found, getenv(name))
	}
	return ip.String(), ""
}

// A device is found where there is one, and what is lacking is said.
func TestDeviceAddr(t *testing.T) {
	dir := func(devices map[string]string) string {
		dir := t.TempDir()
		for name, desc := range devices {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name, "node_desc"), []byte(desc+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	all := dir(map[string]string{"mlx5_0": "ConnectX", "rocep0s1": "rxe", "siw_eth8": "host siw_eth8"})
	env := map[string]string{
		"RPCRDMA_RXE_ADDR": "10.9.9.1", "RPCRDMA_RXE_ADDR6": "fd09:9::1",
		"RPCRDMA_SIW_ADDR": "fd09:8::1", "RPCRDMA_SIW_ADDR6": "siw",
	}
	for _, c := range []struct {
		dir, kind, which, addr, lack string
	}{
		{all, rxe, "ADDR", "10.9.9.1", ""},
		{all, rxe, "ADDR6", "fd09:9::1", ""},
		{all, siw, "ADDR", "", "does not say where device siw_eth8 is"},
		{all, siw, "ADDR6", "", "does not say where device siw_eth8 is"},
		{dir(nil), rxe, "ADDR", "", "lists no RDMA device"},
		{filepath.Join(all, "none"), rxe, "ADDR", "", "lists no RDMA device"},
		{dir(map[string]string{"mlx5_0": "ConnectX"}), rxe, "ADDR", "", "none of the RDMA devices mlx5_0 is"},
	} {
		addr, lack := deviceAddr(c.dir, c.kind, c.which, func(name string) string { return env[name] })
		if addr != c.addr || (lack == "") != (c.lack == "") || !strings.Contains(lack, c.lack) {
			t.Errorf("%s %s: found %q, lack %q; want %q, %q", c.kind, c.which, addr, lack, c.addr, c.lack)
		}
	}
	for list, want := range map[string]bool{"": false, "rxe": true, "siw, rxe": true, "rxe0": false, "siw": false} {
		if required(list, rxe) != want {
			t.Errorf("rxe is in %q: %t", list, !want)
		}
	}
}
