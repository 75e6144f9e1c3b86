/* One message there, one message back, again and again. */
#include "program.h"

enum { SAMPLE_EVERY = 8 };

static void serve(struct conn *c)
{
	struct message *request;

	if (c->terms.op != PINGPONG)
		quit("the client is another program");
	for (uint32_t i = 0; i < c->terms.calls; i++) {
		while (!(request = conn_received(c)) || !conn_room(c))
			conn_wait(c);
		conn_message(c)->xid = request->xid;
		conn_flush(c);
		/* After the answer, off the path that the client waits for: a message that
		 * comes first finds other receives. */
		conn_release(c);
	}
}

static void call(struct conn *c, const struct options *o, struct meter *m)
{
	struct message *reply;
	uint64_t start = 0;

	for (uint32_t i = 0; i < c->terms.calls; i++) {
		/* Some clocks are slow to read compared to a round trip. */
		bool sampled = i % SAMPLE_EVERY == 0;

		while (!conn_room(c))
			conn_wait(c);
		if (sampled)
			start = now_ns();
		conn_message(c)->xid = i;
		conn_flush(c);
		while (!(reply = conn_received(c)))
			conn_wait(c);
		if (reply->xid != i)
			quit("reply %u instead of %u", reply->xid, i);
		if (sampled)
			meter_sample(m, now_ns() - start);
		conn_release(c);
		meter_done(m, c);
	}
	report(c, o, m);
}

int main(int argc, char **argv)
{
	struct options o = {.size = 64, .iterations = 20000};

	parse_options(argc, argv, "n:s:", &o);
	run(&o, (struct terms){.op = PINGPONG, .message = o.size, .depth = 1, .server = o.waiting}, serve, call);
}
