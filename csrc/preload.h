/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The LD_PRELOAD shim of `uvs exec`: what its parts know of each other.
 *
 * preload.c        generic netlink: the calls on sockets
 * preload_peer.c   the sockets that were moved to the director, and how they outlive it
 * preload_wait.c   poll, select, epoll: a wait for an answer ends in time
 * preload_link.c   one connection to the director, one request
 * preload_path.c   which paths are the director's: /proc/net/ip_vs*, /proc/sys/net/ipv4/vs
 * preload_files.c  these files, opened
 * preload_dir.c    directories that are listed
 * preload_knob.c   sysctls that are written
 * preload_stat.c   questions about them
 * preload_exec.c   programs that are started go on with the shim
 */
#ifndef UVS_PRELOAD_H
#define UVS_PRELOAD_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

/* libc's function of that name, whatever we call ours. */
#define REAL(name)                                                                \
	({                                                                        \
		static __typeof__(&name) real_;                                   \
		__typeof__(&name) f_ = __atomic_load_n(&real_, __ATOMIC_RELAXED); \
		if (!f_) {                                                        \
			f_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);          \
			__atomic_store_n(&real_, f_, __ATOMIC_RELAXED);           \
		}                                                                 \
		f_;                                                               \
	})

/* From one message or attribute of `len` bytes to the next, of `left` bytes: 0 if there is none.  NLMSG_ALIGN
 * would say 0 of a length near 2^32: the reader would stand still. */
static inline size_t netlink_step(size_t len, size_t left)
{
	size_t step = (len + 3) & ~(size_t)3;

	return step < left ? step : 0;
}

/* ---- preload_link.c */

/* Ids and numbers of uvs/control/genetlink.py and extension.py; tests/unit/test_exec.py compares them. */
enum {
	UVS_FAMILY = 1102
};
enum {
	CMD_GET_SYSCTL = 1,
	CMD_SET_SYSCTL = 2,
	CMD_GET_PROC = 8,
	CMD_SET_SOCKOPT = 9,
	CMD_GET_SOCKOPT = 10
};
enum {
	ATTR_NAME = 1,
	ATTR_VALUE = 2,
	ATTR_TEXT = 7,
	ATTR_SOCKOPT = 8,
	ATTR_DATA = 9
};

/* Milliseconds of the monotonic clock. */
int64_t now_ms(void);

/* How long an answer may take, ms: UVS_TIMEOUT, but one second once the director has not answered. */
int64_t patience_ms(void);
void director_answered(bool in_time);

/* The inode of a socket, 0 if it is none. */
ino_t inode(int fd);

/* A connection to the director, close-on-exec, or -1 with errno ECONNREFUSED, ETIMEDOUT, EPERM...
 * Where none listens it is waited for, UVS_RESTART seconds, once: not again until there was one. */
int director_connect(void);

/* Does this errno of a connection say that the director ended and what was sent last had not been read? The
 * kernel tells it from the end of file (unix_release_sock): such a request may be sent again. */
bool director_unread(int code);

/* The path of its socket, or "" if the environment does not tell. */
const char *director_path(void);

/* One request of family UVS, with room for attributes. */
struct request {
	size_t len;
	uint8_t buf[4096];
};

void request_begin(struct request *r, uint8_t cmd, bool dump);
/* Add an attribute; one that does not fit makes director_ask fail with E2BIG. */
void request_add(struct request *r, uint16_t type, const void *data, size_t len);

/* Called for each attribute of the answers; nonzero ends it with that errno. */
typedef int answer_fn(void *ctx, uint16_t type, const void *data, size_t len);

/* Ask and wait: 0, or the errno that the director or the way to it gave. */
int director_ask(struct request *r, answer_fn *each, void *ctx);

/* ---- preload.c */

/* Is it a generic netlink socket of the kernel? */
bool is_genl(int fd);

/* ---- preload_peer.c */

/* Is a moved socket behind this descriptor? */
bool peer_has(int fd);

/* Move a netlink socket to the director (or to a place where errors wait, if there is none). */
bool peer_move(int fd);

/* Send a datagram of requests from a moved socket; always succeeds: a failure becomes the answer. */
ssize_t peer_send(int fd, const struct msghdr *msg, int flags);

/* Receive from a moved socket; never end of file, and no wait longer than patience for an answer. */
ssize_t peer_recv(int fd, struct msghdr *msg, int flags);

/* The netlink address that the socket had before it was moved. */
uint32_t peer_port(int fd);

/* Milliseconds until a request has been waited for long enough; -1: none is under way. */
int peer_due(void);
/* Answer, with ETIMEDOUT, those that are due. */
void peer_expire(void);

/* ---- preload_wait.c */

/* Another socket stands where `was` stood: put it into the epoll sets that the old one left. */
void watch_moved(ino_t was, ino_t now);

/* ---- preload_knob.c */

enum {
	LABEL = 63,
	VALUE = 255
}; /* bytes of a name and of a value */
#define KNOB_MARK "uvs-sysctl:" /* begins the name of a file in memory that sets a sysctl */

/* The value of a sysctl with its newline: 0 or an errno. */
int knob_get(const char *name, char value[VALUE + 2]);

/* What is written to this file from now on is for that sysctl; `known`: what it holds. */
void knob_keep(int fd, const char *name, const char *known);

/* A write to a sysctl; false: fd is none. */
bool knob_write(int fd, const void *data, size_t len, ssize_t *result);

/* ---- preload_path.c */

enum kind {
	NEITHER,
	TEXT, /* /proc/net/ip_vs* */
	KNOB, /* in /proc/sys/net/ipv4/vs */
	KNOB_DIR, /* that directory */
	NET_DIR, /* /proc/net */
	IPV4_DIR /* /proc/sys/net/ipv4 */
};

struct target {
	enum kind kind;
	char name[LABEL + 1]; /* of a TEXT or KNOB */
};

/* TEXT, KNOB or KNOB_DIR, if the path, which may be relative to a directory's descriptor, leads there. */
struct target target(int dir, const char *path);

/* KNOB_DIR, NET_DIR or IPV4_DIR, if the descriptor is of that directory. */
enum kind directory(int fd);

/* The file that looks like the director's of that name; other paths as they are. */
const char *neighbour(int dir, const char *path);

/* The names in /proc/net, NULL at the end. */
extern const char *const proc_texts[];

/* ---- preload_dir.c */

#define KNOBS_NEIGHBOUR "/proc/sys/net/ipv4/conf" /* looks like /proc/sys/net/ipv4/vs */

/* A descriptor that stands for /proc/sys/net/ipv4/vs. */
int knobs_open(int flags);
bool knobs_marked(int fd);

/* ---- once per process */
void peer_adopt(int fd);
void knob_adopt(int fd);
void exec_start(void);

#endif
