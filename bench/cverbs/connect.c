/*
 * A connection, one message there and one back, and its end, again and again. The
 * server listens anew for each, before the clock starts.
 */
#include "program.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void exchange(struct conn *c, uint32_t xid)
{
	struct message *reply;

	conn_message(c)->xid = xid;
	conn_flush(c);
	while (!(reply = conn_received(c)))
		conn_wait(c);
	if (reply->xid != xid)
		quit("reply %u instead of %u", reply->xid, xid);
	conn_release(c);
}

static void *serve(void *listener)
{
	struct conn *c = conn_accept(listener);
	struct message *request;

	while (!(request = conn_received(c)))
		conn_wait(c);
	conn_message(c)->xid = request->xid;
	conn_flush(c);
	conn_release(c);
	conn_close(c);
	return NULL;
}

int main(int argc, char **argv)
{
	struct options o = {.size = 64, .iterations = 100};
	uint64_t *ns, start;
	pthread_t thread;

	parse_options(argc, argv, "n:", &o);
	if (o.role != BOTH)
		quit("connect has both sides in one process");
	ns = malloc(o.iterations * sizeof *ns);
	if (!ns)
		fail("malloc");
	struct terms terms = {.op = PINGPONG, .message = o.size, .depth = 1, .calls = 1, .server = o.waiting};

	/* The first one does not count. */
	for (uint32_t i = 0; i <= o.iterations; i++) {
		struct rdma_cm_id *listener = conn_listen(o.addr, 0);
		uint16_t port = ntohs(rdma_get_src_port(listener));
		struct conn *c;

		errno = pthread_create(&thread, NULL, serve, listener);
		if (errno)
			fail("pthread_create");
		start = now_ns();
		c = conn_connect(o.addr, port, &terms, &o.waiting);
		exchange(c, i);
		conn_close(c);
		if (i > 0)
			ns[i - 1] = now_ns() - start;
		errno = pthread_join(thread, NULL);
		if (errno)
			fail("pthread_join");
	}
	sort(ns, o.iterations);
	printf("{\"op\":\"connect\",\"mode\":\"%s\",\"iterations\":%u,\"ns_per_op\":%lu,\"p50_ns\":%lu,\"p99_ns\":%lu}\n",
	       o.waiting.mode == EVENT ? "event" : "poll", o.iterations, mean(ns, o.iterations),
	       quantile(ns, o.iterations, 0.5), quantile(ns, o.iterations, 0.99));
	free(ns);
}
