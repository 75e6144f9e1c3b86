package look

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// testDevices are a software device with unsafe windows, an adapter without a cable, and a
// device that may not be opened.
func testDevices() []provider.Device {
	return []provider.Device{
		{
			Name: "rxe0", Driver: "rxe", Transport: "roce", NodeGUID: "0200:00ff:fe00:0001", Firmware: "0.0.0", Usable: true,
			Addresses: []provider.Address{{Address: "192.0.2.1", Port: 1, NetworkDevice: "eth0"}, {Address: "2001:db8::1", Port: 1, NetworkDevice: "eth0"}},
			Ports: []provider.Port{{
				Port: 1, State: "active", LinkLayer: "ethernet", MTU: 1024, MaxMTU: 4096, MaxMessage: 8388608,
				PhysicalState: "link_up", NetworkDevice: "eth0", Width: 4, LaneSpeed: 25, Speed: 100, MaxVL: 1,
				Capabilities: []string{"cm"}, GIDTable: 1024, PkeyTable: 1, Pkeys: []string{"0xffff"},
				GIDs: []provider.GID{{Index: 0, GID: "fe80::ff:fe00:1", Type: "roce_v1", NetworkDevice: "eth0"}, {Index: 1, GID: "192.0.2.1", Type: "roce_v2", NetworkDevice: "eth0"}},
			}},
			Capabilities: &provider.Capabilities{
				MaxQP: 1048560, MaxQPRequests: 1048576, MaxSGE: 32, MaxReadSGE: 32, MaxCQ: 1048576, MaxCQEntries: 32767,
				MaxSRQ: 917503, MaxSRQRequests: 1048576, MaxMR: 524287, MaxMRBytes: 1<<64 - 1, MaxMW: 524287,
				MemoryWindows: []string{"type_1", "type_2b"}, SendWithInvalidate: true, Atomics: "device",
				InboundReads: 128, OutboundReads: 128, SharedInboundReads: 258048,
				Flags: []string{"srq_resize", "mem_window"}, PageSizes: 0x1000, MaxPD: 9, CompletionVectors: 2, AckDelay: 15,
				OnDemand:  provider.OnDemand{Supported: true, WholeMemory: true, RC: []string{"send", "recv"}},
				RawPacket: []string{"ip_csum"}, TSO: provider.Offload{Max: 65536, Types: []string{"ud"}},
			},
			SysImageGUID: "0200:00ff:fe00:0000", VendorID: 0xffffff, InUse: &provider.InUse{PD: 1, QP: 2},
		},
		{
			Name: "mlx5_0", Driver: "mlx5_core", Transport: "infiniband", NodeGUID: "0c42:a103:0065:bafe", Firmware: "20.31.1014",
			Reason:    "no port is active (port 1 is down, port 2 is active defer): plug in the cable, or 'ip link set ib0 up'",
			Addresses: []provider.Address{},
			Ports: []provider.Port{
				{Port: 1, State: "down", LinkLayer: "infiniband", MTU: 4096, MaxMTU: 4096, MaxMessage: 1 << 30, GIDs: []provider.GID{{Index: 0, GID: "fe80::1", Type: "ib", NetworkDevice: "ib0"}}},
				{Port: 2, State: "active_defer", LinkLayer: "unspecified", MTU: 2048, MaxMTU: 4096, MaxMessage: 1 << 30, GIDs: []provider.GID{}},
			},
			Capabilities: &provider.Capabilities{
				MaxQP: 131072, MaxQPRequests: 32768, MaxSGE: 30, MaxReadSGE: 30, MaxCQ: 16777216, MaxCQEntries: 4194303,
				MaxMR: 16777216, MaxMRBytes: 1 << 40, MaxMW: 16777216, MemoryWindows: []string{"type_1", "type_2b"}, SafeWindows: true,
				Atomics: "none", InboundReads: 16, OutboundReads: 16, SharedInboundReads: 2097152,
			},
		},
		{
			Name: "siw0", Driver: "unknown", Transport: "iwarp", NodeGUID: "0200:00ff:fe00:0002",
			InUseReason: "rdma resource: operation not supported",
			Reason:      "no permission to use siw0: this needs read and write access to /dev/infiniband/uverbs1",
			Addresses:   []provider.Address{}, Ports: []provider.Port{},
		},
	}
}

// TestDevicesGolden compares the output for people and for programs.
func TestDevicesGolden(t *testing.T) {
	for _, tt := range []struct {
		name      string
		devices   []provider.Device
		err       error
		contained bool
		verbose   bool
	}{
		{"devices", testDevices(), nil, false, false},
		{"verbose", testDevices(), nil, false, true},
		{"unusable", testDevices()[2:], nil, true, true},
		{"none", nil, errors.New("this machine has no RDMA device"), false, false},
		{"container", nil, errors.New("this machine has no RDMA device"), true, true},
		{"pure", nil, rdmacm.ErrNotBuilt, true, false},
	} {
		r := newReport(tt.devices, tt.err, tt.contained)
		var text, object bytes.Buffer
		if err := errors.Join(r.print(&text, tt.verbose), cli.PrintJSON(&object, r)); err != nil {
			t.Fatal(err)
		}
		testutil.Golden(t, filepath.Join("testdata", "devices", tt.name+".txt"), text.Bytes())
		testutil.Golden(t, filepath.Join("testdata", "devices", tt.name+".json"), object.Bytes())
		for line := range strings.Lines(text.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%s: a line of %d columns: %s", tt.name, n, line)
			}
		}
	}
}

// TestDevicesHelp checks that the help documents every key.
func TestDevicesHelp(t *testing.T) {
	help := NewDevices().Long
	object, err := json.Marshal(newReport(testDevices(), nil, false))
	if err != nil {
		t.Fatal(err)
	}
	var any any
	if err := json.Unmarshal(object, &any); err != nil {
		t.Fatal(err)
	}
	walkKeys(any, func(key string) {
		if !strings.Contains(help, key) {
			t.Errorf("the help of devices lacks %q", key)
		}
	})
}

func walkKeys(v any, f func(key string)) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			f(key)
			walkKeys(value, f)
		}
	case []any:
		for _, value := range v {
			walkKeys(value, f)
		}
	}
}
