//go:build linux && cgo

package provider

import (
	"fmt"
	"strings"

	"github.com/rpcrdma/rpcrdma/ibv"
)

// words returns the names of the bits of a set, from the lowest. A bit without a name is "bit N".
func words(set uint64, names []string) []string {
	list := []string{}
	for i := range 64 {
		switch {
		case set>>i&1 == 0:
		case i < len(names) && names[i] != "":
			list = append(list, names[i])
		default:
			list = append(list, fmt.Sprintf("bit %d", i))
		}
	}
	return list
}

// deviceFlags returns the capabilities of a device in words. ex holds the upper half, if available.
func deviceFlags(flags ibv.DeviceCap, ex uint64) (list []string) {
	for i := range 32 {
		if bit := flags & (1 << i); bit != 0 {
			name := strings.TrimPrefix(bit.String(), "IBV_DEVICE_")
			if name == fmt.Sprintf("1<<%d", i) {
				name = fmt.Sprintf("bit %d", i)
			}
			list = append(list, strings.ToLower(name))
		}
	}
	return append(list, words(ex>>32<<32, []string{34: "raw_scatter_fcs", 36: "pci_write_end_padding"})...)
}

// portFlags returns enum ibv_port_cap_flags, and ibv_port_cap_flags2 if the port has it, in words.
func portFlags(flags uint32, flags2 uint16) []string {
	list := words(uint64(flags), []string{
		1: "sm", "notice", "trap", "opt_ipd", "auto_migr", "sl_map", "mkey_nvram", "pkey_nvram", "led_info",
		11: "sys_image_guid", 12: "pkey_sw_ext_port_trap", 14: "extended_speeds", "cap_mask2", "cm", "snmp_tunnel", "reinit", "device_mgmt",
		"vendor_class", "dr_notice", "cap_mask_notice", "boot_mgmt", "link_latency", "client_reg", "ip_based_gids",
	})
	return append(list, words(uint64(flags2), []string{
		"set_node_desc", "info_ext", "virt", "switch_port_state_table", "link_width_2x", "link_speed_hdr", 10: "link_speed_ndr",
	})...)
}

// odpWords returns enum ibv_odp_transport_cap_bits in words.
func odpWords(set uint32) []string {
	return words(uint64(set), []string{"send", "recv", "write", "read", "atomic", "srq"})
}

// typeWords returns a set of types of queue pairs in words.
func typeWords(set ibv.QPTypes) []string {
	return words(uint64(set), []string{2: "rc", "uc", "ud", 8: "raw_packet", "xrc_send", "xrc_recv"})
}

// rawPacketWords returns enum ibv_raw_packet_caps in words.
func rawPacketWords(set uint32) []string {
	return words(uint64(set), []string{"cvlan_stripping", "scatter_fcs", "ip_csum", "delay_drop"})
}

// physicalState returns the name of a physical state, of InfiniBand's PortInfo.
func physicalState(n uint8) string {
	names := []string{"no_change", "sleep", "polling", "disabled", "training", "link_up", "recovery", "test"}
	if int(n) < len(names) {
		return names[n]
	}
	return fmt.Sprint(n)
}

// lanes returns the number of lanes of an encoded width, and the Gb/s of a lane at an encoded speed, or 0 if unknown.
func lanes(width, speed uint8) (n int, gbps float64) {
	n = map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	gbps = map[uint8]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}[speed]
	return n, gbps
}
