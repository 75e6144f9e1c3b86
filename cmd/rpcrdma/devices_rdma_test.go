//go:build linux && cgo

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// another runs a program of a Debian package on the device of a kind.
func another(t *testing.T, kind, debian, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		rdmatest.Lacking(t, kind, fmt.Sprintf("%v (Debian package %s)", err, debian))
	}
	return sh(t, name, args...)
}

// describedBy returns the device of a kind as devices --json has it.
func describedBy(t *testing.T, kind string) provider.Device {
	t.Helper()
	r := decodeJSON[look.ReportJSON](t, mustRun(t, "devices", "--json"))
	i := slices.IndexFunc(r.Devices, func(d provider.Device) bool { return d.Driver == kind })
	if i < 0 {
		t.Fatalf("no %s in %+v", kind, r)
	}
	return r.Devices[i]
}

// TestRDMADevicesDevinfo compares each line of ibv_devinfo -v that is about something that still exists.
func TestRDMADevicesDevinfo(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, _ string) {
		d := describedBy(t, kind)
		fields, words := devinfo(another(t, kind, "ibverbs-utils", "ibv_devinfo", "-v", "-d", d.Name))
		c, p := d.Capabilities, d.Ports[0]
		atomics := map[string]string{"none": "ATOMIC_NONE (0)", "device": "ATOMIC_HCA (1)"}[c.Atomics]
		want := map[string]string{
			"hca_id": d.Name, "fw_ver": d.Firmware, "node_guid": d.NodeGUID, "sys_image_guid": d.SysImageGUID,
			"vendor_id": fmt.Sprintf("0x%04x", d.VendorID), "vendor_part_id": fmt.Sprint(d.VendorPart), "hw_ver": fmt.Sprintf("0x%X", d.Hardware),
			"phys_port_cnt": fmt.Sprint(len(d.Ports)), "max_mr_size": fmt.Sprintf("0x%x", c.MaxMRBytes), "page_size_cap": fmt.Sprintf("0x%x", c.PageSizes),
			"max_qp": fmt.Sprint(c.MaxQP), "max_qp_wr": fmt.Sprint(c.MaxQPRequests), "max_sge": fmt.Sprint(c.MaxSGE), "max_sge_rd": fmt.Sprint(c.MaxReadSGE),
			"max_cq": fmt.Sprint(c.MaxCQ), "max_cqe": fmt.Sprint(c.MaxCQEntries), "max_mr": fmt.Sprint(c.MaxMR), "max_pd": fmt.Sprint(c.MaxPD),
			"max_qp_rd_atom": fmt.Sprint(c.InboundReads), "max_res_rd_atom": fmt.Sprint(c.SharedInboundReads),
			"max_qp_init_rd_atom": fmt.Sprint(c.OutboundReads), "atomic_cap": atomics, "max_mw": fmt.Sprint(c.MaxMW),
			"max_mcast_grp": fmt.Sprint(c.MulticastGroups), "max_mcast_qp_attach": fmt.Sprint(c.MulticastInGroup),
			"max_total_mcast_qp_attach": fmt.Sprint(c.MulticastMembers), "max_ah": fmt.Sprint(c.MaxAH),
			"max_srq": fmt.Sprint(c.MaxSRQ), "max_srq_wr": fmt.Sprint(c.MaxSRQRequests), "max_srq_sge": fmt.Sprint(c.MaxSRQSGE),
			"max_pkeys": fmt.Sprint(c.MaxPkeys), "local_ca_ack_delay": fmt.Sprint(c.AckDelay),
			"max_tso": fmt.Sprint(c.TSO.Max), "max_rwq_indirection_tables": fmt.Sprint(c.RSS.MaxTables),
			"max_rwq_indirection_table_size": fmt.Sprint(c.RSS.MaxTableSize), "rx_hash_function": fmt.Sprintf("0x%x", c.RSS.HashFunctions),
			"rx_hash_fields_mask": fmt.Sprintf("0x%X", c.RSS.HashFields), "max_wq_type_rq": fmt.Sprint(c.MaxWQ),
			"qp_rate_limit_min": fmt.Sprintf("%dkbps", c.PacketPacing.Min), "qp_rate_limit_max": fmt.Sprintf("%dkbps", c.PacketPacing.Max),
			"num_comp_vectors": fmt.Sprint(c.CompletionVectors),

			"port": fmt.Sprint(p.Port), "state": "PORT_ACTIVE (4)", "max_mtu": fmt.Sprintf("%d (5)", p.MaxMTU), "active_mtu": fmt.Sprint(p.MTU),
			"sm_lid": fmt.Sprint(p.SMLID), "port_lid": fmt.Sprint(p.LID), "port_lmc": fmt.Sprintf("0x%02x", p.LMC),
			"link_layer": map[string]string{"ethernet": "Ethernet"}[p.LinkLayer], "max_msg_sz": fmt.Sprintf("0x%x", p.MaxMessage),
			"bad_pkey_cntr": fmt.Sprintf("0x%x", p.BadPkeys), "qkey_viol_cntr": fmt.Sprintf("0x%x", p.BadQkeys), "sm_sl": fmt.Sprint(p.SMSL),
			"pkey_tbl_len": fmt.Sprint(p.PkeyTable), "gid_tbl_len": fmt.Sprint(p.GIDTable), "subnet_timeout": fmt.Sprint(p.SubnetTimeout),
			"init_type_reply": fmt.Sprint(p.InitTypeReply), "active_width": fmt.Sprintf("%dX", p.Width),
			"active_speed": strconv.FormatFloat(p.LaneSpeed, 'f', 1, 64) + " Gbps",
		}
		if p.PhysicalState == "link_up" {
			want["phys_state"] = "LINK_UP (5)"
		}
		for key, want := range want {
			got, ok := fields[key]
			if !ok && key == "phys_state" && kind == "siw" {
				continue // a device of iWARP has none there
			}
			if bare, _, found := strings.Cut(got, " ("); found && !strings.Contains(want, " (") {
				got = bare
			}
			if got != want {
				t.Errorf("%s: ibv_devinfo has %q, devices %q", key, got, want)
			}
		}
		if got := strings.ToUpper(strings.Join(c.Flags, " ")); got != strings.Join(words["device_cap_flags"], " ") {
			t.Errorf("flags are %s, ibv_devinfo has %s", got, words["device_cap_flags"])
		}
		for name, caps := range map[string][]string{"rc": c.OnDemand.RC, "uc": c.OnDemand.UC, "ud": c.OnDemand.UD, "xrc": c.OnDemand.XRC} {
			if got := words[name+"_odp_caps"]; len(caps) > 0 == slices.Contains(got, "NO SUPPORT") {
				t.Errorf("on-demand paging of %s is %s, ibv_devinfo has %s", name, caps, got)
			}
		}
		wantGIDs(t, kind, fields, p)
	})
}

// devinfo returns the lines of ibv_devinfo: values by name, and words by the name above them.
func devinfo(out string) (fields map[string]string, words map[string][]string) {
	fields, words = map[string]string{}, map[string][]string{}
	last := ""
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "\t\t\t\t\t") {
			words[last] = append(words[last], strings.TrimSpace(line))
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name], last = strings.TrimSpace(value), name
	}
	return fields, words
}

// wantGIDs compares the GIDs of a port of RoCE, with "::ffff:192.0.2.1" for 192.0.2.1.
func wantGIDs(t *testing.T, kind string, fields map[string]string, p provider.Port) {
	t.Helper()
	rows := 0
	for name, value := range fields {
		index, ok := strings.CutPrefix(name, "GID[")
		if !ok {
			continue
		}
		rows++
		n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(index, "]")))
		i := slices.IndexFunc(p.GIDs, func(g provider.GID) bool { return g.Index == n })
		if gid, typ, _ := strings.Cut(value, ", "); i < 0 || strings.TrimPrefix(gid, "::ffff:") != p.GIDs[i].GID || typ != "RoCE v2" || p.GIDs[i].Type != "roce_v2" {
			t.Errorf("%s: ibv_devinfo has %s, devices %+v", name, value, p.GIDs)
		}
	}
	if kind == "rxe" && rows != len(p.GIDs) {
		t.Errorf("ibv_devinfo has %d GIDs, devices %+v", rows, p.GIDs)
	}
}

// TestRDMADevicesNetlink compares with rdma link and rdma resource, while a server has objects.
func TestRDMADevicesNetlink(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		startServer(t, "--dir", t.TempDir(), "--provider", "rdma", "--addr", anyPort(addr))
		d := describedBy(t, kind)
		p := d.Ports[0]
		var links []struct {
			Device   string `json:"ifname"`
			Port     int    `json:"port"`
			State    string `json:"state"`
			Physical string `json:"physical_state"`
			Netdev   string `json:"netdev"`
		}
		decode(t, another(t, kind, "iproute2", "rdma", "-j", "link", "show", d.Name+"/1"), &links)
		if l := links[0]; l.Device != d.Name || l.Port != 1 || l.State != strings.ToUpper(p.State) || l.Physical != strings.ToUpper(p.PhysicalState) || l.Netdev != p.NetworkDevice || l.Netdev == "" {
			t.Errorf("rdma link has %+v, devices %+v", l, p)
		}
		var used []map[string]any
		decode(t, another(t, kind, "iproute2", "rdma", "-j", "resource", "show", d.Name), &used)
		if d.InUse == nil {
			t.Fatalf("in use: %s", d.InUseReason)
		}
		u := *d.InUse
		for name, n := range map[string]uint64{"pd": u.PD, "cq": u.CQ, "qp": u.QP, "cm_id": u.CMID, "mr": u.MR, "ctx": u.Contexts, "srq": u.SRQ} {
			if used[0][name] != float64(n) {
				t.Errorf("%s: rdma resource has %v, devices %d", name, used[0][name], n)
			}
		}
		if u.CMID == 0 || u.Contexts == 0 {
			t.Errorf("a server listens, and in use are %+v", u)
		}
		if out := mustRun(t, "devices", "--verbose"); !strings.Contains(out, "  in use   ") || !strings.Contains(out, " network device      "+p.NetworkDevice) {
			t.Errorf("devices --verbose:\n%s", out)
		}
	})
}

// decode decodes the JSON of another program.
func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}
