//go:build linux && cgo

package ibv

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// DeviceCap is a set of capabilities, see enum ibv_device_cap_flags. Bits without a name here are preserved.
type DeviceCap uint32

// Capabilities relevant to reliable connections.
const (
	DeviceResizeMaxWR      DeviceCap = 1 << 0  // queues of a QP can be resized
	DeviceAutoPathMig      DeviceCap = 1 << 4  // alternate paths
	DeviceCurrQPStateMod   DeviceCap = 1 << 7  // AttrCurState
	DevicePortActiveEvent  DeviceCap = 1 << 10 // EventPortActive
	DeviceRCRNRNAKGen      DeviceCap = 1 << 12 // notifies the peer when no receive is posted
	DeviceSRQResize        DeviceCap = 1 << 13
	DeviceMemWindow        DeviceCap = 1 << 17 // windows of type 1
	DeviceXRC              DeviceCap = 1 << 20 // QPTypeXRCSend, QPTypeXRCRecv
	DeviceMemMgtExtensions DeviceCap = 1 << 21 // OpSendWithInv, OpLocalInv
	DeviceMemWindowType2A  DeviceCap = 1 << 23 // windows of type 2, bound to one queue pair by number
	DeviceMemWindowType2B  DeviceCap = 1 << 24 // windows of type 2, bound to one queue pair by number and domain
)

func (c DeviceCap) String() string {
	return flagString(uint32(c), []string{
		"IBV_DEVICE_RESIZE_MAX_WR", "IBV_DEVICE_BAD_PKEY_CNTR", "IBV_DEVICE_BAD_QKEY_CNTR", "IBV_DEVICE_RAW_MULTI",
		"IBV_DEVICE_AUTO_PATH_MIG", "IBV_DEVICE_CHANGE_PHY_PORT", "IBV_DEVICE_UD_AV_PORT_ENFORCE", "IBV_DEVICE_CURR_QP_STATE_MOD",
		"IBV_DEVICE_SHUTDOWN_PORT", "IBV_DEVICE_INIT_TYPE", "IBV_DEVICE_PORT_ACTIVE_EVENT", "IBV_DEVICE_SYS_IMAGE_GUID",
		"IBV_DEVICE_RC_RNR_NAK_GEN", "IBV_DEVICE_SRQ_RESIZE", "IBV_DEVICE_N_NOTIFY_CQ", 17: "IBV_DEVICE_MEM_WINDOW",
		18: "IBV_DEVICE_UD_IP_CSUM", 20: "IBV_DEVICE_XRC", 21: "IBV_DEVICE_MEM_MGT_EXTENSIONS", 23: "IBV_DEVICE_MEM_WINDOW_TYPE_2A",
		24: "IBV_DEVICE_MEM_WINDOW_TYPE_2B", 25: "IBV_DEVICE_RC_IP_CSUM", 26: "IBV_DEVICE_RAW_IP_CSUM", 29: "IBV_DEVICE_MANAGED_FLOW_STEERING",
	})
}

// An AtomicCap is the scope of the device's atomic operations, see enum ibv_atomic_cap.
type AtomicCap int32

// Scopes of atomic operations.
const (
	AtomicNone AtomicCap = 0 // not supported
	AtomicHCA  AtomicCap = 1 // atomic to other operations of this device
	AtomicGlob AtomicCap = 2 // also atomic to the processors
)

func (c AtomicCap) String() string {
	return name([]string{"IBV_ATOMIC_NONE", "IBV_ATOMIC_HCA", "IBV_ATOMIC_GLOB"}, int32(c), "ibv_atomic_cap")
}

// A DeviceAttr holds the capabilities of a device, see ibv_query_device(3). Limits are
// upper bounds: a request may fail below them.
type DeviceAttr struct {
	FirmwareVersion string
	NodeGUID        GUID
	SysImageGUID    GUID
	VendorID        uint32 // assigned by the IEEE
	VendorPartID    uint32
	HWVersion       uint32
	CapFlags        DeviceCap
	PhysPortCount   int // ports are numbered from 1

	MaxMRSize       uint64 // bytes of one region
	PageSizeCap     uint64 // a bit for each page size
	MaxMR           int
	MaxMW           int
	MaxPD           int
	MaxQP           int
	MaxQPWR         int // work requests in one queue
	MaxSGE          int // buffers of a work request other than an RDMA Read
	MaxSGERd        int // buffers of an RDMA Read
	MaxCQ           int
	MaxCQE          int // completions in one queue
	MaxSRQ          int
	MaxSRQWR        int
	MaxSRQSGE       int
	MaxQPRdAtom     int // RDMA Reads and atomics from peers, per queue pair
	MaxResRdAtom    int // RDMA Reads and atomics from peers, for all queue pairs together
	MaxQPInitRdAtom int // RDMA Reads and atomics to the peer, per queue pair
	AtomicCap       AtomicCap
	MaxAH           int
	MaxPkeys        int
	LocalCAAckDelay uint8

	MaxMcastGrp           int // multicast groups with members on this device
	MaxMcastQPAttach      int // queue pairs in one group
	MaxTotalMcastQPAttach int // memberships of queue pairs in all groups
}

// MemoryWindowType1 reports whether windows can be bound with [QP.BindMW1].
func (a *DeviceAttr) MemoryWindowType1() bool { return a.MaxMW > 0 && a.CapFlags&DeviceMemWindow != 0 }

// MemoryWindowType2 reports whether windows can be bound with OpBindMW.
func (a *DeviceAttr) MemoryWindowType2() bool {
	return a.MaxMW > 0 && a.CapFlags&(DeviceMemWindowType2A|DeviceMemWindowType2B) != 0
}

// SendWithInvalidate reports whether the device supports OpSendWithInv and OpLocalInv,
// which invalidate windows of type 2.
func (a *DeviceAttr) SendWithInvalidate() bool { return a.CapFlags&DeviceMemMgtExtensions != 0 }

// Query returns the capabilities of the device.
//
// Implements: int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr)
func (c *Context) Query() (DeviceAttr, error) {
	const call = "ibv_query_device"
	if err := c.enter(call); err != nil {
		return DeviceAttr{}, err
	}
	defer c.leave()
	a, errno := c.lib.QueryDevice(c.raw)
	if errno != 0 {
		return DeviceAttr{}, &Error{Call: call, Device: c.device, Err: errno}
	}
	return DeviceAttr{
		FirmwareVersion: a.FirmwareVersion, NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID,
		VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVersion: a.HWVersion,
		CapFlags: DeviceCap(a.CapFlags), PhysPortCount: int(a.PhysPortCount),
		MaxMRSize: a.MaxMRSize, PageSizeCap: a.PageSizeCap,
		MaxMR: int(a.MaxMR), MaxMW: int(a.MaxMW), MaxPD: int(a.MaxPD),
		MaxQP: int(a.MaxQP), MaxQPWR: int(a.MaxQPWR), MaxSGE: int(a.MaxSGE), MaxSGERd: int(a.MaxSGERd),
		MaxCQ: int(a.MaxCQ), MaxCQE: int(a.MaxCQE),
		MaxSRQ: int(a.MaxSRQ), MaxSRQWR: int(a.MaxSRQWR), MaxSRQSGE: int(a.MaxSRQSGE),
		MaxQPRdAtom: int(a.MaxQPRdAtom), MaxResRdAtom: int(a.MaxResRdAtom), MaxQPInitRdAtom: int(a.MaxQPInitRdAtom),
		AtomicCap: AtomicCap(a.AtomicCap), MaxAH: int(a.MaxAH), MaxPkeys: int(a.MaxPkeys), LocalCAAckDelay: a.LocalCAAckDelay,
		MaxMcastGrp: int(a.MaxMcastGrp), MaxMcastQPAttach: int(a.MaxMcastQPAttach), MaxTotalMcastQPAttach: int(a.MaxTotalMcastQPAttach),
	}, nil
}

// NumCompVectors returns the number of completion vectors of the device, 0 if it is closed.
// Queues with different vectors, numbered from 0, may interrupt different processors.
func (c *Context) NumCompVectors() int {
	if c.enter("") != nil {
		return 0
	}
	defer c.leave()
	return c.lib.NumCompVectors(c.raw)
}

// A PortState is the state of a port, see enum ibv_port_state.
type PortState int32

// States of ports.
const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

// String returns the library's description.
//
// Implements: const char *ibv_port_state_str(enum ibv_port_state port_state)
func (s PortState) String() string { return cgo.PortStateString(int32(s)) }

// An MTU is a maximum payload of a packet, see enum ibv_mtu.
type MTU int32

// Sizes of packets.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the size in bytes, 0 if it is unknown.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string {
	return name([]string{1: "IBV_MTU_256", "IBV_MTU_512", "IBV_MTU_1024", "IBV_MTU_2048", "IBV_MTU_4096"}, int32(m), "ibv_mtu")
}

// A LinkLayer is the link layer of a port, see ibv_query_port(3).
type LinkLayer uint8

// Link layers.
const (
	LinkLayerUnspecified LinkLayer = 0
	LinkLayerInfiniBand  LinkLayer = 1
	LinkLayerEthernet    LinkLayer = 2
)

func (l LinkLayer) String() string {
	return name([]string{"IBV_LINK_LAYER_UNSPECIFIED", "IBV_LINK_LAYER_INFINIBAND", "IBV_LINK_LAYER_ETHERNET"}, int32(l), "link layer")
}

// A PortAttr describes a port, see ibv_query_port(3).
type PortAttr struct {
	State           PortState
	MaxMTU          MTU
	ActiveMTU       MTU
	GIDTableLen     int
	CapFlags        uint32 // enum ibv_port_cap_flags
	CapFlags2       uint16 // enum ibv_port_cap_flags2
	MaxMsgSize      uint32 // bytes of one message, and of one RDMA Read or Write
	BadPkeyCounter  uint32
	QkeyViolCounter uint32
	PkeyTableLen    int
	LID             uint16 // InfiniBand's local address
	SMLID           uint16 // LID of the subnet manager
	LMC             uint8
	MaxVLNum        uint8
	SMSL            uint8
	SubnetTimeout   uint8
	InitTypeReply   uint8
	ActiveWidth     uint8
	ActiveSpeed     uint8
	PhysState       uint8
	LinkLayer       LinkLayer
	GRHRequired     bool // every AHAttr needs its GRH, as on RoCE
}

// QueryPort returns the attributes of a port. Ports are numbered from 1.
//
// Implements: int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr)
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	if err := c.enter("ibv_query_port"); err != nil {
		return PortAttr{}, err
	}
	defer c.leave()
	return c.queryPort(port)
}

func (c *Context) queryPort(port uint8) (PortAttr, error) {
	const qpfGRHRequired = 1 << 0
	a, errno := c.lib.QueryPort(c.raw, port)
	if errno != 0 {
		return PortAttr{}, &Error{Call: "ibv_query_port", Device: c.device, Err: errno}
	}
	return PortAttr{
		State: PortState(a.State), MaxMTU: MTU(a.MaxMTU), ActiveMTU: MTU(a.ActiveMTU), GIDTableLen: int(a.GIDTableLen),
		CapFlags: a.CapFlags, CapFlags2: a.CapFlags2, MaxMsgSize: a.MaxMsgSize,
		BadPkeyCounter: a.BadPkeyCounter, QkeyViolCounter: a.QkeyViolCounter, PkeyTableLen: int(a.PkeyTableLen),
		LID: a.LID, SMLID: a.SMLID, LMC: a.LMC, MaxVLNum: a.MaxVLNum, SMSL: a.SMSL, SubnetTimeout: a.SubnetTimeout,
		InitTypeReply: a.InitTypeReply, ActiveWidth: a.ActiveWidth, ActiveSpeed: a.ActiveSpeed, PhysState: a.PhysState,
		LinkLayer: LinkLayer(a.LinkLayer), GRHRequired: a.Flags&qpfGRHRequired != 0,
	}, nil
}

// QueryPkey returns a partition key of a port, in host byte order.
//
// Implements: int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey)
func (c *Context) QueryPkey(port uint8, index int) (uint16, error) {
	const call = "ibv_query_pkey"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	pkey, errno := c.lib.QueryPkey(c.raw, port, index)
	if errno != 0 {
		return 0, &Error{Call: call, Device: c.device, Err: errno}
	}
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], pkey)
	return binary.BigEndian.Uint16(b[:]), nil
}

// PkeyIndex returns the index of a partition key, in host byte order, in the table of a port.
//
// Implements: int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey)
func (c *Context) PkeyIndex(port uint8, pkey uint16) (int, error) {
	const call = "ibv_get_pkey_index"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], pkey)
	n, errno := c.lib.PkeyIndex(c.raw, port, binary.NativeEndian.Uint16(b[:]))
	if errno != 0 {
		return 0, &Error{Call: call, Device: c.device, Err: errno}
	}
	return n, nil
}

// A GID is a global address of a port: on RoCE an IP address.
type GID [16]byte

// Addr returns the GID as an IP address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String formats the GID as an IP address.
func (g GID) String() string { return g.Addr().String() }

// A GIDType is the protocol that a GID belongs to, see ibv_query_gid_ex(3).
type GIDType uint32

// Protocols of GIDs.
const (
	GIDTypeIB     GIDType = 0 // InfiniBand, and iWARP
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

func (t GIDType) String() string {
	return name([]string{"IBV_GID_TYPE_IB", "IBV_GID_TYPE_ROCE_V1", "IBV_GID_TYPE_ROCE_V2"}, int32(t), "ibv_gid_type")
}

// A GIDEntry is a row of a port's table of GIDs.
type GIDEntry struct {
	GID         GID
	Index       int // in the table of the port, for GRH.SGIDIndex
	Port        uint8
	Type        GIDType
	NetdevIndex int // index of the network interface; 0 if none or unknown
}

// GID returns a row of the table of a port. The error of a row without a GID unwraps to ENODATA.
//
// Implements: int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry, uint32_t flags)
func (c *Context) GID(port uint8, index int) (GIDEntry, error) {
	const call = "ibv_query_gid_ex"
	if err := c.enter(call); err != nil {
		return GIDEntry{}, err
	}
	defer c.leave()
	e, errno := c.lib.QueryGIDEx(c.raw, port, index)
	if errno != 0 {
		return GIDEntry{}, &Error{Call: call, Device: c.device, Err: errno}
	}
	return gidOf(&e), nil
}

func gidOf(e *cgo.GIDEntry) GIDEntry {
	return GIDEntry{GID: e.GID, Index: int(e.Index), Port: uint8(e.Port), Type: GIDType(e.Type), NetdevIndex: int(e.NetdevIndex)}
}

// GIDTable lists the GIDs of all ports.
//
// Implements: ssize_t ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries, uint32_t flags)
// Implements: int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
func (c *Context) GIDTable() ([]GIDEntry, error) {
	const call = "ibv_query_gid_table"
	if err := c.enter(call); err != nil {
		return nil, err
	}
	defer c.leave()
	attr, errno := c.lib.QueryDevice(c.raw)
	if errno != 0 {
		return nil, &Error{Call: "ibv_query_device", Device: c.device, Err: errno}
	}
	lengths := make([]int, attr.PhysPortCount) // index is the port number minus one
	total := 0
	for i := range lengths {
		p, err := c.queryPort(uint8(i + 1))
		if err != nil {
			return nil, err
		}
		lengths[i] = p.GIDTableLen
		total += p.GIDTableLen
	}
	raw, errno := c.lib.QueryGIDTable(c.raw, total)
	switch errno {
	case 0:
		table := make([]GIDEntry, len(raw))
		for i := range raw {
			table[i] = gidOf(&raw[i])
		}
		return table, nil
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPROTONOSUPPORT, syscall.EINVAL, syscall.EIO:
		return c.gidsOneByOne(lengths)
	}
	return nil, &Error{Call: call, Device: c.device, Err: errno}
}

// gidsOneByOne builds the table for kernels before 5.10 and for devices without a table in the kernel, such as iWARP
// devices.
func (c *Context) gidsOneByOne(lengths []int) (table []GIDEntry, err error) {
	var last syscall.Errno
	for i, n := range lengths {
		port := uint8(i + 1)
		for index := range n {
			gid, errno := c.lib.QueryGID(c.raw, port, index)
			if errno != 0 || gid == (GID{}) {
				last = errno // reported for an unused row; kernels differ in the errno
				continue
			}
			e := GIDEntry{GID: gid, Index: index, Port: port}
			e.Type, e.NetdevIndex = c.gidAttrs(port, index)
			table = append(table, e)
		}
	}
	if len(table) == 0 && last != 0 {
		return nil, &Error{Call: "ibv_query_gid", Device: c.device, Err: last}
	}
	return table, nil
}

// gidAttrs reads the attributes of a GID from sysfs.
func (c *Context) gidAttrs(port uint8, index int) (t GIDType, netdev int) {
	read := func(format string, args ...any) string {
		b, _ := os.ReadFile(fmt.Sprintf(format, args...))
		return strings.TrimSpace(string(b))
	}
	attrs := filepath.Join(sysDevices, c.device, "ports", strconv.Itoa(int(port)), "gid_attrs")
	switch read("%s/types/%d", attrs, index) {
	case "RoCE v2":
		t = GIDTypeRoCEv2
	case "IB/RoCE v1":
		if p, err := c.queryPort(port); err == nil && p.LinkLayer == LinkLayerEthernet && c.info.Transport == TransportIB {
			t = GIDTypeRoCEv1
		}
	}
	if ndev := read("%s/ndevs/%d", attrs, index); ndev != "" {
		netdev, _ = strconv.Atoi(read("/sys/class/net/%s/ifindex", ndev))
	}
	return t, netdev
}
