/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * TTL and tunnels.
 */
#include "packet.h"

#define ECN_MASK 3
#define ECN_ECT_0 2
#define ECN_CE 3

int uvs_decrease_ttl(struct uvs_packet *p)
{
	uint8_t *ip = p->data + p->iph.off, old[2];

	if (p->iph.ttl <= 1)
		return UVS_WHY_TTL;
	p->iph.ttl--;
	if (p->iph.af == UVS_AF_INET) {
		memcpy(old, ip + IP4_TTL, 2);
		ip[IP4_TTL]--;
		store_check(ip + IP4_CHECK,
			    uvs_csum_replace(load_check(ip + IP4_CHECK), old, ip + IP4_TTL, 2));
	} else {
		ip[IP6_HOPS]--;
	}
	return 0;
}

/* INET_ECN_encapsulate() of include/net/inet_ecn.h, RFC 3168 9.1.1 "full functionality". */
static uint8_t outer_tos(uint8_t tos)
{
	return (tos & ECN_MASK) == ECN_CE ? (uint8_t)((tos & ~ECN_MASK) | ECN_ECT_0) : tos;
}

int uvs_encap_ipip(struct uvs_packet *p, int af, const union uvs_addr *saddr, const union uvs_addr *daddr,
		   int pmtu_disc, uint16_t id)
{
	const struct uvs_iphdr h = p->iph;
	uint8_t tos = outer_tos(h.tos);
	uint8_t protocol = h.af == UVS_AF_INET ? IP_IPIP : IP_IPV6;
	int df = pmtu_disc && h.flags & UVS_HDR_DF;
	uint32_t inner = p->len;
	uint8_t *ip;

	if (inner > UVS_PACKET_MAX - (af == UVS_AF_INET ? IP4_HLEN : 0u))
		return UVS_WHY_TOO_BIG;
	ip = uvs_packet_push(p, af == UVS_AF_INET ? IP4_HLEN : IP6_HLEN);
	if (!ip)
		return UVS_WHY_TOO_BIG;
	if (af == UVS_AF_INET) {
		ip[0] = 0x45;
		ip[IP4_TOS] = tos;
		put16(ip + IP4_LEN, (uint16_t)p->len);
		put16(ip + IP4_ID, df ? 0 : id);
		put16(ip + IP4_FRAG, df ? IP4_DF : 0);
		ip[IP4_TTL] = h.ttl;
		ip[IP4_PROTOCOL] = protocol;
		memcpy(ip + IP4_SADDR, saddr->b, 4);
		memcpy(ip + IP4_DADDR, daddr->b, 4);
		ip4_send_check(ip);
	} else {
		put32(ip, 6u << 28 | (uint32_t)tos << 20);
		put16(ip + IP6_LEN, (uint16_t)inner);
		ip[IP6_NEXT] = protocol;
		ip[IP6_HOPS] = h.ttl;
		memcpy(ip + IP6_SADDR, saddr->b, 16);
		memcpy(ip + IP6_DADDR, daddr->b, 16);
	}
	return uvs_packet_parse(p);
}
