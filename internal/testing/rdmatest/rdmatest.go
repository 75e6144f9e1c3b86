// Package rdmatest finds the RDMA devices for tests, which scripts/vm and scripts/rdma set up and describe in
// environment variables.
//
// RPCRDMA_RXE_ADDR and RPCRDMA_SIW_ADDR are IPv4 addresses of devices; the same names with a 6 at the end are IPv6
// addresses. RPCRDMA_REQUIRE lists kinds of devices that must be present: a test for such a device fails where it would
// otherwise be skipped.
package rdmatest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Kinds returns the kinds of software devices: RoCE over UDP and iWARP over TCP.
func Kinds() []string { return []string{"rxe", "siw"} }

// Device returns the IPv4 address of a device of a kind. If none exists, it skips the test, or fails it if the kind is
// required.
func Device(t testing.TB, kind string) (addr string) {
	t.Helper()
	name := variable(kind, "ADDR")
	if addr = os.Getenv(name); addr == "" {
		Lacking(t, kind, lack(name, sysfs))
	}
	return addr
}

// Name returns the name of a device of a kind, as in "rxe0". If none exists, it skips or fails the test like Device.
func Name(t testing.TB, kind string) string {
	t.Helper()
	Device(t, kind)
	devices, err := os.ReadDir(sysfs)
	for _, d := range devices {
		if strings.HasPrefix(d.Name(), kind) {
			return d.Name()
		}
	}
	t.Fatalf("%s is set, and %s has no %s: %v", variable(kind, "ADDR"), sysfs, kind, err)
	return ""
}

// Device6 returns the IPv6 address of a device of a kind. If none exists, it skips the test, even if the kind is
// required.
func Device6(t testing.TB, kind string) (addr string) {
	t.Helper()
	name := variable(kind, "ADDR6")
	if addr = os.Getenv(name); addr == "" {
		t.Skip(lack(name, sysfs))
	}
	return addr
}

// Required reports whether devices of a kind must be present.
func Required(kind string) bool {
	return slices.Contains(strings.Split(os.Getenv("RPCRDMA_REQUIRE"), ","), kind)
}

// Lacking skips a test on a device of a kind because of what is missing, a clause such as "no device is present". It
// fails the test if the kind is required.
func Lacking(t testing.TB, kind, what string) {
	t.Helper()
	if Required(kind) {
		t.Fatalf("RPCRDMA_REQUIRE names %s, but %s", kind, what)
	}
	t.Skip(what)
}

// OnDevices runs a test on a device of each kind, as a subtest named after the kind.
func OnDevices(t *testing.T, f func(t *testing.T, kind, addr string)) {
	for _, kind := range Kinds() {
		t.Run(kind, func(t *testing.T) { f(t, kind, Device(t, kind)) })
	}
}

// Addrs returns the IPv4 addresses of all devices.
func Addrs() (addrs []string) {
	for _, kind := range Kinds() {
		if addr := os.Getenv(variable(kind, "ADDR")); addr != "" {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func variable(kind, which string) string { return "RPCRDMA_" + strings.ToUpper(kind) + "_" + which }

// sysfs is where the kernel lists RDMA devices.
const sysfs = "/sys/class/infiniband"

// lack returns the reason why a variable is not set.
func lack(variable, sysfs string) string {
	if devices, _ := os.ReadDir(sysfs); len(devices) == 0 {
		return fmt.Sprintf("no RDMA device is on this machine (%s is empty): run it with scripts/vm", sysfs)
	}
	return variable + " does not tell an address of a device"
}
