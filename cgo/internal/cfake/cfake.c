//go:build linux && cgo

#include <stdlib.h>

#include "cfake.h"

static struct cfake *of(struct ibv_context *context) { return (struct cfake *)context; }

static void record(struct cfake *f, uint32_t call, uint32_t size)
{
	if (f->ncalls < CFAKE_CALLS) {
		f->calls[f->ncalls] = call;
		f->sizes[f->ncalls++] = size;
	}
}

static int post_recvs(struct cfake *f, uint32_t call, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct ibv_recv_wr *refused = NULL;
	uint32_t n = 0;

	for (; wr; wr = wr->next, n++) {
		if (f->room == 0 && !refused)
			refused = wr;
		if (!refused)
			f->room--;
	}
	record(f, call, n);
	if (!refused)
		return 0;
	if (!f->no_bad_wr)
		*bad = refused;
	return f->post_err;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_recvs(of(qp->context), CFAKE_POST_RECV, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_recvs(of(srq->context), CFAKE_POST_SRQ_RECV, wr, bad);
}

static struct cfake_send flat(const struct ibv_send_wr *wr)
{
	struct cfake_send s = {
		.id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags, .imm = wr->imm_data, .num_sge = wr->num_sge,
	};

	if (wr->num_sge > 0) {
		s.addr = wr->sg_list->addr;
		s.length = wr->sg_list->length;
		s.lkey = wr->sg_list->lkey;
	}
	switch (wr->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		s.remote_addr = wr->wr.atomic.remote_addr;
		s.rkey = wr->wr.atomic.rkey;
		s.compare_add = wr->wr.atomic.compare_add;
		s.swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_BIND_MW:
		s.mw = (uintptr_t)wr->bind_mw.mw;
		s.rkey = wr->bind_mw.rkey;
		s.mr = (uintptr_t)wr->bind_mw.bind_info.mr;
		s.bind_addr = wr->bind_mw.bind_info.addr;
		s.bind_length = wr->bind_mw.bind_info.length;
		s.bind_access = wr->bind_mw.bind_info.mw_access_flags;
		break;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		s.ah = (uintptr_t)wr->wr.ud.ah;
		s.qpn = wr->wr.ud.remote_qpn;
		s.qkey = wr->wr.ud.remote_qkey;
		break;
	default:
		s.remote_addr = wr->wr.rdma.remote_addr;
		s.rkey = wr->wr.rdma.rkey;
	}
	return s;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct cfake *f = of(qp->context);
	struct ibv_send_wr *refused = NULL;
	uint32_t n = 0;

	for (; wr; wr = wr->next, n++) {
		if (f->room == 0 && !refused)
			refused = wr;
		if (!refused)
			f->room--;
		f->last = flat(wr);
	}
	record(f, CFAKE_POST_SEND, n);
	if (!refused)
		return 0;
	if (!f->no_bad_wr)
		*bad = refused;
	return f->post_err;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs)
{
	struct cfake *f = of(cq->context);
	int got = f->npolls < CFAKE_POLLS ? f->polls[f->npolls++] : 0;

	record(f, CFAKE_POLL, n);
	for (int i = 0; i < got; i++)
		wcs[i].wr_id = 100 * f->npolls + i;
	return got;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct cfake *f = of(cq->context);

	record(f, CFAKE_NOTIFY, solicited_only);
	return f->notify_err;
}

/*
 * The library's function, which ibv_reg_mr calls, would look for the driver where only it knows.
 * The linker prefers this one.
 */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct cfake *f = of(pd->context);

	f->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = 1, .rkey = 2 };
	return &f->mr;
}

struct cfake *cfake_new(int fd)
{
	struct cfake *f = calloc(1, sizeof(*f));

	f->context.ops.post_recv = post_recv;
	f->context.ops.post_srq_recv = post_srq_recv;
	f->context.ops.post_send = post_send;
	f->context.ops.poll_cq = poll_cq;
	f->context.ops.req_notify_cq = req_notify_cq;
	f->qp.context = f->srq.context = f->cq.context = f->channel.context = f->pd.context = &f->context;
	f->channel.fd = fd;
	return f;
}
