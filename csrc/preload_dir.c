/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Directories that are listed: /proc/net and /proc/sys/net/ipv4 have what is the director's besides their own,
 * and /proc/sys/net/ipv4/vs, which the kernel does not have, is its neighbour with other names in it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

/* What tells the descriptor of /proc/sys/net/ipv4/vs from its neighbour's: a setting of the open file, which
 * dup, fork and exec keep, and which means nothing unless O_ASYNC is asked for. */
#define MARK 61

struct listing {
	struct listing *next;
	DIR *dir;
	enum kind kind;
	char *names; /* one after the other, each with its 0, and an empty one */
	size_t at;   /* the next one */
	union {
		struct dirent plain;
		struct dirent64 large;
	} entry;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listing *listings;

bool knobs_marked(int fd)
{
	int saved = errno;
	bool found = fcntl(fd, F_GETSIG) == MARK;

	errno = saved;
	return found;
}

int knobs_open(int flags)
{
	int fd = REAL(open)(KNOBS_NEIGHBOUR, flags);

	if (fd >= 0)
		fcntl(fd, F_SETSIG, MARK);
	return fd;
}

/* ---- names */

struct names {
	char *text;
	size_t len;
};

static int add(void *ctx, uint16_t type, const void *data, size_t len)
{
	struct names *n = ctx;
	char *grown;

	if (type != ATTR_NAME || !len || len > LABEL)
		return 0;
	grown = realloc(n->text, n->len + len + 2);
	if (!grown)
		return ENOMEM;
	n->text = grown;
	memcpy(n->text + n->len, data, len);
	n->text[n->len + len] = 0;
	n->len += strlen(n->text + n->len) + 1;
	n->text[n->len] = 0;
	return 0;
}

/* The names that a directory has from us; NULL with errno. */
static char *names_of(enum kind kind)
{
	struct names n = { NULL, 0 };
	struct request r;
	int code = 0;

	if (kind == IPV4_DIR)
		code = add(&n, ATTR_NAME, "vs", 2);
	for (size_t i = 0; kind == NET_DIR && !code && proc_texts[i]; i++)
		code = add(&n, ATTR_NAME, proc_texts[i], strlen(proc_texts[i]));
	if (kind == KNOB_DIR) {
		request_begin(&r, CMD_GET_SYSCTL, true);
		code = director_ask(&r, add, &n);
		code = code == EPERM ? EACCES : code;
	}
	if (!code && n.text)
		return n.text;
	free(n.text);
	errno = code ? code : ENOENT;
	return NULL;
}

static bool named(const struct listing *l, const char *name)
{
	for (const char *p = l->names; *p; p += strlen(p) + 1) {
		if (!strcmp(p, name))
			return true;
	}
	return false;
}

/* Is this entry of the kernel's shown? */
static bool shown(const struct listing *l, const char *name)
{
	return l->kind == KNOB_DIR ? !strcmp(name, ".") || !strcmp(name, "..") : !named(l, name);
}

/* ---- streams */

static struct listing *find(DIR *dir)
{
	struct listing *l;

	if (!__atomic_load_n(&listings, __ATOMIC_ACQUIRE))
		return NULL;
	pthread_mutex_lock(&lock);
	for (l = listings; l && l->dir != dir; l = l->next)
		;
	pthread_mutex_unlock(&lock);
	return l;
}

/* Attend to a stream if it is of such a directory; NULL with errno if that failed: it is closed. */
static DIR *begin(DIR *dir)
{
	enum kind kind = dir ? directory(dirfd(dir)) : NEITHER;
	struct listing *l;
	int code;

	if (kind == NEITHER)
		return dir;
	l = calloc(1, sizeof(*l));
	if (!l || !(l->names = names_of(kind))) {
		code = l ? errno : ENOMEM;
		free(l);
		REAL(closedir)(dir);
		errno = code;
		return NULL;
	}
	l->dir = dir;
	l->kind = kind;
	pthread_mutex_lock(&lock);
	l->next = listings;
	__atomic_store_n(&listings, l, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return dir;
}

EXPORT DIR *opendir(const char *path)
{
	struct target t = target(AT_FDCWD, path);
	int fd;
	DIR *dir;

	if (t.kind != KNOB_DIR)
		return begin(REAL(opendir)(path));
	fd = knobs_open(O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : REAL(fdopendir)(fd);
	if (!dir && fd >= 0)
		REAL(close)(fd);
	return begin(dir);
}

EXPORT DIR *fdopendir(int fd)
{
	return begin(REAL(fdopendir)(fd));
}

/* The next name of ours, put into the stream's entry: NULL if there is no more. */
#define NEXT(l, e)                                                            \
	({                                                                    \
		const char *name_ = (l)->names + (l)->at;                     \
		if (*name_) {                                                 \
			(l)->at += strlen(name_) + 1;                         \
			memset(&(e), 0, sizeof(e));                           \
			(e).d_ino = 1 + (l)->at;                              \
			(e).d_off = (e).d_ino;                                \
			(e).d_reclen = sizeof(e);                             \
			(e).d_type = (l)->kind == IPV4_DIR ? DT_DIR : DT_REG; \
			strcpy((e).d_name, name_);                            \
		}                                                             \
		*name_ ? &(e) : NULL;                                         \
	})

#define READDIR(name, type, member)                            \
	EXPORT struct type *name(DIR *dir)                     \
	{                                                      \
		struct listing *l = find(dir);                 \
		struct type *e = REAL(name)(dir);              \
                                                               \
		while (l && e && !shown(l, e->d_name))         \
			e = REAL(name)(dir);                   \
		return !l || e ? e : NEXT(l, l->entry.member); \
	}

READDIR(readdir, dirent, plain)
READDIR(readdir64, dirent64, large)

EXPORT void rewinddir(DIR *dir)
{
	struct listing *l = find(dir);

	if (l)
		l->at = 0;
	REAL(rewinddir)(dir);
}

EXPORT int closedir(DIR *dir)
{
	struct listing *l = find(dir), **at = &listings;

	if (l) {
		pthread_mutex_lock(&lock);
		while (*at != l)
			at = &(*at)->next;
		*at = l->next;
		pthread_mutex_unlock(&lock);
		free(l->names);
		free(l);
	}
	return REAL(closedir)(dir);
}
