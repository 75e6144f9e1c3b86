//go:build linux && cgo

package rdmacm

import (
	"context"
	"net/netip"
	"slices"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/ibv"
)

// CreateQP creates the queue pair of an ID that is bound to a device, on a protection domain of that device. librdmacm
// moves it through its states; one for datagrams moves to QPSRTS at once. The caller closes it before the ID. Closing
// the queue pair waits for calls in progress on the ID: over siw rdma_connect does not return until the peer has
// answered.
//
// Implements: int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
// Implements: int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *qp_init_attr)
// Implements: void rdma_destroy_qp(struct rdma_cm_id *id)
func (id *ID) CreateQP(pd *ibv.PD, attr ibv.QPInitAttr) (*ibv.QP, error) {
	call := "rdma_create_qp"
	if attr.Extended() {
		call = "rdma_create_qp_ex"
	}
	var closed error
	qp, err := pd.CreateQPBy(call, attr, func(init cgo.QPInit) (qp *cgo.QP, given cgo.QPCap, errno syscall.Errno) {
		closed = id.use(call, "", func(raw *cgo.CMID) syscall.Errno {
			if init.Ex != nil {
				qp, given, errno = id.lib.CMCreateQPEx(raw, pd.Raw(), init)
			} else {
				qp, given, errno = id.lib.CMCreateQP(raw, pd.Raw(), init)
			}
			if errno == 0 {
				id.qp.Store(true)
			}
			return 0
		})
		if closed != nil {
			errno = syscall.EBADF
		}
		return qp, given, errno
	}, id.destroyQP)
	if closed != nil {
		return nil, closed
	}
	return qp, err
}

// destroyQP destroys the queue pair of CreateQP. The library uses the queue pair in calls on the ID, which hold life,
// and when it returns an event, which holds the channel's lock. So destroyQP first detaches the queue pair from the ID.
// On siw destroying it waits for a peer, while events of other IDs continue.
func (id *ID) destroyQP(qp *cgo.QP) syscall.Errno {
	id.life.Lock()                      // raw is not nil: Close refuses an ID with a queue pair
	for _, group := range id.joined() { // the kernel does not free a queue pair that is attached to a group
		id.lib.LeaveMulticast(id.raw, sockaddr(netip.AddrPortFrom(group, 0)))
		id.left(group)
	}
	id.ch.ids.Lock()
	id.lib.TakeQP(id.raw)
	id.ch.ids.Unlock()
	id.life.Unlock()
	errno := id.lib.DestroyQP(qp)
	if errno == 0 {
		id.qp.Store(false)
	}
	return errno
}

// A Destination is where datagrams are sent: to the peer that an ID has connected to, or to a group.
type Destination struct {
	AH    ibv.AHAttr // for PD.CreateAH
	QPNum uint32
	Qkey  uint32
}

// AcceptDatagrams answers the request of a peer that will send datagrams to the queue pair, with its number and key. No
// connection is established, and no event follows.
func (id *ID) AcceptDatagrams(p ConnParam) error {
	return id.use("rdma_accept", id.PeerAddr().String(), func(raw *cgo.CMID) syscall.Errno { return id.lib.Accept(raw, p.raw()) })
}

// A JoinFlag is the kind of membership, see rdma_join_multicast_ex(3).
type JoinFlag uint32

// Types of membership.
const (
	JoinFull     JoinFlag = 0 // sends and receives
	JoinSendOnly JoinFlag = 1
)

// JoinMulticast makes the ID a member of a group, attaches its datagram queue pair to the group, and returns the
// destination of datagrams to the group. The ID must be bound to a device.
//
// Implements: int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
// Implements: int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *mc_join_attr, void *context)
func (id *ID) JoinMulticast(ctx context.Context, group netip.Addr, kind JoinFlag) (Destination, error) {
	id.groupMu.Lock()
	id.groups = append(id.groups, group)
	id.groupMu.Unlock()
	if err := id.use("rdma_join_multicast", group.String(), func(raw *cgo.CMID) syscall.Errno {
		return id.lib.JoinMulticast(raw, sockaddr(netip.AddrPortFrom(group, 0)), uint32(kind))
	}); err != nil {
		id.left(group)
		return Destination{}, err
	}
	ev, err := id.expect(ctx, "joining", group.String(), EventMulticastJoin)
	return ev.Destination, err
}

// joined returns the groups that the ID has joined or is joining.
func (id *ID) joined() []netip.Addr {
	id.groupMu.Lock()
	defer id.groupMu.Unlock()
	return slices.Clone(id.groups)
}

// left removes one membership of group.
func (id *ID) left(group netip.Addr) {
	id.groupMu.Lock()
	defer id.groupMu.Unlock()
	if i := slices.Index(id.groups, group); i >= 0 {
		id.groups = slices.Delete(id.groups, i, i+1)
	}
}

// LeaveMulticast ends the membership, or a join in progress, and detaches the queue pair. Closing the queue pair or the
// ID leaves all groups.
//
// Implements: int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
func (id *ID) LeaveMulticast(group netip.Addr) error {
	return id.use("rdma_leave_multicast", group.String(), func(raw *cgo.CMID) syscall.Errno {
		errno := id.lib.LeaveMulticast(raw, sockaddr(netip.AddrPortFrom(group, 0)))
		if errno == 0 {
			id.left(group)
		}
		return errno
	})
}

// InitQPAttr returns the attributes, and the mask of those set, that move a queue pair to a state for this connection.
// It is for queue pairs that [ID.CreateQP] did not create.
//
// Implements: int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask)
func (id *ID) InitQPAttr(state ibv.QPState) (attr ibv.QPAttr, mask ibv.AttrMask, err error) {
	err = id.use("rdma_init_qp_attr", "", func(raw *cgo.CMID) syscall.Errno {
		a, m, errno := id.lib.InitQPAttr(raw, int32(state))
		attr, mask = ibv.QPAttrOf(&a), ibv.AttrMask(m)
		return errno
	})
	return attr, mask, err
}

// Establish completes the setup of a connection after [EventConnectResponse], which is raised if [ID.CreateQP] did not
// create its queue pair.
//
// Implements: int rdma_establish(struct rdma_cm_id *id)
func (id *ID) Establish() error {
	return id.use("rdma_establish", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.Establish(raw) })
}

// SetLocalECE sets the options that Connect or Accept offers the peer. It is for queue pairs that [ID.CreateQP] did not
// create; CreateQP takes care of them itself.
//
// Implements: int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
func (id *ID) SetLocalECE(ece ibv.ECE) error {
	return id.use("rdma_set_local_ece", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.SetLocalECE(raw, cgo.ECE(ece)) })
}

// RemoteECE returns the options that the peer offered with its request or reply.
//
// Implements: int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
func (id *ID) RemoteECE() (ece ibv.ECE, err error) {
	err = id.use("rdma_get_remote_ece", "", func(raw *cgo.CMID) syscall.Errno {
		e, errno := id.lib.RemoteECE(raw)
		ece = ibv.ECE(e)
		return errno
	})
	return ece, err
}

// RejectECE rejects a request because of the options it offers: the peer may retry without them.
//
// Implements: int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
func (id *ID) RejectECE(privateData []byte) error {
	return id.use("rdma_reject_ece", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.RejectECE(raw, privateData) })
}

// NotifyEvent reports an event of the queue pair to librdmacm: with [ibv.EventCommEst], that the peer's first message
// arrived before its notice that the connection is established.
//
// Implements: int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
func (id *ID) NotifyEvent(event ibv.EventType) error {
	return id.use("rdma_notify", "", func(raw *cgo.CMID) syscall.Errno { return id.lib.Notify(raw, int32(event)) })
}
