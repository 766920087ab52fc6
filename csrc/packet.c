/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Packet buffers and the parser.  Lengths are checked here; everything else trusts
 * struct uvs_iphdr: off, len and end lie inside the packet, and a header whose flag
 * is set is readable.
 */
#include <stdlib.h>
#include "packet.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UVS_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define UVS_ASAN 1
#endif
#ifdef UVS_ASAN
#include <sanitizer/asan_interface.h>
#define poison(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define unpoison(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define poison(p, n) ((void)(p), (void)(n))
#define unpoison(p, n) ((void)(p), (void)(n))
#endif

/* A largest IPv6 packet is 40 bytes longer than UVS_PACKET_MAX. */
#define ROOM (UVS_PACKET_MAX + IP6_HLEN)

/* RFC 8200 4.1 knows seven extension headers in their order; a packet with more than
 * this, besides a Fragment header, is made to waste time. */
#define EXTHDR_MAX 16

/* Before a message: what stands before its payload may be less than an encapsulation needs. */
#define BEFORE (UVS_HEADROOM / 2)

struct buffer {
	struct uvs_packet p;
	uint8_t room[UVS_HEADROOM + ROOM];
};

struct uvs_packet *uvs_packet_new(void)
{
	struct buffer *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->p.data = b->room + UVS_HEADROOM;
	return &b->p;
}

void uvs_packet_free(struct uvs_packet *p)
{
	struct buffer *b = (struct buffer *)p;

	if (!b)
		return;
	unpoison(b->room, sizeof(b->room));
	free(b);
}

uint8_t *uvs_packet_push(struct uvs_packet *p, uint32_t n)
{
	struct buffer *b = (struct buffer *)p;

	if ((size_t)(p->data - b->room) < n)
		return NULL;
	p->data -= n;
	p->len += n;
	unpoison(p->data, n);
	return p->data;
}

int uvs_packet_resize(struct uvs_packet *p, uint32_t len)
{
	struct buffer *b = (struct buffer *)p;
	uint8_t *end = (uint8_t *)(b + 1);

	if (len > (size_t)(end - p->data))
		return -1;
	unpoison(p->data, len);
	poison(p->data + len, (size_t)(end - p->data) - len);
	p->len = len;
	return 0;
}

/* RFC 9293 3.2: the maximum segment size among the options of `len` bytes, 0: there is none. */
static uint16_t tcp_mss(const uint8_t *option, uint32_t len)
{
	uint32_t at = 0;

	while (at + 1 < len && option[at] != TCPOPT_EOL) {
		if (option[at] == TCPOPT_NOP) {
			at++;
			continue;
		}
		if (option[at + 1] < 2 || option[at + 1] > len - at)
			break;
		if (option[at] == TCPOPT_MSS && option[at + 1] == 4)
			return get16(option + at + 2);
		at += option[at + 1];
	}
	return 0;
}

/* Ports and the fields of the transport header that IPVS looks at. */
static void parse_l4(const uint8_t *data, struct uvs_iphdr *h)
{
	const uint8_t *l4 = data + h->len;
	uint32_t room = h->end - h->len, next, hlen;

	h->chunk = h->next_chunk = 255;
	if (h->flags & UVS_HDR_LATER)
		return;
	switch (h->protocol) {
	case IP_TCP:
	case IP_UDP:
	case IP_SCTP:
		if (room < 4)
			return;
		h->sport = get16(l4);
		h->dport = get16(l4 + 2);
		h->flags |= UVS_HDR_PORTS;
	}
	switch (h->protocol) {
	case IP_TCP:
		if (room < TCP_HLEN)
			return;
		h->tcp_flags = l4[13];
		hlen = (l4[12] >> 4) * 4u;
		if (hlen >= TCP_HLEN && hlen <= room)
			h->segment = (uint16_t)(room - hlen);
		if (l4[13] & UVS_TCP_SYN && hlen > TCP_HLEN && hlen <= room)
			h->mss = tcp_mss(l4 + TCP_HLEN, hlen - TCP_HLEN);
		break;
	case IP_UDP:
		if (room < UDP_HLEN)
			return;
		break;
	case IP_SCTP:
		if (room < SCTP_HLEN + SCTP_CHUNK_HLEN)
			return;
		h->chunk = l4[SCTP_HLEN];
		hlen = get16(l4 + SCTP_HLEN + 2);
		next = SCTP_HLEN + ((hlen + 3) & ~3u);
		if (hlen >= SCTP_CHUNK_HLEN && next + SCTP_CHUNK_HLEN <= room)
			h->next_chunk = l4[next];
		break;
	case IP_ICMP:
	case IP_ICMPV6:
		if (h->protocol != (h->af == UVS_AF_INET ? IP_ICMP : IP_ICMPV6) || room < ICMP_HLEN)
			return;
		h->icmp_type = l4[0];
		h->icmp_code = l4[1];
		break;
	default: return;
	}
	h->flags |= UVS_HDR_L4;
}

/* The header at `off`, whose bytes end at `end`; h is zeroed.  Returns a reason. */
static int parse_ip4(const uint8_t *data, uint32_t off, uint32_t end, struct uvs_iphdr *h)
{
	const uint8_t *ip = data + off;
	uint32_t hlen;
	uint16_t frag;

	if (end - off < IP4_HLEN)
		return UVS_WHY_SHORT;
	hlen = (ip[0] & 15) * 4u;
	if (ip[0] >> 4 != 4 || hlen < IP4_HLEN || hlen > end - off)
		return UVS_WHY_MALFORMED;
	frag = get16(ip + IP4_FRAG);
	h->af = UVS_AF_INET;
	h->off = off;
	h->len = off + hlen;
	h->end = end;
	h->tos = ip[IP4_TOS];
	h->ttl = ip[IP4_TTL];
	h->protocol = ip[IP4_PROTOCOL];
	memcpy(h->saddr.b, ip + IP4_SADDR, 4);
	memcpy(h->daddr.b, ip + IP4_DADDR, 4);
	h->fragoffs = (frag & IP4_OFFSET) * 8u;
	if (frag & IP4_DF)
		h->flags |= UVS_HDR_DF;
	if (frag & (IP4_MF | IP4_OFFSET))
		h->flags |= UVS_HDR_FRAGMENT;
	if (h->fragoffs)
		h->flags |= UVS_HDR_LATER;
	parse_l4(data, h);
	return 0;
}

static int parse_ip6(const uint8_t *data, uint32_t off, uint32_t end, struct uvs_iphdr *h)
{
	const uint8_t *ip = data + off;
	uint32_t at = off + IP6_HLEN;
	uint16_t frag;
	int32_t hlen;
	int n, max = EXTHDR_MAX;

	if (end - off < IP6_HLEN)
		return UVS_WHY_SHORT;
	if (ip[0] >> 4 != 6)
		return UVS_WHY_MALFORMED;
	h->af = UVS_AF_INET6;
	h->off = off;
	h->end = end;
	h->tos = (uint8_t)(get16(ip) >> 4);
	h->ttl = ip[IP6_HOPS];
	h->protocol = ip[IP6_NEXT];
	memcpy(h->saddr.b, ip + IP6_SADDR, 16);
	memcpy(h->daddr.b, ip + IP6_DADDR, 16);
	for (n = 0; (hlen = ip6_exthdr_len(data, at, end, h->protocol)) != 0; n++) {
		if (h->protocol == IP_FRAGMENT)
			max = EXTHDR_MAX + 1;
		if (hlen < 0 || n == max)
			return UVS_WHY_MALFORMED;
		if (h->protocol == IP_FRAGMENT) {
			/* An atomic fragment (RFC 6946) is a whole datagram: no flag. */
			frag = get16(data + at + 2);
			if (frag & 0xfff9)
				h->flags |= UVS_HDR_FRAGMENT;
			else
				h->flags |= UVS_HDR_ATOMIC;
			h->fragoffs = frag & 0xfff8;
		}
		h->protocol = data[at];
		at += (uint32_t)hlen;
		if (h->fragoffs) {
			h->flags |= UVS_HDR_LATER;
			break;
		}
	}
	h->len = at;
	parse_l4(data, h);
	return 0;
}

int uvs_packet_parse(struct uvs_packet *p)
{
	const uint8_t *data = p->data;
	uint32_t total, hlen;
	int why;

	memset(&p->iph, 0, sizeof(p->iph));
	if (p->len < 1)
		return UVS_WHY_SHORT;
	switch (data[0] >> 4) {
	case 4:
		if (p->len < IP4_HLEN)
			return UVS_WHY_SHORT;
		hlen = (data[0] & 15) * 4u;
		total = get16(data + IP4_LEN);
		if (hlen < IP4_HLEN || total < hlen)
			return UVS_WHY_MALFORMED;
		break;
	case 6:
		if (p->len < IP6_HLEN)
			return UVS_WHY_SHORT;
		total = IP6_HLEN + get16(data + IP6_LEN);
		break;
	default: return UVS_WHY_MALFORMED;
	}
	if (total > p->len)
		return UVS_WHY_SHORT;
	p->len = total;
	poison(data + total, (size_t)((uint8_t *)((struct buffer *)p + 1) - data) - total);
	why = data[0] >> 4 == 4 ? parse_ip4(data, 0, total, &p->iph) : parse_ip6(data, 0, total, &p->iph);
	if (why)
		memset(&p->iph, 0, sizeof(p->iph));
	return why;
}

int uvs_packet_load(struct uvs_packet *p, const uint8_t *data, uint32_t len, uint32_t mark)
{
	struct buffer *b = (struct buffer *)p;

	unpoison(b->room, sizeof(b->room));
	p->data = b->room + UVS_HEADROOM;
	p->len = len < ROOM ? len : ROOM;
	p->mark = mark;
	p->frag_max = 0;
	p->partial = p->gso = p->traced = 0;
	p->indev = p->outdev = 0;
	if (p->len)
		memcpy(p->data, data, p->len);
	poison(b->room, UVS_HEADROOM);
	poison(p->data + p->len, ROOM - p->len);
	return uvs_packet_parse(p);
}

uint8_t *uvs_packet_buffer(struct uvs_packet *p, uint32_t *room)
{
	struct buffer *b = (struct buffer *)p;

	unpoison(b->room, sizeof(b->room));
	*room = sizeof(b->room) - BEFORE;
	return b->room + BEFORE;
}

int uvs_packet_at(struct uvs_packet *p, uint32_t off, uint32_t len, uint32_t mark)
{
	struct buffer *b = (struct buffer *)p;

	off += BEFORE;
	p->data = b->room + off;
	p->len = len;
	p->mark = mark;
	p->frag_max = 0;
	p->partial = p->gso = p->traced = 0;
	p->indev = p->outdev = 0;
	poison(b->room, off);
	poison(p->data + len, sizeof(b->room) - off - len);
	return uvs_packet_parse(p);
}

uint8_t *uvs_packet_room(struct uvs_packet *p, uint32_t len)
{
	struct buffer *b = (struct buffer *)p;

	unpoison(b->room, sizeof(b->room));
	p->data = b->room + UVS_HEADROOM;
	p->len = len;
	poison(b->room, UVS_HEADROOM);
	return p->data;
}

int uvs_quoted_parse_at(const struct uvs_packet *p, uint32_t off, int af, struct uvs_iphdr *quoted)
{
	int why;

	memset(quoted, 0, sizeof(*quoted));
	if (off > p->iph.end)
		return UVS_WHY_SHORT;
	/* The quote's own length is not looked at: senders cut, some byte-swap it. */
	if (af == UVS_AF_INET)
		why = parse_ip4(p->data, off, p->iph.end, quoted);
	else
		why = parse_ip6(p->data, off, p->iph.end, quoted);
	if (why) {
		memset(quoted, 0, sizeof(*quoted));
		return UVS_WHY_SHORT;
	}
	quoted->flags |= UVS_HDR_ICMP;
	return 0;
}

int uvs_quoted_parse(const struct uvs_packet *p, struct uvs_iphdr *quoted)
{
	const struct uvs_iphdr *h = &p->iph;

	if (!(h->flags & UVS_HDR_L4) || h->protocol != (h->af == UVS_AF_INET ? IP_ICMP : IP_ICMPV6)) {
		memset(quoted, 0, sizeof(*quoted));
		return UVS_WHY_SHORT;
	}
	return uvs_quoted_parse_at(p, h->len + ICMP_HLEN, h->af, quoted);
}
