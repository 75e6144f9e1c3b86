/* Values of echo.x as text, one line each, for programs that compare them. */

#ifndef VALUES_H
#define VALUES_H

#include <stdio.h>

#include "echo.h"

void print_basic(FILE *to, const basic *v);
void print_arrays(FILE *to, const arrays *v);
void print_unions(FILE *to, const unions *v);
void print_nodes(FILE *to, const node *v);
void print_options(FILE *to, const options *v);
void print_bulk(FILE *to, const bulk *v);

/* print_bytes prints the bytes in hexadecimal, or their number and hash if they are many. */
void print_bytes(FILE *to, const void *data, u_int len);

#endif
