//go:build linux && cgo

package provider

import "testing"

// A device without an address, or on a network device that is down, serves no client.
func TestRDMADevicesLack(t *testing.T) {
	d := Device{Name: "x0", Ports: []Port{{Port: 1, State: "down"}, {Port: 2, State: "active"}}, Addresses: []Address{{"192.0.2.1", 1, "eth0"}}}
	if err := d.lacks(); err == nil || err.Error() != "no IP address leads to it: 'ip addr add ADDRESS/LENGTH dev eth0'" {
		t.Error(err)
	}
	d.Addresses[0].Port = 2
	if err := d.lacks(); err != nil {
		t.Error(err)
	}
	d.Ports[1].State = "active_defer"
	if err := d.lacks(); err == nil || err.Error() != "no port is active (port 1 is down, port 2 is active defer): plug in the cable, or 'ip link set eth0 up'" {
		t.Error(err)
	}
}
