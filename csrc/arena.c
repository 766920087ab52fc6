/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * arena.c - the file behind the table: open, lock, set aside what is not ours, grow.
 *
 * Space is allocated before it is mapped: a store into a hole of a full tmpfs is
 * SIGBUS, ENOSPC from fallocate is only a full table.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "table.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#define SEGMENT_BYTES ((size_t)SEGMENT * UVS_RECORD_SIZE)

__attribute__((format(printf, 3, 4))) static bool fail(char *msg, size_t msglen, const char *fmt, ...)
{
	int err = errno;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, msglen, fmt, ap);
	va_end(ap);
	errno = err;
	return false;
}

static int allocate(int fd, off_t from, off_t len)
{
#ifdef __APPLE__
	static const uint8_t zero[65536];

	for (; len > 0; from += sizeof(zero), len -= sizeof(zero))
		if (pwrite(fd, zero, sizeof(zero), from) != (ssize_t)sizeof(zero))
			return errno ? errno : ENOSPC;
	return 0;
#else
	int err;

	do
		err = posix_fallocate(fd, from, len);
	while (err == EINTR);
	return err;
#endif
}

static bool map(struct uvs_table *t, uint32_t from, uint32_t to)
{
	size_t off = (size_t)from * UVS_RECORD_SIZE, len = (size_t)(to - from) * UVS_RECORD_SIZE;
	uint8_t *at = (uint8_t *)t->rec + off;
	int flags = MAP_FIXED | (t->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);

	return mmap(at, len, PROT_READ | PROT_WRITE, flags, t->fd, t->fd < 0 ? 0 : (off_t)off) != MAP_FAILED;
}

/* Random access to 4 KiB pages costs more in page walks than in cache misses, most of all in
 * a virtual machine.  Collapsing works on tmpfs whatever its settings; where it does not, small
 * pages do.  Not the first segment of private memory: most such tables are small, and
 * clearing 2 MiB takes longer than they live. */
static void huge(struct uvs_table *t, uint32_t from, uint32_t to)
{
#ifdef __linux__
	size_t len = (size_t)(to - from) * UVS_RECORD_SIZE;

	if (t->fd >= 0)
		(void)madvise(&t->rec[from], len, MADV_COLLAPSE);
	else if (from)
		(void)madvise(&t->rec[from], len, MADV_HUGEPAGE);
#else
	(void)t, (void)from, (void)to;
#endif
}

bool arena_grow(struct uvs_table *t)
{
	uint32_t to = t->records + SEGMENT;
	off_t size = (off_t)t->records * UVS_RECORD_SIZE;

	if (to > t->records_max || t->now < t->grow_again)
		return false;
	if (t->fd >= 0 && (errno = allocate(t->fd, size, SEGMENT_BYTES)) != 0)
		goto no_space;
	if (!map(t, t->records, to))
		goto no_space;
	huge(t, t->records, to);
	t->records = to;
	if (t->header)
		t->header->records = to;
	return true;

no_space:
	if (t->fd >= 0 && ftruncate(t->fd, size) < 0)
		errno = ENOSPC;
	t->grow_again = t->now + SECOND_NS; /* a full disk is not asked for every packet */
	return false;
}

static bool reserve(struct uvs_table *t, uint32_t records)
{
	size_t len = (size_t)records * UVS_RECORD_SIZE + SEGMENT_BYTES;
	uintptr_t at;

	t->reservation = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (t->reservation == MAP_FAILED) {
		t->reservation = NULL;
		return false;
	}
	t->reserved = len;
	t->records_max = records;
	at = ((uintptr_t)t->reservation + SEGMENT_BYTES - 1) & ~(uintptr_t)(SEGMENT_BYTES - 1);
	t->rec = (union record *)at;
	return true;
}

/* Why the file cannot be taken over, into `why`; false if it can.  `*records`: how many are in it. */
static bool unfit(int fd, const struct stat *st, const uint8_t *boot_id, uint32_t *records, char *why,
		  size_t len)
{
	struct arena_header h;

	if (st->st_uid != geteuid())
		return snprintf(why, len, "belongs to another user"), true;
	if (st->st_mode & 022 || st->st_nlink != 1)
		return snprintf(why, len, "can be written by others"), true;
	if (st->st_size == 0)
		return *records = 0, false;
	if (pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h))
		return snprintf(why, len, "is torn (%lld bytes)", (long long)st->st_size), true;
	if (h.magic != ARENA_MAGIC)
		return snprintf(why, len, "is not an arena"), true;
	if (h.layout != ARENA_LAYOUT)
		return snprintf(why, len, "has layout %u, not %u", h.layout, ARENA_LAYOUT), true;
	if (h.record_size != UVS_RECORD_SIZE)
		return snprintf(why, len, "has records of %u bytes, not %u", h.record_size, UVS_RECORD_SIZE),
		       true;
	if (memcmp(h.boot_id, boot_id, sizeof(h.boot_id)))
		return snprintf(why, len, "is of another boot"), true;
	if (h.records == 0 || h.records % SEGMENT || h.records > RECORDS_MAX ||
	    st->st_size < (off_t)h.records * UVS_RECORD_SIZE)
		return snprintf(why, len, "is torn (%lld bytes)", (long long)st->st_size), true;
	*records = h.records;
	return false;
}

static bool set_aside(const char *path, const char *why, char *msg, size_t msglen)
{
	size_t len = strlen(path) + sizeof(".aside");
	char *aside = malloc(len);
	int err;

	if (!aside)
		return fail(msg, msglen, "no memory");
	snprintf(aside, len, "%s.aside", path);
	err = rename(path, aside) ? errno : 0;
	if (err)
		snprintf(msg, msglen, "arena %s %s, and cannot be set aside as %s: %s", path, why, aside,
			 strerror(err));
	else
		snprintf(msg, msglen, "arena %s %s: set aside as %s, starting with an empty table", path, why,
			 aside);
	free(aside);
	errno = err;
	return err == 0;
}

/* Open and lock the file, or a fresh one in its place.  `*records` 0: it is fresh. */
static bool open_file(struct uvs_table *t, const char *path, const uint8_t *boot_id, uint32_t *records,
		      char *msg, size_t msglen)
{
	int tries, flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
	struct stat st, now;
	char why[80];

	for (tries = 0; tries < 4; tries++) {
		if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
			const char *what =
				S_ISLNK(st.st_mode) ? "is a symbolic link" : "is not a regular file";

			if (!set_aside(path, what, msg, msglen))
				return false;
			continue;
		}
		t->fd = open(path, flags, 0600);
		if (t->fd < 0) {
			if (errno == ELOOP)
				continue;
			return fail(msg, msglen, "cannot open arena %s: %s", path, strerror(errno));
		}
		if (flock(t->fd, LOCK_EX | LOCK_NB) < 0) {
			if (errno == EWOULDBLOCK)
				return fail(msg, msglen, "arena %s is in use by another director", path);
			return fail(msg, msglen, "cannot lock arena %s: %s", path, strerror(errno));
		}
		if (fstat(t->fd, &st) < 0)
			return fail(msg, msglen, "cannot look at arena %s: %s", path, strerror(errno));
		/* Another director may have set it aside between open and lock. */
		if (lstat(path, &now) == 0 && now.st_ino == st.st_ino && now.st_dev == st.st_dev) {
			if (!unfit(t->fd, &st, boot_id, records, why, sizeof(why)))
				return true;
			if (!set_aside(path, why, msg, msglen))
				return false;
		}
		close(t->fd);
		t->fd = -1;
	}
	errno = EAGAIN;
	return fail(msg, msglen, "arena %s keeps changing under our hands", path);
}

bool arena_open(struct uvs_table *t, const char *path, uint32_t conn_max, const uint8_t *boot_id, char *msg,
		size_t msglen)
{
	uint32_t old = 0, want;

	t->fd = -1;
	if (conn_max > RECORDS_MAX - SEGMENT)
		conn_max = RECORDS_MAX - SEGMENT;
	want = (conn_max + FIRST + SEGMENT - 1) / SEGMENT * SEGMENT;
	if (path && !open_file(t, path, boot_id, &old, msg, msglen))
		return false;
	if (!reserve(t, want > old ? want : old))
		return fail(msg, msglen, "no address space for %u connections: lower conn_max", conn_max);
	if (old) {
		/* A director killed while the file grew leaves it longer than the header says. */
		if (ftruncate(t->fd, (off_t)old * UVS_RECORD_SIZE) < 0 || !map(t, 0, old))
			return fail(msg, msglen, "cannot map arena %s: %s", path, strerror(errno));
		huge(t, 0, old);
		t->records = old;
		t->attached = 1;
	} else if (!arena_grow(t)) {
		return fail(msg, msglen, "no space for arena %s: %s", path ? path : "in memory",
			    strerror(errno));
	}
	t->header = (struct arena_header *)t->rec;
	if (!old) {
		t->header->layout = ARENA_LAYOUT;
		t->header->record_size = UVS_RECORD_SIZE;
		t->header->records = t->records;
		memcpy(t->header->boot_id, boot_id, sizeof(t->header->boot_id));
		atomic_signal_fence(memory_order_release);
		*(volatile uint64_t *)&t->header->magic = ARENA_MAGIC;
	}
	return true;
}

void arena_close(struct uvs_table *t)
{
	if (t->reservation)
		munmap(t->reservation, t->reserved);
	if (t->fd >= 0)
		close(t->fd);
}
