//go:build linux && cgo

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

static int region(struct ibv_mr *mr, struct rr_mr *out)
{
	if (!mr)
		return errno ? errno : EIO;
	*out = (struct rr_mr){ .mr = mr, .lkey = mr->lkey, .rkey = mr->rkey };
	return 0;
}

int rr_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t length, int access, struct rr_mr *out)
{
	return region(ibv_reg_mr(pd, (void *)(uintptr_t)addr, length, access), out);
}

int rr_reg_mr_iova(struct ibv_pd *pd, uint64_t addr, size_t length, uint64_t iova, int access, struct rr_mr *out)
{
	return region(ibv_reg_mr_iova(pd, (void *)(uintptr_t)addr, length, iova, access), out);
}

int rr_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access, struct rr_mr *out)
{
	return region(ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access), out);
}

int rr_rereg_mr(struct rr_mr *mr, int flags, struct ibv_pd *pd, uint64_t addr, size_t length, int access, int *code)
{
	errno = 0;
	*code = ibv_rereg_mr(mr->mr, flags, pd, (void *)(uintptr_t)addr, length, access);
	mr->lkey = mr->mr->lkey;
	mr->rkey = mr->mr->rkey;
	return *code ? errno ? errno : EIO : 0;
}

int rr_alloc_null_mr(struct ibv_pd *pd, struct rr_mr *out)
{
	return region(ibv_alloc_null_mr(pd), out);
}

int rr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, int access, struct rr_mr *out)
{
	return region(ibv_reg_dm_mr(pd, dm, offset, length, access), out);
}

int rr_advise_mr(struct ibv_pd *pd, int advice, uint32_t flags, struct ibv_sge *sges, uint32_t n)
{
	return ibv_advise_mr(pd, advice, flags, sges, n);
}

struct ibv_dm *rr_alloc_dm(struct ibv_context *context, size_t length, uint32_t log_align)
{
	struct ibv_alloc_dm_attr attr = { .length = length, .log_align_req = log_align };

	return ibv_alloc_dm(context, &attr);
}

int rr_free_dm(struct ibv_dm *dm)
{
	return ibv_free_dm(dm);
}

int rr_memcpy_to_dm(struct ibv_dm *dm, uint64_t offset, uint64_t addr, size_t length)
{
	return ibv_memcpy_to_dm(dm, offset, (const void *)(uintptr_t)addr, length);
}

int rr_memcpy_from_dm(uint64_t addr, struct ibv_dm *dm, uint64_t offset, size_t length)
{
	return ibv_memcpy_from_dm((void *)(uintptr_t)addr, dm, offset, length);
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

int rr_post_srq_op(struct ibv_srq *srq, struct rr_srq_op *op, struct ibv_sge *sges, uint32_t n)
{
	struct ibv_ops_wr wr = {
		.wr_id = op->wr_id,
		.opcode = op->opcode,
		.flags = op->flags,
		.tm = {
			.unexpected_cnt = op->unexpected,
			.handle = op->handle,
			.add = { .recv_wr_id = op->recv_wr_id, .sg_list = sges, .num_sge = n, .tag = op->tag, .mask = op->mask },
		},
	}, *bad;
	int ret = ibv_post_srq_ops(srq, &wr, &bad);

	op->handle = wr.tm.handle;
	return ret;
}

int rr_post_wq_recv(struct ibv_wq *wq, const struct rr_recv_wr *recvs, uint32_t n, struct ibv_sge *sges, uint32_t *posted)
{
	for (*posted = 0; *posted < n; ++*posted) {
		const struct rr_recv_wr *from = &recvs[*posted];
		struct ibv_recv_wr wr = { .wr_id = from->wr_id, .sg_list = sges + from->first_sge, .num_sge = from->num_sge }, *bad;
		int ret = ibv_post_wq_recv(wq, &wr, &bad);

		if (ret)
			return ret;
	}
	return 0;
}

struct ibv_rwq_ind_table *rr_create_rwq_ind_table(struct ibv_context *context, struct ibv_wq **wqs, uint32_t n)
{
	struct ibv_rwq_ind_table_init_attr attr = { .ind_tbl = wqs };

	while (1u << attr.log_ind_tbl_size < n)
		attr.log_ind_tbl_size++;
	return ibv_create_rwq_ind_table(context, &attr);
}

struct ibv_flow *rr_create_flow(struct ibv_qp *qp, const struct ibv_flow_attr *attr, const uint8_t *specs, size_t length)
{
	struct ibv_flow_attr *all = malloc(sizeof(*all) + length);
	struct ibv_flow *flow;

	if (!all)
		return NULL;
	*all = *attr;
	all->size = sizeof(*all) + length;
	if (length)
		memcpy(all + 1, specs, length);
	flow = ibv_create_flow(qp, all);
	free(all);
	return flow;
}

int rr_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, uint64_t context, int ps)
{
	return rdma_create_id(channel, id, (void *)(uintptr_t)context, ps);
}

void rr_set_context(struct rdma_cm_id *id, uint64_t context)
{
	id->context = (void *)(uintptr_t)context;
}

int rr_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, uint32_t flags)
{
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = flags,
		.addr = addr,
	};

	/* join as a full member without the extension, which older kernels lack */
	return flags ? rdma_join_multicast_ex(id, &attr, NULL) : rdma_join_multicast(id, addr, NULL);
}
