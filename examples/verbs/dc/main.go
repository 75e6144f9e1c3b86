//go:build linux && cgo && mlx5

// DC sends over a dynamically connected transport, with which one queue pair reaches any number of targets. Only
// ConnectX adapters support it. DC creates the queue pairs with mlx5dv, a vendor library, and uses them as package
// ibv's. Build it with -tags mlx5, which requires libmlx5 and its headers.
//
//	dc -dev mlx5_0
package main

/*
#cgo LDFLAGS: -lmlx5 -libverbs
#include <errno.h>
#include <infiniband/mlx5dv.h>

enum { ACCESS_KEY = 0x1234 };

// create_dc creates a target if srq is set, or else an initiator.
static struct ibv_qp *create_dc(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_DRIVER,
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr dc = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = ACCESS_KEY },
	};

	if (!srq) {
		attr.cap = (struct ibv_qp_cap){ .max_send_wr = 16, .max_send_sge = 1 };
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
		dc.dc_init_attr = (struct mlx5dv_dc_init_attr){ .dc_type = MLX5DV_DCTYPE_DCI };
	}
	return mlx5dv_create_qp(pd->context, &attr, &dc);
}

// send_dc posts a Send to a target. It exists because package ibv's requests have no field for the target's address.
static int send_dc(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t dct, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	mlx5dv_wr_set_dc_addr(mlx5dv_qp_ex_from_ibv_qp_ex(ex), ah, dct, ACCESS_KEY);
	ibv_wr_set_sge(ex, lkey, addr, length);
	return ibv_wr_complete(ex);
}
*/
import "C"

import (
	"flag"
	"fmt"
	"log"
	"syscall"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/ibv"
)

func main() {
	name := flag.String("dev", "mlx5_0", "RDMA `device`")
	flag.Parse()
	if err := run(*name); err != nil {
		log.Fatal(err)
	}
}

// run sends a message from an initiator to a target on the same device.
func run(name string) error {
	dev, err := ibv.Open(name)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	cq, err := dev.CreateCQ(32, nil, 0)
	if err != nil {
		return err
	}
	defer cq.Close()
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1})
	if err != nil {
		return err
	}
	defer srq.Close()
	mr, err := pd.RegMR(make([]byte, 4096), ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer mr.Close()

	target, destroy, err := create(pd, cq, srq)
	if err != nil {
		return err
	}
	defer destroy()
	initiator, destroy, err := create(pd, cq, nil)
	if err != nil {
		return err
	}
	defer destroy()
	ah, err := start(dev, pd, target, initiator)
	if err != nil {
		return err
	}
	defer ah.Close()

	if err := srq.PostRecv([]ibv.RecvWR{{ID: 2, SGL: []ibv.SGE{mr.SGE(2048, 2048)}}}); err != nil {
		return err
	}
	n := copy(mr.Bytes(), "over a dynamic connection")
	// The target gets its number in the transition to RTR, after target.Num was read.
	if e := C.send_dc(rawQP(initiator), (*C.struct_ibv_ah)(unsafe.Pointer(ah.Raw())), rawQP(target).qp_num, C.uint32_t(mr.LKey()), C.uint64_t(mr.Addr()), C.uint32_t(n)); e != 0 {
		return syscall.Errno(e)
	}
	for received := false; !received; {
		var wcs [2]ibv.WC
		n, err := cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil {
				return err
			}
			if wcs[i].ID == 2 {
				fmt.Printf("%s\n", mr.Bytes()[2048:][:wcs[i].ByteLen])
				received = true
			}
		}
	}
	return nil
}

// create creates a target if srq is set, or else an initiator. The vendor's library has created the QP, so destroy must
// close the QP first and then destroy what it was made from.
func create(pd *ibv.PD, cq *ibv.CQ, srq *ibv.SRQ) (qp *ibv.QP, destroy func(), err error) {
	var rawSRQ *C.struct_ibv_srq
	if srq != nil {
		rawSRQ = (*C.struct_ibv_srq)(unsafe.Pointer(srq.Raw()))
	}
	raw, errno := C.create_dc((*C.struct_ibv_pd)(unsafe.Pointer(pd.Raw())), (*C.struct_ibv_cq)(unsafe.Pointer(cq.Raw())), rawSRQ)
	if raw == nil {
		return nil, nil, fmt.Errorf("mlx5dv_create_qp: %w", errno)
	}
	qp, err = pd.WrapQP((*cgo.QP)(unsafe.Pointer(raw)), ibv.QPInitAttr{Type: ibv.QPTypeDriver, SendCQ: cq, RecvCQ: cq, SRQ: srq})
	if err != nil {
		C.ibv_destroy_qp(raw)
		return nil, nil, err
	}
	return qp, func() {
		qp.Close()
		C.ibv_destroy_qp(raw)
	}, nil
}

func rawQP(qp *ibv.QP) *C.struct_ibv_qp { return (*C.struct_ibv_qp)(unsafe.Pointer(qp.Raw())) }

// start moves both QPs to their working states and returns the address handle of the target.
func start(dev *ibv.Context, pd *ibv.PD, target, initiator *ibv.QP) (*ibv.AH, error) {
	port, err := dev.QueryPort(1)
	if err != nil {
		return nil, err
	}
	gid, err := dev.GID(1, 0)
	if err != nil {
		return nil, err
	}
	to := ibv.AHAttr{DLID: port.LID, PortNum: 1, IsGlobal: true, GRH: ibv.GlobalRoute{DGID: gid.GID, HopLimit: 1}}
	const initial = ibv.AttrState | ibv.AttrPkeyIndex | ibv.AttrPort
	for _, step := range []struct {
		qp   *ibv.QP
		attr ibv.QPAttr
		mask ibv.AttrMask
	}{
		{target, ibv.QPAttr{State: ibv.QPSInit, PortNum: 1}, initial | ibv.AttrAccessFlags},
		{target, ibv.QPAttr{State: ibv.QPSRTR, PathMTU: port.ActiveMTU, MinRNRTimer: 12, AH: to}, ibv.AttrState | ibv.AttrPathMTU | ibv.AttrMinRNRTimer | ibv.AttrAV},
		{initiator, ibv.QPAttr{State: ibv.QPSInit, PortNum: 1}, initial},
		{initiator, ibv.QPAttr{State: ibv.QPSRTR, PathMTU: port.ActiveMTU}, ibv.AttrState | ibv.AttrPathMTU},
		{
			initiator, ibv.QPAttr{State: ibv.QPSRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1},
			ibv.AttrState | ibv.AttrTimeout | ibv.AttrRetryCnt | ibv.AttrRNRRetry | ibv.AttrSQPSN | ibv.AttrMaxQPRdAtomic,
		},
	} {
		if err := step.qp.Modify(step.attr, step.mask); err != nil {
			return nil, err
		}
	}
	return pd.CreateAH(to)
}
