/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fastpath.c - one packet of a known connection, or of a new one, without Python.
 *
 * uvs/ipvs/core.py is the meaning; this strings the same primitives together in the same order.  All that
 * could need a decision is looked at before anything is changed, so that the hook path can begin anew.
 * tests/property/test_fastpath.py holds the two together.
 */
#include "fastpath.h"
#include "packet.h"
#include "table.h"

#define FTPDATA 20
#define FTPPORT 21
#define SCTP_INIT 1
#define LOOPBACK_IFINDEX 1 /* include/net/flow.h */
#define SCTP_ABORT 6

/* Names of states: uvs/ipvs/protocols.py. */
#define TCP_S_FIN_WAIT 4
#define TCP_S_TIME_WAIT 5
#define TCP_S_CLOSE 6
#define SCTP_S_CLOSED 13

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

static int is_loopback(uint8_t af, const union uvs_addr *addr)
{
	static const uint8_t one[16] = { [15] = 1 };

	return af == UVS_AF_INET ? addr->b[0] == 127 : !memcmp(addr->b, one, 16);
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

/* Is a packet to be left since somebody traces it?  Asked when all is known that becomes of it, and nothing is done. */
static int is_traced(struct uvs_fastpath *f, struct uvs_packet *p, const struct uvs_conn *c, int hook,
		     int verdict, int why, uint64_t now)
{
	if (!(f->flags & UVS_FAST_TRACE))
		return 0;
	p->traced = trace_ask(f->trace, p, c, hook, verdict, why, now);
	return p->traced & UVS_TRACED;
}

/* handle_response() */
static int reply(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *c, int hook, uint64_t now)
{
	struct uvs_table *t = f->table;
	const int masq = is_masq(c);

	if (masq && (has_app(c) || (hook == UVS_FORWARD && f->flags & UVS_FAST_REROUTE)))
		return UVS_STEP_SLOW;
	if (is_traced(f, p, c, hook, UVS_NF_ACCEPT, UVS_WHY_REPLY, now))
		return UVS_STEP_SLOW;
	if (masq)
		uvs_snat(p, c);
	out_stats(t, c, p->len);
	set_state(t, c, UVS_DIR_OUTPUT, &p->iph);
	conn_put(t, c, now);
	f->why[UVS_WHY_REPLY]++;
	return masq ? UVS_STEP_REWRITTEN : UVS_STEP_ACCEPT;
}

/* The same in its tunnel: of many segments it is cut before (iptunnel_handle_offloads). */
static int tunnel_fits(const struct uvs_packet *p, const struct uvs_conn *c, const struct uvs_dest *d,
		       uint32_t mtu, struct uvs_way *way)
{
	const int v4 = c->daf == UVS_AF_INET;
	const uint32_t head = (v4 ? IP4_HLEN : IP6_HLEN) + uvs_tunnel_hlen(d->tun_type, d->tun_flags);

	if (mtu < head + (v4 ? IP4_MTU_MIN : IP6_MTU_MIN))
		return 0;
	if (!p->gso)
		return p->len <= mtu - head;
	way->gso_size = uvs_segment_size(p, c, mtu - head);
	return way->gso_size != 0;
}

/* May it go to a server on this host (crosses_local_route_boundary)?  One made here would come to LOCAL_IN, where
 * its mark must say that it was handled: the hook path's. */
static int may_stay(const struct uvs_packet *p, const struct uvs_conn *c)
{
	return p->indev && (!is_masq(c) || p->indev == LOOPBACK_IFINDEX || !is_loopback(c->daf, &c->daddr));
}

/* Can the packet leave at once (ip_vs_get_out_rt), and how?  One of many segments is not too big (skb_is_gso). */
static int out_rt(const struct uvs_fastpath *f, const struct uvs_packet *p, const struct uvs_conn *c,
		  const struct uvs_dest *d, struct uvs_way *way)
{
	const struct uvs_nexthop *nh = &f->nexthops->row[c->nexthop % UVS_NEXTHOPS];

	if (!c->nexthop || nh->index != c->nexthop)
		return 0;
	way->local = nh->local;
	if (nh->local)
		return may_stay(p, c);
	if (!nh->quick || p->iph.ttl <= 1 || is_loopback(p->iph.af, &p->iph.saddr))
		return 0;
	way->nexthop = *nh;
	way->gso_size = 0;
	way->tunnelled = (c->flags & UVS_CONN_F_FWD_MASK) == UVS_CONN_F_TUNNEL;
	if (way->tunnelled)
		return tunnel_fits(p, c, d, nh->mtu, way);
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

/* Does the packet leave by that connection at once? */
static int may_leave(const struct uvs_fastpath *f, const struct uvs_packet *p, const struct uvs_conn *c,
		     struct uvs_way *way)
{
	const struct uvs_dest *d = dest_at(f->table, c->dest);

	if (!d || !(d->flags & UVS_DEST_F_AVAILABLE) || !out_rt(f, p, c, d, way))
		return 0;
	switch (c->flags & UVS_CONN_F_FWD_MASK) {
	case UVS_CONN_F_MASQ: return !(c->flags & UVS_CONN_F_NO_CPORT) && !has_app(c);
	case UVS_CONN_F_DROUTE:
	case UVS_CONN_F_TUNNEL: return 1;
	}
	return 0;
}

/* ip_vs_tunnel_xmit(): what the outer headers are made of. */
static void tunnel(const struct uvs_fastpath *f, const struct uvs_packet *p, const struct uvs_conn *c,
		   struct uvs_way *way)
{
	struct uvs_dest *d = dest_at(f->table, c->dest);
	const struct uvs_nexthop *nh = &way->nexthop;
	const uint32_t size = way->gso_size, parts = size ? (p->iph.segment + size - 1) / size : 1;
	struct uvs_tunnel *t = &way->tunnel;

	d->route = (nh->mtu & UVS_ROUTE_MTU) | (nh->learned ? UVS_ROUTE_LEARNED : 0);
	t->saddr = nh->saddr;
	t->daddr = c->daddr;
	t->af = c->daf;
	t->type = d->tun_type;
	t->flags = d->tun_flags;
	t->pmtu_disc = f->pmtu_disc;
	t->id = idents(f->table, parts ? parts : 1);
	if (d->tun_type == UVS_TUN_GUE) {
		t->sport = uvs_flow_src_port(&p->iph, f->flow_seed, f->port_min, f->port_max);
		t->dport = d->tun_port;
	}
}

/* ip_vs_in() from the connection on */
static int request(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *c, uint64_t now,
		   struct uvs_way *way)
{
	struct uvs_table *t = f->table;
	int masq;

	in_stats(t, c, p->len);
	set_state(t, c, UVS_DIR_INPUT, &p->iph);
	if (!way->local)
		uvs_decrease_ttl(p);
	if (is_masq(c))
		uvs_dnat(p, c);
	if (way->tunnelled && !way->local)
		tunnel(f, p, c, way);
	c->in_pkts++;
	masq = is_masq(c); /* one of a single packet is gone after this */
	conn_put(t, c, now);
	if (way->local) {
		f->why[UVS_WHY_LOCAL]++;
		return masq ? UVS_STEP_REWRITTEN : UVS_STEP_ACCEPT;
	}
	f->why[UVS_WHY_FORWARDED]++;
	return UVS_STEP_SEND;
}

static int accept_for(struct uvs_fastpath *f, struct uvs_packet *p, int hook, int why, uint64_t now)
{
	if (is_traced(f, p, NULL, hook, UVS_NF_ACCEPT, why, now))
		return UVS_STEP_SLOW;
	f->why[why]++;
	return UVS_STEP_ACCEPT;
}

static int request_is_traced(struct uvs_fastpath *f, struct uvs_packet *p, const struct uvs_conn *c, int hook,
			     uint64_t now, const struct uvs_way *way)
{
	const int local = way->local;

	return is_traced(f, p, c, hook, local ? UVS_NF_ACCEPT : UVS_NF_STOLEN,
			 local ? UVS_WHY_LOCAL : UVS_WHY_FORWARDED, now);
}

/* What ip_vs_schedule() would make for a packet to a plain service, but for its record; NULL: the hook path's.
 * Nothing is touched. */
static struct uvs_sched *choose(const struct uvs_fastpath *f, const struct uvs_packet *p,
				struct uvs_turn *turn, struct uvs_conn *c)
{
	const struct uvs_iphdr *h = &p->iph;
	const struct uvs_dest *d;
	struct uvs_sched *s;
	bool by_mark;
	int at;

	if (f->flags & UVS_FAST_DROP_RATE || p->gso || p->indev <= 1 || !h->sport || h->sport == FTPDATA ||
	    (h->protocol == IP_TCP && h->dport == FTPPORT))
		return NULL;
	s = service_find(f->table, h, p->mark, &by_mark);
	if (!s)
		return NULL;
	*turn = s->turn;
	at = sched_next(f->table, s, turn, h);
	d = at < 0 ? NULL : dest_at(f->table, s->dests[at]);
	if (!d)
		return NULL;
	if (by_mark && (d->conn_flags & UVS_CONN_F_FWD_MASK) != UVS_CONN_F_MASQ) /* answers_from */
		return NULL;
	*c = (struct uvs_conn){
		.af = h->af,
		.daf = d->af,
		.protocol = h->protocol,
		.cport = h->sport,
		.vport = h->dport,
		.dport = d->port ? d->port : h->dport,
		.caddr = h->saddr,
		.vaddr = h->daddr,
		.daddr = d->addr,
		.flags = d->conn_flags,
		.dest = s->dests[at],
		.fwmark = p->mark,
		.nexthop = s->nexthops[at],
	};
	return s;
}

/* conn_schedule() and the rest of ip_vs_in(); `old`: the connection whose ports the client uses again */
static int open_conn(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *old, int hook,
		     uint64_t now, struct uvs_way *way)
{
	struct uvs_conn_param key;
	struct uvs_conn like, *c;
	struct uvs_turn turn;
	struct uvs_sched *s = choose(f, p, &turn, &like);

	if (!s || !may_leave(f, p, &like, way) || request_is_traced(f, p, &like, hook, now, way))
		return UVS_STEP_SLOW;
	key.af = like.af;
	key.daf = like.daf;
	key.protocol = like.protocol;
	key.cport = like.cport;
	key.vport = like.vport;
	key.dport = like.dport;
	key.pe_len = 0;
	key.caddr = like.caddr;
	key.vaddr = like.vaddr;
	key.daddr = like.daddr;
	key.fwmark = like.fwmark;
	c = conn_new(f->table, &key, 0, like.dest, now);
	if (!c) {
		f->table->full--; /* the hook path asks once more */
		if (p->traced)
			trace_take_back(f->trace, p->traced);
		p->traced = 0;
		return UVS_STEP_SLOW;
	}
	if (old && !old->n_control)
		conn_expire_now(f->table, old, now);
	s->turn = turn;
	c->nexthop = like.nexthop;
	conn_stats(f->table, c);
	return request(f, p, c, now, way);
}

/* tcp_conn_schedule(), udp_conn_schedule(), sctp_conn_schedule() */
static int of_no_conn(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *old, int hook,
		      uint64_t now, struct uvs_way *way)
{
	const struct uvs_iphdr *h = &p->iph;
	int may = 1;

	if (h->protocol == IP_TCP)
		may = !(h->tcp_flags & UVS_TCP_RST) && (opens(h) || f->flags & UVS_FAST_SLOPPY_TCP);
	else if (h->protocol == IP_SCTP)
		may = h->chunk != SCTP_ABORT && (opens(h) || f->flags & UVS_FAST_SLOPPY_SCTP);
	else if (h->protocol != IP_UDP)
		return UVS_STEP_SLOW;
	if (may)
		return open_conn(f, p, old, hook, now, way);
	return old ? UVS_STEP_SLOW : accept_for(f, p, hook, UVS_WHY_NOT_SYN, now);
}

/* is_new_conn_expected() */
static int expects_new(const struct uvs_fastpath *f, const struct uvs_conn *c)
{
	if (c->protocol == IP_SCTP)
		return c->state == SCTP_S_CLOSED;
	if (c->state == TCP_S_FIN_WAIT)
		return f->flags & UVS_FAST_REUSE_FIN_WAIT && c->flags & UVS_CONN_F_NOOUTPUT;
	return c->state == TCP_S_TIME_WAIT || c->state == TCP_S_CLOSE;
}

/* ip_vs_in() of a packet whose connection is known; one that opens a connection may leave it (_reschedule). */
static int of_conn(struct uvs_fastpath *f, struct uvs_packet *p, struct uvs_conn *c, int hook, uint64_t now,
		   struct uvs_way *way)
{
	const struct uvs_dest *d = dest_at(f->table, c->dest);

	if (opens(&p->iph)) {
		if (f->flags & UVS_FAST_NODEST && d && !d->weight)
			return UVS_STEP_SLOW;
		if (f->flags & UVS_FAST_REUSE && !c->control && expects_new(f, c))
			return of_no_conn(f, p, c, hook, now, way);
	}
	if (!may_leave(f, p, c, way) || request_is_traced(f, p, c, hook, now, way))
		return UVS_STEP_SLOW;
	return request(f, p, c, now, way);
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

	if (f->flags & UVS_FAST_OFF || !is_plain(h))
		return UVS_STEP_SLOW;
	if (hook == UVS_LOCAL_OUT && p->outdev <= LOOPBACK_IFINDEX) /* as above */
		return UVS_STEP_SLOW;
	if (hook == UVS_LOCAL_IN && h->protocol != IP_TCP && in_fragments(f, p))
		return UVS_STEP_SLOW;
	c = conn_out_get(f->table, h);
	if (c)
		return reply(f, p, c, hook, now);
	if (f->flags & UVS_FAST_NAT_ICMP || (h->protocol == IP_UDP && f->flags & UVS_FAST_PE))
		return UVS_STEP_SLOW;
	if (hook == UVS_FORWARD)
		return accept_for(f, p, hook, UVS_WHY_NO_CONN, now);
	if (hook == UVS_LOCAL_IN && to_many(h))
		return UVS_STEP_SLOW;
	c = conn_in_get(f->table, h);
	return c ? of_conn(f, p, c, hook, now, way) : of_no_conn(f, p, NULL, hook, now, way);
}
