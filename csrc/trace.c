/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * trace.c - filters on packets that are traced, judged as soon as what they ask is known; and rates, so that to look
 * never hurts what is looked at.
 */
#include <errno.h>

#include "fastpath.h"
#include "packet.h"
#include "table.h"

enum {
	NO,
	PERHAPS,
	YES
};

/* What may still turn out of a packet's connection. */
#define OPEN_ENDS 1 /* client and service */
#define OPEN_SERVER 2

/* A packet when it is judged. */
struct known {
	const struct uvs_iphdr *h; /* as it came */
	const struct uvs_conn *c; /* NULL: none, or none yet */
	uint32_t mark;
	int hook, verdict, why; /* the last two -1: not decided yet */
	int open;
};

static int prefix_equal(const struct uvs_cond *q, const union uvs_addr *addr)
{
	const uint32_t whole = q->bits / 8, rest = q->bits % 8;

	if (memcmp(addr->b, q->addr.b, whole))
		return 0;
	return !rest || !((addr->b[whole] ^ q->addr.b[whole]) >> (8 - rest));
}

/* `port` -1: it has none. */
static int is_end(const struct uvs_cond *q, uint8_t af, const union uvs_addr *addr, int port)
{
	return q->af == af && prefix_equal(q, addr) && (!q->port || q->port == port) ? YES : NO;
}

static int ports(const struct uvs_iphdr *h)
{
	return h->flags & UVS_HDR_PORTS;
}

static int source(const struct uvs_cond *q, const struct uvs_iphdr *h)
{
	return is_end(q, h->af, &h->saddr, ports(h) ? h->sport : -1);
}

static int destination(const struct uvs_cond *q, const struct uvs_iphdr *h)
{
	return is_end(q, h->af, &h->daddr, ports(h) ? h->dport : -1);
}

static int ask(const struct uvs_cond *q, const struct known *k)
{
	const struct uvs_iphdr *h = k->h;
	const struct uvs_conn *c = k->c;
	const int request = k->hook != UVS_FORWARD;

	switch (q->op) {
	case UVS_COND_CLIENT:
		if (k->open & OPEN_ENDS)
			return PERHAPS;
		return c ? is_end(q, c->af, &c->caddr, c->cport) : request ? source(q, h) : NO;
	case UVS_COND_SERVICE:
		if (k->open & OPEN_ENDS)
			return PERHAPS;
		return c ? is_end(q, c->af, &c->vaddr, c->vport) : request ? destination(q, h) : NO;
	case UVS_COND_SERVER:
		if (k->open & OPEN_SERVER)
			return PERHAPS;
		return c ? is_end(q, c->daf, &c->daddr, c->dport) : request ? NO : source(q, h);
	case UVS_COND_HOST: return source(q, h) | destination(q, h);
	case UVS_COND_PORT: return ports(h) && (h->sport == q->number || h->dport == q->number) ? YES : NO;
	case UVS_COND_PROTO: return h->af && h->protocol == q->number ? YES : NO;
	case UVS_COND_FAMILY: return h->af == q->number ? YES : NO;
	case UVS_COND_MARK: return k->mark == q->number ? YES : NO;
	case UVS_COND_HOOK: return k->hook == (int)q->number ? YES : NO;
	case UVS_COND_VERDICT: return k->verdict < 0 ? PERHAPS : k->verdict == (int)q->number ? YES : NO;
	case UVS_COND_WHY: return k->why < 0 ? PERHAPS : k->why == (int)q->number ? YES : NO;
	}
	return NO;
}

/* The program was checked. */
static int judge(const struct uvs_cond *program, uint32_t n, const struct known *k)
{
	uint8_t value[UVS_TRACE_DEPTH] = { YES };
	uint32_t i, top = 0;

	for (i = 0; i < n; i++) {
		const struct uvs_cond *q = &program[i];

		switch (q->op) {
		case UVS_COND_AND:
			top--;
			if (value[top] < value[top - 1])
				value[top - 1] = value[top];
			break;
		case UVS_COND_OR:
			top--;
			if (value[top] > value[top - 1])
				value[top - 1] = value[top];
			break;
		case UVS_COND_NOT: value[top - 1] = YES - value[top - 1]; break;
		default: value[top++] = (uint8_t)ask(q, k);
		}
	}
	return value[0];
}

static int is_right(const struct uvs_cond *q)
{
	switch (q->op) {
	case UVS_COND_CLIENT:
	case UVS_COND_SERVICE:
	case UVS_COND_SERVER:
	case UVS_COND_HOST:
		return (q->af == UVS_AF_INET && q->bits <= 32) || (q->af == UVS_AF_INET6 && q->bits <= 128);
	}
	return q->op < UVS_COND_MAX;
}

/* Does each operator find its values, and is one left? */
static int is_program(const struct uvs_cond *program, uint32_t n)
{
	uint32_t i, top = 0;

	if (n > UVS_TRACE_PROGRAM)
		return 0;
	for (i = 0; i < n; i++) {
		const uint32_t needs = program[i].op == UVS_COND_NOT  ? 1
				       : program[i].op > UVS_COND_NOT ? 0
								      : 2;

		if (!is_right(&program[i]) || top < needs)
			return 0;
		top += 1 - needs;
		if (top > UVS_TRACE_DEPTH)
			return 0;
	}
	return !n || top == 1;
}

/* ---------------------------------------------------------------------- rates */

static struct uvs_bucket bucket(uint32_t rate)
{
	return (struct uvs_bucket){ SECOND_NS / rate, 0 };
}

static int may(const struct uvs_bucket *b, uint64_t now)
{
	return b->due <= now + SECOND_NS - b->each;
}

static void take(struct uvs_bucket *b, uint64_t now)
{
	b->due = (b->due < now ? now : b->due) + b->each;
}

static void take_back(struct uvs_tracer *r)
{
	r->bucket.due -= r->bucket.due < r->bucket.each ? r->bucket.due : r->bucket.each;
	r->matched -= r->matched > 0; /* its slot may be another's by now */
}

static void unsuppress(struct uvs_tracer *r)
{
	if (!r->suppressed)
		return;
	r->suppressed--;
	r->matched--;
}

/* ---------------------------------------------------------------- the fast path */

uint8_t trace_ask(struct uvs_trace *t, const struct uvs_packet *p, const struct uvs_conn *c, int hook,
		  int verdict, int why, uint64_t now)
{
	const struct known k = { &p->iph, c, p->mark, hook, verdict, why, 0 };
	uint8_t told = 0;
	uint32_t i;

	for (i = 0; i < UVS_TRACERS; i++) {
		struct uvs_tracer *r = &t->tracer[i];

		if (!(t->on >> i & 1) || judge(r->program, r->n, &k) != YES)
			continue;
		r->matched++;
		if (may(&r->bucket, now)) {
			take(&r->bucket, now);
			told |= (uint8_t)(1u << i);
		} else {
			r->suppressed++;
			told |= (uint8_t)(16u << i);
		}
	}
	return told;
}

void trace_take_back(struct uvs_trace *t, uint8_t told)
{
	uint32_t i;

	for (i = 0; i < UVS_TRACERS; i++) {
		struct uvs_tracer *r = &t->tracer[i];

		if (told >> i & 1)
			take_back(r);
		if (told >> i & 16)
			unsuppress(r);
	}
}

/* ---------------------------------------------------------------- the hook path */

static int opens(const struct uvs_iphdr *h)
{
	return h->protocol == IP_TCP ? h->tcp_flags & UVS_TCP_SYN : h->protocol == IP_SCTP;
}

/* Its connection, as it is found before anything is done, and what may still come of it. */
static void look(const struct uvs_trace *t, struct uvs_traced *hand)
{
	const struct uvs_iphdr *h = &hand->iph;
	const int tcp = h->protocol == IP_TCP || h->protocol == IP_SCTP;
	const struct uvs_conn *c;
	const struct uvs_dest *d;

	hand->open = OPEN_ENDS | OPEN_SERVER; /* ICMP, for instance: what it quotes decides */
	if (!ports(h) || h->flags & UVS_HDR_FRAGMENT || (!tcp && h->protocol != IP_UDP))
		return;
	c = conn_out_get(t->table, h);
	if (c) {
		hand->open = 0;
	} else if (hand->hook != UVS_FORWARD) {
		c = conn_in_get(t->table, h);
		d = c ? dest_at(t->table, c->dest) : NULL;
		if (c) /* it may leave its server */
			hand->open = opens(h) || !d || !(d->flags & UVS_DEST_F_AVAILABLE) ? OPEN_SERVER : 0;
		else if (tcp || hand->hook == UVS_LOCAL_IN) /* else: ip_vs_rs_conn_out() */
			hand->open = OPEN_SERVER;
	} else if (tcp) {
		hand->open = 0;
	}
	if (c) {
		hand->conn = *c;
		hand->has_conn = 1;
	}
}

static struct known of_hand(const struct uvs_trace *t, int verdict, int why)
{
	const struct uvs_traced *hand = &t->hand;

	return (struct known){
		&hand->iph, hand->has_conn ? &hand->conn : NULL, hand->mark, hand->hook, verdict, why,
		hand->open,
	};
}

int uvs_trace_begin(struct uvs_trace *t, const struct uvs_packet *p, int hook, uint32_t mark, int asked,
		    uint64_t now)
{
	struct uvs_traced *hand = &t->hand;
	int wanted = NO, found = NO;
	struct known k;
	uint32_t i;

	engine_lock(t->table);
	*hand = (struct uvs_traced){ .mark = mark, .hook = (uint8_t)hook, .asked = (uint8_t)asked };
	if (p) {
		hand->iph = p->iph;
		look(t, hand);
	}
	k = of_hand(t, -1, -1);
	for (i = 0; i < UVS_TRACERS && !asked; i++) {
		const struct uvs_tracer *r = &t->tracer[i];
		const int so = t->on >> i & 1 ? judge(r->program, r->n, &k) : NO;

		found = so > found ? so : found;
		if (so > wanted && may(&r->bucket, now))
			wanted = so;
	}
	if (wanted == PERHAPS) {
		if (may(&t->tries, now))
			take(&t->tries, now);
		else
			wanted = NO;
	}
	if (asked & (int)t->on)
		wanted = YES;
	engine_unlock(t->table);
	return wanted != NO ? UVS_TRACE_WALK : found != NO ? UVS_TRACE_JUDGE : UVS_TRACE_NOBODY;
}

void uvs_trace_found(struct uvs_trace *t, const struct uvs_conn *c)
{
	engine_lock(t->table);
	t->hand.conn = *c;
	t->hand.has_conn = 1;
	engine_unlock(t->table);
}

int uvs_trace_end(struct uvs_trace *t, int verdict, int why, int walked, uint64_t now)
{
	struct known k;
	uint32_t i;
	int told = 0;

	engine_lock(t->table);
	t->hand.open = 0;
	k = of_hand(t, verdict, why);
	for (i = 0; i < UVS_TRACERS; i++) {
		struct uvs_tracer *r = &t->tracer[i];
		const int granted = t->hand.asked >> i & 1, denied = t->hand.asked >> i & 16;
		int wanted;

		if (!(t->on >> i & 1))
			continue;
		wanted = judge(r->program, r->n, &k) == YES;
		if (granted) {
			if (wanted && walked)
				told |= 1 << i;
			else
				take_back(r);
		} else if (denied) {
			if (!wanted)
				unsuppress(r);
		} else if (wanted) {
			r->matched++;
			if (walked && may(&r->bucket, now)) {
				take(&r->bucket, now);
				told |= 1 << i;
			} else {
				r->suppressed++;
			}
		}
	}
	engine_unlock(t->table);
	return told;
}

int uvs_trace_judge(const struct uvs_trace *t, const struct uvs_cond *program, uint32_t n, int verdict,
		    int why)
{
	const struct known k = of_hand(t, verdict, why);

	return is_program(program, n) ? judge(program, n, &k) : -EINVAL;
}

/* --------------------------------------------------------------------- who looks */

void uvs_trace_init(struct uvs_trace *t, struct uvs_table *table, uint32_t tries)
{
	memset(t, 0, sizeof(*t));
	t->table = table;
	t->tries = bucket(tries);
}

int uvs_trace_add(struct uvs_trace *t, const struct uvs_cond *program, uint32_t n, uint32_t rate)
{
	int i, err = -EBUSY;

	if (!rate || rate > UVS_TRACE_RATE || !is_program(program, n))
		return -EINVAL;
	engine_lock(t->table);
	for (i = 0; i < UVS_TRACERS && err < 0; i++) {
		struct uvs_tracer *r = &t->tracer[i];

		if (t->on >> i & 1)
			continue;
		*r = (struct uvs_tracer){ .n = n, .bucket = bucket(rate) };
		if (n)
			memcpy(r->program, program, n * sizeof(*program));
		t->on |= 1u << i;
		err = i;
	}
	engine_unlock(t->table);
	return err;
}

void uvs_trace_remove(struct uvs_trace *t, uint32_t which)
{
	engine_lock(t->table);
	if (which < UVS_TRACERS)
		t->on &= ~(1u << which);
	engine_unlock(t->table);
}

void uvs_trace_counts(const struct uvs_trace *t, uint32_t which, uint64_t *matched, uint64_t *suppressed)
{
	const struct uvs_tracer *r = &t->tracer[which % UVS_TRACERS];

	engine_lock(t->table);
	*matched = r->matched;
	*suppressed = r->suppressed;
	engine_unlock(t->table);
}
