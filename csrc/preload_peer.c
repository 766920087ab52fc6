/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Netlink sockets that were moved to the director: another socket was put, by dup3(), where they stood.
 * They are known by their inode, so that dup, fork and close need no book-keeping.
 *
 * Programs of libnl wait for ever when a send fails or a receive reports the end of file. So neither
 * happens: while no director answers, one end of a socket pair stands there, and errors are put into
 * the other (`hold`), where poll and epoll see them too. The next request tries the director again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "preload.h"

#define PEERS 256
#define KEPT_MAX 1024 /* bytes of a request; those of ipvsadm and keepalived have less than half of it */
#define HIGH_FD 200 /* where programs do not look for theirs */

struct peer {
	ino_t ino;            /* of the socket that stands there now; 0: free */
	uint32_t port;        /* its netlink address before */
	int hold;             /* no director: the end that answers are put into, else -1 */
	ino_t hold_ino;       /* a program may close descriptors that it does not know */
	bool pending;         /* the last request has no answer yet */
	int64_t deadline;
	struct nlmsghdr last; /* header of the last request */
	size_t kept;          /* bytes of the request, while it can be sent again; 0: it cannot */
	uint8_t request[KEPT_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer peers[PEERS];
static int in_use; /* peers, ever; 0: nothing to look for */

/* All descriptors of a socket; `each` is called with them. */
static void descriptors(ino_t ino, void (*each)(int fd, void *ctx), void *ctx)
{
	DIR *dir = REAL(opendir)("/proc/self/fd");
	const struct dirent *e;

	if (!dir)
		return;
	while ((e = REAL(readdir)(dir))) {
		int fd = atoi(e->d_name);

		if (e->d_name[0] != '.' && fd != dirfd(dir) && inode(fd) == ino)
			each(fd, ctx);
	}
	REAL(closedir)(dir);
}

static struct peer *find(int fd)
{
	ino_t ino = __atomic_load_n(&in_use, __ATOMIC_ACQUIRE) ? inode(fd) : 0;

	for (int i = 0; ino && i < in_use; i++) {
		if (peers[i].ino == ino)
			return &peers[i];
	}
	return NULL;
}

bool peer_has(int fd)
{
	bool found;

	if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE))
		return false;
	pthread_mutex_lock(&lock);
	found = find(fd) != NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

static void seen(int fd, void *ctx)
{
	(void)fd;
	*(bool *)ctx = true;
}

static void forget(struct peer *p)
{
	if (p->hold >= 0 && inode(p->hold) == p->hold_ino)
		REAL(close)(p->hold);
	p->ino = 0;
}

/* A free place; when there is none, those of sockets that have been closed. */
static struct peer *place(void)
{
	for (int tries = 0; tries < 2; tries++) {
		for (int i = 0; i < PEERS; i++) {
			if (!peers[i].ino) {
				if (i >= in_use)
					__atomic_store_n(&in_use, i + 1, __ATOMIC_RELEASE);
				return &peers[i];
			}
		}
		for (int i = 0; i < PEERS; i++) {
			bool open = false;

			descriptors(peers[i].ino, seen, &open);
			if (!open)
				forget(&peers[i]);
		}
	}
	return NULL;
}

static void replace(int fd, void *ctx)
{
	int flags = fcntl(fd, F_GETFD);

	REAL(dup3)(*(int *)ctx, fd, flags >= 0 && flags & FD_CLOEXEC ? O_CLOEXEC : 0);
}

/* Let `to` stand wherever the socket `was` (seen as `fd`) stands, in epoll sets too; closes `to`. */
static ino_t put(int fd, ino_t was, int to)
{
	ino_t ino = inode(to);
	int flags = fcntl(fd, F_GETFL);
	struct timeval limit;
	socklen_t n = sizeof(limit);

	fcntl(to, F_SETFL, flags & O_NONBLOCK ? O_NONBLOCK : 0);
	if (!REAL(getsockopt)(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &n))
		REAL(setsockopt)(to, SOL_SOCKET, SO_RCVTIMEO, &limit, n);
	descriptors(was, replace, &to);
	if (inode(fd) == was)
		replace(fd, &to); /* /proc could not be read */
	REAL(close)(to);
	watch_moved(was, ino);
	return ino;
}

/* Answer the last request in the director's place. libnl has no words for ECONNREFUSED and ETIMEDOUT:
 * its programs would say "you must be root". */
static void answer(struct peer *p, int code)
{
	int error = code == ECONNREFUSED ? ENODEV : code == ETIMEDOUT ? EBUSY : code;
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
	} m = { .h = { sizeof(m), NLMSG_ERROR, NLM_F_CAPPED, p->last.nlmsg_seq, p->last.nlmsg_pid },
		.e = { .error = -error, .msg = p->last } };

	p->pending = false;
	if (p->hold >= 0 && inode(p->hold) == p->hold_ino)
		REAL(send)(p->hold, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* No director: stand on a socket pair, and answer what was asked. False: no descriptors left. */
static bool fail(struct peer *p, int fd, int code)
{
	int pair[2], high;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return false;
	if (p->hold >= 0 && inode(p->hold) == p->hold_ino)
		REAL(close)(p->hold);
	high = fcntl(pair[1], F_DUPFD_CLOEXEC, HIGH_FD);
	if (high >= 0) {
		REAL(close)(pair[1]);
		pair[1] = high;
	}
	p->hold = pair[1];
	p->hold_ino = inode(pair[1]);
	p->ino = put(fd, p->ino, pair[0]);
	if (p->pending)
		answer(p, code);
	return true;
}

/* The director again, if it can be had; else errno says why not. */
static bool reconnect(struct peer *p, int fd)
{
	int to = director_connect();

	if (to < 0)
		return false;
	if (p->hold >= 0 && inode(p->hold) == p->hold_ino)
		REAL(close)(p->hold);
	p->hold = -1;
	p->ino = put(fd, p->ino, to);
	return true;
}

bool peer_move(int fd)
{
	struct sockaddr_nl nl = { 0 };
	socklen_t n = sizeof(nl);
	struct peer *p;
	bool done;

	REAL(getsockname)(fd, (struct sockaddr *)&nl, &n);
	pthread_mutex_lock(&lock);
	p = place();
	if (p) {
		*p = (struct peer){ .ino = inode(fd), .port = nl.nl_pid, .hold = -1 };
		done = reconnect(p, fd) || fail(p, fd, errno);
		if (!done)
			p->ino = 0;
	}
	pthread_mutex_unlock(&lock);
	return p && done;
}

void peer_adopt(int fd)
{
	struct sockaddr_un un = { 0 };
	socklen_t n = sizeof(un) - 1;
	struct peer *p;

	if (!inode(fd) || REAL(getpeername)(fd, (struct sockaddr *)&un, &n) || un.sun_family != AF_UNIX ||
	    !un.sun_path[0] || strcmp(un.sun_path, director_path()))
		return;
	pthread_mutex_lock(&lock);
	p = find(fd) ? NULL : place();
	if (p)
		*p = (struct peer){ .ino = inode(fd), .port = (uint32_t)getpid(), .hold = -1 };
	pthread_mutex_unlock(&lock);
}

uint32_t peer_port(int fd)
{
	const struct peer *p;
	uint32_t port;

	pthread_mutex_lock(&lock);
	p = find(fd);
	port = p ? p->port : 0;
	pthread_mutex_unlock(&lock);
	return port;
}

static bool lost(int code)
{
	return director_unread(code) || code == ENOTCONN || code == ECONNREFUSED;
}

/* The request, for a director that restarts before it has read it, unless others are under way with it. */
static void keep(struct peer *p, const struct msghdr *msg, size_t total)
{
	p->kept = 0;
	if (p->pending || total > sizeof(p->request))
		return;
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		if (msg->msg_iov[i].iov_len)
			memcpy(p->request + p->kept, msg->msg_iov[i].iov_base, msg->msg_iov[i].iov_len);
		p->kept += msg->msg_iov[i].iov_len;
	}
}

/* Ask the director that has come back, once. */
static bool again(struct peer *p, int fd)
{
	size_t n = p->kept;

	p->kept = 0;
	if (!p->pending || !n || !reconnect(p, fd))
		return false;
	p->deadline = now_ms() + patience_ms();
	return REAL(send)(fd, p->request, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* The header of the last request in what is sent. */
static void remember(struct peer *p, const struct msghdr *msg, size_t total)
{
	const uint8_t *at = msg->msg_iovlen ? msg->msg_iov[0].iov_base : NULL;
	size_t left = at ? msg->msg_iov[0].iov_len : 0, step;

	keep(p, msg, total);
	while (left >= sizeof(p->last)) {
		memcpy(&p->last, at, sizeof(p->last));
		step = netlink_step(p->last.nlmsg_len, left);
		if (p->last.nlmsg_len < sizeof(p->last) || !step)
			break;
		at += step;
		left -= step;
	}
	p->pending = true;
	p->deadline = now_ms() + patience_ms();
}

ssize_t peer_send(int fd, const struct msghdr *msg, int flags)
{
	struct msghdr plain = { .msg_iov = msg->msg_iov, .msg_iovlen = msg->msg_iovlen };
	struct pollfd room = { .fd = fd, .events = POLLOUT };
	size_t total = 0;
	struct peer *p;
	ssize_t n = -1;
	int code = ECONNREFUSED;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		total += msg->msg_iov[i].iov_len;
	flags = (flags & ~MSG_CONFIRM) | MSG_NOSIGNAL | MSG_DONTWAIT;
	pthread_mutex_lock(&lock);
	p = find(fd);
	if (!p) {
		pthread_mutex_unlock(&lock);
		return REAL(sendmsg)(fd, msg, flags);
	}
	remember(p, msg, total);
	for (int tries = 0; n < 0 && tries < 2; tries++) {
		if ((tries || p->hold >= 0) && !reconnect(p, fd)) {
			code = errno;
			break;
		}
		while ((n = REAL(sendmsg)(fd, &plain, flags)) < 0 && errno == EAGAIN &&
		       now_ms() < p->deadline)
			REAL(poll)(&room, 1, 20);
		code = n < 0 ? errno : 0;
		if (code == EAGAIN)
			director_answered(false);
		if (!lost(code))
			break;
	}
	code = code == EAGAIN ? ETIMEDOUT : lost(code) ? ECONNREFUSED : code;
	if (n < 0 && (p->hold >= 0 || fail(p, fd, code))) {
		if (p->pending)
			answer(p, code);
		n = (ssize_t)total;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

/* Has the last request been answered by this? */
static void note(struct peer *p, const struct msghdr *msg, ssize_t got)
{
	const uint8_t *at = msg->msg_iovlen ? msg->msg_iov[0].iov_base : NULL;
	size_t left = at ? msg->msg_iov[0].iov_len : 0, step;
	struct nlmsghdr h;

	if (left > (size_t)got)
		left = (size_t)got;
	if (p->hold < 0)
		director_answered(true);
	p->deadline = now_ms() + patience_ms();
	p->kept = 0; /* it has been read */
	while (left >= sizeof(h)) {
		memcpy(&h, at, sizeof(h));
		if (h.nlmsg_seq == p->last.nlmsg_seq &&
		    (h.nlmsg_type == NLMSG_ERROR || h.nlmsg_type == NLMSG_DONE ||
		     !(h.nlmsg_flags & NLM_F_MULTI || p->last.nlmsg_flags & NLM_F_ACK)))
			p->pending = false;
		step = netlink_step(h.nlmsg_len, left);
		if (h.nlmsg_len < sizeof(h) || !step)
			break;
		at += step;
		left -= step;
	}
}

/* Wait for something to read: true; false: the program's own time limit has passed. */
static bool wait_for_answer(int fd)
{
	struct pollfd in = { .fd = fd, .events = POLLIN };
	struct timeval own = { 0 };
	socklen_t n = sizeof(own);
	int64_t end = INT64_MAX, until;
	int ms;

	if (!REAL(getsockopt)(fd, SOL_SOCKET, SO_RCVTIMEO, &own, &n) && (own.tv_sec || own.tv_usec))
		end = now_ms() + own.tv_sec * 1000 + own.tv_usec / 1000;
	for (;;) {
		ms = peer_due();
		until = end - now_ms();
		if (until < 0)
			return false;
		if (end != INT64_MAX && (ms < 0 || ms > until))
			ms = (int)until;
		if (REAL(poll)(&in, 1, ms) > 0)
			return true;
		peer_expire();
	}
}

ssize_t peer_recv(int fd, struct msghdr *msg, int flags)
{
	bool wait = !(flags & MSG_DONTWAIT) && !(fcntl(fd, F_GETFL) & O_NONBLOCK);
	void *name = msg->msg_name;
	socklen_t room = msg->msg_namelen;
	struct sockaddr_nl from = { .nl_family = AF_NETLINK };
	struct peer *p;
	ssize_t n;
	int code;

	for (int tries = 0; tries < 3; tries++) {
		if (wait && !wait_for_answer(fd)) {
			errno = EAGAIN;
			return -1;
		}
		msg->msg_name = NULL;
		msg->msg_namelen = 0;
		n = REAL(recvmsg)(fd, msg, flags | MSG_DONTWAIT);
		code = errno;
		msg->msg_name = name;
		msg->msg_namelen = room;
		if (n < 0 && errno == EAGAIN && !wait && peer_due() == 0) {
			peer_expire();
			continue;
		}
		if (n < 0 && errno == EAGAIN && wait)
			continue; /* another thread took it */
		if (n < 0 && !lost(errno))
			return n;
		pthread_mutex_lock(&lock);
		p = find(fd);
		if (n > 0 && p && !(flags & MSG_PEEK))
			note(p, msg, n);
		if (n <= 0 && p && !(n < 0 && director_unread(code) && again(p, fd)) &&
		    !fail(p, fd, ECONNREFUSED)) {
			pthread_mutex_unlock(&lock);
			errno = ENOBUFS;
			return -1;
		}
		pthread_mutex_unlock(&lock);
		if (n > 0) {
			if (name) {
				memcpy(name, &from, room < sizeof(from) ? room : sizeof(from));
				msg->msg_namelen = sizeof(from);
			}
			return n;
		}
	}
	errno = EAGAIN;
	return -1;
}

int peer_due(void)
{
	int64_t due = INT64_MAX, now = now_ms();

	if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE))
		return -1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < in_use; i++) {
		if (peers[i].ino && peers[i].pending && peers[i].deadline < due)
			due = peers[i].deadline;
	}
	pthread_mutex_unlock(&lock);
	return due == INT64_MAX ? -1 : due <= now ? 0 : (int)(due - now);
}

static void first(int fd, void *ctx)
{
	*(int *)ctx = fd;
}

void peer_expire(void)
{
	int64_t now = now_ms();

	pthread_mutex_lock(&lock);
	for (int i = 0; i < in_use; i++) {
		struct peer *p = &peers[i];
		int fd = -1;

		if (!p->ino || !p->pending || p->deadline > now)
			continue;
		descriptors(p->ino, first, &fd);
		if (fd < 0) {
			forget(p); /* closed while an answer was under way */
			continue;
		}
		director_answered(false);
		fail(p, fd, ETIMEDOUT);
	}
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void start(void)
{
	pthread_atfork(before_fork, after_fork, after_fork);
}
