package look

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// NewDevices returns the command devices.
func NewDevices() *cobra.Command {
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:        "devices",
		SuggestFor: []string{"device", "hca", "adapters", "ibv_devices", "ibv_devinfo"},
		Short:      "List RDMA devices, and which of them can serve",
		Long: `List the RDMA devices of this machine: ports, capabilities, and the IP addresses that lead to
them, because connections are made by address. This process can use a device if it may open
the device, a port is active, an address leads to it, and enough memory may be locked for one
message.

--verbose prints the same information as ibv_devinfo -v, 'rdma link', 'rdma resource' and
show_gids. It needs no privilege.

With --json the output is one object:

  providers        the values of --provider: name, usable, and reason if it is not
  devices          name, driver (rxe, siw, or the kernel module of an adapter), transport
                   (infiniband, roce, iwarp), node_guid, sys_image_guid, vendor_id,
                   vendor_part_id, hardware_version, firmware, usable and reason
    addresses      address, port, network_device
    ports          port, state (active ...), physical_state (link_up ...), link_layer, mtu,
                   max_mtu, max_message (bytes), width (lanes), lane_gbps, gbps,
                   network_device, lid, sm_lid, sm_sl, lmc, max_vl, subnet_timeout,
                   init_type_reply, port_capabilities (words), pkeys (not zero), bad_pkeys,
                   bad_qkeys, the rows of gid_table and pkey_table, and gids: index, gid,
                   type (ib, roce_v1, roce_v2, iwarp), network_device
    capabilities   max_qp, max_qp_requests, max_sge, max_read_sge, max_cq, max_cq_entries,
                   max_srq, max_srq_requests, max_mr, max_mr_bytes, max_mw, memory_windows
                   (type_1, type_2a, type_2b), safe_windows, send_with_invalidate, atomics
                   (none, device, global), inbound_reads, outbound_reads, shared_inbound_reads,
                   flags (words), page_sizes (a bit for each), max_pd, max_ah, max_srq_sge,
                   max_pkeys, max_wq, multicast_groups, multicast_in_group,
                   multicast_memberships, ack_delay (n of 4.096 us * 2^n), completion_vectors,
                   device_memory (bytes), timestamp_mask, clock_khz, moderation_count,
                   moderation_us, raw_packet (words)
      on_demand    supported, whole_memory, and for rc, uc, ud, xrc: send, recv, write ...
      tso          max (bytes), types of queue pairs
      rate_limit   min_kbps, max_kbps, types
      rss          max_tables, max_table_size, hash_functions, hash_fields (bits), types
      tag_matching max_tags, max_ops, max_sge, max_header (bytes), flags
    in_use         objects of all processes and the kernel: pd, cq, qp, cm_id, mr, contexts,
                   srq; or in_use_reason

For a device that may not be opened, ports and capabilities are missing. How much a message
may carry inline is not listed: devices do not report it.

On a machine without devices the list is empty, and the exit status is 0.`,
		Example: `  rpcrdma devices
  rpcrdma devices --json | jq -r '.devices[] | select(.usable).name'`,
		Args: cli.WantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, err := provider.Devices()
			r := newReport(devices, err, explain.InContainer())
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r)
			}
			return r.print(cmd.OutOrStdout(), verbose)
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print all that the devices and the kernel report")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// ReportJSON is the output of devices.
type ReportJSON struct {
	Providers []providerJSON    `json:"providers"`
	Devices   []provider.Device `json:"devices"`
}

type providerJSON struct {
	Name   string `json:"name"`
	Usable bool   `json:"usable"`
	Reason string `json:"reason,omitempty"` // why no device can be used
}

// newReport reports which devices can be used. err is the reason why none can be listed.
func newReport(devices []provider.Device, err error, contained bool) *ReportJSON {
	rdma := providerJSON{Name: provider.RDMA, Usable: len(provider.Usable(devices)) > 0}
	switch {
	case rdma.Usable:
	case errors.Is(err, rdmacm.ErrNotBuilt):
		rdma.Reason = explain.Text(err)
	case err != nil:
		rdma.Reason = explain.Text(err) + explain.HowToGetDevices(contained)
	default:
		rdma.Reason = "no device can be used, see below"
	}
	if devices == nil {
		devices = []provider.Device{}
	}
	for i := range devices {
		if err := devices[i].Err; err != nil {
			devices[i].Reason = explain.Text(err)
		}
	}
	return &ReportJSON{Providers: []providerJSON{{Name: provider.IWARP, Usable: true}, rdma}, Devices: devices}
}

// print writes the report for people. No line is wider than width.
func (r *ReportJSON) print(out io.Writer, verbose bool) error {
	b := &block{column: 16}
	for _, p := range r.Providers {
		text := "usable"
		switch {
		case !p.Usable:
			text = "not usable: " + p.Reason
		case p.Name == provider.IWARP:
			text += ", needs no device"
		default:
			text += " on " + strings.Join(provider.Usable(r.Devices), ", ")
		}
		b.row("provider "+p.Name, text)
	}
	b.column = 24
	for i := range r.Devices {
		printDevice(b, &r.Devices[i])
		if verbose {
			printMore(b, &r.Devices[i])
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// printDevice adds a device to b.
func printDevice(b *block, d *provider.Device) {
	b.WriteString("\n" + explain.Printable(d.Name) + "\n")
	row := func(name, format string, args ...any) { b.row("  "+name, fmt.Sprintf(format, args...)) }
	row("driver", "%s, %s", d.Driver, transportNames[d.Transport])
	if d.Usable {
		row("provider rdma", "usable")
	} else {
		row("provider rdma", "not usable: %s", d.Reason)
	}
	for _, a := range d.Addresses {
		row("address", "%s on %s", a.Address, a.NetworkDevice)
	}
	row("node GUID", "%s", d.NodeGUID)
	if d.Firmware != "" {
		row("firmware", "%s", explain.Printable(d.Firmware))
	}
	for _, p := range d.Ports {
		layer := map[string]string{"ethernet": "Ethernet", "infiniband": "InfiniBand"}[p.LinkLayer]
		if layer != "" {
			layer = ", " + layer
		}
		if p.Speed > 0 {
			layer += fmt.Sprintf(", %g Gb/s", p.Speed)
		}
		row(fmt.Sprintf("port %d", p.Port), "%s%s, MTU %d of %d, messages up to %d bytes",
			strings.ReplaceAll(p.State, "_", " "), layer, p.MTU, p.MaxMTU, p.MaxMessage)
		for _, g := range p.GIDs {
			on := ""
			if g.NetworkDevice != "" {
				on = " on " + g.NetworkDevice
			}
			row(fmt.Sprintf("  GID %d", g.Index), "%s, %s%s", g.GID, gidTypeNames[g.Type], on)
		}
	}
	c := d.Capabilities
	if c == nil {
		return
	}
	row("queue pairs", "%d, with %d requests in a queue", c.MaxQP, c.MaxQPRequests)
	row("gather, scatter", "%d elements of a request, %d of an RDMA Read", c.MaxSGE, c.MaxReadSGE)
	row("completion queues", "%d, of %d entries", c.MaxCQ, c.MaxCQEntries)
	if c.MaxSRQ > 0 {
		row("shared receives", "%d queues, of %d requests", c.MaxSRQ, c.MaxSRQRequests)
	} else {
		row("shared receives", "no")
	}
	if c.MaxMRBytes == math.MaxUint64 {
		row("memory regions", "%d, of any size", c.MaxMR)
	} else {
		row("memory regions", "%d, of up to %d bytes", c.MaxMR, c.MaxMRBytes)
	}
	windows := "no"
	if len(c.MemoryWindows) > 0 {
		windows = fmt.Sprintf("%d, of %s", c.MaxMW, strings.ReplaceAll(strings.Join(c.MemoryWindows, ", "), "_", " "))
		if !c.SafeWindows {
			windows += "; they do not protect memory, so they are used only with --unsafe-windows"
		}
	}
	row("memory windows", "%s", windows)
	row("Send with Invalidate", "%s", yesNo(c.SendWithInvalidate))
	row("atomics", "%s", map[string]string{"none": "no", "device": "among those of the device", "global": "with the processors, too"}[c.Atomics])
	row("RDMA Reads at once", "%d served and %d made on a connection, %d served in all", c.InboundReads, c.OutboundReads, c.SharedInboundReads)
}

// Names for people. Immutable.
var (
	transportNames = map[string]string{"infiniband": "InfiniBand", "roce": "RoCE", "iwarp": "iWARP"}
	gidTypeNames   = map[string]string{"ib": "InfiniBand", "roce_v1": "RoCE v1", "roce_v2": "RoCE v2", "iwarp": "iWARP"}
)

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// width is the maximum width of the output for people.
const width = 100

// block is text in two columns, names and values.
type block struct {
	strings.Builder
	column int // where the second column begins
}

// row adds a row. Long text continues on the next lines; words are not split.
func (b *block) row(name, text string) {
	fmt.Fprintf(b, "%-*s", b.column, name)
	at := b.column
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", b.column))
			at = b.column
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	b.WriteByte('\n')
}
