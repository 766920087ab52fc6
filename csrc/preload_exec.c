/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Programs that are started go on with the shim, even if they are given an environment without it.
 * Nothing is allocated here: it runs between vfork and exec. */
#define _GNU_SOURCE
#include <alloca.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

#define PRELOAD "LD_PRELOAD="

/* What the programs below must have: NAME=VALUE as they came to us; empty if they did not. */
static char kept[5][4096];
static const char *const names[] = { PRELOAD,
				     "LD_LIBRARY_PATH=", "UVS_SOCKET=", "UVS_TIMEOUT=", "UVS_RESTART=" };
static char self[4096]; /* how LD_PRELOAD names this library */

enum {
	NAMES = sizeof(names) / sizeof(names[0])
};

static bool is(const char *setting, int name)
{
	return !strncmp(setting, names[name], strlen(names[name]));
}

void exec_start(void)
{
	const char *found;
	size_t n;

	for (char **e = environ; e && *e; e++) {
		for (int i = 0; i < NAMES; i++) {
			if (is(*e, i) && strlen(*e) < sizeof(kept[i]))
				strcpy(kept[i], *e);
		}
	}
	found = strstr(kept[0], "preload.so");
	if (!found)
		return;
	for (n = 0; found > kept[0] + strlen(PRELOAD) && !strchr(": ", found[-1]); found--)
		n++;
	n += strlen("preload.so");
	if (n < sizeof(self))
		memcpy(self, found, n);
	if (!strchr(self, '/'))
		return;
	kept[1][0] = 0; /* it is found without a search path */
}

/* How many pointers, and how many bytes for a joined LD_PRELOAD, an environment with ours takes. */
static size_t count(char *const envp[], size_t *joined)
{
	size_t n = 0;

	*joined = 1;
	for (; envp && envp[n]; n++) {
		if (is(envp[n], 0))
			*joined = strlen(envp[n]) + strlen(self) + 2;
	}
	return n + NAMES + 1;
}

static char **with_ours(char *const envp[], char **into, char *joined)
{
	bool have[NAMES] = { false };
	size_t n = 0;

	for (; envp && envp[n]; n++) {
		into[n] = envp[n];
		for (int i = 0; i < NAMES; i++)
			have[i] = have[i] || is(envp[n], i);
		if (is(envp[n], 0) && *self && !strstr(envp[n], self)) {
			char *p = stpcpy(stpcpy(joined, PRELOAD), self);

			if (envp[n][strlen(PRELOAD)])
				stpcpy(stpcpy(p, ":"), envp[n] + strlen(PRELOAD));
			into[n] = joined;
		}
	}
	for (int i = 0; i < NAMES; i++) {
		if (!have[i] && *kept[i])
			into[n++] = kept[i];
	}
	into[n] = NULL;
	return into;
}

#define WITH_OURS(envp)                                                        \
	({                                                                     \
		size_t joined_, n_ = count(envp, &joined_);                    \
		with_ours(envp, alloca(n_ * sizeof(char *)), alloca(joined_)); \
	})

EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
	return REAL(execve)(path, argv, WITH_OURS(envp));
}

EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
	return REAL(execvpe)(file, argv, WITH_OURS(envp));
}

EXPORT int execv(const char *path, char *const argv[])
{
	return REAL(execve)(path, argv, WITH_OURS(environ));
}

EXPORT int execvp(const char *file, char *const argv[])
{
	return REAL(execvpe)(file, argv, WITH_OURS(environ));
}

EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
	return REAL(fexecve)(fd, argv, WITH_OURS(envp));
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		       const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	return REAL(posix_spawn)(pid, path, actions, attr, argv, WITH_OURS(envp));
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
			const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	return REAL(posix_spawnp)(pid, file, actions, attr, argv, WITH_OURS(envp));
}
