//go:build linux && cgo

#include <errno.h>
#include <string.h>

#include "verbs.h"

struct ibv_cq *rr_create_cq_ex(struct ibv_context *context, uint32_t cqe, struct ibv_comp_channel *channel, uint32_t vector,
			       uint64_t fields, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe,
		.channel = channel,
		.comp_vector = vector,
		.wc_flags = fields,
		.comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0,
		.flags = flags,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);

	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

int rr_modify_cq(struct ibv_cq *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = count, .cq_period = period },
	};

	return ibv_modify_cq(cq, &attr);
}

/* Maximum number of inline buffers in one request. */
enum { INLINE = 64 };

/* Some providers finish a request in the call that sets its data, so the data is set even if it is empty. */
static int set_data(struct ibv_qp_ex *qp, const struct rr_send_wr *wr, struct ibv_sge *sges)
{
	struct ibv_data_buf bufs[INLINE];

	sges += wr->first_sge;
	if (!(wr->send_flags & IBV_SEND_INLINE)) {
		if (wr->num_sge == 1)
			ibv_wr_set_sge(qp, sges->lkey, sges->addr, sges->length);
		else
			ibv_wr_set_sge_list(qp, wr->num_sge, sges);
		return 0;
	}
	if (wr->num_sge == 1) {
		ibv_wr_set_inline_data(qp, (void *)(uintptr_t)sges->addr, sges->length);
		return 0;
	}
	if (wr->num_sge > INLINE)
		return EINVAL;
	for (uint32_t i = 0; i < wr->num_sge; i++)
		bufs[i] = (struct ibv_data_buf){ .addr = (void *)(uintptr_t)sges[i].addr, .length = sges[i].length };
	ibv_wr_set_inline_data_list(qp, wr->num_sge, bufs);
	return 0;
}

static int add_send(struct ibv_qp_ex *qp, const struct rr_send_wr *wr, struct ibv_sge *sges)
{
	struct ibv_mw_bind_info bind;

	qp->wr_id = wr->wr_id;
	qp->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(qp);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(qp, wr->imm);
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(qp, wr->imm);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(qp, wr->rkey, wr->remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(qp, wr->rkey, wr->remote_addr, wr->imm);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(qp, wr->rkey, wr->remote_addr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(qp, wr->rkey, wr->remote_addr, wr->arg1, wr->arg2);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(qp, wr->rkey, wr->remote_addr, wr->arg1);
		break;
	case IBV_WR_ATOMIC_WRITE:
		ibv_wr_atomic_write(qp, wr->rkey, wr->remote_addr, (void *)(uintptr_t)sges[wr->first_sge].addr);
		return 0;
	case IBV_WR_TSO:
		ibv_wr_send_tso(qp, (void *)(uintptr_t)wr->arg1, wr->arg2 >> 32, wr->arg2);
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(qp, wr->imm);
		return 0;
	case IBV_WR_BIND_MW:
		bind = (struct ibv_mw_bind_info){
			.mr = (struct ibv_mr *)(uintptr_t)wr->mr,
			.addr = wr->arg1,
			.length = wr->arg2,
			.mw_access_flags = wr->bind_access,
		};
		ibv_wr_bind_mw(qp, (struct ibv_mw *)(uintptr_t)wr->mw, wr->rkey, &bind);
		return 0;
	default:
		return EINVAL;
	}
	if (qp->qp_base.qp_type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(qp, (struct ibv_ah *)(uintptr_t)wr->remote_addr, wr->arg1 >> 32, wr->arg1);
	else if (qp->qp_base.qp_type == IBV_QPT_XRC_SEND)
		ibv_wr_set_xrc_srqn(qp, wr->srq_num);
	return set_data(qp, wr, sges);
}

void rr_post_extended(struct ibv_qp *base, const struct rr_send_wr *sends, uint32_t n, struct ibv_sge *sges, struct rr_outcome *out)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(base);
	int err = 0;

	if (!qp) { /* not created by ibv_create_qp_ex */
		out->send_err = EINVAL;
		return;
	}
	ibv_wr_start(qp);
	for (uint32_t i = 0; i < n && !err; i++)
		err = add_send(qp, &sends[i], sges);
	if (err)
		ibv_wr_abort(qp);
	else
		err = ibv_wr_complete(qp);
	if (err)
		out->send_err = err < 0 ? -err : err;
	else
		out->sends = n;
}

/* ibv_create_cq_ex(3) lists the valid fields. For a failure only those of struct ibv_wc are valid. */
static void read_wc(struct ibv_cq_ex *cq, uint64_t fields, struct rr_wc_ex *to)
{
	struct ibv_wc_tm_info tm;

	memset(to, 0, sizeof(*to));
	to->wc.wr_id = cq->wr_id;
	to->wc.status = cq->status;
	to->wc.vendor_err = ibv_wc_read_vendor_err(cq);
	if (fields & IBV_WC_EX_WITH_QP_NUM)
		to->wc.qp_num = ibv_wc_read_qp_num(cq);
	if (cq->status != IBV_WC_SUCCESS)
		return;
	to->wc.opcode = ibv_wc_read_opcode(cq);
	to->wc.wc_flags = ibv_wc_read_wc_flags(cq);
	if (fields & IBV_WC_EX_WITH_BYTE_LEN)
		to->wc.byte_len = ibv_wc_read_byte_len(cq);
	if (fields & IBV_WC_EX_WITH_IMM) {
		if (to->wc.wc_flags & IBV_WC_WITH_INV)
			to->wc.invalidated_rkey = ibv_wc_read_invalidated_rkey(cq);
		else
			to->wc.imm_data = ibv_wc_read_imm_data(cq);
	}
	if (fields & IBV_WC_EX_WITH_SRC_QP)
		to->wc.src_qp = ibv_wc_read_src_qp(cq);
	if (fields & IBV_WC_EX_WITH_SLID)
		to->wc.slid = ibv_wc_read_slid(cq);
	if (fields & IBV_WC_EX_WITH_SL)
		to->wc.sl = ibv_wc_read_sl(cq);
	if (fields & IBV_WC_EX_WITH_DLID_PATH_BITS)
		to->wc.dlid_path_bits = ibv_wc_read_dlid_path_bits(cq);
	if (fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		to->timestamp = ibv_wc_read_completion_ts(cq);
	if (fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		to->wallclock_ns = ibv_wc_read_completion_wallclock_ns(cq);
	if (fields & IBV_WC_EX_WITH_CVLAN)
		to->cvlan = ibv_wc_read_cvlan(cq);
	if (fields & IBV_WC_EX_WITH_FLOW_TAG)
		to->flow_tag = ibv_wc_read_flow_tag(cq);
	if (fields & IBV_WC_EX_WITH_TM_INFO) {
		ibv_wc_read_tm_info(cq, &tm);
		to->tag = tm.tag;
		to->tag_priv = tm.priv;
	}
}

uint32_t rr_poll_extended(uint64_t word, uint64_t fields, struct rr_wc_ex *wcs, uint32_t max, int32_t *err)
{
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)(uintptr_t)word;
	struct ibv_poll_cq_attr attr = { 0 };
	uint32_t n = 0;
	int ret;

	*err = 0;
	if (!max)
		return 0;
	do {
		ret = ibv_start_poll(cq, &attr);
		if (ret)
			break;
		do
			read_wc(cq, fields, &wcs[n++]);
		while (n < max && !(fields & RR_ONE_BY_ONE) && !(ret = ibv_next_poll(cq)));
		ibv_end_poll(cq);
	} while (n < max && !ret);
	if (ret && ret != ENOENT)
		*err = ret < 0 ? -ret : ret;
	return n;
}
