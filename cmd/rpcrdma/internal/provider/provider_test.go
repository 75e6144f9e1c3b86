package provider

import (
	"errors"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// New has the three providers, and no other.
func TestNew(t *testing.T) {
	for _, name := range []string{IWARP, TCP} {
		p, err := New(name, rdmacm.Config{}, nil)
		if err != nil || p.Name() != name {
			t.Errorf("%v, %v", p, err)
		}
	}
	for _, name := range []string{"", Auto, "carrier-pigeon"} {
		if p, err := New(name, rdmacm.Config{}, nil); err == nil {
			t.Errorf("%q is %s", name, p.Name())
		}
	}
}

// Auto never fails: where no device is found it is IWARP, and says why.
func TestChoice(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:1", "[::1]:1", "localhost:1", ":1", "0.0.0.0:1"} {
		if c := ForDial(t.Context(), addr); c.Name != IWARP || !errors.Is(c.Err, ErrLoopback) || c.Devices != nil {
			t.Errorf("to %s: %+v", addr, c)
		}
	}
	for _, addr := range []string{"127.0.0.1:1", ":1", "nobody.invalid:1", "nonsense"} {
		c := ForListen(t.Context(), addr)
		if (c.Name == IWARP) != (c.Err != nil) || (c.Name == RDMA) != (len(c.Devices) > 0) || c.Name == RDMA && !HasDevices() {
			t.Errorf("at %s: %+v", addr, c)
		}
	}
}

// Each device is usable or says why not.
func TestDevices(t *testing.T) {
	devices, err := Devices()
	if (len(devices) == 0) != (err != nil) {
		t.Errorf("%d devices, %v", len(devices), err)
	}
	for _, d := range devices {
		if d.Usable != (d.Err == nil) || d.Usable != (d.Reason == "") || d.Usable != slices.Contains(Usable(devices), d.Name) {
			t.Errorf("%+v", d)
		}
	}
}

func TestUnspecified(t *testing.T) {
	for addr, want := range map[string]bool{
		":1": true, "0.0.0.0:1": true, "[::]:1": true, "host:1": false, "10.0.0.1:1": false, "nonsense": false,
	} {
		if Unspecified(addr) != want {
			t.Errorf("Unspecified(%q) is %v", addr, !want)
		}
	}
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true, "host:1": false, ":1": false, "10.0.0.1:1": false,
	} {
		if Loopback(addr) != want {
			t.Errorf("Loopback(%q) is %v", addr, !want)
		}
	}
}
