//go:build linux && cgo

package cgo

/*
#cgo pkg-config: libibverbs librdmacm
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"syscall"
	"unsafe"

	// Make a build without the headers fail with the names of the packages to install.
	_ "github.com/rpcrdma/rpcrdma/cgo/internal/headers"
)

// asErrno returns the errno of a failed library call, or EIO if the library has not set it.
func asErrno(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok && e != 0 {
		return e
	}
	return syscall.EIO
}

// status returns the error of a libibverbs call, which returns an errno value. Some providers return it negated, or
// return -1 without a reason.
func status(ret C.int) syscall.Errno {
	switch {
	case ret == -1:
		return syscall.EIO
	case ret < 0:
		return syscall.Errno(-ret)
	}
	return syscall.Errno(ret)
}

// A DeviceInfo describes a device of the list.
type DeviceInfo struct {
	Name      string
	GUID      [8]byte // in network byte order
	NodeType  int32   // enum ibv_node_type
	Transport int32   // enum ibv_transport_type
	Index     int32   // assigned by the kernel; -1 if unknown
}

// GetDeviceList calls ibv_get_device_list. A device is valid until free is called, or as long as a Context of it is
// open.
func (RDMACore) GetDeviceList() (devices []*Device, free func(), errno syscall.Errno) {
	var n C.int
	list, err := C.rr_get_device_list(&n)
	if list == nil {
		return nil, nil, asErrno(err)
	}
	for _, d := range unsafe.Slice(list, int(n)) {
		devices = append(devices, (*Device)(unsafe.Pointer(d)))
	}
	return devices, func() { C.ibv_free_device_list(list) }, 0
}

// DeviceInfo calls ibv_get_device_name, ibv_get_device_guid, ibv_get_device_index.
func (RDMACore) DeviceInfo(device *Device) DeviceInfo {
	d := device.c()
	info := DeviceInfo{
		Name:      C.GoString(C.ibv_get_device_name(d)),
		NodeType:  int32(d.node_type),
		Transport: int32(d.transport_type),
		Index:     int32(C.ibv_get_device_index(d)),
	}
	guid := C.ibv_get_device_guid(d)
	info.GUID = *(*[8]byte)(unsafe.Pointer(&guid))
	return info
}

// OpenDevice calls ibv_open_device.
func (RDMACore) OpenDevice(d *Device) (*Context, syscall.Errno) {
	ctx, err := C.ibv_open_device(d.c())
	if ctx == nil {
		return nil, asErrno(err)
	}
	return (*Context)(unsafe.Pointer(ctx)), 0
}

// CloseDevice calls ibv_close_device.
func (RDMACore) CloseDevice(ctx *Context) syscall.Errno { return status(C.ibv_close_device(ctx.c())) }

// ContextDevice returns the device of ctx.
func (RDMACore) ContextDevice(ctx *Context) *Device { return (*Device)(unsafe.Pointer(ctx.c().device)) }

// AsyncFD returns the descriptor of asynchronous events. ctx owns it.
func (RDMACore) AsyncFD(ctx *Context) int { return int(ctx.c().async_fd) }

// NumCompVectors returns the number of completion vectors of the device.
func (RDMACore) NumCompVectors(ctx *Context) int { return int(ctx.c().num_comp_vectors) }

// A DeviceAttr is struct ibv_device_attr, see ibv_query_device(3).
type DeviceAttr struct {
	FirmwareVersion                                       string
	NodeGUID, SysImageGUID                                [8]byte
	MaxMRSize, PageSizeCap                                uint64
	VendorID, VendorPartID, HWVersion, CapFlags           uint32
	MaxQP, MaxQPWR, MaxSGE, MaxSGERd, MaxCQ, MaxCQE       int32
	MaxMR, MaxPD, MaxMW, MaxSRQ, MaxSRQWR, MaxSRQSGE      int32
	MaxQPRdAtom, MaxResRdAtom, MaxQPInitRdAtom, AtomicCap int32
	MaxAH, MaxMcastGrp, MaxMcastQPAttach                  int32
	MaxTotalMcastQPAttach                                 int32
	MaxPkeys                                              uint16
	LocalCAAckDelay, PhysPortCount                        uint8
}

// QueryDevice calls ibv_query_device.
func (RDMACore) QueryDevice(ctx *Context) (DeviceAttr, syscall.Errno) {
	var a C.struct_ibv_device_attr
	if errno := status(C.ibv_query_device(ctx.c(), &a)); errno != 0 {
		return DeviceAttr{}, errno
	}
	return DeviceAttr{
		FirmwareVersion: C.GoString(&a.fw_ver[0]),
		NodeGUID:        *(*[8]byte)(unsafe.Pointer(&a.node_guid)),
		SysImageGUID:    *(*[8]byte)(unsafe.Pointer(&a.sys_image_guid)),
		MaxMRSize:       uint64(a.max_mr_size), PageSizeCap: uint64(a.page_size_cap),
		VendorID: uint32(a.vendor_id), VendorPartID: uint32(a.vendor_part_id), HWVersion: uint32(a.hw_ver),
		CapFlags: uint32(a.device_cap_flags),
		MaxQP:    int32(a.max_qp), MaxQPWR: int32(a.max_qp_wr), MaxSGE: int32(a.max_sge), MaxSGERd: int32(a.max_sge_rd),
		MaxCQ: int32(a.max_cq), MaxCQE: int32(a.max_cqe), MaxMR: int32(a.max_mr), MaxPD: int32(a.max_pd),
		MaxMW: int32(a.max_mw), MaxSRQ: int32(a.max_srq), MaxSRQWR: int32(a.max_srq_wr), MaxSRQSGE: int32(a.max_srq_sge),
		MaxQPRdAtom: int32(a.max_qp_rd_atom), MaxResRdAtom: int32(a.max_res_rd_atom),
		MaxQPInitRdAtom: int32(a.max_qp_init_rd_atom), AtomicCap: int32(a.atomic_cap),
		MaxAH: int32(a.max_ah), MaxMcastGrp: int32(a.max_mcast_grp), MaxMcastQPAttach: int32(a.max_mcast_qp_attach),
		MaxTotalMcastQPAttach: int32(a.max_total_mcast_qp_attach),
		MaxPkeys:              uint16(a.max_pkeys), LocalCAAckDelay: uint8(a.local_ca_ack_delay), PhysPortCount: uint8(a.phys_port_cnt),
	}, 0
}

// A PortAttr is struct ibv_port_attr, see ibv_query_port(3).
type PortAttr struct {
	State, MaxMTU, ActiveMTU                int32
	GIDTableLen                             int32
	CapFlags, MaxMsgSize                    uint32
	BadPkeyCounter, QkeyViolCounter         uint32
	PkeyTableLen, LID, SMLID                uint16
	LMC, MaxVLNum, SMSL, SubnetTimeout      uint8
	InitTypeReply, ActiveWidth, ActiveSpeed uint8
	PhysState, LinkLayer, Flags             uint8
	CapFlags2                               uint16
}

// QueryPort calls ibv_query_port.
func (RDMACore) QueryPort(ctx *Context, port uint8) (PortAttr, syscall.Errno) {
	var a C.struct_ibv_port_attr
	if errno := status(C.rr_query_port(ctx.c(), C.uint8_t(port), &a)); errno != 0 {
		return PortAttr{}, errno
	}
	return PortAttr{
		State: int32(a.state), MaxMTU: int32(a.max_mtu), ActiveMTU: int32(a.active_mtu),
		GIDTableLen: int32(a.gid_tbl_len), CapFlags: uint32(a.port_cap_flags), MaxMsgSize: uint32(a.max_msg_sz),
		BadPkeyCounter: uint32(a.bad_pkey_cntr), QkeyViolCounter: uint32(a.qkey_viol_cntr),
		PkeyTableLen: uint16(a.pkey_tbl_len), LID: uint16(a.lid), SMLID: uint16(a.sm_lid),
		LMC: uint8(a.lmc), MaxVLNum: uint8(a.max_vl_num), SMSL: uint8(a.sm_sl), SubnetTimeout: uint8(a.subnet_timeout),
		InitTypeReply: uint8(a.init_type_reply), ActiveWidth: uint8(a.active_width), ActiveSpeed: uint8(a.active_speed),
		PhysState: uint8(a.phys_state), LinkLayer: uint8(a.link_layer), Flags: uint8(a.flags),
		CapFlags2: uint16(a.port_cap_flags2),
	}, 0
}

// A GIDEntry is struct ibv_gid_entry, see ibv_query_gid_table(3).
type GIDEntry struct {
	GID         [16]byte
	Index       uint32
	Port        uint32
	Type        uint32 // enum ibv_gid_type
	NetdevIndex uint32 // 0 if there is no network device
}

// QueryGIDTable calls ibv_query_gid_table for up to max entries.
func (RDMACore) QueryGIDTable(ctx *Context, max int) ([]GIDEntry, syscall.Errno) {
	if max <= 0 {
		return nil, 0
	}
	list := make([]C.struct_ibv_gid_entry, max)
	n, err := C.ibv_query_gid_table(ctx.c(), &list[0], C.size_t(max), 0)
	if n < 0 {
		if n == -1 {
			return nil, asErrno(err)
		}
		return nil, syscall.Errno(-n)
	}
	out := make([]GIDEntry, n)
	for i := range out {
		out[i] = gidEntryOf(&list[i])
	}
	return out, 0
}

func gidEntryOf(e *C.struct_ibv_gid_entry) GIDEntry {
	return GIDEntry{
		GID: *(*[16]byte)(unsafe.Pointer(&e.gid)), Index: uint32(e.gid_index), Port: uint32(e.port_num),
		Type: uint32(e.gid_type), NetdevIndex: uint32(e.ndev_ifindex),
	}
}

// QueryGID calls ibv_query_gid.
func (RDMACore) QueryGID(ctx *Context, port uint8, index int) ([16]byte, syscall.Errno) {
	var gid C.union_ibv_gid
	errno := status(C.ibv_query_gid(ctx.c(), C.uint8_t(port), C.int(index), &gid))
	return *(*[16]byte)(unsafe.Pointer(&gid)), errno
}

// QueryPkey calls ibv_query_pkey. The key is in network byte order.
func (RDMACore) QueryPkey(ctx *Context, port uint8, index int) (uint16, syscall.Errno) {
	var pkey C.__be16
	errno := status(C.ibv_query_pkey(ctx.c(), C.uint8_t(port), C.int(index), &pkey))
	return uint16(pkey), errno
}

// ForkInit calls ibv_fork_init.
func ForkInit() syscall.Errno { return status(C.ibv_fork_init()) }

// IsForkInitialized calls ibv_is_fork_initialized: 0 disabled, 1 enabled, 2
// unneeded.
func IsForkInitialized() int { return int(C.ibv_is_fork_initialized()) }

// NodeTypeString calls ibv_node_type_str.
func NodeTypeString(t int32) string { return C.GoString(C.ibv_node_type_str(C.enum_ibv_node_type(t))) }

// PortStateString calls ibv_port_state_str.
func PortStateString(s int32) string {
	return C.GoString(C.ibv_port_state_str(C.enum_ibv_port_state(s)))
}

// EventTypeString calls ibv_event_type_str.
func EventTypeString(t int32) string {
	return C.GoString(C.ibv_event_type_str(C.enum_ibv_event_type(t)))
}

// QueryGIDEx calls ibv_query_gid_ex.
func (RDMACore) QueryGIDEx(ctx *Context, port uint8, index int) (GIDEntry, syscall.Errno) {
	var e C.struct_ibv_gid_entry
	errno := status(C.rr_query_gid_ex(ctx.c(), C.uint32_t(port), C.uint32_t(index), &e))
	return gidEntryOf(&e), errno
}

// PkeyIndex calls ibv_get_pkey_index. The key is in network byte order.
func (RDMACore) PkeyIndex(ctx *Context, port uint8, pkey uint16) (int, syscall.Errno) {
	n, err := C.ibv_get_pkey_index(ctx.c(), C.uint8_t(port), C.__be16(pkey))
	if n < 0 {
		return 0, asErrno(err)
	}
	return int(n), 0
}

// ResolveEthL2 calls ibv_resolve_eth_l2_from_gid.
func (RDMACore) ResolveEthL2(ctx *Context, attr *AHAttr) (mac [6]byte, vlan uint16, errno syscall.Errno) {
	var a C.struct_ibv_ah_attr
	attr.to(&a)
	var v C.uint16_t
	if ret, err := C.ibv_resolve_eth_l2_from_gid(ctx.c(), &a, (*C.uint8_t)(unsafe.Pointer(&mac)), &v); ret != 0 {
		return mac, 0, asErrno(err)
	}
	return mac, uint16(v), 0
}

// WCStatusString calls ibv_wc_status_str.
func WCStatusString(s int32) string {
	return C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(s)))
}
