/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * conn.c - connections: look up, make, release, expire (ip_vs_conn.c); destinations'
 * counters and thresholds; statistics.
 */
#include <string.h>
#include "packet.h"
#include "table.h"

#define ISAKMP 500

#define NEW_TIMEOUT_MS 3000    /* ip_vs_conn_new: until a state machine says more */
#define LATER_TIMEOUT_MS 60000 /* ip_vs_conn_expire: while it controls others */

#define BATCH 64

/* ------------------------------------------------------------------- lookups */

struct key {
	const union uvs_addr *saddr, *daddr;
	uint16_t sport, dport;
	uint8_t af, protocol;
};

/* False: it has no ports to look up by.  AH and ESP follow the connection of their key
 * exchange (ip_vs_proto_ah_esp.c). */
static inline bool key_of(struct key *k, const struct uvs_iphdr *iph)
{
	bool inverse = iph->flags & UVS_HDR_INVERSE;

	k->af = iph->af;
	k->protocol = iph->protocol;
	k->saddr = inverse ? &iph->daddr : &iph->saddr;
	k->daddr = inverse ? &iph->saddr : &iph->daddr;
	k->sport = inverse ? iph->dport : iph->sport;
	k->dport = inverse ? iph->sport : iph->dport;
	if (k->protocol == IP_ESP || k->protocol == IP_AH) {
		k->protocol = IP_UDP;
		k->sport = k->dport = ISAKMP;
		return true;
	}
	return iph->flags & UVS_HDR_PORTS;
}

/* With a port a NO_CPORT entry cannot match, its own is 0; without one nothing else may. */
static inline bool match_in(const struct uvs_conn *c, const struct key *k, uint16_t cport)
{
	return c->cport == cport && c->vport == k->dport && c->af == k->af && c->protocol == k->protocol &&
	       addr_equal(k->af, &c->caddr, k->saddr) && addr_equal(k->af, &c->vaddr, k->daddr) &&
	       (cport || c->flags & UVS_CONN_F_NO_CPORT);
}

static struct uvs_conn *find_in(struct uvs_table *t, const struct key *k, uint16_t cport, uint32_t head)
{
	uint32_t i;

	for (i = head; i; i = conn_of(t, i)->hnext) {
		if (match_in(conn_of(t, i), k, cport))
			return conn_of(t, i);
	}
	return NULL;
}

static struct uvs_conn *find_no_cport(struct uvs_table *t, const struct key *k)
{
	if (!t->no_cport)
		return NULL;
	return find_in(t, k, 0, t->bucket[bucket_of(t, k->af, k->protocol, k->saddr, 0)]);
}

struct uvs_conn *conn_in_get(struct uvs_table *t, const struct uvs_iphdr *iph)
{
	struct uvs_conn *c;
	struct key k;

	if (!key_of(&k, iph))
		return NULL;
	c = find_in(t, &k, k.sport, t->bucket[bucket_of(t, k.af, k.protocol, k.saddr, k.sport)]);
	return c ? c : find_no_cport(t, &k);
}

static void in_get_batch(struct uvs_table *t, const struct uvs_iphdr *iph, uint32_t n, uint32_t *out)
{
	uint64_t bucket[BATCH];
	uint32_t head[BATCH], i;
	struct key k[BATCH];

	for (i = 0; i < n; i++) {
		if (!key_of(&k[i], &iph[i])) {
			k[i].af = 0;
			continue;
		}
		bucket[i] = bucket_of(t, k[i].af, k[i].protocol, k[i].saddr, k[i].sport);
		__builtin_prefetch(&t->bucket[bucket[i]]);
	}
	for (i = 0; i < n; i++) {
		head[i] = k[i].af ? t->bucket[bucket[i]] : 0;
		if (head[i]) {
			__builtin_prefetch(conn_of(t, head[i]));
		}
	}
	for (i = 0; i < n; i++) {
		struct uvs_conn *c = NULL;

		if (k[i].af) {
			c = find_in(t, &k[i], k[i].sport, head[i]);
			if (!c)
				c = find_no_cport(t, &k[i]);
		}
		out[i] = c ? index_of(t, c) : 0;
	}
}

void conn_in_get_batch(struct uvs_table *t, const struct uvs_iphdr *iph, uint32_t n, uint32_t *out)
{
	for (; n > BATCH; n -= BATCH, iph += BATCH, out += BATCH)
		in_get_batch(t, iph, BATCH, out);
	in_get_batch(t, iph, n, out);
}

/* A reply comes from the real server's address under MASQ, from the virtual one else. */
static inline bool match_out(const struct uvs_conn *c, const struct key *k)
{
	if (c->cport != k->dport || c->af != k->af || c->protocol != k->protocol ||
	    !addr_equal(k->af, &c->caddr, k->daddr))
		return false;
	if ((c->flags & UVS_CONN_F_FWD_MASK) == UVS_CONN_F_MASQ)
		return c->dport == k->sport && addr_equal(k->af, &c->daddr, k->saddr);
	return c->vport == k->sport && addr_equal(k->af, &c->vaddr, k->saddr);
}

struct uvs_conn *conn_out_get(struct uvs_table *t, const struct uvs_iphdr *iph)
{
	struct key k;
	uint32_t i;

	if (!key_of(&k, iph))
		return NULL;
	i = t->bucket[bucket_of(t, k.af, k.protocol, k.daddr, k.dport)];
	for (; i; i = conn_of(t, i)->hnext) {
		if (match_out(conn_of(t, i), &k))
			return conn_of(t, i);
	}
	return NULL;
}

/* The virtual address of a fwmark service's template is the mark, in the first 32 bits. */
static uint8_t vaddr_af(uint8_t af, uint8_t protocol)
{
	return protocol ? af : UVS_AF_INET;
}

struct uvs_conn *ct_in_get(struct uvs_table *t, const struct uvs_conn_param *key)
{
	uint64_t b = key->pe_len ? ext_pe_bucket(t, key->pe, key->pe_len)
				 : bucket_of(t, key->af, key->protocol, &key->caddr, key->cport);
	uint32_t i;

	for (i = t->bucket[b]; i; i = conn_of(t, i)->hnext) {
		struct uvs_conn *c = conn_of(t, i);

		if (c->flags & UVS_CONN_F_TEMPLATE && c->cport == key->cport && c->vport == key->vport &&
		    c->af == key->af && c->protocol == key->protocol &&
		    addr_equal(key->af, &c->caddr, &key->caddr) &&
		    addr_equal(vaddr_af(key->af, key->protocol), &c->vaddr, &key->vaddr) &&
		    ext_pe_equal(t, c, key))
			return c;
	}
	return NULL;
}

/* ---------------------------------------------------------- hash, destination */

static void hash(struct uvs_table *t, struct uvs_conn *c)
{
	uint32_t *head;

	if (c->flags & UVS_CONN_F_ONE_PACKET)
		return;
	head = &t->bucket[conn_bucket(t, c)];
	c->hnext = *head;
	*head = index_of(t, c);
	c->flags |= UVS_CONN_F_HASHED;
}

static void unhash(struct uvs_table *t, struct uvs_conn *c)
{
	uint32_t *link, i = index_of(t, c);

	if (!(c->flags & UVS_CONN_F_HASHED))
		return;
	for (link = &t->bucket[conn_bucket(t, c)]; *link; link = &conn_of(t, *link)->hnext) {
		if (*link == i) {
			*link = c->hnext;
			break;
		}
	}
	c->flags &= ~(uint32_t)UVS_CONN_F_HASHED;
}

void conn_count(struct uvs_table *t, const struct uvs_conn *c, int by)
{
	struct uvs_dest *d = c->dest ? &t->rec[c->dest].dest : NULL;
	uint32_t by_ = (uint32_t)by;

	if (c->flags & UVS_CONN_F_TEMPLATE)
		t->templates += by_;
	else
		t->conns += by_;
	if (c->flags & UVS_CONN_F_NO_CPORT)
		t->no_cport += by_;
	if (!d)
		return;
	if (c->flags & UVS_CONN_F_TEMPLATE)
		d->persistconns += by;
	else if (c->flags & UVS_CONN_F_INACTIVE)
		d->inactconns += by;
	else
		d->activeconns += by;
}

/* ip_vs_bind_dest: what the connection inherits. */
static uint32_t inherited(const struct uvs_dest *d, uint8_t protocol, uint32_t flags)
{
	uint32_t from = d->conn_flags;

	if (protocol != IP_UDP || flags & UVS_CONN_F_TEMPLATE)
		from &= ~(uint32_t)UVS_CONN_F_ONE_PACKET;
	if (flags & UVS_CONN_F_SYNC) {
		/* A synced connection brings its activity and takes the method from here. */
		if (!(flags & UVS_CONN_F_TEMPLATE))
			from &= ~(uint32_t)UVS_CONN_F_INACTIVE;
		flags &= ~(uint32_t)(UVS_CONN_F_FWD_MASK | UVS_CONN_F_NOOUTPUT);
	}
	return flags | from;
}

/* ip_vs_dest_totalconns */
static uint64_t total(const struct uvs_dest *d)
{
	return (uint64_t)d->activeconns + (uint64_t)d->inactconns;
}

void dest_overload(struct uvs_dest *d)
{
	uint64_t n = total(d), u = d->u_threshold, l = d->l_threshold;

	if (u && n >= u)
		d->flags |= UVS_DEST_F_OVERLOAD;
	else if (!u || (l ? n < l : n * 4 < u * 3))
		d->flags &= ~(uint32_t)UVS_DEST_F_OVERLOAD;
}

/* ------------------------------------------------------------------ life cycle */

struct uvs_conn *conn_new(struct uvs_table *t, const struct uvs_conn_param *p, uint32_t flags, uint32_t dest,
			  uint64_t now)
{
	struct uvs_dest *d = dest_at(t, dest);
	struct uvs_conn *c;
	uint32_t i;

	clock_seen(t, now);
	i = record_new(t);
	if (!i)
		return NULL;
	c = conn_of(t, i);
	c->af = p->af;
	c->daf = p->daf ? p->daf : p->af;
	c->protocol = p->protocol;
	c->cport = flags & (UVS_CONN_F_NO_CPORT | UVS_CONN_F_TEMPLATE) ? 0 : p->cport;
	c->vport = p->vport;
	c->dport = p->dport;
	memcpy(&c->caddr, &p->caddr, c->af == UVS_AF_INET6 ? 16 : 4);
	memcpy(&c->vaddr, &p->vaddr, vaddr_af(c->af, c->protocol) == UVS_AF_INET6 ? 16 : 4);
	memcpy(&c->daddr, &p->daddr, c->daf == UVS_AF_INET6 ? 16 : 4);
	c->fwmark = p->fwmark;
	c->dest = d ? dest : 0;
	c->flags = (d ? inherited(d, p->protocol, flags) : flags) & ~(uint32_t)UVS_CONN_F_HASHED;
	c->timeout = NEW_TIMEOUT_MS;
	c->deadline = now + NEW_TIMEOUT_MS * MS_NS;
	if (p->pe_len && flags & UVS_CONN_F_TEMPLATE) {
		c->ext = ext_pe_new(t, i, p->pe, p->pe_len);
		if (!c->ext) {
			record_free(t, i);
			return NULL;
		}
	}
	record_publish(t, i, UVS_KIND_CONN);
	conn_count(t, c, 1);
	if (d)
		dest_overload(d);
	hash(t, c);
	timer_file(t, c);
	return c;
}

/* ip_vs_control_del */
static void control_del(struct uvs_table *t, struct uvs_conn *c)
{
	if (c->control) {
		conn_of(t, c->control)->n_control--;
		c->control = 0;
	}
}

static void conn_free(struct uvs_table *t, struct uvs_conn *c)
{
	record_publish(t, index_of(t, c), UVS_KIND_FREE);
	unhash(t, c);
	timer_remove(t, c);
	control_del(t, c);
	conn_count(t, c, -1);
	if (c->dest)
		dest_overload(&t->rec[c->dest].dest);
	ext_free(t, c->ext);
	record_free(t, index_of(t, c));
}

/* ip_vs_conn_expire.  A time-out of 0 is the mark of a deletion: it takes the controller
 * with it when that controls nobody any more, unless it is an assured template. */
uint32_t conn_expire(struct uvs_table *t, struct uvs_conn *c, uint64_t now)
{
	uint32_t gone = 0;

	while (!c->n_control) {
		struct uvs_conn *ct = c->control ? conn_of(t, c->control) : NULL;
		bool follow = ct && c->timeout == 0;

		conn_free(t, c);
		gone++;
		if (!follow || ct->n_control ||
		    (ct->flags & UVS_CONN_F_TEMPLATE && ct->state & TEMPLATE_ASSURED))
			return gone;
		if (ct->control)
			ct->timeout = 0;
		c = ct;
	}
	timer_remove(t, c);
	c->timeout = LATER_TIMEOUT_MS;
	c->deadline = now + LATER_TIMEOUT_MS * MS_NS;
	timer_file(t, c);
	return gone;
}

uint32_t conn_del(struct uvs_table *t, struct uvs_conn *c)
{
	if (c->control)
		c->timeout = 0;
	return conn_expire(t, c, t->now);
}

/* ip_vs_expire_nodest_conn_flush */
uint32_t expire_nodest(struct uvs_table *t, uint32_t from, uint32_t n)
{
	uint32_t i, control, gone = 0;

	for (i = from; n && i < t->fresh; n--, i++) {
		struct uvs_conn *c = conn_at(t, i), *ct;
		const struct uvs_dest *d = c ? dest_at(t, c->dest) : NULL;

		if (!d || d->flags & UVS_DEST_F_AVAILABLE || c->n_control)
			continue;
		control = c->control;
		conn_del(t, c);
		gone++;
		ct = conn_at(t, control);
		if (ct && !ct->n_control)
			conn_del(t, ct);
	}
	return gone;
}

void conn_put(struct uvs_table *t, struct uvs_conn *c, uint64_t now)
{
	clock_seen(t, now);
	if (c->flags & UVS_CONN_F_ONE_PACKET) {
		conn_expire(t, c, now);
		return;
	}
	c->deadline = now + c->timeout * MS_NS;
	timer_touch(t, c);
}

void conn_expire_now(struct uvs_table *t, struct uvs_conn *c, uint64_t now)
{
	clock_seen(t, now);
	if (c->deadline > now) {
		c->deadline = now;
		timer_touch(t, c);
	}
}

void control_add(struct uvs_table *t, struct uvs_conn *c, struct uvs_conn *controller)
{
	const struct uvs_conn *up = controller;

	for (; up != c; up = conn_of(t, up->control)) {
		if (!up->control) {
			control_del(t, c);
			c->control = index_of(t, controller);
			controller->n_control++;
			return;
		}
	}
}

void conn_rekey(struct uvs_table *t, struct uvs_conn *c, uint16_t cport, uint16_t vport, uint16_t dport)
{
	unhash(t, c);
	c->cport = cport;
	c->vport = vport;
	c->dport = dport;
	hash(t, c);
}

void conn_fill_cport(struct uvs_table *t, struct uvs_conn *c, uint16_t cport)
{
	if (!(c->flags & UVS_CONN_F_NO_CPORT))
		return;
	unhash(t, c);
	t->no_cport--;
	c->flags &= ~(uint32_t)UVS_CONN_F_NO_CPORT;
	c->cport = cport;
	hash(t, c);
}

/* ------------------------------------------------------------------ statistics */

static void count(struct uvs_stats *s, int out, uint32_t bytes)
{
	if (out) {
		s->outpkts++;
		s->outbytes += bytes;
	} else {
		s->inpkts++;
		s->inbytes += bytes;
	}
}

static void count_all(struct uvs_table *t, const struct uvs_conn *c, int out, uint32_t bytes)
{
	struct uvs_dest *d = dest_at(t, c->dest);
	struct uvs_service *s;

	if (!d || !(d->flags & UVS_DEST_F_AVAILABLE))
		return;
	count(&d->stats, out, bytes);
	s = service_at(t, d->service);
	if (s)
		count(&s->stats, out, bytes);
	count(&t->header->total, out, bytes);
}

void in_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes)
{
	count_all(t, c, 0, bytes);
}

void out_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes)
{
	count_all(t, c, 1, bytes);
}

void conn_stats(struct uvs_table *t, const struct uvs_conn *c)
{
	struct uvs_dest *d = dest_at(t, c->dest);
	struct uvs_service *s;

	t->header->total.conns++;
	if (!d)
		return;
	d->stats.conns++;
	s = service_at(t, d->service);
	if (s)
		s->stats.conns++;
}

void stats_add(struct uvs_stats *s, const struct uvs_stats *by)
{
	s->conns += by->conns;
	s->inpkts += by->inpkts;
	s->outpkts += by->outpkts;
	s->inbytes += by->inbytes;
	s->outbytes += by->outbytes;
}

void stats_sub(struct uvs_stats *s, const struct uvs_stats *by)
{
	s->conns -= by->conns;
	s->inpkts -= by->inpkts;
	s->outpkts -= by->outpkts;
	s->inbytes -= by->inbytes;
	s->outbytes -= by->outbytes;
}
