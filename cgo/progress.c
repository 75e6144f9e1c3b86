//go:build linux && cgo

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "verbs.h"

/* Maximum number of work requests in one list. Each list takes one doorbell. */
enum { LIST = 128 };

static void post_recvs(struct ibv_qp *qp, struct ibv_srq *srq, const struct rr_recv_wr *recvs, uint32_t n,
		       struct ibv_sge *sges, struct rr_outcome *out)
{
	struct ibv_recv_wr list[LIST], *bad;

	while (out->recvs < n) {
		uint32_t k = n - out->recvs < LIST ? n - out->recvs : LIST;

		for (uint32_t i = 0; i < k; i++) {
			const struct rr_recv_wr *wr = &recvs[out->recvs + i];

			list[i].wr_id = wr->wr_id;
			list[i].sg_list = sges + wr->first_sge;
			list[i].num_sge = wr->num_sge;
			list[i].next = i + 1 < k ? &list[i + 1] : NULL;
		}
		bad = NULL;
		int err = srq ? ibv_post_srq_recv(srq, list, &bad) : ibv_post_recv(qp, list, &bad);
		if (err) {
			out->recvs += bad ? bad - list : 0;
			out->recv_err = err < 0 ? -err : err;
			return;
		}
		out->recvs += k;
	}
}

static void fill_send(struct ibv_send_wr *to, const struct rr_send_wr *wr, struct ibv_sge *sges)
{
	memset(to, 0, sizeof(*to));
	to->wr_id = wr->wr_id;
	to->opcode = wr->opcode;
	to->send_flags = wr->send_flags;
	to->sg_list = sges + wr->first_sge;
	to->num_sge = wr->num_sge;
	to->qp_type.xrc.remote_srqn = wr->srq_num;
	switch (to->opcode) {
	case IBV_WR_SEND_WITH_INV:
		to->invalidate_rkey = wr->imm;
		to->wr.rdma.rkey = wr->imm; /* siw's library reads it here */
		break;
	case IBV_WR_LOCAL_INV:
		to->invalidate_rkey = wr->imm;
		break;
	case IBV_WR_SEND_WITH_IMM:
		to->imm_data = wr->imm;
		/* fall through */
	case IBV_WR_SEND:
		if (wr->remote_addr) {
			to->wr.ud.ah = (struct ibv_ah *)(uintptr_t)wr->remote_addr;
			to->wr.ud.remote_qpn = wr->arg1 >> 32;
			to->wr.ud.remote_qkey = wr->arg1;
		}
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		to->imm_data = wr->imm;
		/* fall through */
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_ATOMIC_WRITE:
	case IBV_WR_RDMA_READ:
		to->wr.rdma.remote_addr = wr->remote_addr;
		to->wr.rdma.rkey = wr->rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		to->wr.atomic.remote_addr = wr->remote_addr;
		to->wr.atomic.rkey = wr->rkey;
		to->wr.atomic.compare_add = wr->arg1;
		to->wr.atomic.swap = wr->arg2;
		break;
	case IBV_WR_BIND_MW:
		to->bind_mw.mw = (struct ibv_mw *)(uintptr_t)wr->mw;
		to->bind_mw.rkey = wr->rkey;
		to->bind_mw.bind_info.mr = (struct ibv_mr *)(uintptr_t)wr->mr;
		to->bind_mw.bind_info.addr = wr->arg1;
		to->bind_mw.bind_info.length = wr->arg2;
		to->bind_mw.bind_info.mw_access_flags = wr->bind_access;
		break;
	case IBV_WR_TSO:
		to->tso.hdr = (void *)(uintptr_t)wr->arg1;
		to->tso.hdr_sz = wr->arg2 >> 32;
		to->tso.mss = wr->arg2;
		break;
	default:
		break;
	}
}

static void post_sends(struct ibv_qp *qp, const struct rr_send_wr *sends, uint32_t n, struct ibv_sge *sges,
		       struct rr_outcome *out)
{
	struct ibv_send_wr list[LIST], *bad;

	while (out->sends < n) {
		uint32_t k = n - out->sends < LIST ? n - out->sends : LIST;

		for (uint32_t i = 0; i < k; i++) {
			fill_send(&list[i], &sends[out->sends + i], sges);
			list[i].next = i + 1 < k ? &list[i + 1] : NULL;
		}
		bad = NULL;
		int err = ibv_post_send(qp, list, &bad);
		if (err) {
			out->sends += bad ? bad - list : 0;
			out->send_err = err < 0 ? -err : err;
			return;
		}
		out->sends += k;
	}
}

static uint32_t poll_cq(struct ibv_cq *cq, struct ibv_wc *wcs, uint32_t nwc, struct rr_outcome *out)
{
	int n = ibv_poll_cq(cq, nwc, wcs);

	if (n < 0) {
		/* negative according to the man page; providers return -errno or -1 */
		out->poll_err = n == -1 ? EIO : -n;
		return 0;
	}
	out->wcs = n;
	return n;
}

/*
 * The whole data path in one call. Receives are posted before the sends that permit the
 * peer to use them.
 */
void rr_progress(uint64_t qp_word, uint64_t srq_word, uint64_t cq_word, uint64_t channel_word,
		 const struct rr_recv_wr *recvs, uint32_t nrecv, const struct rr_send_wr *sends, uint32_t nsend,
		 struct ibv_sge *sges, struct ibv_wc *wcs, uint32_t nwc, uint32_t flags, struct rr_outcome *out)
{
	struct ibv_qp *qp = (struct ibv_qp *)(uintptr_t)qp_word;
	struct ibv_srq *srq = (struct ibv_srq *)(uintptr_t)srq_word;
	struct ibv_cq *cq = (struct ibv_cq *)(uintptr_t)cq_word;
	struct ibv_comp_channel *channel = (struct ibv_comp_channel *)(uintptr_t)channel_word;

	memset(out, 0, sizeof(*out));
	if (nrecv)
		post_recvs(qp, srq, recvs, nrecv, sges, out);
	if (nsend && !out->recv_err) {
		if (flags & RR_EXTENDED)
			rr_post_extended(qp, sends, nsend, sges, out);
		else
			post_sends(qp, sends, nsend, sges, out);
	}
	if (flags & RR_TAKE_EVENT) {
		struct ibv_cq *which;
		void *context;

		/* the channel is non-blocking: EAGAIN means no event */
		if (ibv_get_cq_event(channel, &which, &context) == 0)
			out->events = 1;
		else if (errno != EAGAIN && errno != EINTR)
			out->poll_err = errno;
	}
	if (!nwc || poll_cq(cq, wcs, nwc, out) || out->poll_err)
		return;
	/* an armed queue stays armed until it raises an event */
	if ((flags & RR_ARM) && (!(flags & RR_TAKE_EVENT) || out->events)) {
		int err = ibv_req_notify_cq(cq, 0);

		if (err) {
			out->poll_err = err < 0 ? -err : err;
			return;
		}
		out->armed = 1;
		poll_cq(cq, wcs, nwc, out);
	}
}

int rr_get_async_event(struct ibv_context *context, struct rr_async_event *out)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(context, &event))
		return errno ? errno : EIO;
	out->type = event.event_type;
	out->reserved = 0;
	out->element = 0;
	switch (event.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->element = (uintptr_t)event.element.cq;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->element = (uintptr_t)event.element.srq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->element = (uintptr_t)event.element.qp;
		break;
	case IBV_EVENT_DEVICE_FATAL:
		break;
	default:
		out->element = event.element.port_num;
		break;
	}
	/* acknowledge at once: destroying the object waits for it */
	ibv_ack_async_event(&event);
	return 0;
}

int rr_get_cm_event(struct rdma_event_channel *channel, struct rr_cm_event *out)
{
	struct rdma_cm_event *event;

	if (rr_take_cm_event(channel, &event))
		return errno ? errno : EIO;
	memset(out, 0, offsetof(struct rr_cm_event, private_data));
	out->id = (uintptr_t)event->id;
	out->context = (uintptr_t)(event->listen_id ? event->listen_id->context : event->id->context);
	out->type = event->event;
	out->status = event->status;
	out->has_verbs = event->id->verbs != NULL;
	out->qkey = 0;
	memset(&out->ah, 0, sizeof(out->ah));
	if (event->id->ps == RDMA_PS_UDP || event->id->ps == RDMA_PS_IPOIB) {
		out->qp_num = event->param.ud.qp_num;
		out->qkey = event->param.ud.qkey;
		out->ah = event->param.ud.ah_attr;
		/* for the end of a join it is the context of the join call */
		if (event->param.ud.private_data && event->event != RDMA_CM_EVENT_MULTICAST_JOIN &&
		    event->event != RDMA_CM_EVENT_MULTICAST_ERROR) {
			out->private_data_len = event->param.ud.private_data_len;
			memcpy(out->private_data, event->param.ud.private_data, out->private_data_len);
		}
	} else {
		out->qp_num = event->param.conn.qp_num;
		out->responder_resources = event->param.conn.responder_resources;
		out->initiator_depth = event->param.conn.initiator_depth;
		if (event->param.conn.private_data) {
			out->private_data_len = event->param.conn.private_data_len;
			memcpy(out->private_data, event->param.conn.private_data, out->private_data_len);
		}
	}
	/* acknowledge at once: rdma_destroy_id waits for it */
	return rdma_ack_cm_event(event) ? errno : 0;
}

#define FIELD(s, f) offsetof(struct s, f)

uint32_t rr_layout(uint32_t *out, uint32_t max)
{
	const uint32_t table[] = {
		sizeof(struct rr_send_wr), FIELD(rr_send_wr, wr_id), FIELD(rr_send_wr, remote_addr), FIELD(rr_send_wr, arg1),
		FIELD(rr_send_wr, arg2), FIELD(rr_send_wr, mw), FIELD(rr_send_wr, mr), FIELD(rr_send_wr, opcode),
		FIELD(rr_send_wr, send_flags), FIELD(rr_send_wr, rkey), FIELD(rr_send_wr, imm), FIELD(rr_send_wr, first_sge),
		FIELD(rr_send_wr, num_sge), FIELD(rr_send_wr, bind_access), FIELD(rr_send_wr, srq_num),

		sizeof(struct rr_recv_wr), FIELD(rr_recv_wr, wr_id), FIELD(rr_recv_wr, first_sge), FIELD(rr_recv_wr, num_sge),

		sizeof(struct ibv_sge), FIELD(ibv_sge, addr), FIELD(ibv_sge, length), FIELD(ibv_sge, lkey),

		sizeof(struct ibv_wc), FIELD(ibv_wc, wr_id), FIELD(ibv_wc, status), FIELD(ibv_wc, opcode), FIELD(ibv_wc, vendor_err),
		FIELD(ibv_wc, byte_len), FIELD(ibv_wc, imm_data), FIELD(ibv_wc, qp_num), FIELD(ibv_wc, src_qp), FIELD(ibv_wc, wc_flags),
		FIELD(ibv_wc, pkey_index), FIELD(ibv_wc, slid), FIELD(ibv_wc, sl), FIELD(ibv_wc, dlid_path_bits),

		sizeof(struct rr_outcome), FIELD(rr_outcome, recvs), FIELD(rr_outcome, sends), FIELD(rr_outcome, recv_err),
		FIELD(rr_outcome, send_err), FIELD(rr_outcome, poll_err), FIELD(rr_outcome, wcs), FIELD(rr_outcome, events),
		FIELD(rr_outcome, armed),

		sizeof(struct rr_cm_event), FIELD(rr_cm_event, id), FIELD(rr_cm_event, context), FIELD(rr_cm_event, type),
		FIELD(rr_cm_event, status), FIELD(rr_cm_event, qp_num), FIELD(rr_cm_event, responder_resources),
		FIELD(rr_cm_event, initiator_depth), FIELD(rr_cm_event, private_data_len), FIELD(rr_cm_event, has_verbs),
		FIELD(rr_cm_event, private_data), FIELD(rr_cm_event, qkey), FIELD(rr_cm_event, ah), FIELD(rr_cm_event, ah.grh.flow_label),
		FIELD(rr_cm_event, ah.grh.sgid_index), FIELD(rr_cm_event, ah.dlid), FIELD(rr_cm_event, ah.sl), FIELD(rr_cm_event, ah.port_num),

		sizeof(struct rr_async_event), FIELD(rr_async_event, element), FIELD(rr_async_event, type),
		FIELD(rr_async_event, reserved),

		sizeof(struct rr_wc_ex), FIELD(rr_wc_ex, wc), FIELD(rr_wc_ex, timestamp), FIELD(rr_wc_ex, wallclock_ns), FIELD(rr_wc_ex, tag),
		FIELD(rr_wc_ex, tag_priv), FIELD(rr_wc_ex, flow_tag), FIELD(rr_wc_ex, cvlan), FIELD(rr_wc_ex, reserved),
	};
	const uint32_t n = sizeof(table) / sizeof(table[0]);

	for (uint32_t i = 0; i < n && i < max; i++)
		out[i] = table[i];
	return n;
}
