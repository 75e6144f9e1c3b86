//go:build linux && cgo

#include <errno.h>
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
 * Replaces the library's function, which ibv_reg_mr calls and which would look for a driver in
 * private data. The linker prefers this definition.
 */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct cfake *f = of(pd->context);

	f->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = 1, .rkey = 2 };
	return &f->mr;
}

/* Extended queues. */

static struct cfake_send *begin(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode)
{
	struct cfake *f = of(qp->qp_base.context);

	f->building++;
	f->last = (struct cfake_send){ .id = qp->wr_id, .opcode = opcode, .flags = qp->wr_flags };
	return &f->last;
}

static struct cfake_send *begin_remote(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr)
{
	struct cfake_send *s = begin(qp, opcode);

	s->rkey = rkey;
	s->remote_addr = addr;
	return s;
}

static uint32_t sum(const void *data, size_t n)
{
	uint32_t s = 0;

	for (size_t i = 0; i < n; i++)
		s += ((const uint8_t *)data)[i];
	return s;
}

static struct cfake_send *building(struct ibv_qp_ex *qp) { return &of(qp->qp_base.context)->last; }

static void wr_start(struct ibv_qp_ex *qp)
{
	record(of(qp->qp_base.context), CFAKE_START, 0);
	of(qp->qp_base.context)->building = 0;
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct cfake *f = of(qp->qp_base.context);

	record(f, CFAKE_COMPLETE, f->building);
	if (f->room < f->building)
		return f->post_err;
	f->room -= f->building;
	return 0;
}

static void wr_abort(struct ibv_qp_ex *qp) { record(of(qp->qp_base.context), CFAKE_ABORT, 0); }

static void wr_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct cfake_send *s = begin_remote(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);

	s->compare_add = compare;
	s->swap = swap;
}

static void wr_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin_remote(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr)->compare_add = add;
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *data)
{
	begin_remote(qp, IBV_WR_ATOMIC_WRITE, rkey, addr)->sum = sum(data, 8);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct cfake_send *s = begin(qp, IBV_WR_BIND_MW);

	s->mw = (uintptr_t)mw;
	s->rkey = rkey;
	s->mr = (uintptr_t)info->mr;
	s->bind_addr = info->addr;
	s->bind_length = info->length;
	s->bind_access = info->mw_access_flags;
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, IBV_WR_LOCAL_INV)->imm = rkey; }
static void wr_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr) { begin_remote(qp, IBV_WR_RDMA_READ, rkey, addr); }
static void wr_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr) { begin_remote(qp, IBV_WR_RDMA_WRITE, rkey, addr); }

static void wr_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm)
{
	begin_remote(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr)->imm = imm;
}

static void wr_send(struct ibv_qp_ex *qp) { begin(qp, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm) { begin(qp, IBV_WR_SEND_WITH_IMM)->imm = imm; }
static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, IBV_WR_SEND_WITH_INV)->imm = rkey; }

static void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t size, uint16_t mss)
{
	struct cfake_send *s = begin(qp, IBV_WR_TSO);

	s->sum = sum(hdr, size);
	s->swap = mss;
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct cfake_send *s = building(qp);

	s->ah = (uintptr_t)ah;
	s->qpn = qpn;
	s->qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t srqn) { building(qp)->srqn = srqn; }

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *sges)
{
	struct cfake_send *s = building(qp);

	s->num_sge = n;
	for (size_t i = n; i-- > 0;) {
		s->addr = sges[i].addr;
		s->length = sges[i].length;
		s->lkey = sges[i].lkey;
	}
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	wr_set_sge_list(qp, 1, &(struct ibv_sge){ .addr = addr, .length = length, .lkey = lkey });
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_data_buf *bufs)
{
	struct cfake_send *s = building(qp);

	s->num_sge = n;
	for (size_t i = 0; i < n; i++)
		s->sum += sum(bufs[i].addr, bufs[i].length);
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	wr_set_inline_data_list(qp, 1, &(struct ibv_data_buf){ .addr = addr, .length = length });
}

/* Replaces the library's function, which would read private data that only its providers allocate. */
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct cfake *f = of(qp->context);

	return qp == &f->qpx.qp_base ? &f->qpx : NULL;
}

/* A poll started by ibv_start_poll has as many completions as the test sets. Field values identify the fields. */
static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct cfake *f = of(cq->context);
	int got = f->npolls < CFAKE_POLLS ? f->polls[f->npolls++] : 0;

	if (got <= 0)
		return got ? -got : ENOENT;
	record(f, CFAKE_POLL, got);
	f->reading = got - 1;
	cq->wr_id = 100 * f->npolls;
	cq->status = IBV_WC_SUCCESS;
	return 0;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	if (!of(cq->context)->reading)
		return ENOENT;
	of(cq->context)->reading--;
	cq->wr_id++;
	return 0;
}

static void end_poll(struct ibv_cq_ex *cq) { of(cq->context)->reading = 0; }
static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return IBV_WC_RECV; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return IBV_WC_WITH_IMM; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { return 1; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return 2; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { return 3; }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { return 4; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { return 5; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { return 6; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { return 7; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *cq) { return 8; }
static uint64_t read_completion_ts(struct ibv_cq_ex *cq) { return 9; }
static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *cq) { return 10; }
static uint16_t read_cvlan(struct ibv_cq_ex *cq) { return 11; }
static uint32_t read_flow_tag(struct ibv_cq_ex *cq) { return 12; }

static void read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *info)
{
	*info = (struct ibv_wc_tm_info){ .tag = 13, .priv = 14 };
}

static const struct ibv_qp_ex qpx = {
	.wr_start = wr_start, .wr_complete = wr_complete, .wr_abort = wr_abort,
	.wr_atomic_cmp_swp = wr_cmp_swp, .wr_atomic_fetch_add = wr_fetch_add, .wr_atomic_write = wr_atomic_write,
	.wr_bind_mw = wr_bind_mw, .wr_local_inv = wr_local_inv,
	.wr_rdma_read = wr_read, .wr_rdma_write = wr_write, .wr_rdma_write_imm = wr_write_imm,
	.wr_send = wr_send, .wr_send_imm = wr_send_imm, .wr_send_inv = wr_send_inv, .wr_send_tso = wr_send_tso,
	.wr_set_ud_addr = wr_set_ud_addr, .wr_set_xrc_srqn = wr_set_xrc_srqn,
	.wr_set_sge = wr_set_sge, .wr_set_sge_list = wr_set_sge_list,
	.wr_set_inline_data = wr_set_inline_data, .wr_set_inline_data_list = wr_set_inline_data_list,
};

static const struct ibv_cq_ex cqx = {
	.start_poll = start_poll, .next_poll = next_poll, .end_poll = end_poll,
	.read_opcode = read_opcode, .read_wc_flags = read_wc_flags, .read_vendor_err = read_vendor_err,
	.read_byte_len = read_byte_len, .read_imm_data = read_imm_data, .read_qp_num = read_qp_num,
	.read_src_qp = read_src_qp, .read_slid = read_slid, .read_sl = read_sl,
	.read_dlid_path_bits = read_dlid_path_bits, .read_completion_ts = read_completion_ts,
	.read_completion_wallclock_ns = read_completion_wallclock_ns, .read_cvlan = read_cvlan,
	.read_flow_tag = read_flow_tag, .read_tm_info = read_tm_info,
};

struct cfake *cfake_new(int fd, int qp_type)
{
	struct cfake *f = calloc(1, sizeof(*f));

	f->qpx = qpx;
	f->cqx = cqx;
	f->qpx.qp_base.qp_type = qp_type;
	f->qpx.qp_base.context = f->cqx.context = &f->context;

	f->context.ops.post_recv = post_recv;
	f->context.ops.post_srq_recv = post_srq_recv;
	f->context.ops.post_send = post_send;
	f->context.ops.poll_cq = poll_cq;
	f->context.ops.req_notify_cq = req_notify_cq;
	f->qp.context = f->srq.context = f->cq.context = f->channel.context = f->pd.context = &f->context;
	f->channel.fd = fd;
	return f;
}
