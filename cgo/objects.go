//go:build linux && cgo

package cgo

/*
#include "verbs.h"
*/
import "C"

import "unsafe"

// Objects of libibverbs and librdmacm, which are opaque and in C memory. Word returns the address of an object as a
// number, for structs without pointers and for comparison with the object that an event names.
type (
	// Device is a struct ibv_device.
	Device struct{ _ [0]byte }
	// Context is a struct ibv_context.
	Context struct{ _ [0]byte }
	// PD is a struct ibv_pd.
	PD struct{ _ [0]byte }
	// MR is a struct ibv_mr.
	MR struct{ _ [0]byte }
	// DM is a struct ibv_dm.
	DM struct{ _ [0]byte }
	// MW is a struct ibv_mw.
	MW struct{ _ [0]byte }
	// AH is a struct ibv_ah.
	AH struct{ _ [0]byte }
	// CompChannel is a struct ibv_comp_channel.
	CompChannel struct{ _ [0]byte }
	// CQ is a struct ibv_cq.
	CQ struct{ _ [0]byte }
	// SRQ is a struct ibv_srq.
	SRQ struct{ _ [0]byte }
	// QP is a struct ibv_qp.
	QP struct{ _ [0]byte }
	// TD is a struct ibv_td.
	TD struct{ _ [0]byte }
	// XRCD is a struct ibv_xrcd.
	XRCD struct{ _ [0]byte }
	// WQ is a struct ibv_wq.
	WQ struct{ _ [0]byte }
	// RWQIndTable is a struct ibv_rwq_ind_table.
	RWQIndTable struct{ _ [0]byte }
	// Flow is a struct ibv_flow.
	Flow struct{ _ [0]byte }
	// Counters is a struct ibv_counters.
	Counters struct{ _ [0]byte }
	// EventChannel is a struct rdma_event_channel.
	EventChannel struct{ _ [0]byte }
	// CMID is a struct rdma_cm_id.
	CMID struct{ _ [0]byte }
)

func (p *Device) c() *C.struct_ibv_device   { return (*C.struct_ibv_device)(unsafe.Pointer(p)) }
func (p *Context) c() *C.struct_ibv_context { return (*C.struct_ibv_context)(unsafe.Pointer(p)) }
func (p *PD) c() *C.struct_ibv_pd           { return (*C.struct_ibv_pd)(unsafe.Pointer(p)) }
func (p *MR) c() *C.struct_ibv_mr           { return (*C.struct_ibv_mr)(unsafe.Pointer(p)) }
func (p *DM) c() *C.struct_ibv_dm           { return (*C.struct_ibv_dm)(unsafe.Pointer(p)) }
func (p *MW) c() *C.struct_ibv_mw           { return (*C.struct_ibv_mw)(unsafe.Pointer(p)) }
func (p *AH) c() *C.struct_ibv_ah           { return (*C.struct_ibv_ah)(unsafe.Pointer(p)) }
func (p *CompChannel) c() *C.struct_ibv_comp_channel {
	return (*C.struct_ibv_comp_channel)(unsafe.Pointer(p))
}
func (p *TD) c() *C.struct_ibv_td     { return (*C.struct_ibv_td)(unsafe.Pointer(p)) }
func (p *XRCD) c() *C.struct_ibv_xrcd { return (*C.struct_ibv_xrcd)(unsafe.Pointer(p)) }
func (p *WQ) c() *C.struct_ibv_wq     { return (*C.struct_ibv_wq)(unsafe.Pointer(p)) }
func (p *RWQIndTable) c() *C.struct_ibv_rwq_ind_table {
	return (*C.struct_ibv_rwq_ind_table)(unsafe.Pointer(p))
}
func (p *Flow) c() *C.struct_ibv_flow         { return (*C.struct_ibv_flow)(unsafe.Pointer(p)) }
func (p *Counters) c() *C.struct_ibv_counters { return (*C.struct_ibv_counters)(unsafe.Pointer(p)) }
func (p *CQ) c() *C.struct_ibv_cq             { return (*C.struct_ibv_cq)(unsafe.Pointer(p)) }
func (p *SRQ) c() *C.struct_ibv_srq           { return (*C.struct_ibv_srq)(unsafe.Pointer(p)) }
func (p *QP) c() *C.struct_ibv_qp             { return (*C.struct_ibv_qp)(unsafe.Pointer(p)) }
func (p *EventChannel) c() *C.struct_rdma_event_channel {
	return (*C.struct_rdma_event_channel)(unsafe.Pointer(p))
}
func (p *CMID) c() *C.struct_rdma_cm_id { return (*C.struct_rdma_cm_id)(unsafe.Pointer(p)) }

// Word returns the address of the region, for [SendWR.MR].
func (p *MR) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the window, for [SendWR.MW].
func (p *MW) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the address handle, for [SendWR.RemoteAddr].
func (p *AH) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the channel.
func (p *CompChannel) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the completion queue, see [AsyncEvent].
func (p *CQ) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the shared receive queue, see [AsyncEvent].
func (p *SRQ) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the queue pair, see [AsyncEvent].
func (p *QP) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the work queue, see [AsyncEvent].
func (p *WQ) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the counters, for the specification of a flow.
func (p *Counters) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// Word returns the address of the ID, see [CMEvent].
func (p *CMID) Word() uint64 { return uint64(uintptr(unsafe.Pointer(p))) }
