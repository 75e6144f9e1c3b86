/*
 * Verbs objects whose driver is this file. It records the calls that the inline functions
 * of verbs.h make through the context, and answers them as the test has set.
 */
#ifndef CFAKE_H
#define CFAKE_H

#include <infiniband/verbs.h>

enum { CFAKE_POLLS = 8, CFAKE_CALLS = 16 };

/* Recorded calls. */
enum { CFAKE_POST_RECV, CFAKE_POST_SRQ_RECV, CFAKE_POST_SEND, CFAKE_POLL, CFAKE_NOTIFY, CFAKE_START, CFAKE_COMPLETE, CFAKE_ABORT };

/* A request of the send queue: members of struct ibv_send_wr, those of its unions by opcode. */
struct cfake_send {
	uint64_t id, addr, remote_addr, compare_add, swap, mw, mr, bind_addr, bind_length, ah;
	uint32_t qpn, qkey;
	uint32_t opcode, flags, imm, num_sge, length, lkey, rkey, bind_access;
	uint32_t srqn, sum;          /* extended: XRC, and the sum of the bytes of inline data or of a header */
};

struct cfake {
	struct ibv_context context;
	struct ibv_qp qp;
	struct ibv_qp_ex qpx;
	struct ibv_srq srq;
	struct ibv_cq cq;
	struct ibv_cq_ex cqx;
	struct ibv_comp_channel channel;
	struct ibv_pd pd;
	struct ibv_mr mr;            /* the last registration */

	/* Answers. */
	uint32_t room;               /* work requests that the queues still accept */
	int post_err;                /* result of posting beyond that */
	int no_bad_wr;               /* such a call does not report the failed request */
	int notify_err;
	int polls[CFAKE_POLLS];      /* results of the next polls; 0 afterwards */
	uint32_t npolls;

	/* Records. */
	uint32_t ncalls;
	uint32_t calls[CFAKE_CALLS]; /* of the enum above */
	uint32_t sizes[CFAKE_CALLS]; /* work requests in the list, or completions requested */
	struct cfake_send last;      /* of the send queue */
	uint32_t building, reading;  /* extended: requests since ibv_wr_start, completions of the poll from here on */
};

struct cfake *cfake_new(int fd, int qp_type);

#endif
