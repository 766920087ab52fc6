/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * /proc/net/ip_vs* and /proc/sys/net/ipv4/vs: the director's texts as files in memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "preload.h"

/* ---- what the director has */

static int to_file(void *ctx, uint16_t type, const void *data, size_t len)
{
	const char *at = data;
	ssize_t n;

	if (type != ATTR_TEXT)
		return 0;
	while (len) {
		n = REAL(write)(*(int *)ctx, at, len);
		if (n < 0 && errno != EINTR)
			return errno;
		at += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* ---- opening */

static int in_memory(const char *mark, const char *name, int flags)
{
	char label[128];

	snprintf(label, sizeof(label), "%s%s", mark, name);
	return memfd_create(label, flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
}

static int refused(int fd, int code)
{
	if (fd >= 0)
		REAL(close)(fd);
	errno = code == EPERM ? EACCES : code;
	return -1;
}

static int open_text(const char *name, int flags)
{
	struct request r;
	int fd, code;

	if ((flags & O_ACCMODE) != O_RDONLY)
		return refused(-1, EACCES);
	fd = in_memory("", name, flags);
	if (fd < 0)
		return -1;
	request_begin(&r, CMD_GET_PROC, true);
	request_add(&r, ATTR_NAME, name, strlen(name) + 1);
	code = director_ask(&r, to_file, &fd);
	if (code)
		return refused(fd, code);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

static int open_knob(const char *name, int flags)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY;
	char value[VALUE + 2];
	int fd, code = knob_get(name, value);

	if (code)
		return refused(-1, code);
	if ((flags & O_ACCMODE) == O_WRONLY)
		value[0] = 0;
	fd = in_memory(writes ? KNOB_MARK : "", name, flags);
	if (fd < 0)
		return -1;
	if (REAL(write)(fd, value, strlen(value)) < 0)
		return refused(fd, errno);
	lseek(fd, 0, SEEK_SET);
	if (writes)
		knob_keep(fd, name, value);
	return fd;
}

/* Opens what is ours; false: it is not. */
static bool opened(int dir, const char *path, int flags, int *fd)
{
	struct target t = target(dir, path);

	if (t.kind == NEITHER)
		return false;
	if (t.kind == KNOB_DIR)
		*fd = knobs_open(flags);
	else if (flags & O_DIRECTORY)
		*fd = refused(-1, ENOTDIR);
	else
		*fd = t.kind == TEXT ? open_text(t.name, flags) : open_knob(t.name, flags);
	return true;
}

#define MODE_OF(flags)                                   \
	({                                               \
		mode_t mode_ = 0;                        \
		if ((flags) & (O_CREAT | __O_TMPFILE)) { \
			va_list ap_;                     \
			va_start(ap_, flags);            \
			mode_ = va_arg(ap_, mode_t);     \
			va_end(ap_);                     \
		}                                        \
		mode_;                                   \
	})

#define OPEN(name)                                                                              \
	EXPORT int name(const char *path, int flags, ...)                                       \
	{                                                                                       \
		mode_t mode = MODE_OF(flags);                                                   \
		int fd;                                                                         \
                                                                                                \
		return opened(AT_FDCWD, path, flags, &fd) ? fd : REAL(name)(path, flags, mode); \
	}

#define OPENAT(name)                                                                            \
	EXPORT int name(int dir, const char *path, int flags, ...)                              \
	{                                                                                       \
		mode_t mode = MODE_OF(flags);                                                   \
		int fd;                                                                         \
                                                                                                \
		return opened(dir, path, flags, &fd) ? fd : REAL(name)(dir, path, flags, mode); \
	}

#define OPEN_2(name)                                                                      \
	int name(const char *path, int flags);                                            \
	EXPORT int name(const char *path, int flags)                                      \
	{                                                                                 \
		int fd;                                                                   \
                                                                                          \
		return opened(AT_FDCWD, path, flags, &fd) ? fd : REAL(name)(path, flags); \
	}

#define OPENAT_2(name)                                                                    \
	int name(int dir, const char *path, int flags);                                   \
	EXPORT int name(int dir, const char *path, int flags)                             \
	{                                                                                 \
		int fd;                                                                   \
                                                                                          \
		return opened(dir, path, flags, &fd) ? fd : REAL(name)(dir, path, flags); \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

/* ---- stdio: libc writes such a file by itself, so a writable one is a stream of our own */

static ssize_t stream_read(void *cookie, char *buf, size_t len)
{
	return REAL(read)((int)(intptr_t)cookie, buf, len);
}

static ssize_t stream_write(void *cookie, const char *buf, size_t len)
{
	ssize_t n = 0;

	if (!knob_write((int)(intptr_t)cookie, buf, len, &n))
		return 0;
	return n < 0 ? 0 : n; /* 0 is how a stream's function says that it failed */
}

static int stream_seek(void *cookie, off64_t *at, int whence)
{
	*at = lseek64((int)(intptr_t)cookie, *at, whence);
	return *at < 0 ? -1 : 0;
}

static int stream_close(void *cookie)
{
	return close((int)(intptr_t)cookie);
}

static bool fopened(const char *path, const char *mode, FILE **file)
{
	static const cookie_io_functions_t functions = { stream_read, stream_write, stream_seek,
							 stream_close };
	struct target t = target(AT_FDCWD, path);
	bool plus = mode && strchr(mode, '+');
	int flags = plus ? O_RDWR : mode && mode[0] == 'r' ? O_RDONLY : O_WRONLY, fd;

	if ((t.kind != TEXT && t.kind != KNOB) || !mode)
		return false;
	if (strchr(mode, 'e'))
		flags |= O_CLOEXEC;
	*file = NULL;
	if (!opened(AT_FDCWD, path, flags, &fd) || fd < 0)
		return true;
	*file = (flags & O_ACCMODE) == O_RDONLY
			? fdopen(fd, "r")
			: fopencookie((void *)(intptr_t)fd, plus ? "r+" : "w", functions);
	if (!*file)
		REAL(close)(fd);
	return true;
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	FILE *file;

	return fopened(path, mode, &file) ? file : REAL(fopen)(path, mode);
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
	FILE *file;

	return fopened(path, mode, &file) ? file : REAL(fopen64)(path, mode);
}
