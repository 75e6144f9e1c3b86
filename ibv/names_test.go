//go:build linux && cgo

package ibv

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestNamesMatchHeader holds what String returns against the names and numbers of
// the installed header.
func TestNamesMatchHeader(t *testing.T) {
	const header = "/usr/include/infiniband/verbs.h"
	f, err := os.Open(header)
	if err != nil {
		t.Skipf("no header: %v", err)
	}
	defer f.Close()
	numbers := make(map[string]uint32) // of the names of enums
	var next uint32
	shift := regexp.MustCompile(`^\(?1\s*<<\s*(\d+)\)?$`)
	member := regexp.MustCompile(`^\s*(IBV_[A-Z0-9_]+)\s*(?:=\s*([^,/]+?))?\s*(?:,|$|/)`)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "enum") {
			next = 0
		}
		m := member.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if s := shift.FindStringSubmatch(m[2]); s != nil {
			var bit int
			fmt.Sscan(s[1], &bit)
			next = 1 << bit
		} else if m[2] != "" {
			var n int64
			if _, err := fmt.Sscan(m[2], &n); err != nil {
				continue
			}
			next = uint32(n)
		}
		if _, ok := numbers[m[1]]; !ok { // or it continues a sum of others
			numbers[m[1]] = next
		}
		next++
	}
	// These two are written with the names of other constants.
	numbers["IBV_WC_IP_CSUM_OK"], numbers["IBV_ACCESS_RELAXED_ORDERING"] = 1<<2, 1<<20
	if len(numbers) < 200 {
		t.Fatalf("%s has %d names", header, len(numbers))
	}

	types := []struct {
		prefix string
		name   func(n uint32) string
		set    bool
		last   uint32 // the largest number, or bit, that has a name
	}{
		{"IBV_TRANSPORT_", func(n uint32) string { return Transport(n).String() }, false, 4},
		{"IBV_ACCESS_", func(n uint32) string { return Access(n).String() }, true, 7},
		{"IBV_MW_TYPE_", func(n uint32) string { return MWType(n).String() }, false, 2},
		{"IBV_WC_", func(n uint32) string { return WCStatus(n).String() }, false, 23},
		{"IBV_WC_", func(n uint32) string { return WCOpcode(n).String() }, false, 6},
		{"IBV_WC_", func(n uint32) string { return WCFlags(n).String() }, true, 1},
		{"IBV_DEVICE_", func(n uint32) string { return DeviceCap(n).String() }, true, 29},
		{"IBV_ATOMIC_", func(n uint32) string { return AtomicCap(n).String() }, false, 2},
		{"IBV_MTU_", func(n uint32) string { return MTU(n).String() }, false, 5},
		{"IBV_LINK_LAYER_", func(n uint32) string { return LinkLayer(n).String() }, false, 2},
		{"IBV_GID_TYPE_", func(n uint32) string { return GIDType(n).String() }, false, 2},
		{"IBV_FORK_", func(n uint32) string { return ForkStatus(n).String() }, false, 2},
		{"IBV_EVENT_", func(n uint32) string { return EventType(n).String() }, false, 19},
		{"IBV_QPS_", func(n uint32) string { return QPState(n).String() }, false, 7},
		{"IBV_MIG_", func(n uint32) string { return MigState(n).String() }, false, 2},
		{"IBV_QP_", func(n uint32) string { return AttrMask(n).String() }, true, 25},
		{"IBV_WR_", func(n uint32) string { return Opcode(n).String() }, false, 15},
		{"IBV_SEND_", func(n uint32) string { return SendFlags(n).String() }, true, 4},
		{"IBV_SRQ_", func(n uint32) string { return SRQAttrMask(n).String() }, true, 1},
		{"IBV_REREG_MR_", func(n uint32) string { return ReregFlags(n).String() }, true, 2},
		{"IBV_WC_EX_", func(n uint32) string { return WCFields(n).String() }, true, 11},
		{"IBV_CREATE_CQ_ATTR_", func(n uint32) string { return CQFlags(n).String() }, true, 1},
	}
	for i, tt := range types {
		found := 0
		for n := range uint32(32) {
			value := n
			if tt.set {
				value = 1 << n
			}
			got := tt.name(value)
			if !strings.HasPrefix(got, "IBV_") {
				continue
			}
			found++
			if number, ok := numbers[got]; !ok || number != value || !strings.HasPrefix(got, tt.prefix) {
				t.Errorf("type %d: %d is %s, which is %d (%v) in the header", i, value, got, number, ok)
			}
			if n == tt.last {
				found += 100
			}
		}
		if found < 100 {
			t.Errorf("type %d, %s: the last name is missing", i, tt.prefix)
		}
		unknown := uint32(200)
		if tt.set {
			unknown = 1 << 31
		}
		if got := tt.name(unknown); strings.HasPrefix(got, "IBV_") || got == "" {
			t.Errorf("type %d, %s: %d is %q", i, tt.prefix, unknown, got)
		}
	}
	for op := range Opcode(32) {
		name := "IBV_QP_EX_WITH_" + strings.TrimPrefix(op.String(), "IBV_WR_")
		if bit := uint32(SendOpsOf(op)); bit != 0 && numbers[name] != bit {
			t.Errorf("%s is %#x, and %#x in the header", name, bit, numbers[name])
		}
	}
	for name, want := range map[string]uint32{
		"IBV_WC_RECV_RDMA_WITH_IMM": uint32(WCRecvRDMAWithImm), "IBV_WC_RECV": uint32(WCRecv), "IBV_QPT_RC": uint32(QPTypeRC), "IBV_QPT_UC": uint32(QPTypeUC), "IBV_QPT_UD": uint32(QPTypeUD),
		"IBV_QP_RATE_LIMIT": uint32(AttrRateLimit), "IBV_NODE_RNIC": uint32(NodeRNIC), "IBV_NODE_UNSPECIFIED": uint32(NodeUnspecified),
		"IBV_PORT_ACTIVE": uint32(PortActive), "IBV_DEVICE_MEM_WINDOW_TYPE_2B": uint32(DeviceMemWindowType2B),
	} {
		if numbers[name] != want {
			t.Errorf("%s is %d in the header, %d here", name, numbers[name], want)
		}
	}
}

func TestSetStrings(t *testing.T) {
	for want, s := range map[string]fmt.Stringer{
		"0":                            AttrMask(0),
		"IBV_QP_STATE|IBV_QP_DEST_QPN": AttrState | AttrDestQPN,
		"IBV_QP_PORT|1<<30":            AttrPort | 1<<30,
		"IBV_WC_RECV":                  WCRecv,
		"IBV_WC_RECV_RDMA_WITH_IMM":    WCRecvRDMAWithImm,
		"IBV_WC_GRH|IBV_WC_WITH_INV":   WCGRH | WCWithInv,
		"IBV_ACCESS_RELAXED_ORDERING":  AccessRelaxedOrdering,
		"ibv_wc_status 99":             WCStatus(99),
		"ibv_wc_status -1":             WCStatus(-1),
		"0123:4567:89ab:cdef":          GUID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef},
		"10.9.9.1":                     GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 14: 9, 15: 1},
		"fe80::1":                      GID{0: 0xfe, 1: 0x80, 15: 1},
	} {
		if s.String() != want {
			t.Errorf("%q, want %q", s, want)
		}
	}
	for m := MTU(0); m < 7; m++ {
		if want := []int{0, 256, 512, 1024, 2048, 4096, 0}[m]; m.Bytes() != want {
			t.Errorf("%v is %d bytes", m, m.Bytes())
		}
	}
}

func TestErrors(t *testing.T) {
	for want, err := range map[string]error{
		"ibv: ibv_alloc_pd on rxe0: cannot allocate memory": &Error{Call: "ibv_alloc_pd", Device: "rxe0", Err: syscall.ENOMEM},
		"ibv: ibv_fork_init: invalid argument":              &Error{Call: "ibv_fork_init", Err: syscall.EINVAL},
		`ibv: no RDMA device "x"; there are: rxe0, siw0`:    &NoDeviceError{Name: "x", Devices: []string{"rxe0", "siw0"}},
		"ibv: ibv_poll_cq on rxe0: ibv: closed":             &Error{Call: "ibv_poll_cq", Device: "rxe0", Err: ErrClosed},
		"ibv: ibv_post_send on rxe0: work request 3 of the list: cannot allocate memory": &PostError{
			Call: "ibv_post_send", Device: "rxe0", Index: 3, Err: syscall.ENOMEM,
		},
		"ibv: ibv_dealloc_pd on rxe0: the protection domain is still used by 2 memory regions, 1 queue pair: close its users first": &BusyError{
			Call: "ibv_dealloc_pd", Device: "rxe0", Object: "protection domain", Users: []string{"2 memory regions", "1 queue pair"},
		},
		"ibv: ibv_dealloc_pd on rxe0: the protection domain is still used by an object that this package has not created: close its users first": &BusyError{
			Call: "ibv_dealloc_pd", Device: "rxe0", Object: "protection domain",
		},
		"ibv: work request 0x11 of queue pair 3: IBV_WC_REM_ACCESS_ERR: remote access error (vendor error 0x8)": &WCError{
			ID: 17, Status: WCRemAccessErr, VendorErr: 8, QPNum: 3,
		},
	} {
		if err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	for _, target := range []error{ErrClosed, net.ErrClosed, os.ErrClosed} {
		if !errors.Is(&Error{Call: "ibv_poll_cq", Err: ErrClosed}, target) {
			t.Errorf("ErrClosed is not %v", target)
		}
	}
	if errors.Is(ErrClosed, syscall.EINVAL) {
		t.Error("ErrClosed is everything")
	}
	msg := (&NoDeviceError{InKernel: []string{"mlx5_0"}}).Error()
	if !strings.Contains(msg, "mlx5_0") || !strings.Contains(msg, "ibverbs-providers") || !strings.Contains(msg, "ib_uverbs") {
		t.Errorf("a kernel's device without a provider: %s", msg)
	}
	ok := WC{Status: WCSuccess}
	if ok.Err() != nil {
		t.Error("success is an error")
	}
}
