/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * way.c - what the fast path leaves to be done to a packet that is sent: its tunnel, its segments.
 */
#include "fastpath.h"
#include "packet.h"

int uvs_way_encap(struct uvs_packet *p, const struct uvs_way *way)
{
	uvs_csum_finish(p); /* nobody looks into a tunnel for a partial one */
	return uvs_encap(p, &way->tunnel);
}

int uvs_way_part(const struct uvs_packet *p, const struct uvs_way *way, uint32_t n, struct uvs_packet *part)
{
	const uint32_t most = p->iph.end - p->iph.segment + way->gso_size;
	struct uvs_tunnel t = way->tunnel;

	part->len = uvs_segment(p, way->gso_size, n, uvs_packet_room(part, most));
	if (!part->len)
		return 0;
	part->iph = p->iph; /* but for its length it is true of a segment too */
	part->iph.end = part->len;
	part->partial = part->gso = 0;
	if (!way->tunnelled)
		return 1;
	t.id = (uint16_t)((t.id - 1u + n) % UVS_IDENTS + 1);
	return !uvs_encap(part, &t);
}
