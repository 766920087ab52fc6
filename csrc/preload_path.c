/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which paths are the director's: /proc/net/ip_vs*, /proc/sys/net/ipv4/vs and what is in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

#define KNOBS "/proc/sys/net/ipv4/vs"

const char *const proc_texts[] = { "ip_vs",       "ip_vs_conn",         "ip_vs_conn_sync",
				   "ip_vs_stats", "ip_vs_stats_percpu", "ip_vs_app",
				   NULL };

static const char *after(const char *path, const char *prefix)
{
	size_t n = strlen(prefix);

	return strncmp(path, prefix, n) ? NULL : path + n;
}

/* After a number and a slash; NULL if there is none. */
static const char *numbered(const char *path)
{
	size_t n = strspn(path, "0123456789");

	return n && path[n] == '/' ? path + n + 1 : NULL;
}

/* /proc/net, /proc/self/net, /proc/thread-self/net, /proc/PID/net, /proc/PID/task/TID/net: what follows. */
static const char *in_net(const char *path)
{
	const char *p = after(path, "/proc/"), *rest;

	if (!p)
		return NULL;
	rest = after(p, "self/");
	rest = rest ? rest : after(p, "thread-self/");
	rest = rest ? rest : numbered(p);
	p = rest ? rest : p;
	rest = after(p, "task/");
	rest = rest ? numbered(rest) : NULL;
	return after(rest ? rest : p, "net");
}

static bool link_of(const char *name, char into[PATH_MAX])
{
	int saved = errno;
	ssize_t n = readlink(name, into, PATH_MAX - 1);

	errno = saved;
	into[n > 0 ? n : 0] = 0;
	return n > 0;
}

static bool link_of_fd(int fd, char into[PATH_MAX])
{
	char name[32];

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return link_of(name, into);
}

/* The directory that a relative path begins at, if the path can be ours. */
static bool base(int dir, const char *path, char into[PATH_MAX])
{
	if (dir != AT_FDCWD && knobs_marked(dir)) {
		strcpy(into, KNOBS);
		return true;
	}
	if (!strstr(path, "vs")) /* both names have it: other paths cost no call */
		return false;
	return dir == AT_FDCWD ? link_of("/proc/self/cwd", into) : link_of_fd(dir, into);
}

/* The path from the root, without empty components and dots; false: it cannot be ours. */
static bool whole(int dir, const char *path, char into[PATH_MAX])
{
	size_t at = 0, n;

	if (!path || !*path || !*director_path())
		return false;
	if (*path == '/' ? !after(path, "/proc/") : !base(dir, path, into) || !after(into, "/proc/"))
		return false;
	if (*path != '/')
		at = strlen(into);
	for (; *path; path += n) {
		path += strspn(path, "/");
		n = strcspn(path, "/");
		if (n == 0 || (n == 1 && path[0] == '.'))
			continue;
		if ((n == 2 && path[0] == '.' && path[1] == '.') || at + n + 2 > PATH_MAX)
			return false;
		into[at++] = '/';
		memcpy(into + at, path, n);
		at += n;
	}
	into[at] = 0;
	return true;
}

struct target target(int dir, const char *path)
{
	struct target t = { NEITHER, "" };
	char full[PATH_MAX];
	const char *name;

	if (!whole(dir, path, full))
		return t;
	name = after(full, KNOBS);
	if (name && !*name)
		t.kind = KNOB_DIR;
	if (name && *name == '/' && strlen(name + 1) <= LABEL && !strchr(name + 1, '/')) {
		t.kind = KNOB;
		strcpy(t.name, name + 1);
	}
	if (t.kind != NEITHER)
		return t;
	name = in_net(full);
	for (size_t i = 0; name && *name == '/' && proc_texts[i]; i++) {
		if (!strcmp(name + 1, proc_texts[i])) {
			t.kind = TEXT;
			strcpy(t.name, name + 1);
		}
	}
	return t;
}

enum kind directory(int fd)
{
	char full[PATH_MAX];
	const char *name;

	if (!*director_path())
		return NEITHER;
	if (knobs_marked(fd))
		return KNOB_DIR;
	if (!link_of_fd(fd, full))
		return NEITHER;
	name = in_net(full);
	return name && !*name ? NET_DIR : strcmp(full, "/proc/sys/net/ipv4") ? NEITHER : IPV4_DIR;
}

const char *neighbour(int dir, const char *path)
{
	struct target t = target(dir, path);
	char value[VALUE + 2];

	if (t.kind == TEXT)
		return "/proc/self/net/dev";
	if (t.kind == KNOB && !knob_get(t.name, value))
		return "/proc/sys/net/ipv4/ip_forward";
	if (t.kind == KNOB_DIR)
		return KNOBS_NEIGHBOUR;
	return path;
}
