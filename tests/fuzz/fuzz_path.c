/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fuzz_path - libFuzzer target: a sequence of packets through every C primitive that the
 * hook path calls, in its order, with what must hold after each.
 *
 * Input: packets one after another, each behind a head of six bytes: operations (OP_*), an
 * argument (which destination, which MTU), seconds that pass, how to tunnel and where to look for
 * a header, and the packet's length (big-endian; what is longer than the
 * input is cut).  Each goes by the fast path too.  Without a packet it is a command instead: an argument, seconds, which command.
 */
#include <stdlib.h>
#include <string.h>
#include "fast.h"
#include "service.h"

enum {
	OP_FILL = 1,      /* make the checksums right first */
	OP_REPLY = 2,     /* from the server's side */
	OP_NEW = 4,       /* make a connection if there is none */
	OP_TUNNEL = 8,    /* encapsulate */
	OP_FRAGMENT = 16, /* cut for an MTU */
	OP_TEMPLATE = 32, /* the new connection has a template for its controller */
	OP_ONE_PACKET = 64,
	OP_DELETE = 128,  /* delete the connection, or let it expire now */
};

#define HEAD 6
#define DESTS 6
#define SECOND 1000000000ull
#define QUEUES 8
#define BLOCKS 1024 /* an input has few fragments, but its packets may be cut small */

static struct uvs_packet *pkt, *other;
static uint8_t *kept; /* a copy of the packet before a step */
static struct uvs_reasm *reasm;

struct run {
	struct uvs_table *t;
	uint32_t dest[DESTS];
	uint64_t now;
};

static const struct {
	uint8_t af, addr[16];
	uint32_t method;
} dests[DESTS] = {
	{ UVS_AF_INET, { 10, 0, 0, 2 }, UVS_CONN_F_MASQ },
	{ UVS_AF_INET6, { 0xfd, [15] = 2 }, UVS_CONN_F_MASQ },
	{ UVS_AF_INET, { 10, 0, 0, 3 }, UVS_CONN_F_TUNNEL | UVS_CONN_F_NOOUTPUT },
	{ UVS_AF_INET6, { 0xfd, [15] = 3 }, UVS_CONN_F_TUNNEL | UVS_CONN_F_NOOUTPUT },
	{ UVS_AF_INET, { 10, 0, 0, 4 }, UVS_CONN_F_DROUTE | UVS_CONN_F_NOOUTPUT },
	{ UVS_AF_INET6, { 0xfd, [15] = 4 }, UVS_CONN_F_DROUTE | UVS_CONN_F_NOOUTPUT },
};

static void start(struct run *r)
{
	uint32_t service;
	char msg[256];
	int i;

	r->now = 1000 * SECOND;
	r->t = uvs_table_open(NULL, 1000, NULL, r->now, msg, sizeof(msg));
	CHECK(r->t);
	service = uvs_service_new(r->t);
	for (i = 0; i < DESTS; i++) {
		struct uvs_dest *d;

		r->dest[i] = uvs_dest_new(r->t);
		d = uvs_dest_at(r->t, r->dest[i]);
		CHECK(d);
		d->af = d->vaf = dests[i].af;
		d->port = 8080;
		memcpy(d->addr.b, dests[i].addr, 16);
		d->conn_flags = dests[i].method | UVS_CONN_F_INACTIVE;
		d->weight = 1;
		d->u_threshold = 3;
		d->flags = UVS_DEST_F_AVAILABLE;
		d->service = service;
	}
}

/* Counters are what the records say, and everything can be taken away. */
static void finish(struct run *r)
{
	uint32_t cursor = 0, i, conns = 0, refs = 0, sum = 0;
	struct uvs_table_info info;

	while ((i = uvs_record_next(r->t, UVS_KIND_CONN, &cursor)) != 0)
		conns++;
	uvs_table_info(r->t, &info);
	CHECK(conns == info.conns + info.templates);
	for (i = 0; i < DESTS; i++) {
		const struct uvs_dest *d = uvs_dest_at(r->t, r->dest[i]);

		CHECK(d->activeconns >= 0 && d->inactconns >= 0 && d->persistconns >= 0);
		refs += uvs_dest_refcnt(r->t, d);
		sum += (uint32_t)(d->activeconns + d->inactconns + d->persistconns);
	}
	CHECK(refs == conns && sum == conns);
	/* A connection ends within its time-out, a controller within a minute after it. */
	for (i = 0; i < 10; i++) {
		r->now += 3600 * SECOND;
		while (uvs_expire(r->t, r->now, 100) == 100)
			;
	}
	uvs_table_info(r->t, &info);
	CHECK(!info.conns && !info.templates && !info.no_cport);
	cursor = 0;
	CHECK(!uvs_record_next(r->t, UVS_KIND_PE, &cursor));
	cursor = 0;
	CHECK(!uvs_record_next(r->t, UVS_KIND_APP, &cursor));
	for (i = 0; i < DESTS; i++)
		CHECK(!uvs_dest_free(r->t, r->dest[i]));
	uvs_table_close(r->t);
}

/* One more fragment, in `other`: its verdict. */
static int gather(uint8_t user, uint64_t now)
{
	const int why = uvs_reassemble(reasm, other, user, now);
	struct uvs_reasm_info info;

	uvs_reasm_info(reasm, &info);
	CHECK(info.queues <= QUEUES && info.blocks <= BLOCKS);
	if (why)
		return why;
	CHECK(!other->frag_max || header_right(other));
	check_iph(other);
	return 0;
}

/* The fragments, last one first, give the packet again. */
static void together(const struct uvs_packet *p, uint32_t mtu, uint32_t count, uint8_t *out)
{
	uint32_t n, head = p->iph.af == UVS_AF_INET ? p->iph.len : 0;
	int why = UVS_WHY_GATHERED, len;

	uvs_reasm_expire(reasm, UINT64_MAX);
	for (n = count; n-- && why == UVS_WHY_GATHERED;) {
		len = uvs_fragment(p, mtu, n, 99, out);
		CHECK(!uvs_packet_load(other, out, (uint32_t)len, 0));
		why = gather(2, 0);
	}
	/* Only an IPv6 packet can have more headers than are kept. */
	if (why == UVS_WHY_REASSEMBLY && !head)
		return;
	CHECK(!why && n == UINT32_MAX);
	CHECK(other->len == p->len && !memcmp(other->data + head, p->data + head, p->len - head));
	CHECK(other->frag_max && other->frag_max <= mtu);
}

static void fragment(const struct uvs_packet *p, uint32_t mtu)
{
	uint8_t *out = malloc(mtu ? mtu : 1);
	uint32_t n, at = p->iph.fragoffs, bytes = 0;
	int len;

	for (n = 0; (len = uvs_fragment(p, mtu, n, 99, out)) > 0; n++) {
		uint32_t part;

		CHECK((uint32_t)len <= mtu && n < 70000);
		CHECK(!uvs_packet_load(other, out, (uint32_t)len, 0));
		CHECK(other->len == (uint32_t)len);
		CHECK(other->iph.af == p->iph.af);
		part = other->iph.end - other->iph.len;
		bytes += part;
		if (p->len <= mtu) {
			CHECK((uint32_t)len == p->len && !memcmp(out, p->data, p->len));
		} else if (p->iph.af == UVS_AF_INET) {
			CHECK(header_right(other));
			CHECK(other->iph.fragoffs == at);
			CHECK(!memcmp(other->data + other->iph.len,
				      p->data + p->iph.len + at - p->iph.fragoffs, part));
			at += part;
		} else {
			CHECK(other->iph.flags & UVS_HDR_FRAGMENT);
		}
	}
	CHECK(len == 0 || n == 0 || p->iph.fragoffs + p->len > 65535);
	CHECK(len || p->iph.af != UVS_AF_INET || bytes == p->iph.end - p->iph.len);
	if (!len && p->len > mtu && !(p->iph.flags & (UVS_HDR_FRAGMENT | UVS_HDR_ATOMIC)))
		together(p, mtu, n, out);
	free(out);
}

static void tunnel(int af, uint8_t how)
{
	struct uvs_tunnel t = {
		.saddr = { { 10, 0, 0, 1 } }, .daddr = { { 10, 0, 0, 3 } }, .dport = 6080, .id = 7
	};
	uint32_t len = pkt->len, head = af == UVS_AF_INET ? 20 : 40;

	t.af = (uint8_t)af;
	t.type = how & 3;
	t.flags = how >> 2 & 3;
	t.pmtu_disc = how >> 4 & 1;
	t.sport = uvs_flow_src_port(&pkt->iph, how, 32768, 61000);
	CHECK(t.sport >= 32768 && t.sport < 61000);
	memcpy(kept, pkt->data, len);
	if (uvs_encap(pkt, &t)) {
		CHECK(pkt->len == len && !memcmp(pkt->data, kept, len));
		return;
	}
	CHECK(pkt->iph.af == af && pkt->iph.len == head && header_right(pkt));
	if (t.type == UVS_TUN_GUE && t.flags)
		CHECK(uvs_l4_csum_ok(pkt));
	if (t.type == UVS_TUN_GRE && t.flags & UVS_TUN_F_CSUM)
		CHECK(!uvs_csum(pkt->data + head, pkt->len - head, 0));
	head += uvs_tunnel_hlen(t.type, t.flags);
	CHECK(pkt->len == len + head && !memcmp(pkt->data + head, kept, len));
	check_header(pkt, &pkt->iph);
	check_iph(pkt);
}

static void lookups(struct run *r, const struct uvs_iphdr *h)
{
	struct uvs_iphdr batch[3];
	const struct uvs_conn *c;
	uint32_t out[3], i;

	for (i = 0; i < 3; i++) {
		batch[i] = *h;
		if (i == 1)
			batch[i].flags ^= UVS_HDR_INVERSE;
	}
	uvs_conn_in_get_batch(r->t, batch, 3, out);
	for (i = 0; i < 3; i++) {
		c = uvs_conn_in_get(r->t, &batch[i]);
		CHECK(out[i] == (c ? uvs_record_index(r->t, c) : 0));
		uvs_conn_out_get(r->t, &batch[i]);
	}
}

static struct uvs_conn *new_conn(struct run *r, const struct uvs_iphdr *h, uint8_t op, uint8_t arg)
{
	uint32_t dest = r->dest[arg % DESTS], flags = 0;
	const struct uvs_dest *d = uvs_dest_at(r->t, dest);
	struct uvs_conn_param p = { .af = h->af, .daf = d->af, .protocol = h->protocol };
	struct uvs_conn *c, *template;

	if (d->af != h->af && (d->conn_flags & UVS_CONN_F_FWD_MASK) != UVS_CONN_F_TUNNEL)
		return NULL;
	p.cport = h->sport;
	p.vport = h->dport;
	p.dport = arg & 64 ? h->dport : d->port;
	p.caddr = h->saddr;
	p.vaddr = h->daddr;
	p.daddr = d->addr;
	if (op & OP_ONE_PACKET && h->protocol == 17)
		flags |= UVS_CONN_F_ONE_PACKET;
	if (arg & 128)
		flags |= UVS_CONN_F_NO_CPORT;
	c = uvs_conn_new(r->t, &p, flags, dest, r->now);
	CHECK(c);
	if (op & OP_TEMPLATE) {
		p.cport = 0;
		p.pe_len = (uint16_t)(arg % 4 * 90);
		memset(p.pe, arg, p.pe_len);
		template = uvs_ct_in_get(r->t, &p);
		if (!template) {
			template = uvs_conn_new(r->t, &p, UVS_CONN_F_TEMPLATE, dest, r->now);
			CHECK(template && uvs_ct_in_get(r->t, &p) == template);
			template->timeout = 360000;
		}
		uvs_control_add(r->t, c, template);
		uvs_conn_put(r->t, template, r->now);
	}
	uvs_conn_stats(r->t, c);
	CHECK(flags || !h->sport || uvs_conn_in_get(r->t, h) == c);
	c->nexthop = arg % DESTS + 1;
	return c;
}

static void nat(const struct uvs_conn *c, int reply)
{
	int right = all_right(pkt);

	if (reply)
		uvs_snat(pkt, c);
	else
		uvs_dnat(pkt, c);
	CHECK(!right || all_right(pkt));
	check_iph(pkt);
}

/* A helper changes a server's payload; numbers follow, of later packets and of the client's. */
static void helper(struct run *r, struct uvs_conn *c, uint8_t arg, int reply)
{
	struct uvs_app *a = uvs_conn_app_new(r->t, c);
	uint32_t len = pkt->len, cut = arg % 5;
	int right = all_right(pkt);

	CHECK(a && uvs_conn_app(r->t, c) == a);
	if (reply) {
		uint32_t at = pkt->iph.end - pkt->iph.segment + arg % 3;

		if (!uvs_mangle_tcp(pkt, at, cut, kept, arg)) {
			CHECK(pkt->len == len - cut + arg && all_right(pkt));
			right = 1;
		} else {
			CHECK(pkt->len == len);
		}
		uvs_seq_out(pkt, a);
		uvs_seq_resized(a, (uint32_t)arg << 24, (int32_t)arg - (int32_t)cut);
	} else {
		uvs_seq_in(pkt, a);
	}
	CHECK(!right || all_right(pkt));
	check_iph(pkt);
}

static void icmp(struct run *r, uint8_t op, uint8_t at)
{
	struct uvs_iphdr quoted, any;
	struct uvs_conn *c;

	if (!uvs_quoted_parse_at(pkt, at, at & 1 ? UVS_AF_INET6 : UVS_AF_INET, &any))
		check_header(pkt, &any);
	if (uvs_quoted_parse(pkt, &quoted))
		return;
	check_header(pkt, &quoted);
	CHECK(quoted.off == pkt->iph.len + 8 && quoted.flags & UVS_HDR_ICMP);
	quoted.flags |= UVS_HDR_INVERSE;
	lookups(r, &quoted);
	c = op & OP_REPLY ? uvs_conn_out_get(r->t, &quoted) : uvs_conn_in_get(r->t, &quoted);
	quoted.flags &= ~UVS_HDR_INVERSE;
	if (!c || c->daf != c->af || (c->flags & UVS_CONN_F_FWD_MASK) != UVS_CONN_F_MASQ)
		return;
	uvs_nat_icmp(pkt, &quoted, c, !!(op & OP_REPLY));
	CHECK(pkt->iph.flags & UVS_HDR_FRAGMENT || all_right(pkt));
	check_iph(pkt);
}

static void connection(struct run *r, uint8_t op, uint8_t arg)
{
	struct uvs_iphdr *h = &pkt->iph;
	struct uvs_conn *c;
	int reply = !!(op & OP_REPLY);

	lookups(r, h);
	c = reply ? uvs_conn_out_get(r->t, h) : uvs_conn_in_get(r->t, h);
	if (!c && op & OP_NEW && h->flags & UVS_HDR_PORTS)
		c = new_conn(r, h, op, arg);
	if (!c)
		return;
	if (!reply)
		uvs_conn_fill_cport(r->t, c, h->sport);
	uvs_set_state(r->t, c, reply ? UVS_DIR_OUTPUT : UVS_DIR_INPUT, h);
	(reply ? uvs_out_stats : uvs_in_stats)(r->t, c, pkt->len);
	uvs_conn_remaining(c, r->now);
	if (h->protocol == 6 && h->end == pkt->len && !(h->flags & (UVS_HDR_FRAGMENT | UVS_HDR_ATOMIC)))
		segments(pkt, c, arg * 11u);
	if (c->daf == h->af && (c->flags & UVS_CONN_F_FWD_MASK) == UVS_CONN_F_MASQ) {
		if (c->flags & UVS_CONN_F_TEMPLATE) /* a server's packet to client port 0 finds it */
			CHECK(!uvs_conn_app_new(r->t, c));
		else if (h->protocol == 6)
			helper(r, c, arg, reply);
		nat(c, reply);
	}
	if (op & OP_DELETE && arg & 1)
		uvs_conn_del(r->t, c);
	else if (op & OP_DELETE)
		uvs_conn_expire_now(r->t, c, r->now);
	else
		uvs_conn_put(r->t, c, r->now);
}

/* The rules that compare destinations: none that may not be chosen. */
static void choose(struct run *r)
{
	struct uvs_sched *s = uvs_sched_new(UVS_SCHED_COMPARE, UVS_CHOOSE_LC);
	int rule, at, i;

	CHECK(s && uvs_sched_choose(r->t, s, UVS_CHOOSE_LC) == -1);
	for (i = DESTS; i--;)
		CHECK(!uvs_sched_insert(r->t, s, r->dest[i]));
	for (rule = UVS_CHOOSE_LC; rule <= UVS_CHOOSE_LIGHT; rule++) {
		const struct uvs_dest *d;

		at = uvs_sched_choose(r->t, s, rule);
		CHECK(at >= -1 && at < DESTS);
		if (at < 0)
			continue;
		d = uvs_dest_at(r->t, r->dest[at]);
		CHECK(d->weight > 0 && (rule == UVS_CHOOSE_LIGHT || !(d->flags & UVS_DEST_F_OVERLOAD)));
	}
	uvs_sched_free(s);
}

/* What an operator and the clock do to destinations and connections. */
static void command(struct run *r, uint8_t arg, uint8_t which)
{
	struct uvs_dest *d = uvs_dest_at(r->t, r->dest[arg % DESTS]);
	struct uvs_conn *c;
	uint32_t cursor = 0;

	switch (which % 8) {
	case 0: /* deleted, and revived */ d->flags ^= UVS_DEST_F_AVAILABLE; break;
	case 1: uvs_expire_nodest(r->t); break;
	case 2: uvs_drop_entry(r->t, r->now, arg * 7919u); break;
	case 3:
		d->u_threshold = arg >> 3 & 7;
		d->l_threshold = arg >> 6;
		d->weight = arg & 3;
		uvs_dest_overload(r->t, d);
		break;
	case 4: uvs_secure_tcp(r->t, arg & 1); break;
	case 5: choose(r); break;
	case 6: /* a template that is no longer good is set aside */
		c = uvs_conn_at(r->t, uvs_record_next(r->t, UVS_KIND_CONN, &cursor));
		if (c && c->flags & UVS_CONN_F_TEMPLATE)
			uvs_conn_rekey(r->t, c, 0, 0xffff, 0xffff);
		break;
	default: uvs_timeouts(r->t, arg & 1 ? 6 : 17)[0] = arg * 1000u; break;
	}
}

static void one(struct run *r, const uint8_t head[HEAD], const uint8_t *data, uint32_t len)
{
	uint8_t op = head[0], arg = head[1];
	int right;

	r->now += head[2] * SECOND;
	uvs_expire(r->t, r->now, 64);
	if (!len)
		command(r, arg, head[3]);
	if (uvs_packet_load(pkt, data, len, arg)) {
		CHECK(!pkt->iph.flags && !pkt->iph.end);
		return;
	}
	CHECK(pkt->len <= len);
	check_header(pkt, &pkt->iph);
	CHECK(!uvs_packet_load(other, data, len, arg));
	if (!gather(1, r->now))
		check_header(other, &other->iph);
	if (op & OP_FILL) {
		uvs_csum_fill(pkt);
		CHECK(header_right(pkt));
		CHECK(pkt->iph.flags & UVS_HDR_FRAGMENT || !(pkt->iph.flags & UVS_HDR_L4) ||
		      uvs_l4_csum_ok(pkt));
		check_iph(pkt);
	}
	icmp(r, op, head[3]);
	connection(r, op, arg);
	by_fast_path(r->t, r->dest, DESTS, arg, head[3], data, len, r->now);
	right = all_right(pkt);
	if (!uvs_decrease_ttl(pkt) && right)
		CHECK(all_right(pkt));
	check_iph(pkt);
	if (op & OP_TUNNEL)
		tunnel(head[3] & 2 ? UVS_AF_INET6 : UVS_AF_INET, head[3] >> 3);
	if (op & OP_FRAGMENT)
		fragment(pkt, arg * 6u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct run r;

	if (!pkt) {
		pkt = uvs_packet_new();
		other = uvs_packet_new();
		kept = malloc(UVS_PACKET_MAX + 40);
		reasm = uvs_reasm_new(QUEUES, BLOCKS, 1);
		CHECK(pkt && other && kept && reasm);
	}
	uvs_reasm_expire(reasm, UINT64_MAX);
	start(&r);
	while (size >= HEAD) {
		const uint8_t *head = data;
		uint32_t len = (uint32_t)(head[4] << 8 | head[5]);

		data += HEAD;
		size -= HEAD;
		if (len > size)
			len = (uint32_t)size;
		one(&r, head, data, len);
		data += len;
		size -= len;
	}
	finish(&r);
	return 0;
}
