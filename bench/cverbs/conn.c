#include "conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	SIGNAL_EVERY = 16, /* one in so many send work requests is signaled */
	REFILL = 8,        /* receives are posted again in lists of that length */
	REAP = 32,         /* completions taken at once */
	ACK_EVERY = 1024,  /* completion events acknowledged at once */

	TIMEOUT_MS = 5000, /* resolving an address, a route */
};

/* What the server says of its memory when it accepts, in network byte order. */
struct grant {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

_Static_assert(sizeof(struct terms) <= 56, "rdma_connect(3): private data is at most 56 bytes");

void fail(const char *call)
{
	fprintf(stderr, "%s: %s (errno %d)\n", call, strerror(errno), errno);
	exit(1);
}

void quit(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		fail("mmap");
	return p;
}

static struct ibv_mr *map_mr(struct conn *c, size_t size, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(c->pd, map(size), size, access);

	if (!mr)
		fail("ibv_reg_mr (ulimit -l may be too low)");
	return mr;
}

static void unmap_mr(struct ibv_mr *mr)
{
	void *p = mr->addr;
	size_t size = mr->length;

	errno = ibv_dereg_mr(mr);
	if (errno)
		fail("ibv_dereg_mr");
	if (munmap(p, size))
		fail("munmap");
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n, size);

	if (!p)
		fail("calloc");
	return p;
}

/* ---- data path ---- */

/* Posts the receives of all buffers that are free. */
static void refill(struct conn *c)
{
	uint64_t end = c->recv_released + c->recvs;
	struct ibv_recv_wr *last = &c->recv_wr[(end - 1) % c->recvs], *next = last->next, *bad;

	last->next = NULL;
	errno = ibv_post_recv(c->id->qp, &c->recv_wr[c->recv_posted % c->recvs], &bad);
	if (errno)
		fail("ibv_post_recv");
	last->next = next;
	c->recv_posted = end;
}

void conn_release(struct conn *c)
{
	c->recv_released++;
	if (c->recv_released + c->recvs - c->recv_posted >= REFILL)
		refill(c);
}

static struct ibv_send_wr *build(struct conn *c)
{
	struct ibv_send_wr *wr = &c->send_wr[c->send_built++ % c->sends];

	/* A completion retires everything up to the work request that it is for. */
	wr->wr_id = c->send_built;
	wr->send_flags = c->send_built % SIGNAL_EVERY ? 0 : IBV_SEND_SIGNALED;
	return wr;
}

struct message *conn_message(struct conn *c)
{
	struct ibv_send_wr *wr = build(c);
	uint64_t addr = (uintptr_t)c->messages->addr +
			(c->recvs + c->messages_built++ % c->terms.depth) * c->stride;

	wr->opcode = IBV_WR_SEND;
	wr->send_flags |= c->inline_flag;
	*wr->sg_list = (struct ibv_sge){addr, c->terms.message, c->messages->lkey};
	return (struct message *)(uintptr_t)addr;
}

void conn_rdma(struct conn *c, enum ibv_wr_opcode opcode, uint64_t call, uint64_t addr, uint32_t rkey, unsigned flags)
{
	struct ibv_send_wr *wr = build(c);

	wr->opcode = opcode;
	wr->send_flags |= flags;
	*wr->sg_list = (struct ibv_sge){(uintptr_t)conn_memory(c, call), c->terms.data, c->data->lkey};
	wr->wr.rdma.remote_addr = addr;
	wr->wr.rdma.rkey = rkey;
}

void conn_flush(struct conn *c)
{
	struct ibv_send_wr *last, *next, *bad;

	if (c->send_posted == c->send_built)
		return;
	last = &c->send_wr[(c->send_built - 1) % c->sends];
	next = last->next;
	last->next = NULL;
	errno = ibv_post_send(c->id->qp, &c->send_wr[c->send_posted % c->sends], &bad);
	if (errno)
		fail("ibv_post_send");
	last->next = next;
	c->send_posted = c->send_built;
	c->doorbells++;
}

int conn_poll(struct conn *c)
{
	struct ibv_wc wc[REAP];
	int n = ibv_poll_cq(c->cq, REAP, wc);

	if (n < 0)
		fail("ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			quit("%s: completion with status %d: %s", c->active ? "client" : "server",
			     wc[i].status, ibv_wc_status_str(wc[i].status));
		if (!(wc[i].opcode & IBV_WC_RECV)) {
			/* Software iWARP completes a message before the READ that was posted
			 * ahead of it: there is no order between the two. */
			if (c->send_retired < wc[i].wr_id)
				c->send_retired = wc[i].wr_id;
			c->rdma_done += wc[i].opcode != IBV_WC_SEND;
			continue;
		}
		if (wc[i].byte_len != c->terms.message)
			quit("received %u bytes, not %u", wc[i].byte_len, c->terms.message);
		c->recv_arrived++;
	}
	return n;
}

/* Arms the completion queue, or, when it is armed, waits for its event. */
static void block(struct conn *c)
{
	struct ibv_cq *cq;
	void *context;

	if (!c->armed) {
		errno = ibv_req_notify_cq(c->cq, 0);
		if (errno)
			fail("ibv_req_notify_cq");
		/* There is no event for what completed before: the caller polls again. */
		c->armed = true;
		return;
	}
	if (ibv_get_cq_event(c->channel, &cq, &context))
		fail("ibv_get_cq_event");
	c->armed = false;
	if (++c->unacked == ACK_EVERY) {
		ibv_ack_cq_events(cq, c->unacked);
		c->unacked = 0;
	}
}

void conn_wait(struct conn *c)
{
	for (uint32_t empty = 1; !conn_poll(c); empty++) {
		if (c->channel) {
			block(c);
		} else if (empty == c->waiting.yield) {
			sched_yield();
			empty = 0;
		}
	}
}

/* ---- set-up ---- */

static struct rdma_cm_event *get_event(struct rdma_event_channel *events, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(events, &event))
		fail("rdma_get_cm_event");
	if (event->event != want)
		quit("rdma_get_cm_event: %s (status %d) instead of %s", rdma_event_str(event->event),
		     event->status, rdma_event_str(want));
	return event;
}

static void ack_event(struct rdma_cm_event *event)
{
	if (rdma_ack_cm_event(event))
		fail("rdma_ack_cm_event");
}

/* Waits for the end of the connection, so that it also ends for whoever polls. */
static void *watch(void *arg)
{
	struct conn *c = arg;

	ack_event(get_event(c->events, RDMA_CM_EVENT_DISCONNECTED));
	/* The event alone leaves the queue pair of an InfiniBand device as it is; this
	 * flushes it. It fails when the connection is down already, which is as well. */
	rdma_disconnect(c->id);
	return NULL;
}

static struct rdma_event_channel *create_events(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();

	if (!events)
		fail("rdma_create_event_channel");
	return events;
}

static struct rdma_cm_id *create_id(struct rdma_event_channel *events)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	return id;
}

static struct addrinfo *resolve(const char *addr, uint16_t port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *info;
	char service[6];
	int err;

	snprintf(service, sizeof service, "%hu", port);
	err = getaddrinfo(addr, service, &hints, &info);
	if (err)
		quit("getaddrinfo: %s: %s", addr, gai_strerror(err));
	return info;
}

static void check_terms(const struct conn *c)
{
	const struct terms *t = &c->terms;
	struct ibv_port_attr port;

	if (t->depth < 1 || t->depth > 4096)
		quit("depth %u is not from 1 to 4096", t->depth);
	if (t->message < sizeof(struct message) || t->message > 1 << 16)
		quit("messages of %u bytes, not from %zu to 65536", t->message, sizeof(struct message));
	if ((uint64_t)t->data * t->depth > 1 << 30)
		quit("%u times %u bytes is more than 1 GiB", t->depth, t->data);
	errno = ibv_query_port(c->id->verbs, c->id->port_num, &port);
	if (errno)
		fail("ibv_query_port");
	if (t->data > port.max_msg_sz)
		quit("size %u is more than this device moves at once, %u", t->data, port.max_msg_sz);
}

static void create_qp(struct conn *c)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = c->cq,
		.recv_cq = c->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = c->sends,
			.max_recv_wr = c->recvs,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	}, with_inline = attr;

	/* How much fits cannot be queried, and one that does not makes the call fail. */
	with_inline.cap.max_inline_data = c->terms.message;
	if (rdma_create_qp(c->id, c->pd, &with_inline) == 0)
		c->inline_flag = IBV_SEND_INLINE;
	else if (rdma_create_qp(c->id, c->pd, &attr))
		fail("rdma_create_qp");
}

static void create_rings(struct conn *c)
{
	size_t i;

	c->recv_wr = allocate(c->recvs, sizeof *c->recv_wr);
	c->recv_sge = allocate(c->recvs, sizeof *c->recv_sge);
	for (i = 0; i < c->recvs; i++) {
		c->recv_sge[i].addr = (uintptr_t)c->messages->addr + i * c->stride;
		c->recv_sge[i].length = c->terms.message;
		c->recv_sge[i].lkey = c->messages->lkey;
		c->recv_wr[i].sg_list = &c->recv_sge[i];
		c->recv_wr[i].num_sge = 1;
		c->recv_wr[i].next = &c->recv_wr[(i + 1) % c->recvs];
	}
	c->send_wr = allocate(c->sends, sizeof *c->send_wr);
	c->send_sge = allocate(c->sends, sizeof *c->send_sge);
	for (i = 0; i < c->sends; i++) {
		c->send_wr[i].sg_list = &c->send_sge[i];
		c->send_wr[i].num_sge = 1;
		c->send_wr[i].next = &c->send_wr[(i + 1) % c->sends];
	}
}

/* Makes everything that c->id needs before it can be connected. Receives are posted
 * then: software iWARP ends the connection when a message finds none. */
static void setup(struct conn *c)
{
	const struct terms *t = &c->terms;

	check_terms(c);
	/* The peer sends depth messages at most, and what is kept back for the next list of
	 * receives is less than REFILL. */
	c->recvs = t->depth + REFILL;
	/* A call takes two work requests of a server that moves data; and where there is no
	 * room a signaled one is among those outstanding. */
	c->sends = 2 * (t->depth + SIGNAL_EVERY);

	c->pd = ibv_alloc_pd(c->id->verbs);
	if (!c->pd)
		fail("ibv_alloc_pd");
	if (c->waiting.mode == EVENT) {
		c->channel = ibv_create_comp_channel(c->id->verbs);
		if (!c->channel)
			fail("ibv_create_comp_channel");
	}
	c->cq = ibv_create_cq(c->id->verbs, c->recvs + c->sends, NULL, c->channel, 0);
	if (!c->cq)
		fail("ibv_create_cq");
	create_qp(c);

	c->stride = (t->message + 63) & ~63u;
	c->messages = map_mr(c, (size_t)(c->recvs + t->depth) * c->stride, IBV_ACCESS_LOCAL_WRITE);
	/* What answers a READ on iWARP is a tagged message as a WRITE is: the memory that it
	 * goes to must be remotely writable. */
	if (t->data)
		c->data = map_mr(c, (size_t)t->depth * t->data,
				 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	create_rings(c);
	refill(c);
}

/* How many READs may be outstanding, which both sides work out alike. */
static uint8_t reads(const struct conn *c)
{
	struct ibv_device_attr attr;
	int n;

	errno = ibv_query_device(c->id->verbs, &attr);
	if (errno)
		fail("ibv_query_device");
	n = c->terms.depth;
	if (n > attr.max_qp_rd_atom)
		n = attr.max_qp_rd_atom;
	if (n > attr.max_qp_init_rd_atom)
		n = attr.max_qp_init_rd_atom;
	return n > UINT8_MAX ? UINT8_MAX : n;
}

static void established(struct conn *c)
{
	errno = pthread_create(&c->watcher, NULL, watch, c);
	if (errno)
		fail("pthread_create");
}

static void swap_terms(uint32_t *to, const void *from)
{
	memcpy(to, from, sizeof(struct terms));
	for (size_t i = 0; i < sizeof(struct terms) / sizeof *to; i++)
		to[i] = htonl(to[i]);
}

struct conn *conn_connect(const char *addr, uint16_t port, const struct terms *terms, const struct waiting *waiting)
{
	struct conn *c = allocate(1, sizeof *c);
	uint32_t wire[sizeof(struct terms) / sizeof(uint32_t)];
	struct rdma_conn_param param = {.private_data = wire, .private_data_len = sizeof wire, .retry_count = 7, .rnr_retry_count = 7};
	struct addrinfo *info = resolve(addr, port);
	struct rdma_cm_event *event;
	struct grant grant;

	c->active = true;
	c->terms = *terms;
	c->waiting = *waiting;
	c->events = create_events();
	c->id = create_id(c->events);
	if (rdma_resolve_addr(c->id, NULL, info->ai_addr, TIMEOUT_MS))
		fail("rdma_resolve_addr");
	freeaddrinfo(info);
	ack_event(get_event(c->events, RDMA_CM_EVENT_ADDR_RESOLVED));
	if (rdma_resolve_route(c->id, TIMEOUT_MS))
		fail("rdma_resolve_route");
	ack_event(get_event(c->events, RDMA_CM_EVENT_ROUTE_RESOLVED));
	setup(c);
	swap_terms(wire, terms);
	param.initiator_depth = param.responder_resources = reads(c);
	if (rdma_connect(c->id, &param))
		fail("rdma_connect");
	event = get_event(c->events, RDMA_CM_EVENT_ESTABLISHED);
	if (event->param.conn.private_data_len < sizeof grant)
		quit("the server does not say where its memory is");
	memcpy(&grant, event->param.conn.private_data, sizeof grant);
	c->peer_addr = be64toh(grant.addr);
	c->peer_rkey = ntohl(grant.rkey);
	ack_event(event);
	established(c);
	return c;
}

struct rdma_cm_id *conn_listen(const char *addr, uint16_t port)
{
	struct rdma_cm_id *id = create_id(create_events());
	struct addrinfo *info = resolve(addr, port);

	if (rdma_bind_addr(id, info->ai_addr))
		fail("rdma_bind_addr");
	freeaddrinfo(info);
	if (rdma_listen(id, 1))
		fail("rdma_listen");
	return id;
}

struct conn *conn_accept(struct rdma_cm_id *listener)
{
	struct conn *c = allocate(1, sizeof *c);
	struct rdma_conn_param param = {.rnr_retry_count = 7};
	struct rdma_cm_event *event;
	struct grant grant = {0};

	c->events = listener->channel;
	event = get_event(c->events, RDMA_CM_EVENT_CONNECT_REQUEST);
	c->id = event->id;
	if (event->param.conn.private_data_len < sizeof c->terms)
		quit("a client that does not say what it wants");
	swap_terms((uint32_t *)&c->terms, event->param.conn.private_data);
	c->waiting = c->terms.server;
	ack_event(event);
	setup(c);
	if (c->data) {
		grant.addr = htobe64((uintptr_t)c->data->addr);
		grant.rkey = htonl(c->data->rkey);
	}
	param.private_data = &grant;
	param.private_data_len = sizeof grant;
	param.initiator_depth = param.responder_resources = reads(c);
	if (rdma_accept(c->id, &param))
		fail("rdma_accept");
	ack_event(get_event(c->events, RDMA_CM_EVENT_ESTABLISHED));
	if (rdma_destroy_id(listener))
		fail("rdma_destroy_id");
	established(c);
	return c;
}

void conn_close(struct conn *c)
{
	if (c->active && rdma_disconnect(c->id))
		fail("rdma_disconnect");
	errno = pthread_join(c->watcher, NULL);
	if (errno)
		fail("pthread_join");
	rdma_destroy_qp(c->id);
	if (c->unacked)
		ibv_ack_cq_events(c->cq, c->unacked);
	errno = ibv_destroy_cq(c->cq);
	if (errno)
		fail("ibv_destroy_cq");
	if (c->channel) {
		errno = ibv_destroy_comp_channel(c->channel);
		if (errno)
			fail("ibv_destroy_comp_channel");
	}
	unmap_mr(c->messages);
	if (c->data)
		unmap_mr(c->data);
	errno = ibv_dealloc_pd(c->pd);
	if (errno)
		fail("ibv_dealloc_pd");
	if (rdma_destroy_id(c->id))
		fail("rdma_destroy_id");
	rdma_destroy_event_channel(c->events);
	free(c->recv_wr);
	free(c->recv_sge);
	free(c->send_wr);
	free(c->send_sge);
	free(c);
}
