/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * ring.h - a queue of byte strings between two threads: one puts, one takes, neither waits.
 */
#ifndef UVS_RING_H
#define UVS_RING_H

#include <stdatomic.h>
#include <stdint.h>

/* Positions count bytes ever written and read, modulo 2^32; `size` is a power of two. */
struct ring {
	uint8_t *data;
	uint32_t size, reserved;
	_Atomic uint32_t head, tail;
};

int ring_init(struct ring *r, uint32_t size); /* 0 or -ENOMEM */
void ring_free(struct ring *r);

/* The one who puts.  Room for `len` bytes in one piece, 8-aligned; NULL while there is none.  What was written there is
 * seen by the other after ring_commit(). */
uint8_t *ring_reserve(struct ring *r, uint32_t len);
void ring_commit(struct ring *r);

/* The one who takes: the oldest string, NULL if there is none; it stays until ring_pop(). */
const uint8_t *ring_first(struct ring *r);
void ring_pop(struct ring *r);

#endif
