#include "program.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	PORT = 18600,
	MIN_ITERATIONS = 10, /* so that there is a sample */

	/* A few us of polling. Where each side has a processor less makes no difference, and
	 * where they share one that is what a round trip loses. */
	YIELD = 100,
};

static const char *const op_names[] = {
	[PINGPONG] = "pingpong", [PIPELINE] = "pipeline", [WRITE] = "write", [READ] = "read",
	[PUSH] = "push", [PULL] = "pull", [COSTS] = "costs",
};

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* ---- options ---- */

static void usage(const char *program, const char *extra)
{
	fprintf(stderr, "usage: %s [-t | -l | -c] [-p PORT] [-m poll|event] [-y POLLS]%s%s%s%s ADDR\n", program,
		strchr(extra, 'n') ? " [-n ITERATIONS]" : "", strchr(extra, 's') ? " [-s BYTES]" : "",
		strchr(extra, 'd') ? " [-d DEPTH]" : "", strchr(extra, 'o') ? " [-o write|read|push|pull]" : "");
	exit(2);
}

static uint32_t number(char option, const char *text, uint32_t min, uint32_t max)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno || end == text || *end || n < min || n > max)
		quit("-%c: %s is not from %u to %u", option, text, min, max);
	return n;
}

void parse_options(int argc, char **argv, const char *extra, struct options *o)
{
	char known[64];
	int option;

	o->port = PORT;
	o->waiting.yield = YIELD;
	snprintf(known, sizeof known, "tlcp:m:y:%s", extra);
	while ((option = getopt(argc, argv, known)) != -1) {
		switch (option) {
		case 't':
			o->role = BOTH;
			break;
		case 'l':
			o->role = SERVER;
			break;
		case 'c':
			o->role = CLIENT;
			break;
		case 'p':
			o->port = number('p', optarg, 0, UINT16_MAX);
			break;
		case 'm':
			if (strcmp(optarg, "poll") && strcmp(optarg, "event"))
				quit("-m: %s is neither poll nor event", optarg);
			o->waiting.mode = strcmp(optarg, "poll") ? EVENT : POLL;
			break;
		case 'y':
			o->waiting.yield = number('y', optarg, 0, UINT32_MAX);
			break;
		case 'n':
			o->iterations = number('n', optarg, MIN_ITERATIONS, 100000000);
			break;
		case 's':
			o->size = number('s', optarg, 1, 1 << 30);
			break;
		case 'd':
			o->depth = number('d', optarg, 1, 4096);
			break;
		case 'o':
			for (o->op = WRITE; strcmp(optarg, op_names[o->op]); o->op++)
				if (o->op == PULL)
					quit("-o: %s is none of write, read, push, pull", optarg);
			break;
		default:
			usage(argv[0], extra);
		}
	}
	if (optind != argc - 1)
		usage(argv[0], extra);
	o->addr = argv[optind];
}

/* ---- both sides ---- */

struct server {
	struct rdma_cm_id *listener;
	void (*serve)(struct conn *);
};

static void *run_server(void *arg)
{
	const struct server *s = arg;
	struct conn *c = conn_accept(s->listener);

	s->serve(c);
	conn_close(c);
	return NULL;
}

static void run_client(const struct options *o, struct terms terms, uint16_t port,
		       void call(struct conn *, const struct options *, struct meter *))
{
	struct meter m = {.warmup = o->iterations / 10 + 1, .iterations = o->iterations};
	struct conn *c;

	/* Written once, so that no page is touched first while the clock runs. */
	m.ns = malloc(m.iterations * sizeof *m.ns);
	if (!m.ns)
		fail("malloc");
	memset(m.ns, 0xff, m.iterations * sizeof *m.ns);
	terms.calls = m.warmup + m.iterations;
	c = conn_connect(o->addr, port, &terms, &o->waiting);
	call(c, o, &m);
	conn_close(c);
	free(m.ns);
}

void run(const struct options *o, struct terms terms, void serve(struct conn *),
	 void call(struct conn *, const struct options *, struct meter *))
{
	struct server s = {.serve = serve};
	pthread_t thread;

	switch (o->role) {
	case SERVER:
		s.listener = conn_listen(o->addr, o->port);
		/* For whoever starts the client. */
		printf("{\"op\":\"listen\",\"port\":%hu}\n", ntohs(rdma_get_src_port(s.listener)));
		fflush(stdout);
		run_server(&s);
		break;
	case CLIENT:
		run_client(o, terms, o->port, call);
		break;
	case BOTH:
		s.listener = conn_listen(o->addr, 0);
		uint16_t port = ntohs(rdma_get_src_port(s.listener));
		errno = pthread_create(&thread, NULL, run_server, &s);
		if (errno)
			fail("pthread_create");
		run_client(o, terms, port, call);
		errno = pthread_join(thread, NULL);
		if (errno)
			fail("pthread_join");
	}
}

/* ---- durations ---- */

static uint64_t cpu_ns(void)
{
	struct timespec t;

	/* All threads: both sides, when they are in one process. */
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void meter_sample(struct meter *m, uint64_t ns)
{
	if (m->done >= m->warmup)
		m->ns[m->samples++] = ns;
}

void meter_done(struct meter *m, const struct conn *c)
{
	m->done++;
	if (m->done == m->warmup)
		m->start = (struct mark){now_ns(), cpu_ns(), c->doorbells};
	if (m->done == m->warmup + m->iterations)
		m->end = (struct mark){now_ns(), cpu_ns(), c->doorbells};
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void sort(uint64_t *ns, size_t n)
{
	qsort(ns, n, sizeof *ns, compare);
}

uint64_t quantile(const uint64_t *sorted, size_t n, double q)
{
	return sorted[(size_t)(q * (n - 1))];
}

uint64_t mean(const uint64_t *ns, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += ns[i];
	return sum / n;
}

void report_head(const char *op, const struct conn *c)
{
	printf("{\"op\":\"%s\",\"device\":\"%s\",\"transport\":\"%s\"", op, ibv_get_device_name(c->id->verbs->device),
	       c->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP ? "iwarp" : "ib");
}

void report(const struct conn *c, const struct options *o, struct meter *m)
{
	uint64_t wall = m->end.wall - m->start.wall;
	double seconds = wall / 1e9;

	sort(m->ns, m->samples);
	report_head(op_names[c->terms.op], c);
	printf(",\"mode\":\"%s\",\"yield\":%u,\"processes\":%d", o->waiting.mode == EVENT ? "event" : "poll",
	       o->waiting.yield, o->role == BOTH ? 1 : 2);
	printf(",\"size\":%u,\"depth\":%u,\"inline\":%s,\"iterations\":%u", o->size, c->terms.depth,
	       c->inline_flag ? "true" : "false", m->iterations);
	printf(",\"ns_per_op\":%.0f,\"mean_ns\":%lu,\"p50_ns\":%lu,\"p99_ns\":%lu", (double)wall / m->iterations,
	       mean(m->ns, m->samples), quantile(m->ns, m->samples, 0.5), quantile(m->ns, m->samples, 0.99));
	printf(",\"ops_per_s\":%.1f,\"mb_per_s\":%.2f", m->iterations / seconds,
	       (double)o->size * m->iterations / seconds / 1e6);
	printf(",\"cpu_ns_per_op\":%.0f,\"doorbells_per_op\":%.3f}\n",
	       (double)(m->end.cpu - m->start.cpu) / m->iterations,
	       (double)(m->end.doorbells - m->start.doorbells) / m->iterations);
}
