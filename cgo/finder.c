//go:build linux && cgo

/*
 * All calls in which the libraries search for devices run on one thread.
 *
 * librdmacm before rdma-core 52 orders devices by the difference of their addresses,
 * truncated to 32 bits. glibc allocates from a different arena on each thread, so the
 * addresses of devices found on different threads may differ by more. Then librdmacm
 * drops a device when another one is added or removed. Once it has dropped all devices,
 * the next call deadlocks on a lock in librdmacm. Devices found on one thread lie close
 * together.
 */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "verbs.h"

struct search {
	void (*call)(struct search *);
	struct rdma_event_channel *channel;
	struct rdma_cm_event **event;
	struct rdma_cm_id *id;
	struct sockaddr *addr;
	int number; /* number of devices, or the backlog */
	void *list;
	int ret;
	int err; /* errno after the call */
	bool done;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t asked, done;
	struct search *next; /* runs one search at a time */
	bool running;
} finder = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, false };

static void *finder_loop(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&finder.lock);
	for (;;) {
		struct search *s = finder.next;

		if (!s) {
			pthread_cond_wait(&finder.asked, &finder.lock);
			continue;
		}
		pthread_mutex_unlock(&finder.lock);
		errno = 0;
		s->call(s);
		s->err = errno;
		pthread_mutex_lock(&finder.lock);
		s->done = true;
		finder.next = NULL;
		pthread_cond_broadcast(&finder.done);
	}
}

/* start_finder starts the thread, which never ends. It blocks all signals, which are meant for Go's threads. */
static int start_finder(void)
{
	sigset_t all, before;
	pthread_t thread;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&thread, NULL, finder_loop, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!err)
		pthread_detach(thread);
	return err;
}

/* on_finder runs the call on the thread and waits for it. It sets errno to that of the call. */
static void on_finder(struct search *s)
{
	int err = 0;

	pthread_mutex_lock(&finder.lock);
	if (!finder.running && !(err = start_finder()))
		finder.running = true;
	while (!err && finder.next)
		pthread_cond_wait(&finder.done, &finder.lock);
	if (!err) {
		finder.next = s;
		pthread_cond_signal(&finder.asked);
		while (!s->done)
			pthread_cond_wait(&finder.done, &finder.lock);
	} else {
		s->ret = -1;
		s->err = err;
	}
	pthread_mutex_unlock(&finder.lock);
	errno = s->err;
}

static void device_list(struct search *s) { s->list = ibv_get_device_list(&s->number); }

struct ibv_device **rr_get_device_list(int *number)
{
	struct search s = { .call = device_list };

	on_finder(&s);
	*number = s.number;
	return s.list;
}

static void cm_devices(struct search *s) { s->list = rdma_get_devices(&s->number); }

struct ibv_context **rr_get_devices(int *number)
{
	struct search s = { .call = cm_devices };

	on_finder(&s);
	*number = s.number;
	return s.list;
}

static void create_channel(struct search *s) { s->channel = rdma_create_event_channel(); }

struct rdma_event_channel *rr_create_event_channel(void)
{
	struct search s = { .call = create_channel };

	on_finder(&s);
	return s.channel;
}

static void take_event(struct search *s) { s->ret = rdma_get_cm_event(s->channel, s->event); }

int rr_take_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct search s = { .call = take_event, .channel = channel, .event = event };

	on_finder(&s);
	return s.ret;
}

static void bind_addr(struct search *s) { s->ret = rdma_bind_addr(s->id, s->addr); }

int rr_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct search s = { .call = bind_addr, .id = id, .addr = addr };

	on_finder(&s);
	return s.ret;
}

static void listen_on(struct search *s) { s->ret = rdma_listen(s->id, s->number); }

int rr_listen(struct rdma_cm_id *id, int backlog)
{
	struct search s = { .call = listen_on, .id = id, .number = backlog };

	on_finder(&s);
	return s.ret;
}
