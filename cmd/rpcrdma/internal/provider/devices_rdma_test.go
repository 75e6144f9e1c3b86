//go:build linux && cgo

package provider

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

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

// An answer that is cut short, or of another form, is an error or has no attributes: it is never read
// beyond its end.
func TestNetlinkAnswers(t *testing.T) {
	message := func(typ byte, length int, body ...byte) []byte {
		return append([]byte{byte(length), 0, 0, 0, typ, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, body...)
	}
	refused := message(2, 20, 0xff, 0xff, 0xff, 0xff) // -EPERM
	refused[5] = 0
	for _, tc := range []struct {
		what   string
		answer []byte
		want   error
	}{
		{"nothing", nil, errNetlink},
		{"longer than it is", message(5, 24, 1, 2, 3, 4), errNetlink},
		{"shorter than a header", message(5, 8), errNetlink},
		{"an error without number", append([]byte{16, 0, 0, 0, 2, 0}, make([]byte, 10)...), errNetlink},
		{"a refusal", refused, syscall.EPERM},
		{"an attribute beyond the end", message(5, 20, 9, 0, 1, 0), errNetlink},
		{"an attribute without header", message(5, 20, 3, 0, 1, 0), errNetlink},
		{"two attributes", message(5, 30, 5, 0, 1, 0, 7, 0, 0, 0, 6, 0, 2, 0x80, 8, 9), nil},
	} {
		body, err := attributesOf(tc.answer)
		var seen []string
		if err == nil {
			err = eachAttr(body, func(typ uint16, value []byte) error {
				seen = append(seen, fmt.Sprint(typ, value))
				return nil
			})
		}
		if err != tc.want || err == nil && strings.Join(seen, " ") != "1 [7] 2 [8 9]" {
			t.Errorf("%s: %v, %s", tc.what, err, seen)
		}
	}
}
