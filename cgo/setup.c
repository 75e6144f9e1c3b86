//go:build linux && cgo

#include <errno.h>
#include <string.h>

#include "verbs.h"

int rr_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t length, int access, struct rr_mr *out)
{
	out->mr = ibv_reg_mr(pd, (void *)(uintptr_t)addr, length, access);
	if (!out->mr)
		return errno ? errno : EIO;
	out->lkey = out->mr->lkey;
	out->rkey = out->mr->rkey;
	return 0;
}

int rr_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *out)
{
	return ibv_query_gid_ex(context, port, index, out, 0);
}

int rr_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out)
{
	return ibv_query_port(context, port, out);
}

struct ibv_mw *rr_alloc_mw(struct ibv_pd *pd, int type)
{
	return ibv_alloc_mw(pd, type);
}

int rr_dealloc_mw(struct ibv_mw *mw)
{
	return ibv_dealloc_mw(mw);
}

int rr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t wr_id, uint32_t send_flags, struct ibv_mr *mr, uint64_t addr,
	       uint64_t length, uint32_t access)
{
	struct ibv_mw_bind bind = {
		.wr_id = wr_id,
		.send_flags = send_flags,
		.bind_info = { .mr = mr, .addr = addr, .length = length, .mw_access_flags = access },
	};

	return ibv_bind_mw(qp, mw, &bind);
}

int rr_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, uint64_t context, int ps)
{
	return rdma_create_id(channel, id, (void *)(uintptr_t)context, ps);
}

void rr_set_context(struct rdma_cm_id *id, uint64_t context)
{
	id->context = (void *)(uintptr_t)context;
}

int rr_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = *cap, .qp_type = IBV_QPT_RC };
	int ret = rdma_create_qp(id, pd, &attr);

	*cap = attr.cap;
	return ret;
}
