//go:build linux && cgo

package ibv

import (
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A FlowType selects the packets of a flow, see ibv_create_flow(3).
type FlowType int32

// Kinds of flows.
const (
	FlowNormal     FlowType = 0 // packets that match its specifications
	FlowAllDefault FlowType = 1 // all packets that match no other flow
	FlowMCDefault  FlowType = 2 // all multicast packets that match no other flow
	FlowSniffer    FlowType = 3 // copies of all packets
)

func (t FlowType) String() string {
	return name([]string{"IBV_FLOW_ATTR_NORMAL", "IBV_FLOW_ATTR_ALL_DEFAULT", "IBV_FLOW_ATTR_MC_DEFAULT", "IBV_FLOW_ATTR_SNIFFER"}, int32(t), "ibv_flow_attr_type")
}

// FlowFlags are options of a flow, see ibv_create_flow(3).
type FlowFlags uint32

// Options of flows.
const (
	FlowDontTrap FlowFlags = 1 << 1 // other flows also receive the packets
	FlowEgress   FlowFlags = 1 << 2 // outgoing packets
)

// A FlowAttr describes a flow, see ibv_create_flow(3). Packets match all Specs, in the order of their layers; actions
// come last.
type FlowAttr struct {
	Type     FlowType
	Priority uint16 // the lowest value comes first
	Port     uint8
	Flags    FlowFlags
	Specs    []FlowSpec
}

// A FlowSpec is a condition or an action of a flow: one of the types with names that begin with Flow.
type FlowSpec interface {
	// spec returns the C structure.
	spec() []byte
}

// Conditions. The bits selected by Mask must equal those of Val. With Inner the condition applies to the packet inside
// a tunnel.
type (
	// FlowEth matches the Ethernet header.
	FlowEth struct {
		Inner     bool
		Val, Mask EthFilter
	}
	// FlowIPv4 matches the IPv4 header.
	FlowIPv4 struct {
		Inner     bool
		Val, Mask IPv4Filter
	}
	// FlowIPv6 matches the IPv6 header.
	FlowIPv6 struct {
		Inner     bool
		Val, Mask IPv6Filter
	}
	// FlowTCP matches the TCP header.
	FlowTCP struct {
		Inner     bool
		Val, Mask PortFilter
	}
	// FlowUDP matches the UDP header.
	FlowUDP struct {
		Inner     bool
		Val, Mask PortFilter
	}
	// FlowVXLAN matches the header of a tunnel.
	FlowVXLAN struct{ Val, Mask uint32 }
)

// Actions.
type (
	// FlowTag marks the completions of the packets, see WCEx.FlowTag.
	FlowTag uint32
	// FlowDrop drops the packets.
	FlowDrop struct{}
	// FlowCount counts the packets.
	FlowCount struct{ Counters *Counters }
)

// Filters. All numbers are in host byte order.
type (
	// EthFilter has fields of the Ethernet header.
	EthFilter = cgo.EthFilter
	// IPv4Filter has fields of the IPv4 header.
	IPv4Filter = cgo.IPv4Filter
	// IPv6Filter has fields of the IPv6 header.
	IPv6Filter = cgo.IPv6Filter
	// PortFilter has the ports of TCP and UDP.
	PortFilter = cgo.PortFilter
)

func (f FlowEth) spec() []byte   { return cgo.EthSpec(f.Inner, f.Val, f.Mask) }
func (f FlowIPv4) spec() []byte  { return cgo.IPv4Spec(f.Inner, f.Val, f.Mask) }
func (f FlowIPv6) spec() []byte  { return cgo.IPv6Spec(f.Inner, f.Val, f.Mask) }
func (f FlowTCP) spec() []byte   { return cgo.PortSpec(f.Inner, false, f.Val, f.Mask) }
func (f FlowUDP) spec() []byte   { return cgo.PortSpec(f.Inner, true, f.Val, f.Mask) }
func (f FlowVXLAN) spec() []byte { return cgo.VXLANSpec(f.Val, f.Mask) }
func (f FlowTag) spec() []byte   { return cgo.TagSpec(uint32(f)) }
func (f FlowDrop) spec() []byte  { return cgo.DropSpec() }
func (f FlowCount) spec() []byte { return cgo.CountSpec(f.Counters.raw) }

// A Flow steers packets to a queue pair. It must be closed before the queue pair.
type Flow struct {
	life
	raw *cgo.Flow
	ctx *Context
}

// CreateFlow steers packets to the queue pair.
//
// Implements: struct ibv_flow *ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *flow)
func (qp *QP) CreateFlow(attr FlowAttr) (*Flow, error) {
	const call, maxSpecs = "ibv_create_flow", 255
	parents := []*life{&qp.life}
	for _, s := range attr.Specs {
		if count, ok := s.(FlowCount); ok {
			if count.Counters == nil {
				return nil, &Error{Call: call, Device: qp.device, Err: syscall.EINVAL}
			}
			parents = append(parents, &count.Counters.life)
		}
	}
	if len(attr.Specs) > maxSpecs {
		return nil, &Error{Call: call, Device: qp.device, Err: syscall.EINVAL}
	}
	flow := &Flow{ctx: qp.ctx}
	err := qp.ctx.made(call, aFlow, &flow.life, func() (errno syscall.Errno) {
		var specs []byte
		for _, s := range attr.Specs {
			specs = append(specs, s.spec()...)
		}
		raw := cgo.FlowAttr{Type: int32(attr.Type), Priority: attr.Priority, Specs: uint8(len(attr.Specs)), Port: attr.Port, Flags: uint32(attr.Flags)}
		flow.raw, errno = qp.ctx.lib.CreateFlow(qp.raw, raw, specs)
		return errno
	}, parents...)
	if err != nil {
		return nil, err
	}
	return flow, nil
}

// Close destroys the flow.
//
// Implements: int ibv_destroy_flow(struct ibv_flow *flow_id)
func (flow *Flow) Close() error {
	return flow.end("ibv_destroy_flow", func() syscall.Errno { return flow.ctx.lib.DestroyFlow(flow.raw) })
}

// A CounterDescription selects what to count, see ibv_attach_counters_point_flow(3).
type CounterDescription int32

// Units of counters.
const (
	CounterPackets CounterDescription = 0
	CounterBytes   CounterDescription = 1
)

// Counters count the packets of flows. They must be closed after the flows.
type Counters struct {
	life
	raw *cgo.Counters
	ctx *Context
}

// CreateCounters creates an empty set of counters: see Attach.
//
// Implements: struct ibv_counters *ibv_create_counters(struct ibv_context *context, struct ibv_counters_init_attr *init_attr)
func (c *Context) CreateCounters() (*Counters, error) {
	n := &Counters{ctx: c}
	err := c.made("ibv_create_counters", someCounters, &n.life, func() (errno syscall.Errno) {
		n.raw, errno = c.lib.CreateCounters(c.raw)
		return errno
	}, &c.life)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// Attach adds a counter; Read stores its value at index. flow is nil before the flow with FlowCount is created.
//
// Implements: int ibv_attach_counters_point_flow(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr, struct ibv_flow *flow)
func (n *Counters) Attach(flow *Flow, desc CounterDescription, index int) error {
	lives := []*life{&n.life}
	var raw *cgo.Flow
	if flow != nil {
		lives, raw = append(lives, &flow.life), flow.raw
	}
	return n.ctx.do("ibv_attach_counters_point_flow", func() syscall.Errno {
		return n.ctx.lib.AttachCounters(n.raw, raw, int32(desc), uint32(index))
	}, lives...)
}

// Read fills values with the counts. With cached it may return cached values without querying the device.
//
// Implements: int ibv_read_counters(struct ibv_counters *counters, uint64_t *counters_value, uint32_t ncounters, uint32_t flags)
func (n *Counters) Read(values []uint64, cached bool) error {
	var flags uint32
	if cached {
		flags = 1 // IBV_READ_COUNTERS_ATTR_PREFER_CACHED
	}
	return n.ctx.do("ibv_read_counters", func() syscall.Errno { return n.ctx.lib.ReadCounters(n.raw, values, flags) }, &n.life)
}

// Close destroys the counters.
//
// Implements: int ibv_destroy_counters(struct ibv_counters *counters)
func (n *Counters) Close() error {
	return n.end("ibv_destroy_counters", func() syscall.Errno { return n.ctx.lib.DestroyCounters(n.raw) })
}
