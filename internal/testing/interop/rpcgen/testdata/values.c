#include "values.h"

#include <inttypes.h>
#include <stdint.h>
#include <string.h>

void print_bytes(FILE *to, const void *data, u_int len) {
	const unsigned char *p = data;
	u_int i;

	if (len > 32) {
		uint32_t hash = 2166136261; /* FNV-1a */

		for (i = 0; i < len; i++)
			hash = (hash ^ p[i]) * 16777619;
		fprintf(to, " %u:%08" PRIx32, len, hash);
		return;
	}
	fputs(" x", to);
	for (i = 0; i < len; i++)
		fprintf(to, "%02x", p[i]);
}

/* Numbers are printed as what they are in the type of C. Floating-point ones are printed by
 * their bits, as decimal digits would hide some. */
static void put_basic(FILE *to, const basic *v) {
	uint32_t f;
	uint64_t d;

	memcpy(&f, &v->f, sizeof f);
	memcpy(&d, &v->d, sizeof d);
	fprintf(to, " {%d %u %d %" PRId64 " %" PRIu64 " %08" PRIx32 " %016" PRIx64 " %d %d %u}", v->i, v->u, v->yes,
		(int64_t)v->h, (uint64_t)v->uh, f, d, v->hue, v->high, v->times);
}

void print_basic(FILE *to, const basic *v) {
	fputs("basic", to);
	put_basic(to, v);
	fputc('\n', to);
}

void print_arrays(FILE *to, const arrays *v) {
	u_int i;

	fputs("arrays", to);
	print_bytes(to, v->fixed, sizeof v->fixed);
	print_bytes(to, v->bounded.bounded_val, v->bounded.bounded_len);
	print_bytes(to, v->rest.rest_val, v->rest.rest_len);
	fprintf(to, " \"%s\" \"%s\" %d,%d,%d [", v->named, v->longer, v->ints[0], v->ints[1], v->ints[2]);
	for (i = 0; i < v->numbers.numbers_len; i++)
		fprintf(to, " %" PRIu64, (uint64_t)v->numbers.numbers_val[i]);
	fputs(" ] [", to);
	for (i = 0; i < v->flags.flags_len; i++)
		fprintf(to, " %d", v->flags.flags_val[i]);
	fputs(" ] [", to);
	for (i = 0; i < v->hues.hues_len; i++)
		fprintf(to, " %d", v->hues.hues_val[i]);
	fputs(" ] [", to);
	for (i = 0; i < v->labels.labels_len; i++)
		fprintf(to, " \"%s\"", v->labels.labels_val[i]);
	fputs(" ] [", to);
	for (i = 0; i < v->keys.keys_len; i++)
		print_bytes(to, v->keys.keys_val[i], sizeof(key));
	fprintf(to, " ] %" PRId64 ",%" PRId64 ",%" PRId64 " [", (int64_t)v->three[0], (int64_t)v->three[1],
		(int64_t)v->three[2]);
	for (i = 0; i < v->several.several_len; i++)
		put_basic(to, &v->several.several_val[i]);
	fputs(" ]\n", to);
}

void print_unions(FILE *to, const unions *v) {
	fprintf(to, "unions (%d", v->color.hue);
	switch (v->color.hue) {
	case RED:
		fprintf(to, " \"%s\"", v->color.by_color_u.red);
		break;
	case GREEN:
		put_basic(to, &v->color.by_color_u.green);
		break;
	default:
		break;
	}
	fprintf(to, ") (%d", v->number.n);
	switch (v->number.n) {
	case 1:
	case 2:
		fprintf(to, " %" PRId64, (int64_t)v->number.by_number_u.small);
		break;
	case -7:
		break;
	default:
		print_bytes(to, v->number.by_number_u.other, sizeof(key));
	}
	fprintf(to, ") (%d", v->some.yes);
	if (v->some.yes)
		fprintf(to, " %g", v->some.maybe_u.value);
	fputs(")\n", to);
}

void print_nodes(FILE *to, const node *v) {
	fputs("nodes", to);
	for (; v != NULL; v = v->next)
		fprintf(to, " %d:\"%s\"", v->value, v->text);
	fputc('\n', to);
}

static void put_tree(FILE *to, const tree *v) {
	if (v == NULL) {
		fputs(" -", to);
		return;
	}
	fprintf(to, " (%d", v->value);
	put_tree(to, v->left);
	put_tree(to, v->right);
	fputc(')', to);
}

void print_options(FILE *to, const options *v) {
	fputs("options", to);
	if (v->number != NULL)
		fprintf(to, " %d", *v->number);
	else
		fputs(" -", to);
	if (v->all != NULL)
		put_basic(to, v->all);
	else
		fputs(" -", to);
	put_tree(to, v->root);
	fputc('\n', to);
}

void print_bulk(FILE *to, const bulk *v) {
	fprintf(to, "bulk \"%s\"", v->id);
	print_bytes(to, v->data.data_val, v->data.data_len);
	fprintf(to, " %d\n", v->end);
}
