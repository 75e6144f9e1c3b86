//go:build linux && cgo

package cgo

/*
#include "verbs.h"
*/
import "C"

import "syscall"

// A DeviceAttrEx has the additional fields of struct ibv_device_attr_ex, see ibv_query_device_ex(3).
type DeviceAttrEx struct {
	ODP struct { // struct ibv_odp_caps
		General         uint64
		RC, UC, UD, XRC uint32
	}
	TimestampMask, CoreClock, CapFlags uint64
	MaxTSO, TSOTypes                   uint32
	RSS                                struct { // struct ibv_rss_caps
		Types, MaxTables, MaxTableSize uint32
		HashFields                     uint64
		HashFunctions                  uint8
	}
	MaxWQ                            uint32
	RateMin, RateMax, RateTypes      uint32 // struct ibv_packet_pacing_caps
	RawPacketCaps                    uint32
	TM                               struct{ MaxHeader, MaxTags, Flags, MaxOps, MaxSGE uint32 } // struct ibv_tm_caps
	MaxCQCount, MaxCQPeriod          uint16
	MaxDMSize                        uint64
	AtomicAdd, AtomicSwap, AtomicCAS uint16 // struct ibv_pci_atomic_caps
	PhysPorts                        uint32
}

// QueryDeviceEx calls ibv_query_device_ex.
func (RDMACore) QueryDeviceEx(ctx *Context) (out DeviceAttrEx, errno syscall.Errno) {
	var a C.struct_ibv_device_attr_ex
	if errno = status(C.ibv_query_device_ex(ctx.c(), nil, &a)); errno != 0 {
		return out, errno
	}
	odp := &a.odp_caps.per_transport_caps
	out.ODP.General, out.ODP.XRC = uint64(a.odp_caps.general_caps), uint32(a.xrc_odp_caps)
	out.ODP.RC, out.ODP.UC, out.ODP.UD = uint32(odp.rc_odp_caps), uint32(odp.uc_odp_caps), uint32(odp.ud_odp_caps)
	out.TimestampMask, out.CoreClock = uint64(a.completion_timestamp_mask), uint64(a.hca_core_clock)
	out.CapFlags = uint64(a.device_cap_flags_ex)
	out.MaxTSO, out.TSOTypes = uint32(a.tso_caps.max_tso), uint32(a.tso_caps.supported_qpts)
	rss := &a.rss_caps
	out.RSS.Types, out.RSS.MaxTables = uint32(rss.supported_qpts), uint32(rss.max_rwq_indirection_tables)
	out.RSS.MaxTableSize, out.RSS.HashFields = uint32(rss.max_rwq_indirection_table_size), uint64(rss.rx_hash_fields_mask)
	out.RSS.HashFunctions, out.MaxWQ = uint8(rss.rx_hash_function), uint32(a.max_wq_type_rq)
	pacing := &a.packet_pacing_caps
	out.RateMin, out.RateMax, out.RateTypes = uint32(pacing.qp_rate_limit_min), uint32(pacing.qp_rate_limit_max), uint32(pacing.supported_qpts)
	out.RawPacketCaps = uint32(a.raw_packet_caps)
	tm := &a.tm_caps
	out.TM.MaxHeader, out.TM.MaxTags, out.TM.Flags = uint32(tm.max_rndv_hdr_size), uint32(tm.max_num_tags), uint32(tm.flags)
	out.TM.MaxOps, out.TM.MaxSGE = uint32(tm.max_ops), uint32(tm.max_sge)
	out.MaxCQCount, out.MaxCQPeriod = uint16(a.cq_mod_caps.max_cq_count), uint16(a.cq_mod_caps.max_cq_period)
	out.MaxDMSize, out.PhysPorts = uint64(a.max_dm_size), uint32(a.phys_port_cnt_ex)
	pci := &a.pci_atomic_caps
	out.AtomicAdd, out.AtomicSwap, out.AtomicCAS = uint16(pci.fetch_add), uint16(pci.swap), uint16(pci.compare_swap)
	return out, 0
}

// QueryRawClock calls ibv_query_rt_values_ex for the clock of completions, in its own units.
func (RDMACore) QueryRawClock(ctx *Context) (uint64, syscall.Errno) {
	const rawClock = 1 // IBV_VALUES_MASK_RAW_CLOCK
	v := C.struct_ibv_values_ex{comp_mask: rawClock}
	errno := status(C.ibv_query_rt_values_ex(ctx.c(), &v))
	if errno == 0 && v.comp_mask&rawClock == 0 {
		errno = syscall.EOPNOTSUPP
	}
	return uint64(v.raw_clock.tv_sec)*1e9 + uint64(v.raw_clock.tv_nsec), errno
}

// QPDataInOrder calls ibv_query_qp_data_in_order.
func (RDMACore) QPDataInOrder(qp *QP, opcode uint32) bool {
	return C.ibv_query_qp_data_in_order(qp.c(), C.enum_ibv_wr_opcode(opcode), 0) != 0
}

// ModifyQPRateLimit calls ibv_modify_qp_rate_limit with kbit/s, and the sizes of a burst and of a packet in bytes.
func (RDMACore) ModifyQPRateLimit(qp *QP, kbps, burst uint32, packet uint16) syscall.Errno {
	a := C.struct_ibv_qp_rate_limit_attr{rate_limit: C.uint32_t(kbps), max_burst_sz: C.uint32_t(burst), typical_pkt_sz: C.uint16_t(packet)}
	return status(C.ibv_modify_qp_rate_limit(qp.c(), &a))
}

// An ECE is struct ibv_ece.
type ECE struct{ VendorID, Options uint32 }

// SetECE calls ibv_set_ece.
func (RDMACore) SetECE(qp *QP, ece ECE) syscall.Errno {
	e := ece.c()
	return status(C.ibv_set_ece(qp.c(), &e))
}

// QueryECE calls ibv_query_ece.
func (RDMACore) QueryECE(qp *QP) (ECE, syscall.Errno) {
	var e C.struct_ibv_ece
	errno := status(C.ibv_query_ece(qp.c(), &e))
	return ECE{uint32(e.vendor_id), uint32(e.options)}, errno
}

func (e ECE) c() C.struct_ibv_ece {
	return C.struct_ibv_ece{vendor_id: C.uint32_t(e.VendorID), options: C.uint32_t(e.Options)}
}

// SetLocalECE calls rdma_set_local_ece.
func (RDMACore) SetLocalECE(id *CMID, ece ECE) syscall.Errno {
	e := ece.c()
	ret, err := C.rdma_set_local_ece(id.c(), &e)
	return result(ret, err)
}

// RemoteECE calls rdma_get_remote_ece.
func (RDMACore) RemoteECE(id *CMID) (ECE, syscall.Errno) {
	var e C.struct_ibv_ece
	ret, err := C.rdma_get_remote_ece(id.c(), &e)
	return ECE{uint32(e.vendor_id), uint32(e.options)}, result(ret, err)
}
