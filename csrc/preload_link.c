/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * One connection to the director, one request. Nothing waits longer than the patience of the program. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "preload.h"

#define PATIENCE_MS 10000
#define WARY_MS 1000
#define RESTART_MS 2000
#define TRIES 3 /* of a request that a director which ended has left unread */
#define RETRY_MS 20
#define ERRNO_MAX 4096
#define DATAGRAM_MAX 20480 /* the director's are 16 KiB, or one message */

static char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
static int64_t patience = PATIENCE_MS, restart = RESTART_MS;
static bool wary; /* the director has not answered */
static bool gone; /* nor has it come back within `restart`: no more waits for that */

const char *director_path(void)
{
	return path;
}

int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t patience_ms(void)
{
	bool once = __atomic_load_n(&wary, __ATOMIC_RELAXED);

	return once && patience > WARY_MS ? WARY_MS : patience;
}

void director_answered(bool in_time)
{
	__atomic_store_n(&wary, !in_time, __ATOMIC_RELAXED);
}

static void set_limit(int fd)
{
	int64_t ms = patience_ms();
	struct timeval t = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };

	REAL(setsockopt)(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
	REAL(setsockopt)(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
}

ino_t inode(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

int director_connect(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int64_t wait = patience_ms(), back = restart < wait ? restart : wait, now = now_ms();
	int64_t end = now + wait, until = __atomic_load_n(&gone, __ATOMIC_RELAXED) ? now : now + back;
	int fd = REAL(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), code;
	bool away;

	if (fd < 0)
		return -1;
	memcpy(to.sun_path, path, sizeof(path));
	while (REAL(connect)(fd, (struct sockaddr *)&to, sizeof(to))) {
		code = errno;
		away = code == ENOENT || code == ECONNREFUSED; /* perhaps it restarts */
		if (now_ms() < (code == EAGAIN ? end : away ? until : 0)) { /* EAGAIN: its backlog is full */
			REAL(poll)(NULL, 0, RETRY_MS);
			continue;
		}
		REAL(close)(fd);
		if (code == EAGAIN)
			director_answered(false);
		if (away)
			__atomic_store_n(&gone, true, __ATOMIC_RELAXED);
		errno = code == EAGAIN ? ETIMEDOUT : away ? ECONNREFUSED : code == EACCES ? EPERM : code;
		return -1;
	}
	__atomic_store_n(&gone, false, __ATOMIC_RELAXED);
	return fd;
}

void request_begin(struct request *r, uint8_t cmd, bool dump)
{
	struct nlmsghdr *h = (struct nlmsghdr *)r->buf;
	struct genlmsghdr *g = NLMSG_DATA(h);

	r->len = NLMSG_LENGTH(GENL_HDRLEN);
	memset(r->buf, 0, r->len);
	h->nlmsg_type = UVS_FAMILY;
	h->nlmsg_flags = NLM_F_REQUEST | (dump ? NLM_F_DUMP : NLM_F_ACK);
	h->nlmsg_seq = 1;
	g->cmd = cmd;
	g->version = 1;
}

void request_add(struct request *r, uint16_t type, const void *data, size_t len)
{
	struct nlattr a = { .nla_len = (uint16_t)(NLA_HDRLEN + len), .nla_type = type };
	size_t room = r->len <= sizeof(r->buf) ? sizeof(r->buf) - r->len : 0;

	if (NLA_HDRLEN + NLA_ALIGN(len) > room) {
		r->len = sizeof(r->buf) + 1;
		return;
	}
	memset(r->buf + r->len, 0, NLA_HDRLEN + NLA_ALIGN(len));
	memcpy(r->buf + r->len, &a, sizeof(a));
	if (len)
		memcpy(r->buf + r->len + NLA_HDRLEN, data, len);
	r->len += NLA_HDRLEN + NLA_ALIGN(len);
}

static int attributes(const uint8_t *p, size_t len, answer_fn *each, void *ctx)
{
	struct nlattr a;
	size_t step;
	int code;

	while (len >= sizeof(a)) {
		memcpy(&a, p, sizeof(a));
		if (a.nla_len < sizeof(a) || a.nla_len > len)
			break;
		code = each(ctx, a.nla_type & NLA_TYPE_MASK, p + NLA_HDRLEN, a.nla_len - NLA_HDRLEN);
		if (code)
			return code;
		step = netlink_step(a.nla_len, len);
		if (!step)
			break;
		len -= step;
		p += step;
	}
	return 0;
}

/* The messages of a datagram. Returns -1: more will come, 0: all went well, or an errno. */
static int messages(const uint8_t *p, size_t len, answer_fn *each, void *ctx)
{
	const size_t body = NLMSG_HDRLEN + GENL_HDRLEN;
	struct nlmsghdr h;
	size_t step;
	int code;

	while (len >= sizeof(h)) {
		memcpy(&h, p, sizeof(h));
		if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > len)
			return EPROTO;
		if (h.nlmsg_type == NLMSG_DONE)
			return 0;
		if (h.nlmsg_type == NLMSG_ERROR) {
			if (h.nlmsg_len < sizeof(h) + sizeof(code))
				return EPROTO;
			memcpy(&code, p + sizeof(h), sizeof(code));
			return code <= 0 && code > -ERRNO_MAX ? -code : EPROTO;
		}
		if (each && h.nlmsg_len > body) {
			code = attributes(p + body, h.nlmsg_len - body, each, ctx);
			if (code)
				return code;
		}
		step = netlink_step(h.nlmsg_len, len);
		if (!step)
			break;
		len -= step;
		p += step;
	}
	return -1;
}

bool director_unread(int code)
{
	return code == EPIPE || code == ECONNRESET;
}

/* 0, an errno, or -1: a director that ended has not read the request. */
static int converse(int fd, const struct request *r, answer_fn *each, void *ctx)
{
	uint8_t buf[DATAGRAM_MAX];
	bool begun = false;
	ssize_t n;
	int code;

	do
		n = REAL(send)(fd, r->buf, r->len, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	while (n >= 0) {
		n = REAL(recv)(fd, buf, sizeof(buf), MSG_TRUNC);
		if (n < 0 && errno == EINTR) {
			n = 0;
			continue;
		}
		if (n == 0)
			return ECONNREFUSED;
		if (n > (ssize_t)sizeof(buf))
			return EPROTO;
		if (n > 0) {
			begun = true;
			director_answered(true);
			code = messages(buf, (size_t)n, each, ctx);
			if (code >= 0)
				return code;
		}
	}
	if (errno == EAGAIN) {
		director_answered(false);
		return ETIMEDOUT;
	}
	if (director_unread(errno))
		return begun ? ECONNREFUSED : -1;
	return errno;
}

int director_ask(struct request *r, answer_fn *each, void *ctx)
{
	uint32_t len = (uint32_t)r->len;
	int fd, code = -1, flags;

	if (r->len > sizeof(r->buf))
		return E2BIG;
	memcpy(r->buf, &len, sizeof(len)); /* nlmsg_len comes first */
	for (int tries = 0; code < 0 && tries < TRIES; tries++) {
		fd = director_connect();
		if (fd < 0)
			return errno;
		flags = fcntl(fd, F_GETFL);
		fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
		set_limit(fd);
		code = converse(fd, r, each, ctx);
		REAL(close)(fd);
	}
	return code < 0 ? ECONNREFUSED : code;
}

/* Sockets and sysctls that came through an exec are known by what they are. */
static void adopt(void)
{
	DIR *dir = REAL(opendir)("/proc/self/fd");
	const struct dirent *e;
	int fd;

	if (!dir)
		return;
	while ((e = REAL(readdir)(dir))) {
		fd = atoi(e->d_name);
		if (e->d_name[0] != '.' && fd != dirfd(dir)) {
			peer_adopt(fd);
			knob_adopt(fd);
		}
	}
	REAL(closedir)(dir);
}

/* Seconds of the environment as ms; what is no number of them changes nothing. */
static void set_from(const char *name, int64_t *ms)
{
	const char *text = getenv(name);
	char *end = NULL;
	double seconds = text ? strtod(text, &end) : -1;

	if (text && end > text && seconds >= 0 && seconds < 1e6)
		*ms = (int64_t)(seconds * 1000);
}

__attribute__((constructor)) static void start(void)
{
	const char *where = getenv("UVS_SOCKET");

	if (where && strlen(where) < sizeof(path))
		memcpy(path, where, strlen(where) + 1);
	set_from("UVS_TIMEOUT", &patience);
	set_from("UVS_RESTART", &restart);
	exec_start();
	adopt();
}
