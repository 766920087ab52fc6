/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * two_ends.c - strings of all lengths through a small ring, from one thread to another; to be built with TSan.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ring.h"

#define STRINGS 20000u
#define LONGEST 40u

static struct ring ring;

static uint32_t length(uint32_t n)
{
	return n * 2654435761u % (LONGEST + 1);
}

static void *put(void *unused)
{
	uint32_t n;
	uint8_t *to;

	for (n = 0; n < STRINGS; n++) {
		while (!(to = ring_reserve(&ring, length(n))))
			sched_yield();
		memset(to, (int)n, length(n));
		ring_commit(&ring);
	}
	return unused;
}

int main(void)
{
	uint8_t wanted[LONGEST];
	const uint8_t *got;
	pthread_t putter;
	uint32_t n;

	if (ring_init(&ring, 128) || pthread_create(&putter, NULL, put, NULL))
		return 2;
	for (n = 0; n < STRINGS; n++) {
		while (!(got = ring_first(&ring)))
			;
		memset(wanted, (int)n, length(n));
		if (memcmp(got, wanted, length(n))) {
			printf("string %u is another\n", n);
			return 1;
		}
		ring_pop(&ring);
	}
	pthread_join(putter, NULL);
	ring_free(&ring);
	return 0;
}
