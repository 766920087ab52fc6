/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * sched.c - schedulers: which destination of a service a new connection gets.
 *
 * What each means is said by the scheduler of its name, in uvs/ipvs/scheduling; this is the same for packets
 * that do not enter Python, and for services of thousands of servers.  tests/property/test_schedulers.py and
 * test_fast_schedule.py hold the two together.
 */
#include <stdlib.h>
#include "packet.h"
#include "table.h"

/* ------------------------------------------------------------------ what is kept */

struct uvs_sched *uvs_sched_new(int kind, int rule)
{
	struct uvs_sched *s = calloc(1, sizeof(*s));

	if (s) {
		s->kind = kind;
		s->rule = rule;
		s->di = 1;
	}
	return s;
}

void uvs_sched_free(struct uvs_sched *s)
{
	if (!s)
		return;
	free(s->dests);
	free(s->nexthops);
	free(s->slot);
	free(s);
}

static bool grow(uint32_t **array, uint32_t room)
{
	uint32_t *larger = realloc(*array, room * sizeof(**array));

	if (larger)
		*array = larger;
	return larger;
}

int sched_insert(struct uvs_sched *s, uint32_t dest)
{
	if (s->n == s->room) {
		const uint32_t room = s->room ? s->room * 2 : 8;

		if (!grow(&s->dests, room) || !grow(&s->nexthops, room))
			return -1;
		s->room = room;
	}
	memmove(s->dests + 1, s->dests, s->n * sizeof(*s->dests));
	memmove(s->nexthops + 1, s->nexthops, s->n * sizeof(*s->nexthops));
	s->dests[0] = dest;
	s->nexthops[0] = 0;
	s->n++;
	if (s->turn.last)
		s->turn.last++;
	s->slots = 0;
	return 0;
}

void sched_remove(struct uvs_sched *s, uint32_t place)
{
	if (place >= s->n)
		return;
	s->n--;
	memmove(s->dests + place, s->dests + place + 1, (s->n - place) * sizeof(*s->dests));
	memmove(s->nexthops + place, s->nexthops + place + 1, (s->n - place) * sizeof(*s->nexthops));
	if (place < s->turn.last)
		s->turn.last--;
	s->slots = 0;
}

void sched_weigh(struct uvs_sched *s, int32_t cw, int32_t mw, int32_t di)
{
	s->turn.last = 0;
	s->turn.cw = cw;
	s->mw = mw;
	s->di = di;
}

int sched_fill(struct uvs_sched *s, const uint32_t *places, uint32_t n)
{
	uint32_t i;

	s->slots = 0;
	for (i = 0; i < n; i++) {
		if (places[i] >= s->n)
			return -1;
	}
	if (n && !grow(&s->slot, n))
		return -1;
	if (n)
		memcpy(s->slot, places, n * sizeof(*places));
	s->slots = n;
	return 0;
}

void sched_nexthop(struct uvs_sched *s, uint32_t dest, uint32_t nexthop)
{
	uint32_t i;

	for (i = 0; i < s->n; i++) {
		if (s->dests[i] == dest)
			s->nexthops[i] = nexthop;
	}
}

/* -------------------------------------------------------------------- comparisons */

/* ip_vs_dest_conn_overhead */
static int64_t overhead(const struct uvs_dest *d)
{
	return (int64_t)d->activeconns * 256 + d->inactconns;
}

static bool may_have(const struct uvs_dest *d, int rule)
{
	return d->weight > 0 && !(d->flags & UVS_DEST_F_OVERLOAD) &&
	       (rule != UVS_CHOOSE_OVF || d->activeconns <= d->weight);
}

/* a over b, for the weight of each; 2^36 times 2^31 is more than 64 bits hold. */
static bool less(int64_t a, const struct uvs_dest *of_a, int64_t b, const struct uvs_dest *of_b)
{
	return (__int128)a * of_b->weight < (__int128)b * of_a->weight;
}

static bool better(const struct uvs_dest *d, const struct uvs_dest *than, int rule)
{
	switch (rule) {
	case UVS_CHOOSE_LC: return overhead(d) < overhead(than);
	case UVS_CHOOSE_WLC: return less(overhead(d), d, overhead(than), than);
	case UVS_CHOOSE_SED:
	case UVS_CHOOSE_NQ: return less((int64_t)d->activeconns + 1, d, (int64_t)than->activeconns + 1, than);
	default: return d->weight > than->weight;
	}
}

int sched_choose(struct uvs_table *t, const struct uvs_sched *s, int rule)
{
	const struct uvs_dest *best = NULL;
	uint32_t i;
	int at = -1;

	for (i = 0; i < s->n; i++) {
		const struct uvs_dest *d = dest_at(t, s->dests[i]);

		if (!d)
			continue;
		if (rule == UVS_CHOOSE_LIGHT) {
			if ((int64_t)d->activeconns * 2 < d->weight)
				return (int)i;
			continue;
		}
		if (!may_have(d, rule))
			continue;
		if (rule == UVS_CHOOSE_NQ && !d->activeconns)
			return (int)i;
		if (!best || better(d, best, rule)) {
			best = d;
			at = (int)i;
		}
	}
	return at;
}

/* ------------------------------------------------------------------------ in turn */

static bool usable(struct uvs_table *t, uint32_t record)
{
	const struct uvs_dest *d = dest_at(t, record);

	return d && d->weight > 0 && !(d->flags & UVS_DEST_F_OVERLOAD);
}

/* ip_vs_rr_schedule */
static int in_turn(struct uvs_table *t, const struct uvs_sched *s, struct uvs_turn *turn)
{
	uint32_t i, at;

	for (i = 0; i < s->n; i++) {
		at = (turn->last + i) % s->n;
		if (usable(t, s->dests[at])) {
			turn->last = at + 1;
			return (int)at;
		}
	}
	return -1;
}

static int32_t most_weight(struct uvs_table *t, const struct uvs_sched *s)
{
	int32_t most = 0;
	uint32_t i;

	for (i = 0; i < s->n; i++) {
		const struct uvs_dest *d = dest_at(t, s->dests[i]);

		if (d && !(d->flags & UVS_DEST_F_OVERLOAD) && d->weight > most)
			most = d->weight;
	}
	return most;
}

/* Passes that would find nobody, since all of so high a weight are overloaded, at once. */
static void skip_passes(struct uvs_table *t, const struct uvs_sched *s, struct uvs_turn *turn)
{
	int32_t most;

	if (turn->cw <= s->di)
		return;
	most = most_weight(t, s);
	if (most >= turn->cw)
		return;
	if (most < s->di)
		most = s->di;
	turn->cw -= (turn->cw - most + s->di - 1) / s->di * s->di;
}

/* One pass from behind the last one; `stop` ends it, a place from 1. */
static int pass(struct uvs_table *t, const struct uvs_sched *s, struct uvs_turn *turn, uint32_t stop,
		bool *stopped)
{
	uint32_t at;

	for (at = turn->last; at < s->n; at++) {
		const struct uvs_dest *d = dest_at(t, s->dests[at]);

		turn->last = at + 1;
		if (d && !(d->flags & UVS_DEST_F_OVERLOAD) && d->weight >= turn->cw)
			return (int)at;
		if (turn->last == stop) {
			*stopped = true;
			return -1;
		}
	}
	return -1;
}

/* ip_vs_wrr_schedule */
static int in_turn_by_weight(struct uvs_table *t, const struct uvs_sched *s, struct uvs_turn *turn)
{
	const uint32_t start = turn->last;
	bool last_pass = false, restarted = false, stopped = false;
	uint32_t stop = 0;
	int at;

	if (!s->mw)
		return -1;
	for (;;) {
		at = pass(t, s, turn, stop, &stopped);
		if (at >= 0 || stopped)
			return at;
		turn->last = 0;
		last_pass = last_pass || turn->cw <= s->di;
		turn->cw -= s->di;
		if (turn->cw <= 0) {
			turn->cw = s->mw;
			if ((restarted && last_pass) || !start)
				return -1;
			restarted = true;
			last_pass = false;
		}
		skip_passes(t, s, turn);
		if (restarted && turn->cw <= s->di && start) {
			stop = start;
			last_pass = true;
		}
	}
}

/* ------------------------------------------------------------------- by a hash */

#define GOLDEN_RATIO_32 0x61c88647u /* include/linux/hash.h */
#define MH_KEY 2654435761u /* ip_vs_mh.c: hash1's */

static uint32_t fold(uint8_t af, const union uvs_addr *a)
{
	uint32_t i, words = 0;

	for (i = 0; i < (af == UVS_AF_INET6 ? 4 : 1); i++)
		words ^= get32(a->b + 4 * i);
	return words;
}

/* hash_32() to the number of bits of sh's and dh's tables */
static uint32_t of_bits(uint32_t value)
{
	return value * GOLDEN_RATIO_32 >> 24;
}

/* hsiphash_1u32() of a 64-bit kernel */
static uint32_t hsiphash(uint32_t value, uint64_t key)
{
	return (uint32_t)sip_finish(0x736f6d6570736575ull ^ key, 0x646f72616e646f6dull ^ key,
				    0x6c7967656e657261ull ^ key, 0x7465646279746573ull ^ key,
				    4ull << 56 | value);
}

/* The place of a slot's destination, -1 if it cannot take a connection */
static int in_slot(struct uvs_table *t, const struct uvs_sched *s, uint32_t slot)
{
	const uint32_t at = s->slot[slot % s->slots];

	return usable(t, s->dests[at]) ? (int)at : -1;
}

static bool any_usable(struct uvs_table *t, const struct uvs_sched *s)
{
	uint32_t i;

	for (i = 0; i < s->n; i++) {
		if (usable(t, s->dests[i]))
			return true;
	}
	return false;
}

/* ip_vs_sh_hashkey, ip_vs_mh_hashkey */
static uint32_t slot_of(const struct uvs_sched *s, uint32_t client, uint32_t offset)
{
	return s->kind == UVS_SCHED_SH ? offset + of_bits(client) : hsiphash(offset + client, MH_KEY);
}

/* ip_vs_sh_schedule and ip_vs_mh_schedule, with their fallbacks: every offset once, beginning with the first slot's
 * own number. */
static int by_client(struct uvs_table *t, const struct uvs_sched *s, const struct uvs_iphdr *h)
{
	const uint32_t client = fold(h->af, &h->saddr) + (s->flags & UVS_SVC_F_SCHED2 ? h->sport : 0);
	uint32_t i, first;
	int at;

	first = slot_of(s, client, 0) % s->slots;
	at = in_slot(t, s, first);
	if (at >= 0 || !(s->flags & UVS_SVC_F_SCHED1) || !any_usable(t, s))
		return at;
	for (i = 0; i < s->slots && at < 0; i++)
		at = in_slot(t, s, slot_of(s, client, (i + first) % s->slots));
	return at;
}

/* ip_vs_dh_schedule: no second choice */
static int by_server(struct uvs_table *t, const struct uvs_sched *s, const struct uvs_iphdr *h)
{
	return in_slot(t, s, of_bits(fold(h->af, &h->daddr)));
}

/* --------------------------------------------------------------------------- all */

int sched_next(struct uvs_table *t, const struct uvs_sched *s, struct uvs_turn *turn,
	       const struct uvs_iphdr *h)
{
	switch (s->kind) {
	case UVS_SCHED_RR: return in_turn(t, s, turn);
	case UVS_SCHED_WRR: return in_turn_by_weight(t, s, turn);
	case UVS_SCHED_COMPARE: return sched_choose(t, s, s->rule);
	case UVS_SCHED_DH: return s->slots && h ? by_server(t, s, h) : -1;
	case UVS_SCHED_SH:
	case UVS_SCHED_MH: return s->slots && h ? by_client(t, s, h) : -1;
	default: return -1;
	}
}

int sched_turn(struct uvs_table *t, struct uvs_sched *s)
{
	return sched_next(t, s, &s->turn, NULL);
}
