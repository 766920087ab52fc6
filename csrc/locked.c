/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * locked.c - what Python calls on a table, each under the engine lock; what takes long in pieces, packets having
 * their turn between them.
 */
#include "fastpath.h"
#include "packet.h"
#include "table.h"

#define PIECE 256 /* records at a time: some ten microseconds */
#define DEFENCE_SHARE 32 /* uvs_drop_entry() looks at one in so many records */

#define LOCKED(type, name, params, args) \
	type uvs_##name params           \
	{                                \
		type result;             \
                                         \
		engine_lock(t);          \
		result = name args;      \
		engine_unlock(t);        \
		return result;           \
	}

#define LOCKED_VOID(name, params, args) \
	void uvs_##name params          \
	{                               \
		engine_lock(t);         \
		name args;              \
		engine_unlock(t);       \
	}

/* clang-format off */
LOCKED_VOID(table_info, (const struct uvs_table *t, struct uvs_table_info *info), (t, info))
LOCKED(struct uvs_conn *, conn_at, (struct uvs_table *t, uint32_t i), (t, i))
LOCKED(struct uvs_dest *, dest_at, (struct uvs_table *t, uint32_t i), (t, i))
LOCKED(struct uvs_service *, service_at, (struct uvs_table *t, uint32_t i), (t, i))
LOCKED(uint32_t, dest_new, (struct uvs_table *t), (t))
LOCKED(int, dest_free, (struct uvs_table *t, uint32_t i), (t, i))
LOCKED(uint32_t, dest_refcnt, (struct uvs_table *t, const struct uvs_dest *d), (d))
LOCKED(uint32_t, service_new, (struct uvs_table *t), (t))
LOCKED_VOID(service_free, (struct uvs_table *t, uint32_t i), (t, i))
LOCKED_VOID(dest_overload, (struct uvs_table *t, struct uvs_dest *d), (d))

LOCKED(uint16_t, idents, (struct uvs_table *t, uint32_t n), (t, n))

LOCKED(struct uvs_conn *, conn_in_get, (struct uvs_table *t, const struct uvs_iphdr *iph), (t, iph))
LOCKED(struct uvs_conn *, conn_out_get, (struct uvs_table *t, const struct uvs_iphdr *iph), (t, iph))
LOCKED(struct uvs_conn *, ct_in_get, (struct uvs_table *t, const struct uvs_conn_param *key), (t, key))
LOCKED_VOID(conn_in_get_batch, (struct uvs_table *t, const struct uvs_iphdr *iph, uint32_t n, uint32_t *out),
	    (t, iph, n, out))
LOCKED_VOID(conn_put, (struct uvs_table *t, struct uvs_conn *c, uint64_t now), (t, c, now))
LOCKED_VOID(conn_expire_now, (struct uvs_table *t, struct uvs_conn *c, uint64_t now), (t, c, now))
LOCKED(uint32_t, conn_del, (struct uvs_table *t, struct uvs_conn *c), (t, c))
LOCKED_VOID(control_add, (struct uvs_table *t, struct uvs_conn *c, struct uvs_conn *controller),
	    (t, c, controller))
LOCKED_VOID(conn_rekey,
	    (struct uvs_table *t, struct uvs_conn *c, uint16_t cport, uint16_t vport, uint16_t dport),
	    (t, c, cport, vport, dport))
LOCKED_VOID(conn_fill_cport, (struct uvs_table *t, struct uvs_conn *c, uint16_t cport), (t, c, cport))
LOCKED(uint32_t, conn_pe, (const struct uvs_table *t, const struct uvs_conn *c, uint8_t *out), (t, c, out))
LOCKED(struct uvs_app *, conn_app, (struct uvs_table *t, const struct uvs_conn *c), (t, c))
LOCKED(struct uvs_app *, conn_app_new, (struct uvs_table *t, struct uvs_conn *c), (t, c))

LOCKED_VOID(in_stats, (struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes), (t, c, bytes))
LOCKED_VOID(out_stats, (struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes), (t, c, bytes))
LOCKED_VOID(conn_stats, (struct uvs_table *t, const struct uvs_conn *c), (t, c))
LOCKED_VOID(stats_add, (struct uvs_table *t, struct uvs_stats *s, const struct uvs_stats *by), (s, by))
LOCKED_VOID(stats_sub, (struct uvs_table *t, struct uvs_stats *s, const struct uvs_stats *by), (s, by))
LOCKED_VOID(set_state, (struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph),
	    (t, c, dir, iph))

LOCKED(int, sched_insert, (struct uvs_table *t, struct uvs_sched *s, uint32_t dest), (s, dest))
LOCKED_VOID(sched_remove, (struct uvs_table *t, struct uvs_sched *s, uint32_t place), (s, place))
LOCKED_VOID(sched_weigh, (struct uvs_table *t, struct uvs_sched *s, int32_t cw, int32_t mw, int32_t di), (s, cw, mw, di))
LOCKED(int, sched_fill, (struct uvs_table *t, struct uvs_sched *s, const uint32_t *places, uint32_t n), (s, places, n))
LOCKED_VOID(sched_nexthop, (struct uvs_table *t, struct uvs_sched *s, uint32_t dest, uint32_t nexthop), (s, dest, nexthop))
LOCKED(int, sched_turn, (struct uvs_table *t, struct uvs_sched *s), (t, s))
LOCKED(int, sched_choose, (struct uvs_table *t, const struct uvs_sched *s, int rule), (t, s, rule))
LOCKED(int, service_put, (struct uvs_table *t, uint32_t service, struct uvs_sched *s), (t, service, s))
LOCKED_VOID(service_remove, (struct uvs_table *t, uint32_t service), (t, service))

LOCKED_VOID(secure_tcp, (struct uvs_table *t, int on), (t, on))
/* clang-format on */

struct uvs_conn *uvs_conn_new(struct uvs_table *t, const struct uvs_conn_param *p, uint32_t flags,
			      uint32_t dest, uint64_t now)
{
	const struct uvs_iphdr key = { .af = p->af,
				       .protocol = p->protocol,
				       .flags = UVS_HDR_PORTS,
				       .saddr = p->caddr,
				       .daddr = p->vaddr,
				       .sport = p->cport,
				       .dport = p->vport };
	struct uvs_conn *c = NULL;

	engine_lock(t);
	if (p->once && !(flags & UVS_CONN_F_ONE_PACKET)) {
		c = conn_in_get(t, &key);
		if (c && index_of(t, c) == p->found)
			c = NULL;
	}
	if (!c)
		c = conn_new(t, p, flags, dest, now);
	engine_unlock(t);
	return c;
}

void uvs_conn_count_in(struct uvs_table *t, struct uvs_conn *c)
{
	engine_lock(t);
	c->in_pkts++;
	engine_unlock(t);
}

void uvs_dest_set_available(struct uvs_table *t, struct uvs_dest *d, int yes)
{
	engine_lock(t);
	if (yes)
		d->flags |= UVS_DEST_F_AVAILABLE;
	else
		d->flags &= (uint16_t)~UVS_DEST_F_AVAILABLE;
	engine_unlock(t);
}

void uvs_dest_set_route(struct uvs_table *t, struct uvs_dest *d, uint32_t route)
{
	engine_lock(t);
	d->route = route;
	engine_unlock(t);
}

/* How far the records that were ever used reach. */
static uint32_t end_of(const struct uvs_table *t)
{
	uint32_t fresh;

	engine_lock(t);
	fresh = t->fresh;
	engine_unlock(t);
	return fresh;
}

uint32_t uvs_record_next(struct uvs_table *t, int kind, uint32_t *cursor)
{
	uint32_t i, before;

	do {
		before = *cursor;
		engine_lock(t);
		i = record_next(t, kind, cursor, PIECE);
		engine_unlock(t);
	} while (!i && *cursor != before);
	return i;
}

uint32_t uvs_expire(struct uvs_table *t, uint64_t now, uint32_t budget)
{
	uint32_t n, done = 0;

	do {
		const uint32_t most = budget - done < PIECE ? budget - done : PIECE;

		engine_lock(t);
		n = timer_run(t, now, most);
		engine_unlock(t);
		done += n;
		if (n < most)
			break;
	} while (done < budget);
	return done;
}

uint32_t uvs_expire_nodest(struct uvs_table *t)
{
	const uint32_t end = end_of(t);
	uint32_t i, n = 0;

	for (i = FIRST; i < end; i += PIECE) {
		engine_lock(t);
		n += expire_nodest(t, i, PIECE);
		engine_unlock(t);
	}
	return n;
}

uint32_t uvs_drop_entry(struct uvs_table *t, uint64_t now, uint32_t random)
{
	const uint32_t end = end_of(t), used = end - FIRST;
	uint32_t left = (used + DEFENCE_SHARE - 1) / DEFENCE_SHARE, i, n = 0;

	if (!used)
		return 0;
	for (i = FIRST + random % used; left;) {
		uint32_t most = left < PIECE ? left : PIECE;

		if (most > end - i)
			most = end - i;
		engine_lock(t);
		n += drop_entry(t, now, i, most);
		engine_unlock(t);
		left -= most;
		i = i + most < end ? i + most : FIRST;
	}
	return n;
}

int uvs_fastpath(struct uvs_fastpath *f, struct uvs_packet *p, int hook, uint64_t now, struct uvs_way *way)
{
	int step;

	engine_lock(f->table);
	step = fastpath(f, p, hook, now, way);
	engine_unlock(f->table);
	if (step == UVS_STEP_REWRITTEN)
		uvs_csum_finish(p); /* what is handed back is not looked at again */
	return step;
}

void uvs_fastpath_set(struct uvs_fastpath *f, uint32_t flags, uint32_t whole)
{
	engine_lock(f->table);
	f->flags = flags;
	f->whole = whole;
	engine_unlock(f->table);
}

void uvs_fastpath_watch(struct uvs_fastpath *f, int32_t v4, int32_t v6)
{
	__atomic_store_n(&f->fragments[0], v4, __ATOMIC_RELAXED);
	__atomic_store_n(&f->fragments[1], v6, __ATOMIC_RELAXED);
}

void uvs_fastpath_fragmented(struct uvs_fastpath *f, const uint8_t *ends, uint32_t len, int by)
{
	engine_lock(f->table);
	fastpath_fragmented(f, ends, len, by);
	engine_unlock(f->table);
}

void uvs_fastpath_tunnels(struct uvs_fastpath *f, uint32_t flow_seed, uint16_t port_min, uint16_t port_max,
			  int pmtu_disc)
{
	engine_lock(f->table);
	f->flow_seed = flow_seed;
	f->port_min = port_min;
	f->port_max = port_max;
	f->pmtu_disc = !!pmtu_disc;
	engine_unlock(f->table);
}

void uvs_fastpath_count(struct uvs_fastpath *f, int why)
{
	engine_lock(f->table);
	f->why[why]++;
	engine_unlock(f->table);
}

void uvs_fastpath_again(struct uvs_fastpath *f, const struct uvs_packet *p)
{
	if (!p->traced)
		return;
	engine_lock(f->table);
	trace_take_back(f->trace, p->traced);
	engine_unlock(f->table);
}

void uvs_fastpath_take(struct uvs_fastpath *f, uint64_t *why)
{
	uint32_t i;

	engine_lock(f->table);
	for (i = 0; i < UVS_WHY_MAX; i++) {
		why[i] = f->why[i];
		f->why[i] = 0;
	}
	engine_unlock(f->table);
}

/* Before there is a fast path nobody else looks at the rows. */
static void rows_lock(const struct uvs_nexthops *h)
{
	if (h->table)
		engine_lock(h->table);
}

static void rows_unlock(const struct uvs_nexthops *h)
{
	if (h->table)
		engine_unlock(h->table);
}

void uvs_nexthops_put(struct uvs_nexthops *h, const struct uvs_nexthop *row)
{
	rows_lock(h);
	h->row[row->index % UVS_NEXTHOPS] = *row;
	rows_unlock(h);
}

void uvs_nexthops_hasten(struct uvs_nexthops *h, uint32_t index, int quick)
{
	rows_lock(h);
	h->row[index % UVS_NEXTHOPS].quick = !!quick;
	rows_unlock(h);
}

void uvs_nexthops_remove(struct uvs_nexthops *h, uint32_t index)
{
	struct uvs_nexthop *row = &h->row[index % UVS_NEXTHOPS];

	rows_lock(h);
	if (row->index == index)
		row->index = row->quick = 0;
	rows_unlock(h);
}
