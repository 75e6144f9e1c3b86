/* The client's side of request and response with several calls outstanding. */
#ifndef CALLS_H
#define CALLS_H

#include "program.h"

/* Makes all calls, depth at a time. Every request names the memory of its call. */
void make_calls(struct conn *c, struct meter *m);

#endif
