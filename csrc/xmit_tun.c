/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * TTL and tunnels.
 */
#include "packet.h"

#define ECN_MASK 3
#define ECN_ECT_0 2
#define ECN_CE 3

#define GRE_CSUM 0x8000
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

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

uint32_t uvs_tunnel_hlen(uint8_t type, uint8_t flags)
{
	switch (type) {
	case UVS_TUN_GUE: return UDP_HLEN + GUE_HLEN;
	case UVS_TUN_GRE: return GRE_HLEN + (flags & UVS_TUN_F_CSUM ? GRE_CSUM_LEN : 0);
	}
	return 0;
}

static inline uint32_t mix(uint32_t h, uint32_t v)
{
	h = (h ^ v) * 0x9e3779b1; /* 2^32 divided by the golden ratio */
	return h ^ h >> 15;
}

uint16_t uvs_flow_src_port(const struct uvs_iphdr *iph, uint32_t seed, uint16_t min, uint16_t max)
{
	uint32_t h = mix(seed, (uint32_t)iph->sport << 16 | iph->dport);
	int i;

	for (i = 0; i < 4; i++)
		h = mix(mix(h, iph->saddr.w[i]), iph->daddr.w[i]);
	h = mix(h, iph->protocol);
	return (uint16_t)(min + (max > min ? (uint64_t)h * (uint32_t)(max - min) >> 32 : 0));
}

static uint8_t *outer_ip4(struct uvs_packet *p, const struct uvs_tunnel *t, const struct uvs_iphdr *inner,
			  uint8_t protocol)
{
	int df = t->pmtu_disc && inner->flags & UVS_HDR_DF;
	uint8_t *ip = p->data;

	ip[0] = 0x45;
	ip[IP4_TOS] = outer_tos(inner->tos);
	put16(ip + IP4_LEN, (uint16_t)p->len);
	put16(ip + IP4_ID, df ? 0 : t->id);
	put16(ip + IP4_FRAG, df ? IP4_DF : 0);
	ip[IP4_TTL] = inner->ttl;
	ip[IP4_PROTOCOL] = protocol;
	memcpy(ip + IP4_SADDR, t->saddr.b, 4);
	memcpy(ip + IP4_DADDR, t->daddr.b, 4);
	ip4_send_check(ip);
	return ip + IP4_HLEN;
}

static uint8_t *outer_ip6(struct uvs_packet *p, const struct uvs_tunnel *t, const struct uvs_iphdr *inner,
			  uint8_t protocol)
{
	uint8_t *ip = p->data;

	put32(ip, 6u << 28 | (uint32_t)outer_tos(inner->tos) << 20);
	put16(ip + IP6_LEN, (uint16_t)(p->len - IP6_HLEN));
	ip[IP6_NEXT] = protocol;
	ip[IP6_HOPS] = inner->ttl;
	memcpy(ip + IP6_SADDR, t->saddr.b, 16);
	memcpy(ip + IP6_DADDR, t->daddr.b, 16);
	return ip + IP6_HLEN;
}

/* A UDP and a GUE header of variant 0 without options; the UDP checksum is made later, or stays 0. */
static void gue_header(uint8_t *udp, const struct uvs_tunnel *t, uint8_t protocol, uint32_t len)
{
	put16(udp, t->sport);
	put16(udp + 2, t->dport);
	put16(udp + UDP_LEN, (uint16_t)len);
	put16(udp + UDP_CHECK, 0);
	put32(udp + UDP_HLEN, (uint32_t)protocol << 16);
}

static void gre_header(uint8_t *gre, const struct uvs_tunnel *t, int af, uint32_t len)
{
	int csum = t->flags & UVS_TUN_F_CSUM;

	put16(gre, csum ? GRE_CSUM : 0);
	put16(gre + 2, af == UVS_AF_INET ? ETH_P_IP : ETH_P_IPV6);
	if (csum) {
		put32(gre + GRE_HLEN, 0);
		store_check(gre + GRE_HLEN, uvs_csum(gre, len, 0));
	}
}

int uvs_encap(struct uvs_packet *p, const struct uvs_tunnel *t)
{
	const struct uvs_iphdr inner = p->iph;
	uint8_t carried = inner.af == UVS_AF_INET ? IP_IPIP : IP_IPV6, *next;
	uint8_t protocol = t->type == UVS_TUN_GUE ? IP_UDP : t->type == UVS_TUN_GRE ? IP_GRE : carried;
	uint32_t len = p->len + uvs_tunnel_hlen(t->type, t->flags);
	int why;

	if (len > UVS_PACKET_MAX - (t->af == UVS_AF_INET ? IP4_HLEN : 0u) ||
	    !uvs_packet_push(p, len - p->len + (t->af == UVS_AF_INET ? IP4_HLEN : IP6_HLEN)))
		return UVS_WHY_TOO_BIG;
	next = (t->af == UVS_AF_INET ? outer_ip4 : outer_ip6)(p, t, &inner, protocol);
	if (t->type == UVS_TUN_GUE)
		gue_header(next, t, carried, len);
	else if (t->type == UVS_TUN_GRE)
		gre_header(next, t, inner.af, len);
	why = uvs_packet_parse(p);
	if (t->type == UVS_TUN_GUE && t->flags & (UVS_TUN_F_CSUM | UVS_TUN_F_REMCSUM))
		uvs_l4_csum_fill(p);
	return why;
}
