/* Requests with several outstanding, each answered by a message of the same length. */
#include "calls.h"

static void serve(struct conn *c)
{
	uint32_t answered = 0;
	struct message *request;

	if (c->terms.op != PIPELINE)
		quit("the client is another program");
	while (answered < c->terms.calls) {
		conn_wait(c);
		for (; conn_room(c) && (request = conn_received(c)); answered++) {
			conn_message(c)->xid = request->xid;
			conn_release(c);
		}
		conn_flush(c);
	}
}

static void call(struct conn *c, const struct options *o, struct meter *m)
{
	make_calls(c, m);
	report(c, o, m);
}

int main(int argc, char **argv)
{
	struct options o = {.size = 64, .depth = 32, .iterations = 50000};

	parse_options(argc, argv, "n:s:d:", &o);
	run(&o, (struct terms){.op = PIPELINE, .message = o.size, .depth = o.depth, .server = o.waiting}, serve, call);
}
