/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * worker.c - a thread that serves queues: what the fast path can do it does, the rest waits for the hook path.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "uvs_io.h"

#define QUEUES 16
#define KICK QUEUES /* the event that is no queue's */
/* What begins connections has its turn once for so many packets of known ones: under a flood these keep most of their
 * rate, and without one a connection has many more packets than its first. */
#define PACKETS_PER_SYN 4
#define WAIT_MS 1000 /* bounded, should a wake-up ever be lost */
#define HOLD_MS 2 /* a verdict that waits for others' waits no longer than until nothing came for so long */
#define SKIP_MAX 255 /* lone packets, at most, after which there is no looking again */

struct served {
	struct uvs_nfq *nfq;
	int fd;
	uint32_t flags;
	int ready; /* packets may wait */
};

struct uvs_worker {
	pthread_t thread;
	int running;
	struct uvs_fastpath *f;
	struct uvs_inject inject;
	int epoll, kick, wake;
	_Atomic int stop;
	_Atomic uint64_t turns; /* written by the thread alone */
	uint32_t n;
	struct served queue[QUEUES];
	/* Where requests follow each other one by one, a packet answers the last within microseconds, and to sleep and be
	 * woken would take most of its time: after a lone packet the queues are looked at again for a moment.  A look in
	 * vain has more and more of them go without. */
	uint64_t busy_ns; /* how long that is, 0: never */
	uint32_t done, skip, skipped; /* packets of the last turn; lone ones to go without, and that went */
};

static int listen_to(const struct uvs_worker *w, int fd, uint32_t which)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u32 = which };

	return epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

struct uvs_worker *uvs_worker_new(struct uvs_fastpath *f, uint32_t mark, int wake, uint32_t busy_us)
{
	struct uvs_worker *w = calloc(1, sizeof(*w));
	int err;

	if (!w)
		return NULL;
	w->f = f;
	w->wake = wake;
	w->busy_ns = busy_us * 1000ull;
	w->inject.raw = w->inject.cooked = -1;
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	w->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = w->epoll < 0 || w->kick < 0 ? -errno : listen_to(w, w->kick, KICK);
	if (!err)
		err = uvs_inject_open(&w->inject, mark);
	if (err) {
		uvs_worker_free(w);
		errno = -err;
		return NULL;
	}
	return w;
}

int uvs_worker_add(struct uvs_worker *w, struct uvs_nfq *q, int fd, uint32_t flags)
{
	int err;

	if (w->n == QUEUES)
		return -ENOSPC;
	err = listen_to(w, fd, w->n);
	if (!err) {
		uvs_nfq_hold(q);
		w->queue[w->n++] = (struct served){ q, fd, flags, 0 };
	}
	return err;
}

static void write_event(int fd)
{
	const uint64_t one = 1;

	(void)!write(fd, &one, sizeof(one));
}

/* One turn of a queue; how much it did. */
static uint32_t turn(struct uvs_worker *w, struct served *s, uint32_t budget)
{
	const uint32_t n = uvs_nfq_step(s->nfq, w->f, &w->inject, budget);

	if (uvs_nfq_open(s->nfq))
		write_event(w->wake);
	return n;
}

static void serve(struct uvs_worker *w)
{
	uint32_t i, busy = 0;

	w->done = 0;
	for (i = 0; i < w->n; i++) {
		struct served *s = &w->queue[i];
		const int syn = s->flags & UVS_QUEUE_SYN, left = uvs_nfq_full(s->nfq);
		const uint32_t budget = syn && busy ? 1 + busy / PACKETS_PER_SYN : UVS_NFQ_BATCH;
		uint32_t done;

		if (!s->ready)
			continue;
		done = turn(w, s, budget);
		/* Else it is empty, and an event says when there is more, or it waits for a kick. */
		s->ready = (left || done >= budget) && !uvs_nfq_full(s->nfq);
		w->done += done;
		if (!syn)
			busy += done;
		/* Whoever takes the last one looks then whether it is full: one of both sees the other. */
		if (uvs_nfq_full(s->nfq) && !uvs_nfq_open(s->nfq))
			uvs_worker_kick(w);
	}
}

/* What waits for others'; true: something did. */
static int settle(struct uvs_worker *w)
{
	uint32_t i;
	int did = 0;

	for (i = 0; i < w->n; i++) {
		if (uvs_nfq_held(w->queue[i].nfq)) {
			uvs_nfq_settle(w->queue[i].nfq);
			did = 1;
		}
	}
	return did;
}

static int holds(const struct uvs_worker *w)
{
	uint32_t i;

	for (i = 0; i < w->n; i++) {
		if (uvs_nfq_held(w->queue[i].nfq))
			return 1;
	}
	return 0;
}

static int is_ready(const struct uvs_worker *w)
{
	uint32_t i;

	for (i = 0; i < w->n; i++) {
		if (w->queue[i].ready)
			return 1;
	}
	return 0;
}

static int look_again(struct uvs_worker *w, struct epoll_event *events)
{
	uint64_t end;
	int n = 0;

	if (w->done != 1 || !w->busy_ns || w->skipped++ < w->skip)
		return 0;
	w->skipped = 0;
	for (end = uvs_now(1) + w->busy_ns; !n && uvs_now(1) < end;)
		n = epoll_wait(w->epoll, events, QUEUES + 1, 0);
	w->skip = n ? 0 : w->skip * 2 + 1 < SKIP_MAX ? w->skip * 2 + 1 : SKIP_MAX;
	return n;
}

static void *run(void *arg)
{
	struct uvs_worker *w = arg;
	struct epoll_event events[QUEUES + 1];
	uint64_t count, turns = 0;
	uint32_t q;
	int i, n;

	pthread_setname_np(pthread_self(), "uvs-worker");
	while (!atomic_load(&w->stop)) {
		atomic_store_explicit(&w->turns, ++turns, memory_order_relaxed);
		const int more = is_ready(w);

		n = more ? 0 : look_again(w, events);
		if (!n)
			n = epoll_wait(w->epoll, events, QUEUES + 1, more ? 0 : holds(w) ? HOLD_MS : WAIT_MS);
		if (!n && !more && !settle(w)) {
			for (q = 0; q < w->n; q++)
				w->queue[q].ready = 1;
		}
		for (i = 0; i < n; i++) {
			if (events[i].data.u32 < w->n)
				w->queue[events[i].data.u32].ready = 1;
			else if (read(w->kick, &count, sizeof(count)) > 0) {
				for (q = 0; q < w->n; q++)
					w->queue[q].ready |= uvs_nfq_full(w->queue[q].nfq);
			}
		}
		serve(w);
	}
	settle(w);
	return NULL;
}

int uvs_worker_start(struct uvs_worker *w)
{
	sigset_t all, before;
	int err;

	sigfillset(&all); /* they are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	atomic_store(&w->stop, 0);
	err = pthread_create(&w->thread, NULL, run, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	w->running = !err;
	return -err;
}

void uvs_worker_kick(struct uvs_worker *w)
{
	write_event(w->kick);
}

uint64_t uvs_worker_turns(const struct uvs_worker *w)
{
	return atomic_load_explicit(&w->turns, memory_order_relaxed);
}

void uvs_worker_stop(struct uvs_worker *w)
{
	if (!w->running)
		return;
	atomic_store(&w->stop, 1);
	uvs_worker_kick(w);
	pthread_join(w->thread, NULL);
	w->running = 0;
}

void uvs_worker_free(struct uvs_worker *w)
{
	if (!w)
		return;
	uvs_worker_stop(w);
	uvs_inject_close(&w->inject);
	if (w->epoll >= 0)
		close(w->epoll);
	if (w->kick >= 0)
		close(w->kick);
	free(w);
}
