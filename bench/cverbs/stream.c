/*
 * Bulk data. write and read: RDMA alone, by the client, with the server doing
 * nothing. push and pull: what a remote procedure call does. The client sends a
 * request that names its memory; the server writes it and replies in one list, or
 * reads it and replies when it has the data.
 */
#include "calls.h"

enum { MESSAGE = 64 };

static void fill(const struct conn *c)
{
	uint64_t *word = c->data->addr;

	for (size_t i = 0; i < c->data->length / sizeof *word; i++)
		word[i] = i * 0x9e3779b97f4a7c15;
}

/* Whether what fill has put there is here; every call moves its slot. */
static void check(const struct conn *c)
{
	const uint64_t *word = c->data->addr;
	size_t slots = c->terms.calls < c->terms.depth ? c->terms.calls : c->terms.depth;

	for (size_t i = 0; i < slots * c->terms.data / sizeof *word; i++)
		if (word[i] != i * 0x9e3779b97f4a7c15)
			quit("word %zu of the data is not what was sent", i);
}

static void serve_push(struct conn *c)
{
	uint32_t answered = 0;
	struct message *request;

	fill(c);
	while (answered < c->terms.calls) {
		conn_wait(c);
		for (; conn_room(c) >= 2 && (request = conn_received(c)); answered++) {
			/* The reply's completion is this one's too. Software iWARP does not
			 * copy the data of what is not signaled: the slot is used again after
			 * the client's next request for it, when this has arrived. */
			conn_rdma(c, IBV_WR_RDMA_WRITE, answered, request->addr, request->rkey, 0);
			conn_message(c)->xid = request->xid;
			conn_release(c);
		}
		conn_flush(c);
	}
}

static void serve_pull(struct conn *c)
{
	uint32_t xid[c->terms.depth], asked = 0, answered = 0;
	struct message *request;

	while (answered < c->terms.calls) {
		conn_wait(c);
		for (; conn_room(c) && (request = conn_received(c)); asked++) {
			xid[asked % c->terms.depth] = request->xid;
			conn_rdma(c, IBV_WR_RDMA_READ, asked, request->addr, request->rkey, IBV_SEND_SIGNALED);
			conn_release(c);
		}
		for (; conn_room(c) && answered < c->rdma_done; answered++)
			conn_message(c)->xid = xid[answered % c->terms.depth];
		conn_flush(c);
	}
	check(c);
}

/* Answers one message. */
static void answer(struct conn *c)
{
	struct message *request;

	while (!(request = conn_received(c)) || !conn_room(c))
		conn_wait(c);
	conn_message(c)->xid = request->xid;
	conn_release(c);
	conn_flush(c);
}

/* The client does everything; it says when it begins and when it is through. */
static void serve_memory(struct conn *c)
{
	if (c->terms.op == READ)
		fill(c);
	answer(c);
	/* The data has arrived before the message. The client's clock stops before it is
	 * compared. */
	answer(c);
	if (c->terms.op == WRITE)
		check(c);
}

static void serve(struct conn *c)
{
	switch (c->terms.op) {
	case WRITE:
	case READ:
		serve_memory(c);
		break;
	case PUSH:
		serve_push(c);
		break;
	case PULL:
		serve_pull(c);
		break;
	default:
		quit("the client is another program");
	}
}

/* Sends one message and waits for its answer. */
static void exchange(struct conn *c)
{
	conn_message(c)->xid = 0;
	conn_flush(c);
	while (!conn_received(c))
		conn_wait(c);
	conn_release(c);
}

static void use_memory(struct conn *c, struct meter *m)
{
	enum ibv_wr_opcode opcode = c->terms.op == WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	uint64_t start[c->terms.depth], now;
	uint32_t posted = 0, done = 0;

	exchange(c);
	now = now_ns();
	while (done < c->terms.calls) {
		/* All are signaled: nothing else says when a buffer may be used again. */
		for (; posted < c->terms.calls && posted - done < c->terms.depth && conn_room(c); posted++) {
			conn_rdma(c, opcode, posted, c->peer_addr + conn_slot(c, posted), c->peer_rkey, IBV_SEND_SIGNALED);
			start[posted % c->terms.depth] = now;
		}
		conn_flush(c);
		conn_wait(c);
		now = now_ns();
		for (; done < c->rdma_done; done++) {
			meter_sample(m, now - start[done % c->terms.depth]);
			meter_done(m, c);
		}
	}
	/* A WRITE completes when it is on its way. The last ones have arrived when the
	 * message behind them is answered. */
	exchange(c);
	m->end.wall = now_ns();
}

static void call(struct conn *c, const struct options *o, struct meter *m)
{
	if (c->terms.op == WRITE || c->terms.op == PULL)
		fill(c);
	if (c->terms.op == WRITE || c->terms.op == READ)
		use_memory(c, m);
	else
		make_calls(c, m);
	if (c->terms.op == READ || c->terms.op == PUSH)
		check(c);
	report(c, o, m);
}

int main(int argc, char **argv)
{
	struct options o = {.op = PUSH, .size = 1 << 20, .depth = 1, .iterations = 200};

	parse_options(argc, argv, "n:s:d:o:", &o);
	/* The server of write and read only waits for the end: it must not take CPU time
	 * from a client that polls. */
	run(&o, (struct terms){.op = o.op, .message = MESSAGE, .data = o.size, .depth = o.depth,
		.server = o.op == WRITE || o.op == READ ? (struct waiting){.mode = EVENT} : o.waiting}, serve, call);
}
