/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fastpath.c - one packet of a known connection, without Python.
 *
 * uvs/ipvs/core.py is the meaning; this strings the same primitives together in the same order.  All that
 * could need a decision is looked at before anything is changed, so that the hook path can begin anew.
 * tests/property/test_fastpath.py holds the two together.
 */
#include "fastpath.h"
#include "packet.h"
#include "table.h"

#define FTPPORT 21
#define SCTP_INIT 1
#define SCTP_ABORT 6

/* The hook path's ip_vs_in() and ip_vs_out() take these alone: whole, with their transport headers. */
static int is_plain(const struct uvs_iphdr *h)
{
	const uint8_t want = UVS_HDR_PORTS | UVS_HDR_L4;

	return (h->flags & (want | UVS_HDR_FRAGMENT | UVS_HDR_ATOMIC)) == want;
}

static int to_many(const struct uvs_iphdr *h)
{
	return h->af == UVS_AF_INET ? h->daddr.b[0] >= 224 : h->daddr.b[0] == 0xff;
}

static int from_loopback(const struct uvs_iphdr *h)
{
	static const uint8_t one[16] = { [15] = 1 };

	return h->af == UVS_AF_INET ? h->saddr.b[0] == 127 : !memcmp(h->saddr.b, one, 16);
}

static int is_masq(const struct uvs_conn *c)
{
	return (c->flags & UVS_CONN_F_FWD_MASK) == UVS_CONN_F_MASQ;
}

/* Has the connection a helper (uvs/ipvs/apps)? */
static int has_app(const struct uvs_conn *c)
{
	return c->vport == FTPPORT && c->protocol == IP_TCP;
}

static int opens(const struct uvs_iphdr *h)
{
	if (h->protocol == IP_TCP)
		return h->tcp_flags & UVS_TCP_SYN;
	return h->protocol == IP_SCTP && h->chunk == SCTP_INIT;
}

/* handle_response() */
static int reply(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *c, int hook, uint64_t now)
{
	struct uvs_table *t = f->table;
	const int masq = is_masq(c);

	if (masq && (has_app(c) || (hook == UVS_FORWARD && f->flags & UVS_FAST_REROUTE)))
		return UVS_STEP_SLOW;
	if (masq)
		uvs_snat(p, c);
	out_stats(t, c, p->len);
	set_state(t, c, UVS_DIR_OUTPUT, &p->iph);
	conn_put(t, c, now);
	f->why[UVS_WHY_REPLY]++;
	return masq ? UVS_STEP_REWRITTEN : UVS_STEP_ACCEPT;
}

/* Can the packet leave at once (ip_vs_get_out_rt), and how?  One of many segments is not too big (skb_is_gso). */
static int out_rt(const struct uvs_fastpath *f, const struct uvs_packet *p, const struct uvs_conn *c,
		  struct uvs_way *way)
{
	const struct uvs_nexthop *nh = &f->nexthops->row[c->nexthop % UVS_NEXTHOPS];

	if (!c->nexthop || nh->index != c->nexthop || !nh->quick || p->iph.ttl <= 1 || from_loopback(&p->iph))
		return 0;
	way->nexthop = *nh;
	way->gso_size = 0;
	if (!p->gso && !p->partial)
		return p->len <= nh->mtu;
	if (nh->cooked)
		return 0;
	if (p->gso) {
		way->gso_size = uvs_segment_size(p, c, nh->mtu);
		if (p->iph.segment <= way->gso_size)
			way->gso_size = 0;
		else if (!way->gso_size)
			return 0;
	}
	return way->gso_size || p->len <= nh->mtu;
}

/* ip_vs_in() of a packet whose connection is known */
static int request(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *c, uint64_t now,
		   struct uvs_way *way)
{
	const uint32_t method = c->flags & UVS_CONN_F_FWD_MASK;
	struct uvs_table *t = f->table;
	const struct uvs_dest *d = dest_at(t, c->dest);

	if (!out_rt(f, p, c, way) || !d || !(d->flags & UVS_DEST_F_AVAILABLE) || opens(&p->iph))
		return UVS_STEP_SLOW;
	if (method != UVS_CONN_F_DROUTE && (!is_masq(c) || c->flags & UVS_CONN_F_NO_CPORT || has_app(c)))
		return UVS_STEP_SLOW;
	in_stats(t, c, p->len);
	set_state(t, c, UVS_DIR_INPUT, &p->iph);
	uvs_decrease_ttl(p);
	if (is_masq(c))
		uvs_dnat(p, c);
	c->in_pkts++;
	conn_put(t, c, now);
	f->why[UVS_WHY_FORWARDED]++;
	return UVS_STEP_SEND;
}

static int accept_for(struct uvs_fastpath *f, int why)
{
	f->why[why]++;
	return UVS_STEP_ACCEPT;
}

/* tcp_conn_schedule(), sctp_conn_schedule(): what cannot open a connection. */
static int of_no_conn(struct uvs_fastpath *f, const struct uvs_iphdr *h)
{
	if (h->protocol == IP_TCP) {
		const int may = h->tcp_flags & UVS_TCP_SYN || f->flags & UVS_FAST_SLOPPY_TCP;

		return may && !(h->tcp_flags & UVS_TCP_RST) ? UVS_STEP_SLOW : accept_for(f, UVS_WHY_NOT_SYN);
	}
	if (h->protocol == IP_SCTP) {
		const int may = h->chunk == SCTP_INIT || f->flags & UVS_FAST_SLOPPY_SCTP;

		return may && h->chunk != SCTP_ABORT ? UVS_STEP_SLOW : accept_for(f, UVS_WHY_NOT_SYN);
	}
	return UVS_STEP_SLOW;
}

/* FNV-1a; who makes others' addresses meet here has their datagrams looked at by the hook path. */
static uint32_t hash_of(const uint8_t *ends, uint32_t len)
{
	uint32_t hash = 2166136261u;

	while (len--)
		hash = (hash ^ *ends++) * 16777619u;
	return (hash ^ hash >> 16) % UVS_FRAGMENTED;
}

void fastpath_fragmented(struct uvs_fastpath *f, const uint8_t *ends, uint32_t len, int by)
{
	f->fragmented += (uint32_t)by;
	f->fragmented_by[hash_of(ends, len)] += (uint16_t)by;
}

/* May it have come in fragments, so that it has to leave in such (frag_max)? */
static int in_fragments(const struct uvs_fastpath *f, const struct uvs_packet *p)
{
	const int v4 = p->iph.af == UVS_AF_INET;

	if (p->len > f->whole || !f->fragmented)
		return p->len > f->whole;
	return f->fragmented_by[hash_of(p->data + (v4 ? IP4_SADDR : IP6_SADDR), v4 ? 8 : 32)];
}

int fastpath(struct uvs_fastpath *f, struct uvs_packet *p, int hook, uint64_t now, struct uvs_way *way)
{
	const struct uvs_iphdr *h = &p->iph;
	struct uvs_conn *c;

	if (f->flags & UVS_FAST_OFF || hook == UVS_LOCAL_OUT || !is_plain(h))
		return UVS_STEP_SLOW;
	if (hook == UVS_LOCAL_IN && h->protocol != IP_TCP && in_fragments(f, p))
		return UVS_STEP_SLOW;
	c = conn_out_get(f->table, h);
	if (c)
		return reply(f, p, c, hook, now);
	if (f->flags & UVS_FAST_NAT_ICMP || (h->protocol == IP_UDP && f->flags & UVS_FAST_PE))
		return UVS_STEP_SLOW;
	if (hook == UVS_FORWARD)
		return accept_for(f, UVS_WHY_NO_CONN);
	if (to_many(h))
		return UVS_STEP_SLOW;
	c = conn_in_get(f->table, h);
	return c ? request(f, p, c, now, way) : of_no_conn(f, h);
}
