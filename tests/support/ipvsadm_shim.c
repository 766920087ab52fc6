/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A test's way to let the real ipvsadm speak to a director: its generic netlink sockets become
 * connections to the Unix socket UVS_SOCKET, /proc/net/ip_vs_conn the file UVS_TEST_CONNS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS 1024
static char ours[FDS];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OURS(fd) ((fd) >= 0 && (fd) < FDS && ours[fd])

int socket(int domain, int type, int protocol)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd;

	if (domain != AF_NETLINK || protocol != NETLINK_GENERIC)
		return REAL(socket)(domain, type, protocol);
	fd = REAL(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || fd >= FDS)
		return -1;
	strncpy(to.sun_path, getenv("UVS_SOCKET"), sizeof(to.sun_path) - 1);
	if (REAL(connect)(fd, (struct sockaddr *)&to, sizeof(to))) {
		close(fd);
		return -1;
	}
	ours[fd] = 1;
	return fd;
}

int close(int fd)
{
	if (OURS(fd))
		ours[fd] = 0;
	return REAL(close)(fd);
}

int bind(int fd, const struct sockaddr *a, socklen_t n)
{
	return OURS(fd) ? 0 : REAL(bind)(fd, a, n);
}

int setsockopt(int fd, int level, int name, const void *v, socklen_t n)
{
	return OURS(fd) ? 0 : REAL(setsockopt)(fd, level, name, v, n);
}

int getsockname(int fd, struct sockaddr *a, socklen_t *n)
{
	struct sockaddr_nl nl = { .nl_family = AF_NETLINK, .nl_pid = (unsigned)getpid() };

	if (!OURS(fd))
		return REAL(getsockname)(fd, a, n);
	memcpy(a, &nl, *n < sizeof(nl) ? *n : sizeof(nl));
	*n = sizeof(nl);
	return 0;
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct msghdr copy = *m;

	if (OURS(fd)) {
		copy.msg_name = NULL;
		copy.msg_namelen = 0;
		flags |= MSG_NOSIGNAL;
	}
	return REAL(sendmsg)(fd, &copy, flags);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	struct sockaddr_nl nl = { .nl_family = AF_NETLINK };
	void *name = m->msg_name;
	socklen_t room = m->msg_namelen;
	ssize_t n;

	if (!OURS(fd))
		return REAL(recvmsg)(fd, m, flags);
	m->msg_name = NULL;
	m->msg_namelen = 0;
	n = REAL(recvmsg)(fd, m, flags);
	m->msg_name = name;
	if (name && room >= sizeof(nl)) {
		memcpy(name, &nl, sizeof(nl));
		m->msg_namelen = sizeof(nl);
	}
	return n;
}

FILE *fopen(const char *path, const char *mode)
{
	const char *conns = getenv("UVS_TEST_CONNS");

	if (conns && !strcmp(path, "/proc/net/ip_vs_conn"))
		path = conns;
	return REAL(fopen)(path, mode);
}
