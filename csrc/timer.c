/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * timer.c - a lazy timer wheel.
 *
 * One flat ring of slots, a tick each.  A packet only writes its connection's deadline;
 * when the wheel comes by and the entry is not due yet, it files it again.  Only a
 * deadline that is earlier than the slot moves the entry at once.  `filed` is the slot;
 * since all that is filed lies within one turn from `tick`, slot and tick name each other.
 */
#include "table.h"

/* A deadline is due in the tick that begins at or after it: late by less than a tick, never early. */
static uint64_t tick_of(uint64_t deadline)
{
	return deadline / TICK_NS + (deadline % TICK_NS != 0);
}

void timer_file(struct uvs_table *t, struct uvs_conn *c)
{
	uint64_t tick = tick_of(c->deadline);
	uint32_t i = index_of(t, c), *head;

	if (tick < t->tick)
		tick = t->tick;
	else if (tick > t->tick + WHEEL - 1)
		tick = t->tick + WHEEL - 1;
	c->filed = (uint32_t)(tick % WHEEL);
	head = &t->slot[c->filed];
	c->tprev = 0;
	c->tnext = *head;
	if (*head)
		conn_of(t, *head)->tprev = i;
	*head = i;
	t->filed++;
}

void timer_remove(struct uvs_table *t, struct uvs_conn *c)
{
	if (c->tprev)
		conn_of(t, c->tprev)->tnext = c->tnext;
	else
		t->slot[c->filed] = c->tnext;
	if (c->tnext)
		conn_of(t, c->tnext)->tprev = c->tprev;
	t->filed--;
}

static void refile(struct uvs_table *t, struct uvs_conn *c)
{
	timer_remove(t, c);
	timer_file(t, c);
}

void timer_touch(struct uvs_table *t, struct uvs_conn *c)
{
	uint64_t filed = t->tick + ((c->filed - t->tick) & (WHEEL - 1));

	if (tick_of(c->deadline) < filed)
		refile(t, c);
}

uint32_t timer_run(struct uvs_table *t, uint64_t now, uint32_t budget)
{
	uint64_t end = now / TICK_NS;
	uint32_t n = 0, i;

	clock_seen(t, now);
	/* After a long sleep whole turns are skipped: every slot is visited once all the same. */
	if (end > t->tick && end - t->tick >= 2 * WHEEL)
		t->tick += ((end - t->tick) / WHEEL - 1) * WHEEL;
	for (; t->tick <= end; t->tick++) {
		while ((i = t->slot[t->tick % WHEEL]) != 0) {
			struct uvs_conn *c = conn_of(t, i);

			if (n == budget)
				return n;
			n++;
			if (c->deadline > now)
				refile(t, c);
			else
				conn_expire(t, c, now);
		}
		if (!t->filed) {
			t->tick = end + 1;
			break;
		}
	}
	return n;
}

uint32_t uvs_conn_remaining(const struct uvs_conn *c, uint64_t now)
{
	uint64_t ms = c->deadline > now ? (c->deadline - now) / MS_NS : 0;

	return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}
