/*
 * What single steps cost: registering memory, binding and invalidating memory
 * windows, looking for completions, arming, posting lists of small WRITEs.
 */
#include "program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	SMALL = 64,   /* bytes of a WRITE */
	LONGEST = 16, /* work requests in a list */
	TIMES = 1000, /* a step that is too short for the clock is taken so often */
};

/* Prints n durations, each of so many steps; key is what value tells, if anything. */
static void print(const struct conn *c, const char *op, const char *key, uint32_t value, uint64_t *ns, uint32_t n, double steps)
{
	sort(ns, n);
	report_head(op, c);
	if (key)
		printf(",\"%s\":%u", key, value);
	printf(",\"iterations\":%u,\"mean_us\":%.3f,\"p50_us\":%.3f,\"p99_us\":%.3f}\n", n, mean(ns, n) / steps / 1e3,
	       quantile(ns, n, 0.5) / steps / 1e3, quantile(ns, n, 0.99) / steps / 1e3);
}

static void measure_short(const struct conn *c, uint64_t *ns, uint32_t n)
{
	struct ibv_wc wc;
	uint64_t start;

	for (uint32_t i = 0; i < n; i++) {
		start = now_ns();
		for (uint32_t k = 0; k < TIMES; k++)
			now_ns();
		ns[i] = now_ns() - start;
	}
	print(c, "clock", NULL, 0, ns, n, TIMES);

	for (uint32_t i = 0; i < n; i++) {
		start = now_ns();
		for (uint32_t k = 0; k < TIMES; k++)
			if (ibv_poll_cq(c->cq, 1, &wc))
				quit("ibv_poll_cq: the queue is not empty");
		ns[i] = now_ns() - start;
	}
	print(c, "poll_cq_empty", NULL, 0, ns, n, TIMES);

	for (uint32_t i = 0; i < n; i++) {
		start = now_ns();
		for (uint32_t k = 0; k < TIMES; k++) {
			errno = ibv_req_notify_cq(c->cq, 0);
			if (errno)
				fail("ibv_req_notify_cq");
		}
		ns[i] = now_ns() - start;
	}
	print(c, "req_notify_cq", NULL, 0, ns, n, TIMES);
}

static void measure_mr(const struct conn *c, uint32_t size, uint64_t *reg, uint64_t *dereg, uint32_t n)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	uint64_t start, middle;
	struct ibv_mr *mr;

	if (p == MAP_FAILED)
		fail("mmap");
	for (uint32_t i = 0; i < n; i++) {
		start = now_ns();
		mr = ibv_reg_mr(c->pd, p, size, ACCESS);
		if (!mr)
			fail("ibv_reg_mr");
		middle = now_ns();
		errno = ibv_dereg_mr(mr);
		if (errno)
			fail("ibv_dereg_mr");
		reg[i] = middle - start;
		dereg[i] = now_ns() - middle;
	}
	print(c, "reg_mr", "size", size, reg, n, 1);
	print(c, "dereg_mr", "size", size, dereg, n, 1);
	if (munmap(p, size))
		fail("munmap");
}

/* Posts one work request and waits for its completion. */
static uint64_t complete(struct conn *c, struct ibv_send_wr *wr)
{
	uint64_t done = c->rdma_done, start = now_ns();
	struct ibv_send_wr *bad;

	errno = ibv_post_send(c->id->qp, wr, &bad);
	if (errno)
		fail("ibv_post_send");
	while (c->rdma_done == done)
		conn_wait(c);
	return now_ns() - start;
}

static void measure_mw(struct conn *c, uint64_t *bind, uint64_t *invalidate, uint32_t n)
{
	struct ibv_mr *mr = ibv_reg_mr(c->pd, c->data->addr, c->data->length, ACCESS | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(c->pd, IBV_MW_TYPE_2);
	struct ibv_send_wr wr;

	if (!mr)
		fail("ibv_reg_mr");
	if (!mw)
		fail("ibv_alloc_mw");
	for (uint32_t i = 0; i < n; i++) {
		wr = (struct ibv_send_wr){
			.opcode = IBV_WR_BIND_MW,
			.send_flags = IBV_SEND_SIGNALED,
			.bind_mw = {mw, ibv_inc_rkey(mw->rkey), {mr, (uintptr_t)mr->addr, mr->length, IBV_ACCESS_REMOTE_WRITE}},
		};
		bind[i] = complete(c, &wr);
		/* Of type 2 windows the application keeps the key. */
		mw->rkey = wr.bind_mw.rkey;
		wr = (struct ibv_send_wr){
			.opcode = IBV_WR_LOCAL_INV,
			.send_flags = IBV_SEND_SIGNALED,
			.invalidate_rkey = mw->rkey,
		};
		invalidate[i] = complete(c, &wr);
	}
	print(c, "bind_mw", NULL, 0, bind, n, 1);
	print(c, "local_inv", NULL, 0, invalidate, n, 1);
	errno = ibv_dealloc_mw(mw);
	if (errno)
		fail("ibv_dealloc_mw");
	errno = ibv_dereg_mr(mr);
	if (errno)
		fail("ibv_dereg_mr");
}

/* Lists of WRITEs, the last of which is signaled: the call, and until all is done. */
static void measure_list(struct conn *c, uint32_t length, uint64_t *post, uint64_t *done, uint32_t n)
{
	uint64_t start;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 1; k <= length; k++)
			conn_rdma(c, IBV_WR_RDMA_WRITE, k, c->peer_addr + conn_slot(c, k), c->peer_rkey,
				  c->inline_flag | (k == length ? IBV_SEND_SIGNALED : 0));
		start = now_ns();
		conn_flush(c);
		post[i] = now_ns() - start;
		while (c->send_retired < c->send_built)
			conn_wait(c);
		done[i] = now_ns() - start;
	}
	print(c, "post_send", "list", length, post, n, length);
	print(c, "post_send_done", "list", length, done, n, length);
}

/* The server's memory is all that is wanted of it. */
static void serve(struct conn *c)
{
	if (c->terms.op != COSTS)
		quit("the client is another program");
}

static void call(struct conn *c, const struct options *o, struct meter *m)
{
	static const uint32_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 8 << 20};
	uint32_t n = o->iterations;
	struct ibv_device_attr attr;
	uint64_t *more = malloc(n * sizeof *more);

	if (!more)
		fail("malloc");
	errno = ibv_query_device(c->id->verbs, &attr);
	if (errno)
		fail("ibv_query_device");
	measure_short(c, m->ns, n);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		measure_mr(c, sizes[i], m->ns, more, n);
	if (attr.max_mw > 0)
		measure_mw(c, m->ns, more, n);
	for (uint32_t length = 1; length <= LONGEST; length *= 4)
		measure_list(c, length, m->ns, more, n);
	free(more);
}

int main(int argc, char **argv)
{
	struct options o = {.iterations = 200};

	parse_options(argc, argv, "n:", &o);
	run(&o, (struct terms){.op = COSTS, .message = SMALL, .data = SMALL, .depth = LONGEST, .server = o.waiting}, serve, call);
}
