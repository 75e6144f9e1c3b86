/* An initiator with MIT's library: it writes its token in hexadecimal digits, reads the acceptor's, and writes what
 * gss_pseudo_random makes of the word on the command line. The functions are declared here, so that only the library
 * is needed, and not its headers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

struct oid { uint32_t length; void *elements; };
struct buffer { size_t length; void *value; };

uint32_t gss_import_name(uint32_t *, struct buffer *, struct oid *, void **);
uint32_t gss_init_sec_context(uint32_t *, void *, void **, void *, struct oid *, uint32_t, uint32_t, void *,
	struct buffer *, struct oid **, struct buffer *, uint32_t *, uint32_t *);
uint32_t gss_pseudo_random(uint32_t *, void *, int, struct buffer *, ssize_t, struct buffer *);

static uint32_t minor;

static void check(const char *what, uint32_t major)
{
	if (major >> 16) {
		fprintf(stderr, "%s: %#x %u\n", what, major);
		exit(1);
	}
}

static void print(struct buffer *b)
{
	for (size_t i = 0; i < b->length; i++)
		printf("%02x", ((unsigned char *)b->value)[i]);
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct oid mech = { 9, "\x2a\x86\x48\x86\xf7\x12\x01\x02\x02" }, principal = { 10, "\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01" };
	struct buffer name = { strlen(argv[1]), argv[1] }, word = { strlen(argv[2]), argv[2] }, in = { 0, NULL }, out;
	void *target = NULL, *context = NULL;
	static char line[1 << 16], token[1 << 15];

	check("name", gss_import_name(&minor, &name, &principal, &target));
	check("first step", gss_init_sec_context(&minor, NULL, &context, target, &mech, 2, 0, NULL, &in, NULL, &out, NULL, NULL));
	print(&out);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	for (in.value = token; sscanf(line + 2 * in.length, "%2hhx", (unsigned char *)token + in.length) == 1; in.length++)
		;
	check("second step", gss_init_sec_context(&minor, NULL, &context, target, &mech, 2, 0, NULL, &in, NULL, &out, NULL, NULL));
	check("pseudo-random", gss_pseudo_random(&minor, context, 0, &word, 100, &out));
	print(&out);
	return 0;
}
