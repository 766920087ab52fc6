/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fuzz_shim - libFuzzer target: what the shim of `uvs exec` reads of a director's answers, and of what its
 * program sends.
 *
 * Input: a byte that says which parser (READ_*) and how much room there is, then a datagram.  It lies in memory
 * of its own size, so that ASan sees a read past its end. */
#define sendmsg shim_sendmsg
#define sendto shim_sendto
#define send shim_send
#define write shim_write
#define sendmmsg shim_sendmmsg
#define recvmsg shim_recvmsg
#define recvfrom shim_recvfrom
#define recv shim_recv
#define read shim_read
#define recvmmsg shim_recvmmsg
#define __recv_chk shim_recv_chk
#define __recvfrom_chk shim_recvfrom_chk
#define __read_chk shim_read_chk
#define bind shim_bind
#define connect shim_connect
#define getsockname shim_getsockname
#define getpeername shim_getpeername
#define setsockopt shim_setsockopt
#define getsockopt shim_getsockopt

/* One translation unit: the parsers are static.  Renamed, the calls do not stand before libc's. */
#define start start_link
#include "../../csrc/preload_link.c"
#undef start
#define start start_peer
#include "../../csrc/preload_peer.c"
#undef start
#include "../../csrc/preload.c"

#include <stdio.h>

enum {
	READ_ANSWERS,
	READ_NOTE,
	READ_REQUEST,
	READ_KINDS
};

void watch_moved(ino_t was, ino_t now)
{
	(void)was, (void)now;
}

void exec_start(void)
{
}

void knob_adopt(int fd)
{
	(void)fd;
}

bool knob_write(int fd, const void *data, size_t len, ssize_t *result)
{
	(void)fd, (void)data, (void)len, (void)result;
	return false;
}

static void check(bool holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "does not hold: %s\n", what);
		abort();
	}
}

/* An answer to a getsockopt with `room` bytes. */
static void answers(const uint8_t *data, size_t len, size_t room)
{
	struct answered a = { .value = malloc(room + 1), .room = room };
	int code = messages(data, len, take, &a);

	check(code >= -1 && code < 4096, "an answer ends in an errno, or goes on");
	check(a.at <= a.room, "no more than the buffer holds");
	free(a.value);
}

/* What is noted of an answer to a request, and of a request. */
static void note_and_remember(uint8_t *data, size_t len, bool seen)
{
	struct iovec iov = { data, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct peer p = { .hold = -1, .pending = true };

	if (len >= sizeof(p.last))
		memcpy(&p.last, data, sizeof(p.last));
	if (seen) {
		note(&p, &msg, (ssize_t)len);
	} else {
		remember(&p, &msg, len);
		check(p.pending, "a request is under way");
		check(!p.kept || (p.kept == len && !memcmp(p.request, data, len)),
		      "what is kept is what was sent");
	}
}

/* Does a request ask for one of our families?  In two pieces it says the same as in one. */
static void request(uint8_t *data, size_t len, size_t at)
{
	struct iovec whole = { data, len };
	struct iovec parts[2] = { { data, at % (len + 1) }, { data + at % (len + 1), len - at % (len + 1) } };
	struct msghdr one = { .msg_iov = &whole, .msg_iovlen = 1 };
	struct msghdr two = { .msg_iov = parts, .msg_iovlen = 2 };

	check(asks_for_us(&one) == asks_for_us(&two), "the pieces of a request make no difference");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy;

	if (size < 2)
		return 0;
	copy = malloc(size - 1);
	memcpy(copy, data + 1, size - 1);
	switch (data[0] % READ_KINDS) {
	case READ_ANSWERS: answers(copy, size - 1, data[0]); break;
	case READ_NOTE: note_and_remember(copy, size - 1, data[0] & 0x40); break;
	default: request(copy, size - 1, data[0]);
	}
	free(copy);
	return 0;
}
