// Package rdmatest finds the RDMA devices that tests run on: those that scripts/vm and
// scripts/rdma set up, and tell of in the environment.
//
// RPCRDMA_RXE_ADDR and RPCRDMA_SIW_ADDR are addresses of devices, with a 6 at the end those
// of version 6. RPCRDMA_REQUIRE lists the kinds that are there: a test for one of them fails
// where it would be skipped.
package rdmatest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Kinds are the kinds of devices in software: RoCE over UDP and iWARP over TCP.
func Kinds() []string { return []string{"rxe", "siw"} }

// Device returns the IP address of an RDMA device of a kind. The test is skipped where there
// is none, and fails if there has to be one.
func Device(t testing.TB, kind string) (addr string) {
	t.Helper()
	name := variable(kind, "ADDR")
	if addr = os.Getenv(name); addr == "" {
		Lacking(t, kind, lack(name, sysfs))
	}
	return addr
}

// Device6 returns an address of IP version 6. A device that there has to be need not have one.
func Device6(t testing.TB, kind string) (addr string) {
	t.Helper()
	name := variable(kind, "ADDR6")
	if addr = os.Getenv(name); addr == "" {
		t.Skip(lack(name, sysfs))
	}
	return addr
}

// Lacking skips a test on a device of a kind for what is not there, which a sentence says, or
// fails it if it has to be there.
func Lacking(t testing.TB, kind, what string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("RPCRDMA_REQUIRE"), ","), kind) {
		t.Fatalf("RPCRDMA_REQUIRE names %s, but %s", kind, what)
	}
	t.Skip(what)
}

// OnDevices runs a test on a device of each kind, under the kind's name.
func OnDevices(t *testing.T, f func(t *testing.T, kind, addr string)) {
	for _, kind := range Kinds() {
		t.Run(kind, func(t *testing.T) { f(t, kind, Device(t, kind)) })
	}
}

// Addrs are the addresses of all devices that there are.
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

// lack says why a variable is not set.
func lack(variable, sysfs string) string {
	if devices, _ := os.ReadDir(sysfs); len(devices) == 0 {
		return fmt.Sprintf("no RDMA device is on this machine (%s is empty): run it with scripts/vm", sysfs)
	}
	return variable + " does not tell an address of a device"
}
