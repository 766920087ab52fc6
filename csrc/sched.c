/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * sched.c - a look at all destinations of a service, for schedulers that compare them.
 *
 * What each rule means is said by the scheduler of its name, in uvs/ipvs/scheduling; this is the same for
 * services of thousands of servers.
 */
#include "table.h"

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

int dest_choose(struct uvs_table *t, const uint32_t *dests, uint32_t n, int rule)
{
	const struct uvs_dest *best = NULL;
	uint32_t i;
	int at = -1;

	for (i = 0; i < n; i++) {
		const struct uvs_dest *d = dest_at(t, dests[i]);

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
