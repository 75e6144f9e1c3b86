#include "calls.h"

#include <stdlib.h>

void make_calls(struct conn *c, struct meter *m)
{
	uint64_t start[c->terms.depth], now = now_ns();
	uint32_t sent = 0, done = 0;
	struct message *message;

	while (done < c->terms.calls) {
		for (; sent < c->terms.calls && sent - done < c->terms.depth && conn_room(c); sent++) {
			message = conn_message(c);
			message->xid = sent;
			if (c->data) {
				message->addr = (uintptr_t)conn_memory(c, sent);
				message->rkey = c->data->rkey;
			}
			start[sent % c->terms.depth] = now;
		}
		conn_flush(c);
		conn_wait(c);
		now = now_ns();
		for (; (message = conn_received(c)); done++) {
			if (message->xid != done)
				quit("reply %u instead of %u", message->xid, done);
			conn_release(c);
			meter_sample(m, now - start[done % c->terms.depth]);
			meter_done(m, c);
		}
	}
}
