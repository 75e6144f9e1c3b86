/*
 * A connection with one completion queue, receives that are posted ahead in lists,
 * and sends that are posted in lists and signaled selectively.
 *
 * Client and server speak request and response: a client sends a request only when
 * it has fewer than terms.depth outstanding, the server answers in order. On this
 * rest the number of receives and the reuse of all buffers.
 *
 * Nothing here is careful with hostile peers. Any error ends the process with one line.
 */
#ifndef CONN_H
#define CONN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum op { PINGPONG, PIPELINE, WRITE, READ, PUSH, PULL, COSTS };

enum mode { POLL, EVENT };

/* How a side waits for completions. */
struct waiting {
	uint32_t mode;
	uint32_t yield; /* empty polls between two calls of sched_yield, 0 for none */
};

/*
 * What a client asks of its server, in the private data of its connection request:
 * an array of uint32_t in network byte order.
 */
struct terms {
	uint32_t op;
	uint32_t message; /* length of every message in bytes */
	uint32_t data;    /* bytes that a call moves by RDMA */
	uint32_t depth;   /* most calls outstanding */
	uint32_t calls;   /* how many in all */
	struct waiting server;
};

/*
 * How every message begins. A reply has the xid of its request; the memory that a
 * request names is the client's, for the server to write or read. Both sides have
 * the same byte order.
 */
struct message {
	uint32_t xid;
	uint32_t rkey;
	uint64_t addr;
};

/*
 * Connections belong to one thread.
 *
 * The counters run freely, slots are taken modulo the size of a ring. Receives:
 * posted >= arrived >= released. Sends: built >= posted >= retired; what was built
 * and not retired occupies the send queue.
 */
struct conn {
	struct terms terms;
	struct waiting waiting;
	bool active;

	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	pthread_t watcher;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel; /* NULL when polling */
	struct ibv_cq *cq;
	bool armed;
	uint32_t unacked; /* completion events */

	struct ibv_mr *messages;
	uint32_t stride; /* from one message buffer to the next */
	struct ibv_mr *data; /* terms.depth slots; NULL without terms.data */
	uint64_t peer_addr;  /* on the client: the same of the server */
	uint32_t peer_rkey;

	struct ibv_recv_wr *recv_wr;
	struct ibv_sge *recv_sge;
	uint32_t recvs;
	uint64_t recv_posted, recv_arrived, recv_released;

	struct ibv_send_wr *send_wr;
	struct ibv_sge *send_sge;
	uint32_t sends;
	uint64_t send_built, send_posted, send_retired;
	uint64_t messages_built;
	uint64_t rdma_done;   /* signaled WRITEs and READs that are complete */
	uint32_t inline_flag; /* IBV_SEND_INLINE if the device takes messages inline */
	uint64_t doorbells;   /* calls of ibv_post_send */
};

/* Print one line and exit; fail adds what errno says. */
_Noreturn void fail(const char *call);
_Noreturn void quit(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The port may be 0 for any: rdma_get_src_port tells. */
struct rdma_cm_id *conn_listen(const char *addr, uint16_t port);

/* Takes one connection from the listener and ends that. */
struct conn *conn_accept(struct rdma_cm_id *listener);

struct conn *conn_connect(const char *addr, uint16_t port, const struct terms *terms, const struct waiting *waiting);

/* The client disconnects, the server waits until it has; then all is given back. */
void conn_close(struct conn *c);

/* A message to be sent, for the caller to fill. There must be room. Its memory is
 * used again depth messages later; until then the peer has answered, or asked for
 * more, which says that this one has arrived. */
struct message *conn_message(struct conn *c);

/* An RDMA operation between the slot of call number call and memory of the peer. There
 * must be room. */
void conn_rdma(struct conn *c, enum ibv_wr_opcode opcode, uint64_t call, uint64_t addr, uint32_t rkey, unsigned flags);

/* Posts what was built since the last time as one list. */
void conn_flush(struct conn *c);

/* Waits until something completes. */
void conn_wait(struct conn *c);

/* Polls once for completions: how many there were. */
int conn_poll(struct conn *c);

/* Gives the oldest message that has arrived back for receiving. */
void conn_release(struct conn *c);

/* The oldest message that has arrived and was not released, or NULL. */
static inline struct message *conn_received(const struct conn *c)
{
	if (c->recv_released == c->recv_arrived)
		return NULL;
	return (struct message *)(uintptr_t)c->recv_sge[c->recv_released % c->recvs].addr;
}

/* How many more work requests the send queue takes. */
static inline uint32_t conn_room(const struct conn *c)
{
	return c->sends - (uint32_t)(c->send_built - c->send_retired);
}

/* The memory of a call. */
static inline uint64_t conn_slot(const struct conn *c, uint64_t call)
{
	return call % c->terms.depth * c->terms.data;
}

static inline char *conn_memory(const struct conn *c, uint64_t call)
{
	return (char *)c->data->addr + conn_slot(c, call);
}

#endif
