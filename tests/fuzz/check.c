/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * check.c - what must hold of a packet at any time, for the fuzz target.
 */
#include <string.h>
#include "check.h"

void check_header(const struct uvs_packet *p, const struct uvs_iphdr *h)
{
	CHECK(h->af == UVS_AF_INET || h->af == UVS_AF_INET6);
	CHECK(h->off + (h->af == UVS_AF_INET ? 20 : 40) <= h->len);
	CHECK(h->len <= h->end && h->end <= p->len);
	CHECK(!(h->flags & UVS_HDR_LATER) || !(h->flags & (UVS_HDR_PORTS | UVS_HDR_L4)));
	CHECK(!(h->flags & UVS_HDR_LATER) || (h->flags & UVS_HDR_FRAGMENT && h->fragoffs));
	CHECK(!(h->flags & UVS_HDR_PORTS) || h->end - h->len >= 4);
	CHECK(!(h->flags & UVS_HDR_L4) || h->end - h->len >= 8);
	CHECK(h->segment <= h->end - h->len);
}

int header_right(const struct uvs_packet *p)
{
	return p->iph.af != UVS_AF_INET || !uvs_csum(p->data, (p->data[0] & 15) * 4u, 0);
}

int all_right(const struct uvs_packet *p)
{
	return header_right(p) && (p->iph.flags & UVS_HDR_FRAGMENT || uvs_l4_csum_ok(p));
}

void check_iph(struct uvs_packet *p)
{
	const struct uvs_iphdr h = p->iph;

	CHECK(!uvs_packet_parse(p));
	CHECK(!memcmp(&h, &p->iph, sizeof(h)));
}
