/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Questions about the files that preload_files.c serves: they look like their neighbours in /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "preload.h"

#define STAT(name, type)                                          \
	EXPORT int name(const char *path, type *st)               \
	{                                                         \
		return REAL(name)(neighbour(AT_FDCWD, path), st); \
	}

STAT(stat, struct stat)
STAT(lstat, struct stat)
STAT(stat64, struct stat64)
STAT(lstat64, struct stat64)

EXPORT int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	return REAL(fstatat)(dir, neighbour(dir, path), st, flags);
}

EXPORT int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return REAL(fstatat64)(dir, neighbour(dir, path), st, flags);
}

EXPORT int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
	return REAL(statx)(dir, neighbour(dir, path), flags, mask, st);
}

/* Programs built for a glibc before 2.33 call these. */
#define XSTAT(name, type)                                                  \
	int name(int version, const char *path, type *st);                 \
	EXPORT int name(int version, const char *path, type *st)           \
	{                                                                  \
		return REAL(name)(version, neighbour(AT_FDCWD, path), st); \
	}

XSTAT(__xstat, struct stat)
XSTAT(__lxstat, struct stat)
XSTAT(__xstat64, struct stat64)
XSTAT(__lxstat64, struct stat64)

/* procps' sysctl asks where the name really leads. */
EXPORT char *realpath(const char *path, char *into)
{
	if (!path || neighbour(AT_FDCWD, path) == path)
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
	return REAL(access)(neighbour(AT_FDCWD, path), mode);
}

EXPORT int faccessat(int dir, const char *path, int mode, int flags)
{
	return REAL(faccessat)(dir, neighbour(dir, path), mode, flags);
}

EXPORT int eaccess(const char *path, int mode)
{
	return REAL(eaccess)(neighbour(AT_FDCWD, path), mode);
}

EXPORT int euidaccess(const char *path, int mode)
{
	return REAL(euidaccess)(neighbour(AT_FDCWD, path), mode);
}

/* ls -l asks for access lists. */
EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t len)
{
	return REAL(getxattr)(neighbour(AT_FDCWD, path), name, value, len);
}

EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t len)
{
	return REAL(lgetxattr)(neighbour(AT_FDCWD, path), name, value, len);
}

EXPORT ssize_t listxattr(const char *path, char *list, size_t len)
{
	return REAL(listxattr)(neighbour(AT_FDCWD, path), list, len);
}

EXPORT ssize_t llistxattr(const char *path, char *list, size_t len)
{
	return REAL(llistxattr)(neighbour(AT_FDCWD, path), list, len);
}
