/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the packet files share: numbers of the wire formats and unaligned access.
 */
#ifndef UVS_PACKET_H
#define UVS_PACKET_H

#include <stdint.h>
#include <string.h>
#include "uvs.h"
#include "xmit.h"

/* IANA protocol numbers */
enum {
	IP_HOPOPT = 0,
	IP_ICMP = 1,
	IP_IPIP = 4,
	IP_TCP = 6,
	IP_UDP = 17,
	IP_IPV6 = 41,
	IP_ROUTING = 43,
	IP_FRAGMENT = 44,
	IP_GRE = 47,
	IP_ESP = 50,
	IP_AH = 51,
	IP_ICMPV6 = 58,
	IP_NONE = 59,
	IP_DSTOPTS = 60,
	IP_SCTP = 132,
};

/* RFC 791, RFC 8200, RFC 9293, RFC 768, RFC 9260, RFC 792, RFC 2784, draft-ietf-intarea-gue */
enum {
	IP4_HLEN = 20,
	IP4_TOS = 1,
	IP4_LEN = 2,
	IP4_ID = 4,
	IP4_FRAG = 6,
	IP4_TTL = 8,
	IP4_PROTOCOL = 9,
	IP4_CHECK = 10,
	IP4_SADDR = 12,
	IP4_DADDR = 16,
	IP4_DF = 0x4000,
	IP4_MF = 0x2000,
	IP4_OFFSET = 0x1fff,

	IP6_HLEN = 40,
	IP6_LEN = 4,
	IP6_NEXT = 6,
	IP6_HOPS = 7,
	IP6_SADDR = 8,
	IP6_DADDR = 24,
	IP6_FRAG_HLEN = 8,

	IP4_MTU_MIN = 68,
	IP6_MTU_MIN = 1280,

	TCP_HLEN = 20,
	TCP_SEQ = 4,
	TCP_ACK_SEQ = 8,
	TCP_DOFF = 12,
	TCP_FLAGS = 13,
	TCP_CHECK = 16,
	TCP_CWR = 0x80, /* RFC 3168 6.1 */
	TCPOPT_EOL = 0,
	TCPOPT_NOP = 1,
	TCPOPT_MSS = 2,
	UDP_HLEN = 8,
	UDP_LEN = 4,
	UDP_CHECK = 6,
	GUE_HLEN = 4,
	GRE_HLEN = 4,
	GRE_CSUM_LEN = 4,
	SCTP_HLEN = 12,
	SCTP_CHECK = 8,
	SCTP_CHUNK_HLEN = 4,
	ICMP_HLEN = 8,
	ICMP_CHECK = 2,
};

static inline uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t get32(const uint8_t *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

static inline void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)v);
}

/* A checksum is kept in memory order: loaded and stored as it stands. */
static inline uint16_t load_check(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, 2);
	return v;
}

static inline void store_check(uint8_t *p, uint16_t v)
{
	memcpy(p, &v, 2);
}

/* Step over one IPv6 extension header at `at`: its length, or 0 if `proto` is none, or
 * -1 if it does not end before `end`.  AH counts as one: ipv6_find_hdr() of
 * net/ipv6/exthdrs_core.c stops at it only when asked, and IPVS does not ask. */
static inline int32_t ip6_exthdr_len(const uint8_t *data, uint32_t at, uint32_t end, uint8_t proto)
{
	uint32_t len;

	switch (proto) {
	case IP_HOPOPT:
	case IP_ROUTING:
	case IP_FRAGMENT:
	case IP_AH:
	case IP_DSTOPTS: break;
	default: return 0;
	}
	if (at > end || end - at < 8)
		return -1;
	if (proto == IP_FRAGMENT)
		len = IP6_FRAG_HLEN;
	else if (proto == IP_AH)
		len = (data[at + 1] + 2u) * 4;
	else
		len = (data[at + 1] + 1u) * 8;
	return len > end - at ? -1 : (int32_t)len;
}

/* What a first fragment must hold of its transport header (ipv6frag_thdr_truncated() of net/ipv6/reassembly.c). */
static inline uint32_t ip6_thdr_len(uint8_t protocol)
{
	if (protocol == IP_TCP)
		return 20;
	return protocol == IP_UDP || protocol == IP_ICMPV6 ? 8 : 1;
}

/* Make room for `n` bytes in front: where they start, NULL when the headroom is used up. */
uint8_t *uvs_packet_push(struct uvs_packet *p, uint32_t n);

/* Make the buffer one for a packet of `len` bytes, to be written there and parsed. */
uint8_t *uvs_packet_room(struct uvs_packet *p, uint32_t len);

/* Give the packet another length, its start stays; -1 if the buffer ends before.  p->iph is not looked at. */
int uvs_packet_resize(struct uvs_packet *p, uint32_t len);

/* Compute the transport checksum; nothing is done to a fragment or a cut header. */
void uvs_l4_csum_fill(struct uvs_packet *p);

/* Recompute the checksum of an IPv4 header. */
static inline void ip4_send_check(uint8_t *ip)
{
	store_check(ip + IP4_CHECK, 0);
	store_check(ip + IP4_CHECK, uvs_csum(ip, (ip[0] & 15) * 4u, 0));
}

#endif
