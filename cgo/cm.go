//go:build linux && cgo

package cgo

/*
#include <stdlib.h>
#include <netinet/in.h>
#include "verbs.h"
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// A Sockaddr holds a struct sockaddr_in or sockaddr_in6.
type Sockaddr [C.sizeof_struct_sockaddr_in6]byte

func (s *Sockaddr) c() *C.struct_sockaddr {
	if s == nil {
		return nil
	}
	return (*C.struct_sockaddr)(unsafe.Pointer(s))
}

// result returns the error of a librdmacm call, which returns -1 and sets errno, or in a few cases returns an errno
// value.
func result(ret C.int, err error) syscall.Errno {
	if ret == -1 {
		return asErrno(err)
	}
	return status(ret)
}

// CreateEventChannel calls rdma_create_event_channel.
func (RDMACore) CreateEventChannel() (*EventChannel, syscall.Errno) {
	ch, err := C.rr_create_event_channel()
	if ch == nil {
		return nil, asErrno(err)
	}
	return (*EventChannel)(unsafe.Pointer(ch)), 0
}

// EventChannelFD returns the descriptor of a channel. The channel owns it.
func (RDMACore) EventChannelFD(ch *EventChannel) int { return int(ch.c().fd) }

// DestroyEventChannel calls rdma_destroy_event_channel.
func (RDMACore) DestroyEventChannel(ch *EventChannel) { C.rdma_destroy_event_channel(ch.c()) }

// CreateID calls rdma_create_id. Events return context; ps is of enum rdma_port_space.
func (RDMACore) CreateID(ch *EventChannel, context uint64, ps int32) (*CMID, syscall.Errno) {
	var id *C.struct_rdma_cm_id
	ret, err := C.rr_create_id(ch.c(), &id, C.uint64_t(context), C.int(ps))
	if errno := result(ret, err); errno != 0 {
		return nil, errno
	}
	return (*CMID)(unsafe.Pointer(id)), 0
}

// IDOf returns the object that [CMEvent.ID] refers to. Only that of a connection request is new.
func IDOf(e *CMEvent) *CMID {
	return *(**CMID)(unsafe.Pointer(&e.ID))
}

// SetContext sets the context that events of the ID return.
func (RDMACore) SetContext(id *CMID, context uint64) {
	C.rr_set_context(id.c(), C.uint64_t(context))
}

// DestroyID calls rdma_destroy_id. It waits until all events of the ID have been
// acknowledged. Its queue pair must be gone.
func (RDMACore) DestroyID(id *CMID) syscall.Errno {
	ret, err := C.rdma_destroy_id(id.c())
	return result(ret, err)
}

// IDVerbs returns the device context that the ID is bound to, nil before it is bound. The
// library owns it.
func (RDMACore) IDVerbs(id *CMID) *Context { return (*Context)(unsafe.Pointer(id.c().verbs)) }

// IDPort returns the port of the device that the ID is bound to.
func (RDMACore) IDPort(id *CMID) uint8 { return uint8(id.c().port_num) }

// BindAddr calls rdma_bind_addr.
func (RDMACore) BindAddr(id *CMID, addr *Sockaddr) syscall.Errno {
	ret, err := C.rr_bind_addr(id.c(), addr.c())
	return result(ret, err)
}

// ResolveAddr calls rdma_resolve_addr. src may be nil; the timeout is in milliseconds.
func (RDMACore) ResolveAddr(id *CMID, src, dst *Sockaddr, timeout int) syscall.Errno {
	ret, err := C.rdma_resolve_addr(id.c(), src.c(), dst.c(), C.int(timeout))
	return result(ret, err)
}

// ResolveRoute calls rdma_resolve_route. The timeout is in milliseconds.
func (RDMACore) ResolveRoute(id *CMID, timeout int) syscall.Errno {
	ret, err := C.rdma_resolve_route(id.c(), C.int(timeout))
	return result(ret, err)
}

// CMCreateQP calls rdma_create_qp and returns the actual capacity.
func (RDMACore) CMCreateQP(id *CMID, pd *PD, init QPInit) (*QP, QPCap, syscall.Errno) {
	a := init.c()
	ret, err := C.rdma_create_qp(id.c(), pd.c(), &a)
	return created(id, capOf(&a.cap), result(ret, err))
}

// CMCreateQPEx calls rdma_create_qp_ex with init.Ex.
func (RDMACore) CMCreateQPEx(id *CMID, pd *PD, init QPInit) (*QP, QPCap, syscall.Errno) {
	var errno syscall.Errno
	given := init.ex(pd, func(a *C.struct_ibv_qp_init_attr_ex) {
		ret, err := C.rdma_create_qp_ex(id.c(), a)
		errno = result(ret, err)
	})
	return created(id, given, errno)
}

func created(id *CMID, given QPCap, errno syscall.Errno) (*QP, QPCap, syscall.Errno) {
	if errno != 0 {
		return nil, QPCap{}, errno
	}
	return (*QP)(unsafe.Pointer(id.c().qp)), given, 0
}

// InitQPAttr calls rdma_init_qp_attr for attr.State. mask is of enum ibv_qp_attr_mask.
func (RDMACore) InitQPAttr(id *CMID, state int32) (attr QPAttr, mask int, errno syscall.Errno) {
	a := C.struct_ibv_qp_attr{qp_state: C.enum_ibv_qp_state(state)}
	var m C.int
	ret, err := C.rdma_init_qp_attr(id.c(), &a, &m)
	return qpAttrOf(&a), int(m), result(ret, err)
}

// JoinMulticast calls rdma_join_multicast or, with flags of enum rdma_cm_mc_join_flags,
// rdma_join_multicast_ex.
func (RDMACore) JoinMulticast(id *CMID, addr *Sockaddr, flags uint32) syscall.Errno {
	ret, err := C.rr_join_multicast(id.c(), addr.c(), C.uint32_t(flags))
	return result(ret, err)
}

// LeaveMulticast calls rdma_leave_multicast.
func (RDMACore) LeaveMulticast(id *CMID, addr *Sockaddr) syscall.Errno {
	ret, err := C.rdma_leave_multicast(id.c(), addr.c())
	return result(ret, err)
}

// TakeQP is the half of rdma_destroy_qp that concerns the ID: it removes the queue pair from the ID. The other half is
// DestroyQP, which may wait for the peer.
func (RDMACore) TakeQP(id *CMID) *QP {
	qp := id.c().qp
	id.c().qp = nil
	return (*QP)(unsafe.Pointer(qp))
}

// CMDestroyQP calls rdma_destroy_qp.
func (RDMACore) CMDestroyQP(id *CMID) { C.rdma_destroy_qp(id.c()) }

// A ConnParam is struct rdma_conn_param, see rdma_connect(3).
type ConnParam struct {
	PrivateData                        []byte // at most 255 bytes
	ResponderResources, InitiatorDepth uint8
	FlowControl, RetryCount, RNRRetry  uint8
	SRQ                                bool
	QPNum                              uint32
}

// c returns the C struct, with a copy of the private data in C memory. The caller must call free.
func (p *ConnParam) c() (c C.struct_rdma_conn_param, free func()) {
	c = C.struct_rdma_conn_param{
		private_data_len:    C.uint8_t(len(p.PrivateData)),
		responder_resources: C.uint8_t(p.ResponderResources), initiator_depth: C.uint8_t(p.InitiatorDepth),
		flow_control: C.uint8_t(p.FlowControl), retry_count: C.uint8_t(p.RetryCount), rnr_retry_count: C.uint8_t(p.RNRRetry),
		qp_num: C.uint32_t(p.QPNum),
	}
	if p.SRQ {
		c.srq = 1
	}
	if len(p.PrivateData) > 0 {
		c.private_data = C.CBytes(p.PrivateData)
	}
	return c, func() { C.free(unsafe.Pointer(c.private_data)) }
}

// Connect calls rdma_connect.
func (RDMACore) Connect(id *CMID, p *ConnParam) syscall.Errno {
	c, free := p.c()
	defer free()
	ret, err := C.rdma_connect(id.c(), &c)
	return result(ret, err)
}

// Listen calls rdma_listen.
func (RDMACore) Listen(id *CMID, backlog int) syscall.Errno {
	ret, err := C.rr_listen(id.c(), C.int(backlog))
	return result(ret, err)
}

// Accept calls rdma_accept.
func (RDMACore) Accept(id *CMID, p *ConnParam) syscall.Errno {
	c, free := p.c()
	defer free()
	ret, err := C.rdma_accept(id.c(), &c)
	return result(ret, err)
}

// Establish calls rdma_establish.
func (RDMACore) Establish(id *CMID) syscall.Errno {
	ret, err := C.rdma_establish(id.c())
	return result(ret, err)
}

// Reject calls rdma_reject. The private data is at most 255 bytes.
func (RDMACore) Reject(id *CMID, privateData []byte) syscall.Errno {
	data, free := privateCopy(privateData)
	defer free()
	ret, err := C.rdma_reject(id.c(), data, C.uint8_t(len(privateData)))
	return result(ret, err)
}

// RejectECE calls rdma_reject_ece.
func (RDMACore) RejectECE(id *CMID, privateData []byte) syscall.Errno {
	data, free := privateCopy(privateData)
	defer free()
	ret, err := C.rdma_reject_ece(id.c(), data, C.uint8_t(len(privateData)))
	return result(ret, err)
}

func privateCopy(privateData []byte) (data unsafe.Pointer, free func()) {
	if len(privateData) == 0 {
		return nil, func() {}
	}
	data = C.CBytes(privateData)
	return data, func() { C.free(data) }
}

// Disconnect calls rdma_disconnect.
func (RDMACore) Disconnect(id *CMID) syscall.Errno {
	ret, err := C.rdma_disconnect(id.c())
	return result(ret, err)
}

// Notify calls rdma_notify; event is of enum ibv_event_type.
func (RDMACore) Notify(id *CMID, event int32) syscall.Errno {
	ret, err := C.rdma_notify(id.c(), C.enum_ibv_event_type(event))
	return result(ret, err)
}

// MigrateID calls rdma_migrate_id. It waits until all events of the ID have been
// acknowledged.
func (RDMACore) MigrateID(id *CMID, ch *EventChannel) syscall.Errno {
	ret, err := C.rdma_migrate_id(id.c(), ch.c())
	return result(ret, err)
}

// SetOption calls rdma_set_option with an option of one byte, or of an int.
func (RDMACore) SetOption(id *CMID, level, option int, value int32, size int) syscall.Errno {
	var ret C.int
	var err error
	if size == 1 {
		v := C.uint8_t(value)
		ret, err = C.rdma_set_option(id.c(), C.int(level), C.int(option), unsafe.Pointer(&v), 1)
	} else {
		v := C.int(value)
		ret, err = C.rdma_set_option(id.c(), C.int(level), C.int(option), unsafe.Pointer(&v), C.sizeof_int)
	}
	return result(ret, err)
}

// LocalAddr calls rdma_get_local_addr.
func (RDMACore) LocalAddr(id *CMID) (out Sockaddr) {
	copyAddr(&out, C.rdma_get_local_addr(id.c()))
	return out
}

// PeerAddr calls rdma_get_peer_addr.
func (RDMACore) PeerAddr(id *CMID) (out Sockaddr) {
	copyAddr(&out, C.rdma_get_peer_addr(id.c()))
	return out
}

func copyAddr(to *Sockaddr, from *C.struct_sockaddr) {
	// Both are in a struct sockaddr_storage, which is larger.
	*to = *(*Sockaddr)(unsafe.Pointer(from))
}

// GetDevices calls rdma_get_devices, which lists the devices that librdmacm can use. They
// stay open until FreeDevices.
func (RDMACore) GetDevices() (list **Context, n int, errno syscall.Errno) {
	var count C.int
	l, err := C.rr_get_devices(&count)
	if l == nil {
		return nil, 0, asErrno(err)
	}
	return (**Context)(unsafe.Pointer(l)), int(count), 0
}

// FreeDevices calls rdma_free_devices.
func (RDMACore) FreeDevices(list **Context) {
	C.rdma_free_devices((**C.struct_ibv_context)(unsafe.Pointer(list)))
}

// EventString calls rdma_event_str.
func EventString(event int32) string {
	return C.GoString(C.rdma_event_str(C.enum_rdma_cm_event_type(event)))
}
