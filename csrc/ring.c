/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * ring.c - a queue of byte strings between two threads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"

#define HEAD 8u /* bytes before a string: its length with this, in all rounded up to 8 */
#define SKIP 0u /* instead of a length: the next string stands at the buffer's start */

int ring_init(struct ring *r, uint32_t size)
{
	memset(r, 0, sizeof(*r));
	r->data = malloc(size);
	r->size = size;
	return r->data ? 0 : -ENOMEM;
}

void ring_free(struct ring *r)
{
	free(r->data);
	r->data = NULL;
}

static uint32_t length_at(const struct ring *r, uint32_t at)
{
	uint32_t len;

	memcpy(&len, r->data + at % r->size, sizeof(len));
	return len;
}

static void put_length(struct ring *r, uint32_t at, uint32_t len)
{
	memcpy(r->data + at % r->size, &len, sizeof(len));
}

uint8_t *ring_reserve(struct ring *r, uint32_t len)
{
	const uint32_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
	const uint32_t want = (HEAD + len + 7) & ~7u;
	uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
	const uint32_t left = r->size - head % r->size; /* in one piece */

	if ((want > left ? left + want : want) > r->size - (head - tail))
		return NULL;
	if (want > left) {
		put_length(r, head, SKIP);
		head += left;
	}
	put_length(r, head, want);
	r->reserved = head + want;
	return r->data + head % r->size + HEAD;
}

void ring_commit(struct ring *r)
{
	atomic_store_explicit(&r->head, r->reserved, memory_order_release);
}

/* Where the oldest string stands; false: there is none.  The head is looked at once: what comes in between is for
 * the next time, or it would be taken without what belongs to it (a SKIP before it, its content). */
static int first(const struct ring *r, uint32_t *at)
{
	const uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire);

	*at = atomic_load_explicit(&r->tail, memory_order_relaxed);
	if (*at == head)
		return 0;
	if (length_at(r, *at) == SKIP)
		*at += r->size - *at % r->size;
	return 1;
}

const uint8_t *ring_first(struct ring *r)
{
	uint32_t at;

	return first(r, &at) ? r->data + at % r->size + HEAD : NULL;
}

void ring_pop(struct ring *r)
{
	uint32_t at;

	if (first(r, &at))
		atomic_store_explicit(&r->tail, at + length_at(r, at), memory_order_release);
}
