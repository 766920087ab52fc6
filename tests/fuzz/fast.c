/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fast.c - the fast path, and what it leaves to be done to a packet, for the fuzz target.
 */
#include <errno.h>
#include <string.h>
#include "fast.h"

static struct uvs_packet *pkt, *part;
static struct uvs_fastpath fast = { .whole = UVS_PACKET_MAX, .port_min = 32768, .port_max = 61000 };
static struct uvs_nexthops hops;
static struct uvs_trace trace;
static uint8_t kept[UVS_PACKET_MAX + 40];

static void start(void)
{
	if (pkt)
		return;
	pkt = uvs_packet_new();
	part = uvs_packet_new();
	CHECK(pkt && part);
}

static void routes(struct uvs_table *t, const uint32_t *dest, uint32_t n, uint8_t how)
{
	uint32_t i;

	fast.table = t;
	fast.nexthops = &hops;
	fast.fragments[0] = fast.fragments[1] = -1;
	fast.pmtu_disc = how & 1;
	fast.trace = &trace;
	fast.flags = how & 128 ? UVS_FAST_TRACE : 0;
	for (i = 0; i < n; i++) {
		struct uvs_dest *d = uvs_dest_at(t, dest[i]);

		hops.row[i + 1] = (struct uvs_nexthop){
			.index = i + 1,
			.mtu = how & 2 ? 1500 : 200,
			.quick = !(how & 4),
			.local = (how & 7) == 4,
			.saddr = { { 10, 0, 0, 1 } },
		};
		d->tun_type = how >> 3 & 3;
		d->tun_flags = how >> 5 & 3;
		d->tun_port = 6080;
	}
}

/* Two who look: at what concerns a network, and at what does not go on; each packet is the first. */
static void tracers(struct uvs_table *t)
{
	static const struct uvs_cond near[] = {
		{ .op = UVS_COND_CLIENT, .af = UVS_AF_INET, .bits = 9, .addr = { { 10 } } },
		{ .op = UVS_COND_SERVER,
		  .af = UVS_AF_INET6,
		  .bits = 127,
		  .addr = { { 0xfd } },
		  .port = 8080 },
		{ .op = UVS_COND_OR },
		{ .op = UVS_COND_PORT, .number = 80 },
		{ .op = UVS_COND_NOT },
		{ .op = UVS_COND_AND },
	};
	static const struct uvs_cond lost[] = { { .op = UVS_COND_VERDICT, .number = UVS_NF_DROP } };

	uvs_trace_init(&trace, t, 1);
	CHECK(uvs_trace_add(&trace, near, 6, 1) == 0 && uvs_trace_add(&trace, lost, 1, 1) == 1);
	CHECK(uvs_trace_add(&trace, near, 5, 1) == -EINVAL);
}

/* The hook path's part: what was granted is counted, and only who wants a walk gets it. */
static void on_the_hook_path(int hook, int readable, uint64_t now)
{
	const int asked = readable ? pkt->traced : 0;
	const int want = uvs_trace_begin(&trace, readable ? pkt : NULL, hook, 0, asked, now);
	uint64_t matched, suppressed;
	int told;

	CHECK(!(asked & UVS_TRACED) == (want != UVS_TRACE_WALK) || !asked);
	told = uvs_trace_end(&trace, UVS_NF_DROP, UVS_WHY_CHECKSUM, want == UVS_TRACE_WALK, now);
	CHECK(!(told & ~3));
	uvs_trace_counts(&trace, 1, &matched, &suppressed);
	CHECK(asked || (matched == 1 && suppressed == !(told & 2)));
}

/* What is sent fits, and is whole. */
static void leaving(struct uvs_way *way)
{
	const uint32_t mtu = way->nexthop.mtu;
	uint32_t n;

	CHECK(way->nexthop.quick && !way->local);
	for (n = 0; way->gso_size && uvs_way_part(pkt, way, n, part); n++) {
		CHECK(part->len <= mtu && n < 70000);
		CHECK(!uvs_packet_parse(part) && part->len <= mtu && header_right(part));
	}
	CHECK(!way->gso_size || n);
	if (way->gso_size)
		return;
	CHECK(!way->tunnelled || !uvs_way_encap(pkt, way));
	CHECK(pkt->len <= mtu);
	check_iph(pkt);
}

void by_fast_path(struct uvs_table *t, const uint32_t *dest, uint32_t n, uint8_t arg, uint8_t how,
		  const uint8_t *data, uint32_t len, uint64_t now)
{
	static const uint8_t hooks[] = { UVS_LOCAL_IN, UVS_LOCAL_IN, UVS_FORWARD, UVS_LOCAL_OUT };
	struct uvs_way way;
	int step;

	start();
	routes(t, dest, n, how);
	tracers(t);
	if (uvs_packet_load(pkt, data, len, 0)) {
		on_the_hook_path(hooks[arg >> 4 & 3], 0, now);
		return;
	}
	if (pkt->iph.protocol == 6 && pkt->iph.flags & UVS_HDR_L4 && pkt->iph.end == pkt->len) {
		pkt->partial = arg & 1;
		pkt->gso = arg >> 1 & 1;
	}
	pkt->indev = pkt->outdev = arg >> 2 & 3;
	len = pkt->len;
	memcpy(kept, pkt->data, len);
	step = uvs_fastpath(&fast, pkt, hooks[arg >> 4 & 3], now, &way);
	if (step == UVS_STEP_SLOW || step == UVS_STEP_ACCEPT)
		CHECK(pkt->len == len && !memcmp(pkt->data, kept, len));
	else if (step == UVS_STEP_REWRITTEN)
		check_iph(pkt);
	else
		leaving(&way);
	if (step == UVS_STEP_SLOW)
		on_the_hook_path(hooks[arg >> 4 & 3], 1, now);
	else
		CHECK(!(pkt->traced & UVS_TRACED));
}

void segments(const struct uvs_packet *p, const struct uvs_conn *c, uint32_t mtu)
{
	const uint32_t size = uvs_segment_size(p, c, mtu), head = p->iph.end - p->iph.segment;
	uint8_t *out = malloc(size ? head + size : 1);
	uint32_t n, len, at = 0;

	start();
	for (n = 0; size && (len = uvs_segment(p, size, n, out)) > 0; n++) {
		CHECK(len <= mtu && len - head <= size);
		CHECK(!memcmp(out + head, p->data + head + at, len - head));
		at += len - head;
		CHECK(!uvs_packet_load(part, out, len, 0) && part->len == len && all_right(part));
	}
	CHECK(!size || at == p->iph.segment);
	free(out);
}
