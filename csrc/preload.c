/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The LD_PRELOAD shim of `uvs exec`: unmodified programs speak to a director instead of ip_vs.
 *
 * A generic netlink socket stays the kernel's until the family IPVS (or UVS) is asked for on it; then it
 * is moved to the director. Every other socket, rtnetlink and other families among them, is left alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload.h"

enum {
	IP_VS_FIRST = 1152,
	IP_VS_LAST = IP_VS_FIRST + 63
}; /* IP_VS_BASE_CTL of linux/ip_vs.h */
enum {
	SOCKOPT_HEAD = 104
}; /* HEAD of uvs/control/sockopt.py */

ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags, struct sockaddr *from,
		       socklen_t *n);
ssize_t __read_chk(int fd, void *buf, size_t len, size_t room);

/* ---- what is sent: does it ask for our family? */

/* The first `room` bytes of a message. */
static size_t gather(const struct msghdr *msg, uint8_t *into, size_t room)
{
	size_t done = 0, len;

	for (size_t i = 0; i < msg->msg_iovlen && done < room; i++) {
		len = msg->msg_iov[i].iov_len;
		if (len > room - done)
			len = room - done;
		if (len)
			memcpy(into + done, msg->msg_iov[i].iov_base, len);
		done += len;
	}
	return done;
}

static bool named(const uint8_t *p, size_t len, const char *name)
{
	size_t n = strlen(name);

	return len >= n && !memcmp(p, name, n) && (len == n || p[n] == 0);
}

/* CTRL_CMD_GETFAMILY by the name of one of the director's families. */
static bool asks_for_us(const struct msghdr *msg)
{
	uint8_t buf[256];
	size_t len = gather(msg, buf, sizeof(buf)), at = NLMSG_HDRLEN + GENL_HDRLEN;
	struct nlmsghdr h;
	struct nlattr a;

	if (len < at)
		return false;
	memcpy(&h, buf, sizeof(h));
	if (h.nlmsg_type != GENL_ID_CTRL || buf[NLMSG_HDRLEN] != CTRL_CMD_GETFAMILY)
		return false;
	while (at + NLA_HDRLEN <= len) {
		memcpy(&a, buf + at, sizeof(a));
		if (a.nla_len < NLA_HDRLEN || a.nla_len > len - at)
			return false;
		if ((a.nla_type & NLA_TYPE_MASK) == CTRL_ATTR_FAMILY_NAME) {
			const uint8_t *name = buf + at + NLA_HDRLEN;

			return named(name, a.nla_len - NLA_HDRLEN, "IPVS") ||
			       named(name, a.nla_len - NLA_HDRLEN, "UVS");
		}
		at += NLA_ALIGN(a.nla_len);
	}
	return false;
}

bool is_genl(int fd)
{
	int domain = 0, protocol = -1;
	socklen_t n = sizeof(int), m = sizeof(int);

	return REAL(getsockopt)(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 && domain == AF_NETLINK &&
	       REAL(getsockopt)(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &m) == 0 &&
	       protocol == NETLINK_GENERIC;
}

/* Is, or becomes, this socket the director's? */
static bool ours(int fd, const struct msghdr *msg)
{
	return peer_has(fd) || (asks_for_us(msg) && is_genl(fd) && peer_move(fd));
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return msg && ours(fd, msg) ? peer_send(fd, msg, flags) : REAL(sendmsg)(fd, msg, flags);
}

EXPORT ssize_t sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to, socklen_t n)
{
	struct iovec iov = { (void *)(uintptr_t)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	return buf && ours(fd, &msg) ? peer_send(fd, &msg, flags) : REAL(sendto)(fd, buf, len, flags, to, n);
}

EXPORT ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	struct iovec iov = { (void *)(uintptr_t)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	return buf && ours(fd, &msg) ? peer_send(fd, &msg, flags) : REAL(send)(fd, buf, len, flags);
}

EXPORT ssize_t write(int fd, const void *buf, size_t len)
{
	struct iovec iov = { (void *)(uintptr_t)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (buf && knob_write(fd, buf, len, &n))
		return n;
	return buf && len >= NLMSG_HDRLEN && ours(fd, &msg) ? peer_send(fd, &msg, 0)
							    : REAL(write)(fd, buf, len);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *vec, unsigned count, int flags)
{
	unsigned i;
	ssize_t n;

	if (!count || !ours(fd, &vec[0].msg_hdr))
		return REAL(sendmmsg)(fd, vec, count, flags);
	for (i = 0; i < count; i++) {
		n = peer_send(fd, &vec[i].msg_hdr, flags);
		if (n < 0)
			break;
		vec[i].msg_len = (unsigned)n;
	}
	return i ? (int)i : -1;
}

/* ---- what is received */

EXPORT ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	return msg && peer_has(fd) ? peer_recv(fd, msg, flags) : REAL(recvmsg)(fd, msg, flags);
}

static ssize_t receive(int fd, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *room)
{
	struct iovec iov = { buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (from && room) {
		msg.msg_name = from;
		msg.msg_namelen = *room;
	}
	n = peer_recv(fd, &msg, flags);
	if (n >= 0 && from && room)
		*room = msg.msg_namelen;
	return n;
}

EXPORT ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *from, socklen_t *room)
{
	return peer_has(fd) ? receive(fd, buf, len, flags, from, room)
			    : REAL(recvfrom)(fd, buf, len, flags, from, room);
}

EXPORT ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	return peer_has(fd) ? receive(fd, buf, len, flags, NULL, NULL) : REAL(recv)(fd, buf, len, flags);
}

EXPORT ssize_t read(int fd, void *buf, size_t len)
{
	return peer_has(fd) ? receive(fd, buf, len, 0, NULL, NULL) : REAL(read)(fd, buf, len);
}

EXPORT int recvmmsg(int fd, struct mmsghdr *vec, unsigned count, int flags, struct timespec *limit)
{
	ssize_t n;

	if (!count || !peer_has(fd))
		return REAL(recvmmsg)(fd, vec, count, flags, limit);
	n = peer_recv(fd, &vec[0].msg_hdr, flags & ~MSG_WAITFORONE);
	if (n < 0)
		return -1;
	vec[0].msg_len = (unsigned)n;
	return 1;
}

/* What -D_FORTIFY_SOURCE makes of them; `room` is how large the buffer is. */
EXPORT ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags)
{
	return peer_has(fd) && len <= room ? recv(fd, buf, len, flags)
					   : REAL(__recv_chk)(fd, buf, len, room, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t room, int flags, struct sockaddr *from,
			      socklen_t *n)
{
	return peer_has(fd) && len <= room ? recvfrom(fd, buf, len, flags, from, n)
					   : REAL(__recvfrom_chk)(fd, buf, len, room, flags, from, n);
}

EXPORT ssize_t __read_chk(int fd, void *buf, size_t len, size_t room)
{
	return peer_has(fd) && len <= room ? read(fd, buf, len) : REAL(__read_chk)(fd, buf, len, room);
}

/* ---- what a netlink socket is asked besides */

EXPORT int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	return peer_has(fd) ? 0 : REAL(bind)(fd, addr, len);
}

EXPORT int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	return peer_has(fd) ? 0 : REAL(connect)(fd, addr, len);
}

static int address(struct sockaddr *addr, socklen_t *len, uint32_t port)
{
	struct sockaddr_nl nl = { .nl_family = AF_NETLINK, .nl_pid = port };

	memcpy(addr, &nl, *len < sizeof(nl) ? *len : sizeof(nl));
	*len = sizeof(nl);
	return 0;
}

EXPORT int getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	return addr && len && peer_has(fd) ? address(addr, len, peer_port(fd))
					   : REAL(getsockname)(fd, addr, len);
}

EXPORT int getpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	return addr && len && peer_has(fd) ? address(addr, len, 0) : REAL(getpeername)(fd, addr, len);
}

/* ---- options: of a moved socket, and the IPVS of before netlink */

static bool ip_vs(int level, int name)
{
	return level == IPPROTO_IP && name >= IP_VS_FIRST && name <= IP_VS_LAST;
}

static int ask(uint8_t cmd, int name, const void *value, size_t len, size_t size, answer_fn *each, void *ctx)
{
	uint32_t numbers[2] = { (uint32_t)name, (uint32_t)size };
	uint8_t buf[sizeof(numbers) + 512];
	struct request r;
	int code;

	if (len > sizeof(buf) - sizeof(numbers))
		code = EINVAL; /* no option is as large */
	else {
		memcpy(buf, numbers, sizeof(numbers));
		if (len)
			memcpy(buf + sizeof(numbers), value, len);
		request_begin(&r, cmd, each != NULL);
		request_add(&r, ATTR_SOCKOPT, buf, sizeof(numbers) + len);
		code = director_ask(&r, each, ctx);
	}
	if (!code)
		return 0;
	errno = code;
	return -1;
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (ip_vs(level, name))
		return ask(CMD_SET_SOCKOPT, name, value, len, len, NULL, NULL);
	if (level == SOL_NETLINK && peer_has(fd))
		return 0;
	return REAL(setsockopt)(fd, level, name, value, len);
}

struct answered {
	uint8_t *value;
	size_t at, room;
};

static int take(void *ctx, uint16_t type, const void *data, size_t len)
{
	struct answered *a = ctx;

	if (type != ATTR_DATA)
		return 0;
	if (len > a->room - a->at)
		return EPROTO;
	memcpy(a->value + a->at, data, len);
	a->at += len;
	return 0;
}

static int number(void *value, socklen_t *len, int is)
{
	memcpy(value, &is, *len < sizeof(is) ? *len : sizeof(is));
	*len = sizeof(is);
	return 0;
}

EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct answered a;

	if (value && len && ip_vs(level, name)) {
		a = (struct answered){ value, 0, *len };
		if (ask(CMD_GET_SOCKOPT, name, value, *len < SOCKOPT_HEAD ? *len : SOCKOPT_HEAD, *len, take,
			&a))
			return -1;
		if (name == IP_VS_FIRST) /* the version tells its length */
			*len = (socklen_t)a.at;
		return 0;
	}
	if (!value || !len || !peer_has(fd))
		return REAL(getsockopt)(fd, level, name, value, len);
	if (level == SOL_NETLINK)
		return number(value, len, 0);
	if (level == SOL_SOCKET && (name == SO_DOMAIN || name == SO_TYPE || name == SO_PROTOCOL))
		return number(value, len,
			      name == SO_DOMAIN ? AF_NETLINK
			      : name == SO_TYPE ? SOCK_RAW
						: NETLINK_GENERIC);
	return REAL(getsockopt)(fd, level, name, value, len);
}
