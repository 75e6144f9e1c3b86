/*
 * Functions that Go calls. Structs named rr_* are mirrored in wr.go. rr_layout returns
 * their offsets for the test.
 */
#ifndef RR_VERBS_H
#define RR_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* The data path. */

struct rr_send_wr {
	uint64_t wr_id;
	uint64_t remote_addr; /* Read, Write, atomics; datagrams: the struct ibv_ah */
	uint64_t arg1;        /* atomics: compare or add; bind: address; datagrams: QPN << 32 | Q_Key; TSO: address of the header */
	uint64_t arg2;        /* atomics: swap; bind: length; TSO: length of the header << 32 | MSS */
	uint64_t mw;          /* bind: the struct ibv_mw */
	uint64_t mr;          /* bind: its struct ibv_mr */
	uint32_t opcode;      /* enum ibv_wr_opcode */
	uint32_t send_flags;  /* enum ibv_send_flags */
	uint32_t rkey;        /* the peer's key; bind: the window's new key */
	uint32_t imm;         /* immediate data, big endian, or the key to invalidate */
	uint32_t first_sge;
	uint32_t num_sge;
	uint32_t bind_access;
	uint32_t srq_num;     /* XRC: the peer's shared receive queue */
};

struct rr_recv_wr {
	uint64_t wr_id;
	uint32_t first_sge;
	uint32_t num_sge;
};

/* Flags and results of rr_progress. */
enum {
	RR_TAKE_EVENT = 1 << 0, /* take one completion event, if there is one */
	RR_ARM        = 1 << 1, /* if nothing was polled, arm and poll again; with RR_TAKE_EVENT only if an event was taken */
	RR_EXTENDED   = 1 << 2, /* post sends by ibv_wr_start and ibv_wr_complete: all of them or none */
};

struct rr_outcome {
	uint32_t recvs;   /* receives posted */
	uint32_t sends;   /* sends posted */
	int32_t recv_err; /* errno of the first receive that was not posted */
	int32_t send_err;
	int32_t poll_err; /* errno of taking the event, arming or polling */
	uint32_t wcs;     /* completions stored */
	uint32_t events;  /* completion events taken */
	uint32_t armed;   /* 1: the queue has been armed */
};

/* qp, srq, cq and channel are the addresses of the libraries' objects, or 0. */
void rr_progress(uint64_t qp, uint64_t srq, uint64_t cq, uint64_t channel,
		 const struct rr_recv_wr *recvs, uint32_t nrecv, const struct rr_send_wr *sends, uint32_t nsend,
		 struct ibv_sge *sges, struct ibv_wc *wcs, uint32_t nwc, uint32_t flags, struct rr_outcome *out);

/* Extended queues. */

struct rr_wc_ex {
	struct ibv_wc wc;
	uint64_t timestamp;    /* ticks of the device clock */
	uint64_t wallclock_ns; /* since 1970 */
	uint64_t tag;          /* struct ibv_wc_tm_info */
	uint32_t tag_priv;
	uint32_t flow_tag;
	uint16_t cvlan;
	uint16_t reserved[3];
};

/* A flag among the fields of rr_poll_extended: poll without ibv_next_poll. */
#define RR_ONE_BY_ONE (1ull << 63)

struct ibv_cq *rr_create_cq_ex(struct ibv_context *context, uint32_t cqe, struct ibv_comp_channel *channel, uint32_t vector,
			       uint64_t fields, uint32_t flags);
int rr_modify_cq(struct ibv_cq *cq, uint16_t count, uint16_t period);
void rr_post_extended(struct ibv_qp *qp, const struct rr_send_wr *sends, uint32_t n, struct ibv_sge *sges, struct rr_outcome *out);
uint32_t rr_poll_extended(uint64_t cq, uint64_t fields, struct rr_wc_ex *wcs, uint32_t n, int32_t *err);

/* Events of the connection manager, copied and acknowledged. */

struct rr_cm_event {
	uint64_t id;
	uint64_t context;        /* of the ID, or of the listener for a connection request */
	int32_t type;            /* enum rdma_cm_event_type */
	int32_t status;
	uint32_t qp_num;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t private_data_len;
	uint8_t has_verbs;
	uint8_t private_data[256];
	uint32_t qkey;           /* datagrams only, like ah */
	uint32_t reserved;
	struct ibv_ah_attr ah;
};

int rr_get_cm_event(struct rdma_event_channel *channel, struct rr_cm_event *out);

/* Asynchronous events of a device, copied and acknowledged. */

struct rr_async_event {
	uint64_t element; /* the QP, CQ, SRQ, or port number */
	int32_t type;     /* enum ibv_event_type */
	int32_t reserved;
};

int rr_get_async_event(struct ibv_context *context, struct rr_async_event *out);

/* Calls that are macros or inline functions, or that are simpler to make from C. */

struct rr_mr {
	struct ibv_mr *mr;
	uint32_t lkey;
	uint32_t rkey;
};

int rr_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t length, int access, struct rr_mr *out);
int rr_reg_mr_iova(struct ibv_pd *pd, uint64_t addr, size_t length, uint64_t iova, int access, struct rr_mr *out);
int rr_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access, struct rr_mr *out);
int rr_rereg_mr(struct rr_mr *mr, int flags, struct ibv_pd *pd, uint64_t addr, size_t length, int access, int *code);
int rr_alloc_null_mr(struct ibv_pd *pd, struct rr_mr *out);
int rr_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, int access, struct rr_mr *out);
int rr_advise_mr(struct ibv_pd *pd, int advice, uint32_t flags, struct ibv_sge *sges, uint32_t n);
struct ibv_dm *rr_alloc_dm(struct ibv_context *context, size_t length, uint32_t log_align);
int rr_free_dm(struct ibv_dm *dm);
int rr_memcpy_to_dm(struct ibv_dm *dm, uint64_t offset, uint64_t addr, size_t length);
int rr_memcpy_from_dm(uint64_t addr, struct ibv_dm *dm, uint64_t offset, size_t length);
int rr_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *out);
int rr_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out);
struct ibv_mw *rr_alloc_mw(struct ibv_pd *pd, int type);
int rr_dealloc_mw(struct ibv_mw *mw);
int rr_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t wr_id, uint32_t send_flags, struct ibv_mr *mr, uint64_t addr,
	       uint64_t length, uint32_t access);

struct rr_srq_op { /* struct ibv_ops_wr */
	uint64_t wr_id;
	uint64_t recv_wr_id;
	uint64_t tag;
	uint64_t mask;
	int32_t opcode;
	int32_t flags;
	uint32_t unexpected;
	uint32_t handle;
};

int rr_post_srq_op(struct ibv_srq *srq, struct rr_srq_op *op, struct ibv_sge *sges, uint32_t n);
int rr_post_wq_recv(struct ibv_wq *wq, const struct rr_recv_wr *recvs, uint32_t n, struct ibv_sge *sges, uint32_t *posted);
struct ibv_rwq_ind_table *rr_create_rwq_ind_table(struct ibv_context *context, struct ibv_wq **wqs, uint32_t n);
struct ibv_flow *rr_create_flow(struct ibv_qp *qp, const struct ibv_flow_attr *attr, const uint8_t *specs, size_t length);
int rr_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, uint64_t context, int ps);
void rr_set_context(struct rdma_cm_id *id, uint64_t context);
int rr_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, uint32_t flags);

/* Calls that search for devices, see finder.c. They leave errno as the library sets it. */

struct ibv_device **rr_get_device_list(int *number);
struct ibv_context **rr_get_devices(int *number);
struct rdma_event_channel *rr_create_event_channel(void);
int rr_take_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int rr_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
int rr_listen(struct rdma_cm_id *id, int backlog);

uint32_t rr_layout(uint32_t *out, uint32_t max);

#endif
