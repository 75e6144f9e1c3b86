package provider

// A Device describes an RDMA device. Its JSON is stable.
type Device struct {
	Name         string        `json:"name"`      // as ibv_devices(1) prints it
	Driver       string        `json:"driver"`    // rxe, siw, or a kernel module; "unknown" if not known
	Transport    string        `json:"transport"` // infiniband, roce, iwarp
	NodeGUID     string        `json:"node_guid"`
	Firmware     string        `json:"firmware"`         // its version
	Usable       bool          `json:"usable"`           // by this process, with the provider RDMA
	Reason       string        `json:"reason,omitempty"` // why not: the text of Err
	Err          error         `json:"-"`                // why not
	Addresses    []Address     `json:"addresses"`        // that lead to it
	Ports        []Port        `json:"ports"`            // empty if it may not be opened
	Capabilities *Capabilities `json:"capabilities,omitempty"`
}

// An Address is an IP address of this machine that leads to a port of a device.
type Address struct {
	Address       string `json:"address"`
	Port          int    `json:"port"`           // from 1
	NetworkDevice string `json:"network_device"` // which has the address
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
}

// A GID is an address of a port.
type GID struct {
	Index         int    `json:"index"` // in the port's table, from 0
	GID           string `json:"gid"`
	Type          string `json:"type"` // ib, roce_v1, roce_v2, iwarp
	NetworkDevice string `json:"network_device,omitempty"`
}

// Capabilities are the limits and features of a device, ibv_query_device(3).
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
	SafeWindows        bool     `json:"safe_windows"`   // they protect memory
	SendWithInvalidate bool     `json:"send_with_invalidate"`
	Atomics            string   `json:"atomics"` // none, device, global
	InboundReads       int      `json:"inbound_reads"`
	OutboundReads      int      `json:"outbound_reads"`
	SharedInboundReads int      `json:"shared_inbound_reads"`
}

// Usable returns the names of the devices that can be used.
func Usable(devices []Device) (names []string) {
	for _, d := range devices {
		if d.Usable {
			names = append(names, d.Name)
		}
	}
	return names
}
