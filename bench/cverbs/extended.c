/*
 * A list of Sends on an extended queue pair to another of the same process, and their completions on
 * extended queues, again and again: what the API of ibv_wr_* and ibv_start_poll costs.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum { MAX_LIST = 64, SIZE = 64 };

struct end {
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	uint32_t psn;
};

static void need(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "extended: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static struct ibv_context *device_at(const char *host)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	need(inet_pton(AF_INET, host, &addr.sin_addr) == 1, host);
	need(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_bind_addr(id, (struct sockaddr *)&addr), "rdma_bind_addr");
	need(id->verbs != NULL, "the address is of no device");
	return id->verbs;
}

static void create(struct end *e, struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq_init_attr_ex cq = { .cqe = 2 * MAX_LIST, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_qp_init_attr_ex qp = {
		.cap = { .max_send_wr = 2 * MAX_LIST, .max_recv_wr = 2 * MAX_LIST, /* rxe frees places late */ .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	e->cq = ibv_create_cq_ex(context, &cq);
	need(e->cq != NULL, "ibv_create_cq_ex");
	qp.send_cq = qp.recv_cq = ibv_cq_ex_to_cq(e->cq);
	e->qp = ibv_create_qp_ex(context, &qp);
	need(e->qp != NULL, "ibv_create_qp_ex");
	e->psn = 100;
}

static void connect_to(struct end *e, const struct end *peer, const union ibv_gid *gid, int index, enum ibv_mtu mtu)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	need(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = index, .hop_limit = 64 } },
	};
	need(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = e->psn, .max_rd_atomic = 1,
	};
	need(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");
}

/* Reads up to max completions, with all their fields. ibv_next_poll of rxe's library is wrong before
 * rdma-core 61: when it finds nothing, ibv_end_poll advances the queue once too often. */
static int poll(struct ibv_cq_ex *cq, struct ibv_wc *wcs, int max)
{
	struct ibv_poll_cq_attr attr = {};
	int n = 0;

	while (n < max && !ibv_start_poll(cq, &attr)) {
		struct ibv_wc *wc = &wcs[n++];

		need(cq->status == IBV_WC_SUCCESS, ibv_wc_status_str(cq->status));
		wc->wr_id = cq->wr_id;
		wc->opcode = ibv_wc_read_opcode(cq);
		wc->vendor_err = ibv_wc_read_vendor_err(cq);
		wc->byte_len = ibv_wc_read_byte_len(cq);
		wc->imm_data = ibv_wc_read_imm_data(cq);
		wc->qp_num = ibv_wc_read_qp_num(cq);
		wc->src_qp = ibv_wc_read_src_qp(cq);
		wc->wc_flags = ibv_wc_read_wc_flags(cq);
		wc->slid = ibv_wc_read_slid(cq);
		wc->sl = ibv_wc_read_sl(cq);
		wc->dlid_path_bits = ibv_wc_read_dlid_path_bits(cq);
		ibv_end_poll(cq);
	}
	return n;
}

int main(int argc, char **argv)
{
	static char buf[2 * SIZE];
	struct ibv_wc wcs[2 * MAX_LIST];
	struct ibv_gid_entry gids[64];
	struct ibv_port_attr port;
	struct ibv_recv_wr recvs[MAX_LIST], *bad;
	struct ibv_sge sge = { .length = SIZE };
	struct end a, b;
	int list = 1, iterations = 2000, opt, index = -1;
	uint64_t start = 0;

	while ((opt = getopt(argc, argv, "d:n:")) != -1) {
		if (opt == 'd')
			list = atoi(optarg);
		else if (opt == 'n')
			iterations = atoi(optarg);
		else
			return 2;
	}
	if (optind != argc - 1 || list < 1 || list > MAX_LIST || iterations < 1) {
		fprintf(stderr, "usage: extended [-d SENDS] [-n ITERATIONS] ADDRESS\n");
		return 2;
	}
	struct ibv_context *context = device_at(argv[optind]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	need(pd != NULL, "ibv_alloc_pd");
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	need(mr != NULL, "ibv_reg_mr");
	need(!ibv_query_port(context, 1, &port), "ibv_query_port");
	int n = ibv_query_gid_table(context, gids, 64, 0);
	for (int i = 0; i < n; i++)
		if (gids[i].gid_type == IBV_GID_TYPE_ROCE_V2 && gids[i].gid.raw[10] == 0xff)
			index = i;
	need(index >= 0, "no RoCE v2 address of IPv4");
	create(&a, context, pd);
	create(&b, context, pd);
	connect_to(&a, &b, &gids[index].gid, gids[index].gid_index, port.active_mtu);
	connect_to(&b, &a, &gids[index].gid, gids[index].gid_index, port.active_mtu);

	sge.addr = (uintptr_t)buf + SIZE;
	sge.lkey = mr->lkey;
	for (int i = 0; i < list; i++)
		recvs[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i + 1 < list ? &recvs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	for (int i = -iterations / 10; i < iterations; i++) {
		if (i == 0)
			start = now();
		need(!ibv_post_recv(b.qp, recvs, &bad), "ibv_post_recv");
		ibv_wr_start(qp);
		for (int j = 0; j < list; j++) {
			qp->wr_id = j;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send(qp);
			ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)buf, SIZE);
		}
		need(!ibv_wr_complete(qp), "ibv_wr_complete");
		for (int got = 0; got < list;)
			got += poll(b.cq, wcs, 2 * MAX_LIST);
		for (int got = 0; got < list;)
			got += poll(a.cq, wcs, 2 * MAX_LIST);
	}
	printf("{\"ns_per_op\": %.1f}\n", (double)(now() - start) / iterations);
	return 0;
}
