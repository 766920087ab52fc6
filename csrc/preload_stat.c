/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Questions about the files that preload_files.c serves: they look like their neighbours in /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload.h"

#define STAT(name, type)                                \
	EXPORT int name(const char *path, type *st)     \
	{                                               \
		return REAL(name)(neighbour(path), st); \
	}

STAT(stat, struct stat)
STAT(lstat, struct stat)
STAT(stat64, struct stat64)
STAT(lstat64, struct stat64)

EXPORT int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	return REAL(fstatat)(dir, neighbour(path), st, flags);
}

EXPORT int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return REAL(fstatat64)(dir, neighbour(path), st, flags);
}

EXPORT int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
	return REAL(statx)(dir, neighbour(path), flags, mask, st);
}

/* Programs built for a glibc before 2.33 call these. */
#define XSTAT(name, type)                                        \
	int name(int version, const char *path, type *st);       \
	EXPORT int name(int version, const char *path, type *st) \
	{                                                        \
		return REAL(name)(version, neighbour(path), st); \
	}

XSTAT(__xstat, struct stat)
XSTAT(__lxstat, struct stat)
XSTAT(__xstat64, struct stat64)
XSTAT(__lxstat64, struct stat64)

/* procps' sysctl asks where the name really leads. */
EXPORT char *realpath(const char *path, char *into)
{
	if (!path || neighbour(path) == path)
		return REAL(realpath)(path, into);
	return into ? strcpy(into, path) : strdup(path);
}

char *__realpath_chk(const char *path, char *into, size_t room);
EXPORT char *__realpath_chk(const char *path, char *into, size_t room)
{
	return room < PATH_MAX ? REAL(__realpath_chk)(path, into, room) : realpath(path, into);
}

EXPORT int access(const char *path, int mode)
{
	return REAL(access)(neighbour(path), mode);
}

EXPORT int faccessat(int dir, const char *path, int mode, int flags)
{
	return REAL(faccessat)(dir, neighbour(path), mode, flags);
}

EXPORT int eaccess(const char *path, int mode)
{
	return REAL(eaccess)(neighbour(path), mode);
}

EXPORT int euidaccess(const char *path, int mode)
{
	return REAL(euidaccess)(neighbour(path), mode);
}
