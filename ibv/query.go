//go:build linux && cgo

package ibv

import (
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// QPTypes is a set of transport services that support a capability.
type QPTypes uint32

// Has reports whether the set contains a transport service.
//
// Implements: int ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type qpt)
func (s QPTypes) Has(t QPType) bool { return t >= 0 && t < 32 && s>>t&1 != 0 }

// A DeviceAttrEx holds further capabilities of a device, see ibv_query_device_ex(3). Capabilities that the device lacks
// are zero.
type DeviceAttrEx struct {
	OnDemand      bool // regions with AccessOnDemand
	OnDemandWhole bool // a region may cover all memory of the process
	// ODPRC, ODPUC, ODPUD and ODPXRC have the bits of enum ibv_odp_transport_cap_bits.
	ODPRC, ODPUC, ODPUD, ODPXRC uint32

	TimestampMask uint64 // the valid bits of WCEx.Timestamp
	CoreClock     uint64 // its frequency in kHz
	CapFlags      uint64 // DeviceCap with additional bits

	MaxTSO   uint32  // bytes that OpTSO splits into packets
	TSOTypes QPTypes // transports that support OpTSO

	RSSTypes         QPTypes // transports that support indirection tables
	MaxTables        uint32
	MaxTableSize     uint32 // queues in a table
	RSSHashFields    uint64 // bits of RxHash.Fields
	RSSHashFunctions uint8  // bits of RxHash.Function
	MaxWQ            uint32

	MinRate, MaxRate uint32 // kbit/s, see RateLimit
	RateTypes        QPTypes

	RawPacketCaps uint32 // enum ibv_raw_packet_caps

	MaxTagHeader, MaxTags, TagFlags, MaxTagOps, MaxTagSGE uint32 // for queues that match tags

	MaxModerateCount  uint16 // see CQ.Moderate
	MaxModeratePeriod time.Duration

	MaxDMSize uint64 // bytes of device memory

	// AtomicAdd, AtomicSwap and AtomicCAS are the sizes of atomics across PCI, of enum
	// ibv_pci_atomic_op_size.
	AtomicAdd, AtomicSwap, AtomicCAS uint16

	PhysPorts int
}

// QueryEx returns the further capabilities of the device.
//
// Implements: int ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr)
func (c *Context) QueryEx() (out DeviceAttrEx, err error) {
	var a cgo.DeviceAttrEx
	err = c.do("ibv_query_device_ex", func() (errno syscall.Errno) {
		a, errno = c.lib.QueryDeviceEx(c.raw)
		return errno
	}, &c.life)
	return DeviceAttrEx{
		OnDemand: a.ODP.General&1 != 0, OnDemandWhole: a.ODP.General&2 != 0,
		ODPRC: a.ODP.RC, ODPUC: a.ODP.UC, ODPUD: a.ODP.UD, ODPXRC: a.ODP.XRC,
		TimestampMask: a.TimestampMask, CoreClock: a.CoreClock, CapFlags: a.CapFlags,
		MaxTSO: a.MaxTSO, TSOTypes: QPTypes(a.TSOTypes),
		RSSTypes: QPTypes(a.RSS.Types), MaxTables: a.RSS.MaxTables, MaxTableSize: a.RSS.MaxTableSize,
		RSSHashFields: a.RSS.HashFields, RSSHashFunctions: a.RSS.HashFunctions, MaxWQ: a.MaxWQ,
		MinRate: a.RateMin, MaxRate: a.RateMax, RateTypes: QPTypes(a.RateTypes), RawPacketCaps: a.RawPacketCaps,
		MaxTagHeader: a.TM.MaxHeader, MaxTags: a.TM.MaxTags, TagFlags: a.TM.Flags, MaxTagOps: a.TM.MaxOps, MaxTagSGE: a.TM.MaxSGE,
		MaxModerateCount: a.MaxCQCount, MaxModeratePeriod: time.Duration(a.MaxCQPeriod) * time.Microsecond,
		MaxDMSize: a.MaxDMSize, AtomicAdd: a.AtomicAdd, AtomicSwap: a.AtomicSwap, AtomicCAS: a.AtomicCAS, PhysPorts: int(a.PhysPorts),
	}, err
}

// RawClock returns the time on the clock of WCEx.Timestamp, in its own units: see DeviceAttrEx.CoreClock.
//
// Implements: int ibv_query_rt_values_ex(struct ibv_context *context, struct ibv_values_ex *values)
func (c *Context) RawClock() (ticks uint64, err error) {
	err = c.do("ibv_query_rt_values_ex", func() (errno syscall.Errno) {
		ticks, errno = c.lib.QueryRawClock(c.raw)
		return errno
	}, &c.life)
	return ticks, err
}

// DataInOrder reports whether the data of a peer's operation, such as OpRDMAWrite, arrives in address order, so that a
// program may poll the last byte.
//
// Implements: int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
func (qp *QP) DataInOrder(op Opcode) (inOrder bool, err error) {
	err = qp.ctx.do("ibv_query_qp_data_in_order", func() syscall.Errno {
		inOrder = qp.ctx.lib.QPDataInOrder(qp.raw, uint32(op))
		return 0
	}, &qp.life)
	return inOrder, err
}

// A RateLimit limits the rate of a queue pair's packets, see ibv_modify_qp_rate_limit(3).
type RateLimit struct {
	Kbps          uint32 // kbit/s; zero: no limit
	MaxBurst      uint32 // bytes; zero: the device's choice
	TypicalPacket uint16 // bytes; zero: the device's choice
}

// LimitRate limits the packet rate of a queue pair in QPSRTS.
//
// Implements: int ibv_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
func (qp *QP) LimitRate(r RateLimit) error {
	return qp.ctx.do("ibv_modify_qp_rate_limit", func() syscall.Errno {
		return qp.ctx.lib.ModifyQPRateLimit(qp.raw, r.Kbps, r.MaxBurst, r.TypicalPacket)
	}, &qp.life)
}

// An ECE holds vendor-specific options that both ends agree on while they connect: enhanced connection establishment,
// see ibv_set_ece(3).
type ECE struct {
	VendorID uint32 // assigned by the IEEE; zero: none
	Options  uint32
}

// SetECE sets the options that the peer has offered. It must be called before the queue pair leaves QPSInit.
//
// Implements: int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
func (qp *QP) SetECE(e ECE) error {
	return qp.ctx.do("ibv_set_ece", func() syscall.Errno { return qp.ctx.lib.SetECE(qp.raw, cgo.ECE(e)) }, &qp.life)
}

// ECE returns the options that the queue pair offers, or from QPSRTR on those that it has accepted.
//
// Implements: int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
func (qp *QP) ECE() (e ECE, err error) {
	err = qp.ctx.do("ibv_query_ece", func() syscall.Errno {
		raw, errno := qp.ctx.lib.QueryECE(qp.raw)
		e = ECE(raw)
		return errno
	}, &qp.life)
	return e, err
}
