/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * poll, select and epoll: while a request is under way they return in time to tell that no answer came. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

#include "preload.h"

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room);

/* What a wait of `ms` (-1: for ever) has left, in parts no longer than the next answer may take. */
struct wait {
	int64_t end; /* -1: never */
	int part;    /* ms of the next part, -1: no limit */
};

static struct wait begin(int ms)
{
	return (struct wait){ ms < 0 ? -1 : now_ms() + ms, 0 };
}

static int part(struct wait *w)
{
	int64_t left = w->end - now_ms();
	int due = peer_due();

	w->part = w->end < 0 ? -1 : left < 0 ? 0 : (int)left;
	if (due >= 0 && (w->part < 0 || due < w->part))
		w->part = due;
	return w->part;
}

/* Nothing came in that part: was it the last? */
static bool over(const struct wait *w)
{
	peer_expire();
	return w->end >= 0 && now_ms() >= w->end;
}

static int milliseconds(const struct timespec *t)
{
	if (!t)
		return -1;
	if (t->tv_sec > 1000000)
		return 1000000000;
	return (int)(t->tv_sec * 1000 + (t->tv_nsec + 999999) / 1000000);
}

static struct timespec timespec(int ms)
{
	return (struct timespec){ ms / 1000, ms % 1000 * 1000000L };
}

EXPORT int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct wait w;
	int got;

	if (peer_due() < 0)
		return REAL(poll)(fds, n, timeout);
	w = begin(timeout);
	do
		got = REAL(poll)(fds, n, part(&w));
	while (got == 0 && !over(&w));
	return got;
}

EXPORT int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room)
{
	if (n > room / sizeof(*fds))
		return REAL(__poll_chk)(fds, n, timeout, room);
	return poll(fds, n, timeout);
}

EXPORT int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec t;
	struct wait w;
	int got;

	if (peer_due() < 0)
		return REAL(ppoll)(fds, n, timeout, mask);
	w = begin(milliseconds(timeout));
	do {
		t = timespec(part(&w));
		got = REAL(ppoll)(fds, n, w.part < 0 ? NULL : &t, mask);
	} while (got == 0 && !over(&w));
	return got;
}

static int wait_select(int n, fd_set *sets[3], int ms, const sigset_t *mask)
{
	size_t size = ((size_t)n + 8 * sizeof(long) - 1) / (8 * sizeof(long)) * sizeof(long);
	struct wait w = begin(ms);
	struct timespec t;
	int got;

	if (size > sizeof(fd_set)) { /* larger than the type: the program's own doing */
		t = timespec(ms < 0 ? 0 : ms);
		return REAL(pselect)(n, sets[0], sets[1], sets[2], ms < 0 ? NULL : &t, mask);
	}
	do {
		fd_set now[3];

		for (int i = 0; i < 3; i++) {
			if (sets[i])
				memcpy(&now[i], sets[i], size);
		}
		t = timespec(part(&w));
		got = REAL(pselect)(n, sets[0] ? &now[0] : NULL, sets[1] ? &now[1] : NULL,
				    sets[2] ? &now[2] : NULL, w.part < 0 ? NULL : &t, mask);
		if (got != 0 || over(&w)) {
			for (int i = 0; got >= 0 && i < 3; i++) {
				if (sets[i])
					memcpy(sets[i], &now[i], size);
			}
			return got;
		}
	} while (true);
}

EXPORT int pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,
		   const sigset_t *mask)
{
	if (n < 0 || peer_due() < 0)
		return REAL(pselect)(n, r, w, e, timeout, mask);
	return wait_select(n, (fd_set *[]){ r, w, e }, milliseconds(timeout), mask);
}

EXPORT int select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	int64_t start;
	int got, ms = -1;

	if (n < 0 || peer_due() < 0)
		return REAL(select)(n, r, w, e, timeout);
	if (timeout)
		ms = milliseconds(&(struct timespec){ timeout->tv_sec, timeout->tv_usec * 1000 });
	start = now_ms();
	got = wait_select(n, (fd_set *[]){ r, w, e }, ms, NULL);
	if (timeout) { /* Linux tells what was left of it */
		int64_t left = ms - (now_ms() - start);

		if (left < 0)
			left = 0;
		timeout->tv_sec = left / 1000;
		timeout->tv_usec = left % 1000 * 1000;
	}
	return got;
}

EXPORT int epoll_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	struct wait w;
	int got;

	if (peer_due() < 0)
		return REAL(epoll_pwait)(epfd, events, max, timeout, mask);
	w = begin(timeout);
	do
		got = REAL(epoll_pwait)(epfd, events, max, part(&w), mask);
	while (got == 0 && !over(&w));
	return got;
}

EXPORT int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
	return epoll_pwait(epfd, events, max, timeout, NULL);
}

/* ---- epoll sets that a socket leaves when another is put in its place */

#define WATCHES 64

struct watch {
	ino_t ino; /* 0: free */
	int epfd, fd;
	struct epoll_event event;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct watch watches[WATCHES];

void watch_moved(ino_t was, ino_t now)
{
	pthread_mutex_lock(&lock);
	for (struct watch *w = watches; w < watches + WATCHES; w++) {
		if (w->ino == was) {
			w->ino = now;
			REAL(epoll_ctl)(w->epfd, EPOLL_CTL_ADD, w->fd, &w->event);
		}
	}
	pthread_mutex_unlock(&lock);
}

static void watch(int epfd, int op, int fd, const struct epoll_event *event)
{
	ino_t ino = inode(fd);

	pthread_mutex_lock(&lock);
	for (struct watch *w = watches; ino && w < watches + WATCHES; w++) {
		if (op == EPOLL_CTL_ADD ? !w->ino : w->ino == ino && w->epfd == epfd && w->fd == fd) {
			*w = (struct watch){ op == EPOLL_CTL_DEL ? 0 : ino, epfd, fd, *event };
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

EXPORT int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	static struct epoll_event none;
	int done = REAL(epoll_ctl)(epfd, op, fd, event);

	if (done == 0 && (peer_has(fd) || is_genl(fd)))
		watch(epfd, op, fd, event ? event : &none);
	return done;
}
