/* A server of echo.x: prints its port, and then every value that it is called with. */

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "values.h"

/* Declared by neither file of rpcgen's. */
extern void echo_prog_2(struct svc_req *, SVCXPRT *);
extern void echo_prog_3(struct svc_req *, SVCXPRT *);

/* Each procedure returns its arguments, which libtirpc frees after the reply has been sent: the
 * results are views of them, and not freed. */

bool_t echo_null_2_svc(void *result, struct svc_req *req) {
	(void)result, (void)req;
	return TRUE;
}

bool_t echo_basic_2_svc(basic arg, basic *result, struct svc_req *req) {
	(void)req;
	print_basic(stdout, &arg);
	*result = arg;
	return TRUE;
}

bool_t echo_arrays_2_svc(arrays arg, arrays *result, struct svc_req *req) {
	(void)req;
	print_arrays(stdout, &arg);
	*result = arg;
	return TRUE;
}

bool_t echo_unions_2_svc(unions arg, unions *result, struct svc_req *req) {
	(void)req;
	print_unions(stdout, &arg);
	*result = arg;
	return TRUE;
}

bool_t echo_nodes_2_svc(nodes arg, nodes *result, struct svc_req *req) {
	(void)req;
	print_nodes(stdout, arg);
	*result = arg;
	return TRUE;
}

bool_t echo_options_2_svc(options arg, options *result, struct svc_req *req) {
	(void)req;
	print_options(stdout, &arg);
	*result = arg;
	return TRUE;
}

bool_t echo_bulk_2_svc(bulk arg, bulk *result, struct svc_req *req) {
	(void)req;
	print_bulk(stdout, &arg);
	*result = arg;
	return TRUE;
}

bool_t echo_color_2_svc(color arg, color *result, struct svc_req *req) {
	(void)req;
	printf("color %d\n", arg);
	*result = arg;
	return TRUE;
}

bool_t echo_text_2_svc(char *arg, char **result, struct svc_req *req) {
	(void)req;
	printf("text \"%s\"\n", arg);
	*result = arg;
	return TRUE;
}

bool_t echo_several_2_svc(int number, label text, color hue, payload data, arrays *result, struct svc_req *req) {
	static color hues[1];

	(void)req;
	printf("several %d \"%s\" %d", number, text, hue);
	print_bytes(stdout, data.payload_val, data.payload_len);
	printf("\n");
	memset(result, 0, sizeof *result);
	result->ints[2] = number;
	result->named = text;
	result->longer = "";
	hues[0] = hue;
	result->hues.hues_val = hues;
	result->hues.hues_len = 1;
	result->rest.rest_val = data.payload_val;
	result->rest.rest_len = data.payload_len;
	return TRUE;
}

bool_t echo_user_2_svc(u_int *result, struct svc_req *req) {
	if (req->rq_cred.oa_flavor != AUTH_SYS) {
		svcerr_weakauth(req->rq_xprt);
		return FALSE;
	}
	*result = ((struct authunix_parms *)req->rq_clntcred)->aup_uid;
	return TRUE;
}

bool_t echo_fail_2_svc(void *result, struct svc_req *req) {
	(void)result;
	svcerr_systemerr(req->rq_xprt);
	return FALSE; /* no other reply */
}

bool_t echo_end_2_svc(void *result, struct svc_req *req) {
	(void)result, (void)req;
	svc_exit();
	return TRUE;
}

bool_t echo_number_3_svc(quad_t arg, quad_t *result, struct svc_req *req) {
	(void)req;
	printf("number %" PRId64 "\n", (int64_t)arg);
	*result = arg;
	return TRUE;
}

int echo_prog_2_freeresult(SVCXPRT *xprt, xdrproc_t type, caddr_t result) {
	(void)xprt, (void)type, (void)result;
	return TRUE;
}

int echo_prog_3_freeresult(SVCXPRT *xprt, xdrproc_t type, caddr_t result) {
	return echo_prog_2_freeresult(xprt, type, result);
}

static void must(int good, const char *what) {
	if (!good) {
		perror(what);
		exit(1);
	}
}

/* server RECORD: the length of its buffers, and so of the fragments of its records. */
int main(int argc, char **argv) {
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	u_int size = argc > 1 ? atoi(argv[1]) : 0;
	SVCXPRT *xprt;

	setvbuf(stdout, NULL, _IOLBF, 0);
	must(fd >= 0, "socket");
	must(bind(fd, (struct sockaddr *)&at, len) == 0, "bind");
	must(listen(fd, 16) == 0, "listen");
	must(getsockname(fd, (struct sockaddr *)&at, &len) == 0, "getsockname");
	xprt = svc_vc_create(fd, size, size);
	must(xprt != NULL, "svc_vc_create");
	/* Without a netconfig, nothing is registered with rpcbind. */
	must(svc_reg(xprt, ECHO_PROG, ECHO_V2, echo_prog_2, NULL), "svc_reg");
	must(svc_reg(xprt, ECHO_PROG, ECHO_V3, echo_prog_3, NULL), "svc_reg");
	printf("port %d\n", ntohs(at.sin_port));
	svc_run();
	printf("end\n");
	return 0;
}
