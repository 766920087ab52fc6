/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Sysctls of the director, and files in memory that stand for those open for writing.
 *
 * Each write() sets the sysctl, as in /proc. Writes that libc makes by itself (a shell's echo by stdio)
 * cannot be seen: they are found when the file is closed or put aside by dup2. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload.h"

#define KNOBS 16

static int to_value(void *ctx, uint16_t type, const void *data, size_t len)
{
	char *value = ctx;

	if (type == ATTR_VALUE) {
		len = len <= VALUE ? len : VALUE;
		memcpy(value, data, len);
		value[len] = 0;
	}
	return 0;
}

int knob_get(const char *name, char value[VALUE + 2])
{
	struct request r;
	int code;

	value[0] = 0;
	request_begin(&r, CMD_GET_SYSCTL, false);
	request_add(&r, ATTR_NAME, name, strlen(name) + 1);
	code = director_ask(&r, to_value, value);
	strcat(value, "\n");
	return code;
}

static int knob_set(const char *name, const void *data, size_t len)
{
	char value[VALUE + 1];
	struct request r;

	if (len > VALUE)
		return EINVAL;
	memcpy(value, data, len);
	value[len] = 0;
	request_begin(&r, CMD_SET_SYSCTL, false);
	request_add(&r, ATTR_NAME, name, strlen(name) + 1);
	request_add(&r, ATTR_VALUE, value, strlen(value) + 1);
	return director_ask(&r, NULL, NULL);
}

struct knob {
	ino_t ino; /* 0: free */
	dev_t dev;
	char name[LABEL + 1];
	char known[VALUE + 2]; /* what the file holds if nobody wrote behind our back */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct knob knobs[KNOBS];
static int in_use;

static struct knob *find(int fd)
{
	struct stat st;

	if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE) || fstat(fd, &st))
		return NULL;
	for (struct knob *k = knobs; k < knobs + KNOBS; k++) {
		if (k->ino && k->ino == st.st_ino && k->dev == st.st_dev)
			return k;
	}
	return NULL;
}

void knob_keep(int fd, const char *name, const char *known)
{
	struct knob *k = knobs;
	struct stat st;

	if (fstat(fd, &st))
		return;
	pthread_mutex_lock(&lock);
	while (k < knobs + KNOBS && k->ino)
		k++;
	if (k < knobs + KNOBS) {
		k->ino = st.st_ino;
		k->dev = st.st_dev;
		strcpy(k->name, name);
		strcpy(k->known, known);
		__atomic_store_n(&in_use, in_use + 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
}

/* The file shows what is in force. */
static void show(int fd, struct knob *k)
{
	if (knob_get(k->name, k->known))
		return;
	if (ftruncate(fd, 0) == 0 && pwrite(fd, k->known, strlen(k->known), 0) >= 0)
		lseek(fd, 0, SEEK_END);
}

bool knob_write(int fd, const void *data, size_t len, ssize_t *result)
{
	struct knob *k;
	int code;

	if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE))
		return false;
	pthread_mutex_lock(&lock);
	k = find(fd);
	if (k) {
		code = knob_set(k->name, data, len);
		*result = code ? -1 : (ssize_t)len;
		if (code)
			errno = code;
		else
			show(fd, k);
	}
	pthread_mutex_unlock(&lock);
	return k != NULL;
}

/* Set what was written unseen; `last`: the descriptor goes away. */
static void commit(int fd, bool last)
{
	char found[VALUE + 2];
	int saved = errno;
	struct knob *k;
	ssize_t n;

	if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&lock);
	k = find(fd);
	if (k && (n = pread(fd, found, sizeof(found) - 1, 0)) >= 0) {
		found[n] = 0;
		if (strcmp(found, k->known)) {
			if (knob_set(k->name, found, (size_t)n))
				fprintf(stderr,
					"uvs exec: net.ipv4.vs.%s was not set: the value is refused\n",
					k->name);
			strcpy(k->known, found);
		}
	}
	if (k && last) {
		struct stat st;
		int others = 0;

		/* Other descriptors of it may be written to still; there are few. */
		for (int i = 0; i < 256; i++)
			others += i != fd && fstat(i, &st) == 0 && st.st_ino == k->ino && st.st_dev == k->dev;
		if (!others) {
			k->ino = 0;
			__atomic_store_n(&in_use, in_use - 1, __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
}

/* After an exec: the file's name tells what it is. */
void knob_adopt(int fd)
{
	char link[32], name[128], known[VALUE + 2];
	char *p;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, name, sizeof(name) - 1);
	if (n <= 0)
		return;
	name[n] = 0;
	if (strncmp(name, "/memfd:" KNOB_MARK, strlen("/memfd:" KNOB_MARK)))
		return;
	p = name + strlen("/memfd:" KNOB_MARK);
	p[strcspn(p, " ")] = 0;
	n = pread(fd, known, sizeof(known) - 1, 0);
	known[n > 0 ? n : 0] = 0;
	if (strlen(p) <= LABEL)
		knob_keep(fd, p, known);
}

__attribute__((destructor)) static void end(void)
{
	struct stat st;

	for (int fd = 0; __atomic_load_n(&in_use, __ATOMIC_ACQUIRE) && fd < 256; fd++) {
		if (fstat(fd, &st) == 0)
			commit(fd, true);
	}
}

EXPORT int close(int fd)
{
	commit(fd, true);
	return REAL(close)(fd);
}

EXPORT int dup2(int fd, int to)
{
	if (fd != to)
		commit(to, true);
	return REAL(dup2)(fd, to);
}

EXPORT int dup3(int fd, int to, int flags)
{
	commit(to, true);
	return REAL(dup3)(fd, to, flags);
}
