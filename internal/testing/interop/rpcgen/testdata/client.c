/* A client of echo.x: makes every call and prints what is returned. */

#include <arpa/inet.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "values.h"

#ifdef GSS
#include <rpc/auth_gss.h>
#endif

#define LEN(a) (sizeof(a) / sizeof((a)[0]))

static const struct timeval patience = {30, 0};

/* The name of the server, if the program is about credentials, and the service of RPCSEC_GSS, or 0. */
static char *server;
static int service;

/* wanted ends the program unless a call has succeeded. */
static void wanted(enum clnt_stat stat, CLIENT *c, const char *what) {
	if (stat != RPC_SUCCESS) {
		clnt_perror(c, what);
		exit(1);
	}
}

/* Results begin as zeros, which has libtirpc allocate what they refer to. */
#define ECHO(type, proc, arg, print)                   \
	do {                                           \
		type res;                              \
		memset(&res, 0, sizeof res);           \
		wanted(proc(arg, &res, c), c, #proc);  \
		print(stdout, &res);                   \
		xdr_free((xdrproc_t)xdr_##type, &res); \
	} while (0)

static const basic largest = {
	INT_MAX, UINT_MAX, TRUE, INT64_MAX, UINT64_MAX, FLT_MAX, INFINITY, GREEN, HIGH, UINT_MAX,
};
static const basic smallest = {
	INT_MIN, 0, FALSE, INT64_MIN, 0, -1.5f, 5e-324, BLUE, LOW, 0,
};
static const basic strange = {
	-1, 1, TRUE, -1, 1ULL << 32, 0.1f, -0.1, RED, (level)77, 1, /* level is open */
};

static void echo_basics(CLIENT *c) {
	ECHO(basic, echo_basic_2, largest, print_basic);
	ECHO(basic, echo_basic_2, smallest, print_basic);
	ECHO(basic, echo_basic_2, strange, print_basic);
}

static void echo_arrays(CLIENT *c) {
	arrays none = {.named = "", .longer = ""};
	u_quad_t numbers[] = {0, 1, UINT64_MAX, 1ULL << 63};
	bool_t flags[] = {TRUE, FALSE, TRUE};
	color hues[] = {BLUE, RED};
	label labels[] = {"", "a", "sixteen letters!"};
	key keys[] = {{1, 2, 3, 4, 5}, {0, -1, 0, -1, 0}};
	basic several[] = {largest, smallest};
	arrays all = {
		.fixed = {'f', 'i', 'x', 'e', 'd'},
		.bounded = {7, "bounded"},
		.rest = {1, "r"},
		.named = "name",
		.longer = "a string without a bound",
		.ints = {INT_MIN, 0, INT_MAX},
		.numbers = {LEN(numbers), numbers},
		.flags = {LEN(flags), flags},
		.hues = {LEN(hues), hues},
		.labels = {LEN(labels), labels},
		.keys = {LEN(keys), keys},
		.three = {-1, INT64_MAX, INT64_MIN},
		.several = {LEN(several), several},
	};

	ECHO(arrays, echo_arrays_2, none, print_arrays);
	ECHO(arrays, echo_arrays_2, all, print_arrays);
}

static void echo_unions(CLIENT *c) {
	unions first = {.color = {.hue = RED, .by_color_u.red = "red"}, .number = {.n = 1, .by_number_u.small = -5}};
	unions second = {
		.color = {.hue = GREEN, .by_color_u.green = largest},
		.number = {.n = 2, .by_number_u.small = INT64_MAX},
		.some = {.yes = TRUE, .maybe_u.value = 0.5},
	};
	unions third = {.color = {.hue = BLUE}, .number = {.n = -7}, .some = {.yes = TRUE, .maybe_u.value = -2}};
	unions fourth = {.color = {.hue = BLUE}, .number = {.n = 100, .by_number_u.other = {9, 8, 7, 6, 5}}};

	ECHO(unions, echo_unions_2, first, print_unions);
	ECHO(unions, echo_unions_2, second, print_unions);
	ECHO(unions, echo_unions_2, third, print_unions);
	ECHO(unions, echo_unions_2, fourth, print_unions);
}

static void print_list(FILE *to, const nodes *v) { print_nodes(to, *v); }

static void echo_lists(CLIENT *c) {
	node third = {3, "", NULL}, second = {-2, "two", &third}, first = {1, "one", &second};
	int number = -42;
	tree leaf = {4, NULL, NULL}, left = {2, NULL, &leaf}, right = {3, NULL, NULL}, root = {1, &left, &right};
	basic all = strange;
	options none = {NULL, NULL, NULL}, full = {&number, &all, &root};

	ECHO(nodes, echo_nodes_2, NULL, print_list);
	ECHO(nodes, echo_nodes_2, &first, print_list);
	ECHO(options, echo_options_2, none, print_options);
	ECHO(options, echo_options_2, full, print_options);
}

static void echo_bulk(CLIENT *c) {
	static const u_int sizes[] = {0, 1, 2, 3, 4, 3999, 4000, 65537, DATA_LEN};
	char *data = malloc(DATA_LEN);
	size_t i;

	for (i = 0; i < DATA_LEN; i++)
		data[i] = (char)(i * 7 + (i >> 8));
	/* With RPCSEC_GSS, libtirpc has data in one of its buffers, of at most 256 KiB. */
	for (i = 0; i < LEN(sizes) - (server != NULL); i++) {
		bulk arg = {"bulk", {sizes[i], data}, i % 2};

		ECHO(bulk, echo_bulk_2, arg, print_bulk);
	}
	free(data);
}

static void echo_rest(CLIENT *c) {
	color hue = RED;
	char *text = NULL;
	payload data = {6, "\0\1\2\3\4\5"};
	arrays res;
	u_int user = 0;

	wanted(echo_null_2(NULL, c), c, "null");
	wanted(echo_color_2(BLUE, &hue, c), c, "color");
	printf("color %d\n", hue);
	wanted(echo_text_2("some text", &text, c), c, "text");
	printf("text \"%s\"\n", text);
	xdr_free((xdrproc_t)xdr_wrapstring, &text);
	memset(&res, 0, sizeof res);
	wanted(echo_several_2(-7, "four", GREEN, data, &res, c), c, "several");
	printf("several %d \"%s\" %d", res.ints[2], res.named, res.hues.hues_val[0]);
	print_bytes(stdout, res.rest.rest_val, res.rest.rest_len);
	printf("\n");
	xdr_free((xdrproc_t)xdr_arrays, &res);
	wanted(echo_user_2(&user, c), c, "user");
	printf("user %u\n", user);
}

/* report prints how a call failed. */
static void report(const char *what, enum clnt_stat stat, CLIENT *c) {
	struct rpc_err err;

	clnt_geterr(c, &err);
	printf("%s: %s", what, clnt_sperrno(stat));
	if (stat == RPC_PROGVERSMISMATCH)
		printf(" %u to %u", (u_int)err.re_vers.low, (u_int)err.re_vers.high);
	printf("\n");
}

static AUTH *credential(CLIENT *c) {
#ifdef GSS
	struct rpc_gss_sec sec = {.svc = service, .req_flags = GSS_C_MUTUAL_FLAG};

	if (service != 0)
		return authgss_create_default(c, server, &sec);
#endif
	(void)c;
	return authsys_create("machine", 1234, 5678, 0, NULL);
}

static CLIENT *connect_to(const char *port, rpcprog_t prog, rpcvers_t vers, u_int size) {
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct netbuf addr = {.maxlen = sizeof at, .len = sizeof at, .buf = &at};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CLIENT *c;

	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
		perror("connect");
		exit(1);
	}
	c = clnt_vc_create(fd, &addr, prog, vers, size, size);
	if (c == NULL) {
		clnt_pcreateerror("clnt_vc_create");
		exit(1);
	}
	clnt_control(c, CLSET_FD_CLOSE, NULL);
	auth_destroy(c->cl_auth);
	c->cl_auth = credential(c);
	if (c->cl_auth == NULL) {
		clnt_pcreateerror("no credential");
		exit(1);
	}
	return c;
}

static void disconnect(CLIENT *c) {
	auth_destroy(c->cl_auth); /* at the server, too */
	clnt_destroy(c);
}

static void fail(const char *port, CLIENT *c) {
	basic bad = largest, res;
	CLIENT *other = connect_to(port, ECHO_PROG + 1, ECHO_V2, 0);

	report("program", echo_null_2(NULL, other), other);
	clnt_destroy(other);
	other = connect_to(port, ECHO_PROG, 9, 0);
	report("version", echo_null_2(NULL, other), other);
	clnt_destroy(other);
	report("procedure", clnt_call(c, 99, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, patience), c);
	report("no arguments", clnt_call(c, ECHO_BASIC, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_basic, &res, patience), c);
	bad.hue = (color)77;
	report("color 77", echo_basic_2(bad, &res, c), c);
	report("failure", echo_fail_2(NULL, c), c);
	/* The connections are none the worse for it. */
	wanted(echo_null_2(NULL, c), c, "null");
}

/*
 * client PORT RECORD [SERVER SERVICE]: RECORD is the length of its buffers, and so of the fragments
 * of its records. With SERVER, nfs@HOST, and SERVICE, 1 to 3, of a build with GSS, calls have
 * RPCSEC_GSS. With SERVICE 0 they are the same calls, with AUTH_SYS.
 */
int main(int argc, char **argv) {
	CLIENT *c, *third;
	quad_t number = 0;

	if (argc < 3)
		return 2;
	if (argc > 4) {
		server = argv[3];
		service = atoi(argv[4]);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	c = connect_to(argv[1], ECHO_PROG, ECHO_V2, atoi(argv[2]));
	echo_basics(c);
	echo_arrays(c);
	echo_unions(c);
	echo_lists(c);
	echo_bulk(c);
	echo_rest(c);
	third = connect_to(argv[1], ECHO_PROG, ECHO_V3, 0);
	wanted(echo_number_3(INT64_MIN, &number, third), third, "number");
	printf("number %" PRId64 "\n", (int64_t)number);
	disconnect(third);
	if (server == NULL) /* with RPCSEC_GSS, a server has to have a program for a context */
		fail(argv[1], c);
	wanted(echo_end_2(NULL, c), c, "end");
	disconnect(c);
	return 0;
}
