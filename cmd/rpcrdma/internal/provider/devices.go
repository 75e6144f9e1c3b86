package provider

// A Device describes an RDMA device. Its JSON is stable.
type Device struct {
	Name         string        `json:"name"`      // as ibv_devices(1) prints it
	Driver       string        `json:"driver"`    // rxe, siw, or a kernel module; "unknown" if unknown
	Transport    string        `json:"transport"` // infiniband, roce, iwarp
	NodeGUID     string        `json:"node_guid"`
	SysImageGUID string        `json:"sys_image_guid,omitempty"` // of the adapter, which may comprise several devices
	VendorID     uint32        `json:"vendor_id"`                // as assigned by the IEEE
	VendorPart   uint32        `json:"vendor_part_id"`
	Hardware     uint32        `json:"hardware_version"`
	Firmware     string        `json:"firmware"`         // its version
	Usable       bool          `json:"usable"`           // usable by this process with the provider RDMA
	Reason       string        `json:"reason,omitempty"` // text of Err
	Err          error         `json:"-"`                // why it is not usable
	Addresses    []Address     `json:"addresses"`        // that lead to the device
	Ports        []Port        `json:"ports"`            // empty if the device may not be opened
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	InUse        *InUse        `json:"in_use,omitempty"` // nil if the kernel does not report it
	InUseReason  string        `json:"in_use_reason,omitempty"`
}

// InUse counts the objects of a device that all processes and the kernel currently have, without those that this
// process needed for the description.
type InUse struct {
	PD       uint64 `json:"pd"`       // protection domains
	CQ       uint64 `json:"cq"`       // completion queues
	QP       uint64 `json:"qp"`       // queue pairs
	CMID     uint64 `json:"cm_id"`    // connections and listeners of the connection manager
	MR       uint64 `json:"mr"`       // memory regions
	Contexts uint64 `json:"contexts"` // opens of the device by processes
	SRQ      uint64 `json:"srq"`      // shared receive queues; not counted by kernels before 6.0
}

// An Address is a local IP address that leads to a port of a device.
type Address struct {
	Address       string `json:"address"`
	Port          int    `json:"port"`           // from 1
	NetworkDevice string `json:"network_device"` // interface with the address
}

// A Port is a port of a device.
type Port struct {
	Port       int    `json:"port"`       // from 1
	State      string `json:"state"`      // nop, down, init, armed, active, active_defer
	LinkLayer  string `json:"link_layer"` // infiniband, ethernet, unspecified
	MTU        int    `json:"mtu"`        // in bytes
	MaxMTU     int    `json:"max_mtu"`
	MaxMessage uint32 `json:"max_message"` // in bytes
	GIDs       []GID  `json:"gids"`

	PhysicalState string   `json:"physical_state"`           // sleep, polling, disabled, training, link_up, recovery, test
	NetworkDevice string   `json:"network_device,omitempty"` // below the port, as rdma-link(8) prints it
	Width         int      `json:"width"`                    // lanes, 0 if unknown
	LaneSpeed     float64  `json:"lane_gbps"`                // Gb/s of one lane, 0 if unknown
	Speed         float64  `json:"gbps"`                     // Gb/s of all lanes
	LID           uint16   `json:"lid"`
	SMLID         uint16   `json:"sm_lid"` // of the subnet manager
	SMSL          uint8    `json:"sm_sl"`
	LMC           uint8    `json:"lmc"`
	MaxVL         int      `json:"max_vl"` // virtual lanes, 0 if unknown
	SubnetTimeout uint8    `json:"subnet_timeout"`
	InitTypeReply uint8    `json:"init_type_reply"`
	Capabilities  []string `json:"port_capabilities"`
	GIDTable      int      `json:"gid_table"`  // rows
	PkeyTable     int      `json:"pkey_table"` // rows
	Pkeys         []string `json:"pkeys"`      // 0xffff; those that are not zero
	BadPkeys      uint32   `json:"bad_pkeys"`  // packets
	BadQkeys      uint32   `json:"bad_qkeys"`  // packets
}

// A GID is an address of a port.
type GID struct {
	Index         int    `json:"index"` // in the port's table, from 0
	GID           string `json:"gid"`
	Type          string `json:"type"` // ib, roce_v1, roce_v2, iwarp
	NetworkDevice string `json:"network_device,omitempty"`
}

// Capabilities holds the limits and features of a device: ibv_query_device(3).
type Capabilities struct {
	MaxQP              int      `json:"max_qp"`
	MaxQPRequests      int      `json:"max_qp_requests"`
	MaxSGE             int      `json:"max_sge"`
	MaxReadSGE         int      `json:"max_read_sge"`
	MaxCQ              int      `json:"max_cq"`
	MaxCQEntries       int      `json:"max_cq_entries"`
	MaxSRQ             int      `json:"max_srq"`
	MaxSRQRequests     int      `json:"max_srq_requests"`
	MaxMR              int      `json:"max_mr"`
	MaxMRBytes         uint64   `json:"max_mr_bytes"`
	MaxMW              int      `json:"max_mw"`
	MemoryWindows      []string `json:"memory_windows"` // type_1, type_2a, type_2b
	SafeWindows        bool     `json:"safe_windows"`   // windows protect memory
	SendWithInvalidate bool     `json:"send_with_invalidate"`
	Atomics            string   `json:"atomics"` // none, device, global
	InboundReads       int      `json:"inbound_reads"`
	OutboundReads      int      `json:"outbound_reads"`
	SharedInboundReads int      `json:"shared_inbound_reads"`

	Flags              []string `json:"flags"`      // in words, as ibv_devinfo(1) prints them
	PageSizes          uint64   `json:"page_sizes"` // bit mask
	MaxPD              int      `json:"max_pd"`
	MaxAH              int      `json:"max_ah"`
	MaxSRQSGE          int      `json:"max_srq_sge"`
	MaxPkeys           int      `json:"max_pkeys"`
	MulticastGroups    int      `json:"multicast_groups"`
	MulticastInGroup   int      `json:"multicast_in_group"`    // queue pairs in a group
	MulticastMembers   int      `json:"multicast_memberships"` // in all groups
	AckDelay           uint8    `json:"ack_delay"`             // the exponent n of 4.096 us * 2^n
	CompletionVectors  int      `json:"completion_vectors"`
	MaxWQ              uint32   `json:"max_wq"`
	DeviceMemory       uint64   `json:"device_memory"` // bytes
	TimestampMask      uint64   `json:"timestamp_mask"`
	Clock              uint64   `json:"clock_khz"`
	RawPacket          []string `json:"raw_packet"`
	OnDemand           OnDemand `json:"on_demand"`
	TSO                Offload  `json:"tso"`          // max in bytes
	PacketPacing       Pacing   `json:"rate_limit"`   // for queue pairs
	RSS                RSS      `json:"rss"`          // spreading of packets over queues
	TagMatching        Tags     `json:"tag_matching"` // receives found by tag
	ModerationCount    uint16   `json:"moderation_count"`
	ModerationPeriodUS int64    `json:"moderation_us"`
}

// OnDemand says where regions without pinned pages can be used.
type OnDemand struct {
	Supported   bool     `json:"supported"`
	WholeMemory bool     `json:"whole_memory"` // a region can cover all memory of the process
	RC          []string `json:"rc"`           // send, recv, write, read, atomic, srq
	UC          []string `json:"uc"`
	UD          []string `json:"ud"`
	XRC         []string `json:"xrc"`
}

// Offload is a feature of the queue pairs of some types.
type Offload struct {
	Max   uint32   `json:"max"`
	Types []string `json:"types"` // raw_packet, ud, rc ...
}

// Pacing holds the range of packet rate limits, in kbit/s.
type Pacing struct {
	Min   uint32   `json:"min_kbps"`
	Max   uint32   `json:"max_kbps"`
	Types []string `json:"types"`
}

// RSS holds limits and features of indirection tables.
type RSS struct {
	MaxTables     uint32   `json:"max_tables"`
	MaxTableSize  uint32   `json:"max_table_size"`
	HashFunctions uint8    `json:"hash_functions"` // bit mask
	HashFields    uint64   `json:"hash_fields"`    // bit mask
	Types         []string `json:"types"`
}

// Tags holds limits of tag matching.
type Tags struct {
	MaxTags   uint32 `json:"max_tags"`
	MaxOps    uint32 `json:"max_ops"`
	MaxSGE    uint32 `json:"max_sge"`
	MaxHeader uint32 `json:"max_header"` // bytes, of a rendezvous
	Flags     uint32 `json:"flags"`
}

// Usable returns the names of the usable devices.
func Usable(devices []Device) (names []string) {
	for _, d := range devices {
		if d.Usable {
			names = append(names, d.Name)
		}
	}
	return names
}
