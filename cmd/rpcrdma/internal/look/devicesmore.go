package look

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
)

// printMore adds to b the further details of a device that --verbose prints.
func printMore(b *block, d *provider.Device) {
	row := func(name, format string, args ...any) { b.row("  "+name, fmt.Sprintf(format, args...)) }
	if u := d.InUse; u != nil {
		row("in use", "%d protection domains, %d completion queues, %d queue pairs, %d shared receive queues, %d memory regions, "+
			"%d connection IDs, %d contexts", u.PD, u.CQ, u.QP, u.SRQ, u.MR, u.CMID, u.Contexts)
	} else {
		row("in use", "unknown: %s", cmp.Or(d.InUseReason, "the kernel does not say"))
	}
	c := d.Capabilities
	if c == nil {
		return
	}
	row("system image GUID", "%s", d.SysImageGUID)
	row("vendor", "%#06x, part %d, hardware version %#x", d.VendorID, d.VendorPart, d.Hardware)
	for i := range d.Ports {
		printPort(b, &d.Ports[i])
	}
	row("flags", "%s", someWords(c.Flags))
	row("page sizes", "%#x", c.PageSizes)
	row("domains, addresses", "%d protection domains, %d address handles, %d partition keys", c.MaxPD, c.MaxAH, c.MaxPkeys)
	row("shared receives", "%d elements of a request", c.MaxSRQSGE)
	row("multicast", "%d groups, %d queue pairs in one, %d memberships", c.MulticastGroups, c.MulticastInGroup, c.MulticastMembers)
	row("acknowledgements", "delayed by up to 4.096 us * 2^%d", c.AckDelay)
	row("completion vectors", "%d", c.CompletionVectors)
	row("moderation", "%d completions, %d us", c.ModerationCount, c.ModerationPeriodUS)
	row("clock", "%d kHz, timestamps of mask %#x", c.Clock, c.TimestampMask)
	row("work queues", "%d", c.MaxWQ)
	row("device memory", "%d bytes", c.DeviceMemory)
	row("raw packets", "%s", someWords(c.RawPacket))
	odp := "no"
	if c.OnDemand.Supported {
		odp = fmt.Sprintf("RC %s; UC %s; UD %s; XRC %s", someWords(c.OnDemand.RC), someWords(c.OnDemand.UC), someWords(c.OnDemand.UD), someWords(c.OnDemand.XRC))
		if c.OnDemand.WholeMemory {
			odp += "; one region can be all memory"
		}
	}
	row("on-demand paging", "%s", odp)
	row("segmentation (TSO)", "%d bytes: %s", c.TSO.Max, someWords(c.TSO.Types))
	row("packet pacing", "%d to %d kbit/s: %s", c.PacketPacing.Min, c.PacketPacing.Max, someWords(c.PacketPacing.Types))
	row("spreading (RSS)", "%d tables, of %d queues, hash functions %#x, fields %#x: %s", c.RSS.MaxTables, c.RSS.MaxTableSize,
		c.RSS.HashFunctions, c.RSS.HashFields, someWords(c.RSS.Types))
	m := &c.TagMatching
	row("tag matching", "%d tags, %d operations, %d elements, headers of %d bytes, flags %#x", m.MaxTags, m.MaxOps, m.MaxSGE, m.MaxHeader, m.Flags)
}

// printPort adds the further details of a port.
func printPort(b *block, p *provider.Port) {
	row := func(name, format string, args ...any) { b.row("    "+name, fmt.Sprintf(format, args...)) }
	b.row(fmt.Sprintf("  port %d", p.Port), "physically "+strings.ReplaceAll(p.PhysicalState, "_", " "))
	if p.NetworkDevice != "" {
		row("network device", "%s", explain.Printable(p.NetworkDevice))
	}
	row("speed", "%d lanes of %g Gb/s", p.Width, p.LaneSpeed)
	row("LID", "%d, LMC %d, subnet manager at %d with SL %d, timeout %d, init type %d", p.LID, p.LMC, p.SMLID, p.SMSL, p.SubnetTimeout, p.InitTypeReply)
	row("virtual lanes", "%d", p.MaxVL)
	row("capabilities", "%s", someWords(p.Capabilities))
	row("partition keys", "%s, in a table of %d", someWords(p.Pkeys), p.PkeyTable)
	row("wrong keys", "%d of partitions, %d of queues", p.BadPkeys, p.BadQkeys)
	row("GIDs", "%d, in a table of %d", len(p.GIDs), p.GIDTable)
}

// someWords joins words, or returns "no" if none exist.
func someWords(list []string) string { return cmp.Or(strings.Join(list, ", "), "no") }
