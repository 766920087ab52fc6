/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * attach.c - take over the arena of an earlier run: believe no record unchecked, rebuild
 * chains, wheel, free list and counters from the entries.
 */
#include "packet.h"
#include "table.h"

#define CONN_FLAGS                                                                            \
	(UVS_CONN_F_FWD_MASK | UVS_CONN_F_SYNC | UVS_CONN_F_HASHED | UVS_CONN_F_NOOUTPUT |    \
	 UVS_CONN_F_INACTIVE | UVS_CONN_F_OUT_SEQ | UVS_CONN_F_IN_SEQ | UVS_CONN_F_NO_CPORT | \
	 UVS_CONN_F_TEMPLATE | UVS_CONN_F_ONE_PACKET | UVS_CONN_F_NFCT)

/* Data connection, its control connection, their template: more is a loop or a lie. */
#define CONTROL_DEPTH 8

static bool flags_ok(uint32_t flags)
{
	return !(flags & ~(uint32_t)CONN_FLAGS);
}

static bool addr_ok(uint8_t af, const union uvs_addr *a)
{
	return af == UVS_AF_INET6 || !(a->w[1] | a->w[2] | a->w[3]);
}

/* Of a connection or a template, whose 0 is that of a service by mark.  AH and ESP have none: they follow
 * UDP 500. */
static bool protocol_ok(uint8_t protocol)
{
	return protocol == 0 || protocol == IP_TCP || protocol == IP_UDP || protocol == IP_SCTP;
}

static bool state_ok(const struct uvs_conn *c)
{
	if (c->flags & UVS_CONN_F_TEMPLATE)
		return c->state <= 1 && protocol_ok(c->protocol);
	switch (c->protocol) {
	case IP_TCP: return c->state < UVS_TCP_STATES;
	case IP_UDP: return c->state < UVS_UDP_STATES;
	case IP_SCTP: return c->state < UVS_SCTP_STATES;
	default: return false;
	}
}

static bool conn_ok(const struct uvs_table *t, const struct uvs_conn *c)
{
	return AF_OK(c->af) && AF_OK(c->daf) && flags_ok(c->flags) && state_ok(c) &&
	       addr_ok(c->af, &c->caddr) && addr_ok(c->af, &c->vaddr) && addr_ok(c->daf, &c->daddr) &&
	       (!(c->flags & (UVS_CONN_F_NO_CPORT | UVS_CONN_F_TEMPLATE)) || c->cport == 0) &&
	       c->deadline <= t->now + UINT32_MAX * MS_NS;
}

/* Commands may name any protocol, method and kind of tunnel: so may records. */
static bool dest_ok(const struct uvs_dest *d)
{
	return AF_OK(d->af) && AF_OK(d->vaf) && addr_ok(d->af, &d->addr) && addr_ok(d->vaf, &d->vaddr) &&
	       flags_ok(d->conn_flags) && d->weight >= 0 && d->last_weight >= 0 &&
	       !(d->flags & ~(UVS_DEST_F_AVAILABLE | UVS_DEST_F_OVERLOAD));
}

static bool service_ok(const struct uvs_service *s)
{
	return AF_OK(s->af) && addr_ok(s->af, &s->addr);
}

/* A service or destination that the process died in the making of: its family is stored last. */
static bool unfinished(union record *r)
{
	return (r->kind == UVS_KIND_SERVICE && !r->service.af) || (r->kind == UVS_KIND_DEST && !r->dest.af);
}

/* One record by itself; what only this process knows is cleared. */
static bool record_ok(struct uvs_table *t, union record *r)
{
	switch (atomic_load_explicit(&r->kind, memory_order_relaxed)) {
	case UVS_KIND_CONN:
		if (!conn_ok(t, &r->conn))
			return false;
		r->conn.hnext = r->conn.tnext = r->conn.tprev = r->conn.filed = 0;
		r->conn.n_control = r->conn.nexthop = 0;
		return true;
	case UVS_KIND_DEST:
		if (!dest_ok(&r->dest))
			return false;
		r->dest.activeconns = r->dest.inactconns = r->dest.persistconns = 0;
		r->dest.route = 0;
		t->dests++;
		return true;
	case UVS_KIND_SERVICE:
		if (!service_ok(&r->service))
			return false;
		t->services++;
		return true;
	case UVS_KIND_PE:
	case UVS_KIND_APP: return ext_ok(r);
	default: return false;
	}
}

/* The controller as far as it is true: a connection, and no way back to `c`. */
static struct uvs_conn *controller_of(struct uvs_table *t, const struct uvs_conn *c)
{
	struct uvs_conn *ct = conn_at(t, c->control), *up = ct;
	int depth;

	for (depth = 0; up && depth < CONTROL_DEPTH; depth++) {
		if (up == c || up->flags & UVS_CONN_F_ONE_PACKET)
			return NULL;
		up = conn_at(t, up->control);
	}
	return up ? NULL : ct;
}

/* When it was last refreshed: of two entries with one key the later was made later and
 * has to be found first, as before. */
static int64_t refreshed(const struct uvs_conn *c)
{
	return (int64_t)(c->deadline - c->timeout * MS_NS);
}

static void chain(struct uvs_table *t, struct uvs_conn *c)
{
	uint32_t *link = &t->bucket[conn_bucket(t, c)];

	while (*link && refreshed(conn_of(t, *link)) > refreshed(c))
		link = &conn_of(t, *link)->hnext;
	c->hnext = *link;
	*link = index_of(t, c);
	c->flags |= UVS_CONN_F_HASHED;
}

static void conn_attach(struct uvs_table *t, struct uvs_conn *c)
{
	struct uvs_conn *ct = c->control ? controller_of(t, c) : NULL;

	c->control = ct ? index_of(t, ct) : 0;
	if (ct)
		ct->n_control++;
	if (!dest_at(t, c->dest))
		c->dest = 0;
	/* The process may have died between the store of the state and that of the flag. */
	if (c->dest && !(c->flags & UVS_CONN_F_TEMPLATE) && c->protocol != IP_UDP) {
		c->flags &= ~(uint32_t)UVS_CONN_F_INACTIVE;
		if (!(c->protocol == IP_TCP ? tcp_active(c->state) : sctp_active(c->state)))
			c->flags |= UVS_CONN_F_INACTIVE;
	}
	conn_count(t, c, 1);
	chain(t, c);
	timer_file(t, c);
}

uint32_t table_attach(struct uvs_table *t)
{
	uint32_t i, bad = 0, end = FIRST;

	for (i = FIRST; i < t->records; i++) {
		union record *r = &t->rec[i];

		if (r->kind == UVS_KIND_FREE)
			continue;
		if (unfinished(r)) {
			record_publish(t, i, UVS_KIND_FREE);
			continue;
		}
		if (!record_ok(t, r)) {
			record_publish(t, i, UVS_KIND_FREE);
			bad++;
			continue;
		}
		/* A one-packet connection lives for one packet, which is gone. */
		if (r->kind == UVS_KIND_CONN && r->conn.flags & UVS_CONN_F_ONE_PACKET) {
			record_publish(t, i, UVS_KIND_FREE);
			continue;
		}
		end = i + 1;
	}
	t->fresh = end;
	for (i = FIRST; i < end; i++) {
		if (t->rec[i].kind == UVS_KIND_CONN && !ext_claim(t, &t->rec[i].conn)) {
			record_publish(t, i, UVS_KIND_FREE);
			bad++;
		}
	}
	for (i = FIRST; i < end; i++) {
		union record *r = &t->rec[i];

		if (r->kind == UVS_KIND_FREE)
			record_free(t, i);
		else if (r->kind == UVS_KIND_CONN)
			conn_attach(t, &r->conn);
		else if (r->kind == UVS_KIND_DEST && !service_at(t, r->dest.service))
			r->dest.service = 0;
	}
	ext_sweep(t);
	return bad;
}
