//go:build linux && cgo

package provider

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// Vendor IDs of software devices.
const (
	vendorRXE = 0xffffff
	vendorSIW = 0x626d74
)

// Devices describes the RDMA devices of this machine, sorted by name. The error is the reason why none exists.
func Devices() ([]Device, error) {
	infos, err := ibv.Devices()
	if err != nil {
		return nil, err
	}
	devices := make([]Device, len(infos))
	for i, info := range infos { // before this process has objects of its own
		use, err := inUse(info.Index)
		if err != nil {
			devices[i].InUseReason = err.Error()
		}
		devices[i].InUse = use
	}
	addresses, addressErr := listAddresses()
	for i, info := range infos {
		d := &devices[i]
		d.Name, d.Driver, d.Transport, d.NodeGUID = info.Name, driverOf(info.Name), transportOf(&info), info.GUID.String()
		d.Addresses, d.Ports = addresses[info.Name], []Port{}
		if d.Addresses == nil {
			d.Addresses = []Address{}
		}
		err := describeDevice(d)
		if err == nil {
			err = addressErr
		}
		if err == nil {
			err = d.lacks()
		}
		if err != nil {
			d.Err, d.Reason = err, err.Error()
		}
		d.Usable = err == nil
	}
	slices.SortFunc(devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	return devices, nil
}

// describeDevice opens the device and queries it. It fails if this process cannot use the device at all.
func describeDevice(d *Device) error {
	dev, err := ibv.Open(d.Name)
	if err != nil {
		return err
	}
	defer dev.Close()
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	iwarp := d.Transport == "iwarp"
	rxe := attr.VendorID == vendorRXE && !iwarp
	switch {
	case rxe:
		d.Driver = "rxe"
	case attr.VendorID == vendorSIW && iwarp:
		d.Driver = "siw"
	}
	d.Firmware, d.SysImageGUID = attr.FirmwareVersion, attr.SysImageGUID.String()
	d.VendorID, d.VendorPart, d.Hardware = attr.VendorID, attr.VendorPartID, attr.HWVersion
	further, err := dev.QueryEx()
	if err != nil && !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
		return err
	}
	d.Capabilities = newCapabilities(&attr)
	d.Capabilities.add(&attr, &further)
	d.Capabilities.CompletionVectors = dev.NumCompVectors()
	d.Capabilities.SafeWindows = len(d.Capabilities.MemoryWindows) > 0 && !rxe
	gids, err := dev.GIDTable()
	if err != nil {
		return err
	}
	for n := range attr.PhysPortCount {
		p, err := describePort(dev, n+1)
		if err != nil {
			return err
		}
		for _, g := range gids {
			if int(g.Port) == p.Port {
				p.GIDs = append(p.GIDs, GID{Index: g.Index, GID: g.GID.String(), Type: gidTypeName(g.Type, iwarp), NetworkDevice: interfaceName(g.NetdevIndex)})
			}
		}
		d.Ports = append(d.Ports, p)
	}
	return tryMemoryOn(dev)
}

// describePort queries a port, except for its GIDs.
func describePort(dev *ibv.Context, number int) (p Port, err error) {
	a, err := dev.QueryPort(uint8(number))
	if err != nil {
		return p, err
	}
	p = Port{
		Port: number, State: stateName(a.State), LinkLayer: linkLayerName(a.LinkLayer),
		MTU: a.ActiveMTU.Bytes(), MaxMTU: a.MaxMTU.Bytes(), MaxMessage: a.MaxMsgSize, GIDs: []GID{},
		PhysicalState: physicalState(a.PhysState), LID: a.LID, SMLID: a.SMLID, SMSL: a.SMSL, LMC: a.LMC,
		MaxVL: map[uint8]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15}[a.MaxVLNum], SubnetTimeout: a.SubnetTimeout, InitTypeReply: a.InitTypeReply,
		Capabilities: portFlags(a.CapFlags, a.CapFlags2), GIDTable: a.GIDTableLen, PkeyTable: a.PkeyTableLen, Pkeys: []string{},
		BadPkeys: a.BadPkeyCounter, BadQkeys: a.QkeyViolCounter,
	}
	p.Width, p.LaneSpeed = lanes(a.ActiveWidth, a.ActiveSpeed)
	p.Speed = float64(p.Width) * p.LaneSpeed
	// If the kernel does not answer, the network devices of the addresses remain.
	p.NetworkDevice, _ = netdevOf(dev.Info().Index, number)
	for i := range a.PkeyTableLen {
		pkey, err := dev.QueryPkey(uint8(number), i)
		if err != nil {
			return p, err
		}
		if pkey != 0 {
			p.Pkeys = append(p.Pkeys, fmt.Sprintf("%#04x", pkey))
		}
	}
	return p, nil
}

// lacks returns the reason why a device that can be opened cannot be used, or nil.
func (d *Device) lacks() error {
	active := func(p Port) bool { return p.State == stateName(ibv.PortActive) }
	if !slices.ContainsFunc(d.Ports, active) {
		var states []string
		for _, p := range d.Ports {
			states = append(states, fmt.Sprintf("port %d is %s", p.Port, strings.ReplaceAll(p.State, "_", " ")))
		}
		return fmt.Errorf("no port is active (%s): plug in the cable, or 'ip link set %s up'", strings.Join(states, ", "), d.netdev())
	}
	for _, a := range d.Addresses {
		if slices.ContainsFunc(d.Ports, func(p Port) bool { return p.Port == a.Port && active(p) }) {
			return nil
		}
	}
	return fmt.Errorf("no IP address leads to it: 'ip addr add ADDRESS/LENGTH dev %s'", d.netdev())
}

// netdev returns a network device of the RDMA device, or a placeholder.
func (d *Device) netdev() string {
	if len(d.Addresses) > 0 {
		return d.Addresses[0].NetworkDevice
	}
	for _, p := range d.Ports {
		for _, g := range p.GIDs {
			if g.NetworkDevice != "" {
				return g.NetworkDevice
			}
		}
	}
	entries, _ := os.ReadDir(sysfs(d.Name, "device/net"))
	if len(entries) > 0 {
		return entries[0].Name()
	}
	if parent, err := os.ReadFile(sysfs(d.Name, "parent")); err == nil {
		return strings.TrimSpace(string(parent))
	}
	return "NETDEV"
}

// listAddresses finds the device of each local address by binding an ID to it: no other way is correct for every kind
// of device.
func listAddresses() (map[string][]Address, error) {
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	found := make(map[string][]Address)
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface has disappeared
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil || prefix.Addr().IsLoopback() {
				continue
			}
			addr := prefix.Addr()
			if addr.Is6() && addr.IsLinkLocalUnicast() {
				addr = addr.WithZone(i.Name)
			}
			name, port, err := boundTo(ch, func(id *rdmacm.ID) error { return id.BindAddr(netip.AddrPortFrom(addr, 0)) })
			if err == nil {
				found[name] = append(found[name], Address{Address: addr.String(), Port: int(port), NetworkDevice: i.Name})
			}
		}
	}
	return found, nil
}

func newCapabilities(a *ibv.DeviceAttr) *Capabilities {
	windows := []string{}
	for _, w := range []struct {
		bit  ibv.DeviceCap
		name string
	}{{ibv.DeviceMemWindow, "type_1"}, {ibv.DeviceMemWindowType2A, "type_2a"}, {ibv.DeviceMemWindowType2B, "type_2b"}} {
		if a.MaxMW > 0 && a.CapFlags&w.bit != 0 {
			windows = append(windows, w.name)
		}
	}
	atomics := map[ibv.AtomicCap]string{ibv.AtomicHCA: "device", ibv.AtomicGlob: "global"}[a.AtomicCap]
	if atomics == "" {
		atomics = "none"
	}
	return &Capabilities{
		MaxQP: a.MaxQP, MaxQPRequests: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxReadSGE: a.MaxSGERd,
		MaxCQ: a.MaxCQ, MaxCQEntries: a.MaxCQE, MaxSRQ: a.MaxSRQ, MaxSRQRequests: a.MaxSRQWR,
		MaxMR: a.MaxMR, MaxMRBytes: a.MaxMRSize, MaxMW: a.MaxMW, MemoryWindows: windows,
		SendWithInvalidate: a.SendWithInvalidate(), Atomics: atomics,
		InboundReads: a.MaxQPRdAtom, OutboundReads: a.MaxQPInitRdAtom, SharedInboundReads: a.MaxResRdAtom,
	}
}

// add adds the capabilities that not every program needs.
func (c *Capabilities) add(a *ibv.DeviceAttr, ex *ibv.DeviceAttrEx) {
	c.Flags, c.PageSizes = deviceFlags(a.CapFlags, ex.CapFlags), a.PageSizeCap
	c.MaxPD, c.MaxAH, c.MaxSRQSGE, c.MaxPkeys = a.MaxPD, a.MaxAH, a.MaxSRQSGE, a.MaxPkeys
	c.MulticastGroups, c.MulticastInGroup, c.MulticastMembers = a.MaxMcastGrp, a.MaxMcastQPAttach, a.MaxTotalMcastQPAttach
	c.AckDelay, c.MaxWQ, c.DeviceMemory = a.LocalCAAckDelay, ex.MaxWQ, ex.MaxDMSize
	c.TimestampMask, c.Clock, c.RawPacket = ex.TimestampMask, ex.CoreClock, rawPacketWords(ex.RawPacketCaps)
	c.OnDemand = OnDemand{
		Supported: ex.OnDemand, WholeMemory: ex.OnDemandWhole,
		RC: odpWords(ex.ODPRC), UC: odpWords(ex.ODPUC), UD: odpWords(ex.ODPUD), XRC: odpWords(ex.ODPXRC),
	}
	c.TSO = Offload{Max: ex.MaxTSO, Types: typeWords(ex.TSOTypes)}
	c.PacketPacing = Pacing{Min: ex.MinRate, Max: ex.MaxRate, Types: typeWords(ex.RateTypes)}
	c.RSS = RSS{
		MaxTables: ex.MaxTables, MaxTableSize: ex.MaxTableSize, HashFunctions: ex.RSSHashFunctions, HashFields: ex.RSSHashFields,
		Types: typeWords(ex.RSSTypes),
	}
	c.TagMatching = Tags{MaxTags: ex.MaxTags, MaxOps: ex.MaxTagOps, MaxSGE: ex.MaxTagSGE, MaxHeader: ex.MaxTagHeader, Flags: ex.TagFlags}
	c.ModerationCount, c.ModerationPeriodUS = ex.MaxModerateCount, ex.MaxModeratePeriod.Microseconds()
}

func stateName(s ibv.PortState) string {
	names := []string{"nop", "down", "init", "armed", "active", "active_defer"}
	if s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprint(int32(s))
}

func linkLayerName(l ibv.LinkLayer) string {
	switch l {
	case ibv.LinkLayerInfiniBand:
		return "infiniband"
	case ibv.LinkLayerEthernet:
		return "ethernet"
	}
	return "unspecified"
}

func gidTypeName(t ibv.GIDType, iwarp bool) string {
	switch {
	case t == ibv.GIDTypeRoCEv1:
		return "roce_v1"
	case t == ibv.GIDTypeRoCEv2:
		return "roce_v2"
	case iwarp:
		return "iwarp"
	}
	return "ib"
}

// interfaceName returns the name of a network interface, or "".
func interfaceName(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return ""
}

// driverOf returns the kernel module of an adapter, if known without opening the device.
func driverOf(device string) string {
	if path, err := os.Readlink(sysfs(device, "device/driver")); err == nil {
		return filepath.Base(path)
	}
	return "unknown"
}

func transportOf(d *ibv.DeviceInfo) string {
	layer, _ := os.ReadFile(sysfs(d.Name, "ports/1/link_layer"))
	switch {
	case d.Transport == ibv.TransportIWARP:
		return "iwarp"
	case strings.TrimSpace(string(layer)) == "Ethernet":
		return "roce"
	}
	return "infiniband"
}

// sysfs returns the path of a file about a device.
func sysfs(device, file string) string { return filepath.Join("/sys/class/infiniband", device, file) }
