//go:build linux && cgo

package ibv

import (
	"fmt"
	"net"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// GRHSize is the size of a global route header in bytes. The buffer of a datagram begins with room for one, whether the
// datagram has a GRH or not: [WC.ByteLen] includes it, and WCGRH reports whether it has been filled in.
const GRHSize = 40

// An AH is an address handle: the address of a peer, or of a multicast group, that datagrams are sent to. It must be
// closed before its domain, and not while a datagram to it is outstanding.
type AH struct {
	life
	raw *cgo.AH
	ctx *Context
}

// CreateAH creates an address handle.
//
// Implements: struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
func (pd *PD) CreateAH(attr AHAttr) (*AH, error) {
	const call = "ibv_create_ah"
	if err := pd.enter(call); err != nil {
		return nil, err
	}
	defer pd.leave()
	raw := attr.raw()
	h, errno := pd.ctx.lib.CreateAH(pd.raw, &raw)
	if errno != 0 {
		return nil, &Error{Call: call, Device: pd.device, Err: errno}
	}
	ah := &AH{raw: h, ctx: pd.ctx}
	ah.begin(anAH, pd.device, &pd.life)
	return ah, nil
}

// AHOf returns the address of the sender of a datagram that was received at a port: wc is its completion, and grh the
// first GRHSize bytes of its buffer.
//
// Implements: int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *ah_attr)
func (c *Context) AHOf(port uint8, wc *WC, grh []byte) (AHAttr, error) {
	const call = "ibv_init_ah_from_wc"
	if len(grh) < GRHSize {
		return AHAttr{}, &Error{Call: call, Device: c.device, Err: syscall.EINVAL}
	}
	if err := c.enter(call); err != nil {
		return AHAttr{}, err
	}
	defer c.leave()
	raw := cgo.WC{SLID: wc.SLID, SL: wc.SL, DLIDPath: wc.DLIDPathBits, Flags: uint32(wc.Flags), SrcQP: wc.SrcQP, PkeyIndex: wc.PkeyIndex}
	header := [GRHSize]byte(grh)
	a, errno := c.lib.InitAHFromWC(c.raw, port, &raw, &header)
	if errno != 0 {
		return AHAttr{}, &Error{Call: call, Device: c.device, Err: errno}
	}
	return AHAttrOf(&a), nil
}

// CreateAHOf creates an address handle for the address that [Context.AHOf] returns.
//
// Implements: struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port_num)
func (pd *PD) CreateAHOf(port uint8, wc *WC, grh []byte) (*AH, error) {
	attr, err := pd.ctx.AHOf(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(attr)
}

// EthernetAddr returns the hardware address, and the VLAN, at which RoCE reaches a peer. It may query the network.
//
// Implements: int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid)
func (c *Context) EthernetAddr(attr AHAttr) (mac net.HardwareAddr, vlan uint16, err error) {
	const call = "ibv_resolve_eth_l2_from_gid"
	if err := c.enter(call); err != nil {
		return nil, 0, err
	}
	defer c.leave()
	raw := attr.raw()
	addr, vlan, errno := c.lib.ResolveEthL2(c.raw, &raw)
	if errno != 0 {
		return nil, 0, &Error{Call: call, Device: c.device, Err: errno}
	}
	return addr[:], vlan, nil
}

// Raw returns the address handle for package cgo, valid until Close.
func (ah *AH) Raw() *cgo.AH { return ah.raw }

// Close destroys the address handle.
//
// Implements: int ibv_destroy_ah(struct ibv_ah *ah)
func (ah *AH) Close() error {
	return ah.end("ibv_destroy_ah", func() syscall.Errno { return ah.ctx.lib.DestroyAH(ah.raw) })
}

func (ah *AH) String() string { return fmt.Sprintf("address handle of %s", ah.device) }

// AttachMcast attaches a datagram queue pair to a multicast group: it receives the datagrams sent to the group. lid is
// the group's LID on InfiniBand, otherwise 0. On Ethernet the group's traffic must also be routed to the port: see
// rdma_join_multicast(3).
//
// Implements: int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
func (qp *QP) AttachMcast(gid GID, lid uint16) error {
	return qp.group("ibv_attach_mcast", qp.ctx.lib.AttachMcast, gid, lid)
}

// DetachMcast detaches the queue pair from a multicast group. A queue pair that is attached to a group cannot be
// closed.
//
// Implements: int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
func (qp *QP) DetachMcast(gid GID, lid uint16) error {
	return qp.group("ibv_detach_mcast", qp.ctx.lib.DetachMcast, gid, lid)
}

func (qp *QP) group(call string, change func(*cgo.QP, [16]byte, uint16) syscall.Errno, gid GID, lid uint16) error {
	if err := qp.enter(call); err != nil {
		return err
	}
	defer qp.leave()
	if errno := change(qp.raw, gid, lid); errno != 0 {
		return &Error{Call: call, Device: qp.device, Err: errno}
	}
	return nil
}
