/*
 * What makes a program of a client and a server: options, the two sides as threads
 * or processes, measured durations and the line that reports them.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "conn.h"

struct options {
	enum { BOTH, SERVER, CLIENT } role;
	const char *addr;
	uint16_t port;
	struct waiting waiting; /* of both sides */
	enum op op;
	uint32_t size, depth, iterations;
};

/* What all iterations took together, and some or all of them each. */
struct meter {
	uint32_t warmup;     /* iterations before it starts */
	uint32_t iterations; /* that count */
	uint32_t done;       /* both together */
	uint32_t samples;
	uint64_t *ns; /* has room for one sample of each iteration */
	struct mark {
		uint64_t wall, cpu, doorbells;
	} start, end;
};

/* Sets o, which holds the defaults, from the command line. extra are those of the
 * options n, s, d and o that the program has, as for getopt(3). */
void parse_options(int argc, char **argv, const char *extra, struct options *o);

/* Is the server, the client, or both. The client's terms are complete but for the calls,
 * which are the iterations and some before them that do not count. */
void run(const struct options *o, struct terms terms, void serve(struct conn *),
	 void call(struct conn *, const struct options *, struct meter *));

/* Monotonic. */
uint64_t now_ns(void);

/* The iteration that ends took ns; to be called before meter_done, or not at all. */
void meter_sample(struct meter *m, uint64_t ns);

/* An iteration has ended. */
void meter_done(struct meter *m, const struct conn *c);

/* Sorts n durations, for quantile. */
void sort(uint64_t *ns, size_t n);
uint64_t quantile(const uint64_t *sorted, size_t n, double q);
uint64_t mean(const uint64_t *ns, size_t n);

/* Begins a line of JSON: the members that all lines have. */
void report_head(const char *op, const struct conn *c);

/* Prints the line for what the meter has seen. */
void report(const struct conn *c, const struct options *o, struct meter *m);

#endif
