/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fragmentation, one fragment a call, without state.
 */
#include "packet.h"

#define IPOPT_END 0
#define IPOPT_NOP 1
#define IPOPT_COPIED 0x80

/* The IPv4 header of a fragment other than the first: only options with the copied flag
 * (RFC 791 3.1, "Options").  Returns its length. */
static uint32_t later_ip4_header(const uint8_t *ip, uint32_t hlen, uint8_t *out)
{
	uint32_t at = IP4_HLEN, to = IP4_HLEN, len;

	memcpy(out, ip, IP4_HLEN);
	while (at < hlen && ip[at] != IPOPT_END) {
		if (ip[at] == IPOPT_NOP) {
			at++;
			continue;
		}
		if (hlen - at < 2)
			break;
		len = ip[at + 1];
		if (len < 2 || len > hlen - at)
			break;
		if (ip[at] & IPOPT_COPIED) {
			memcpy(out + to, ip + at, len);
			to += len;
		}
		at += len;
	}
	while (to & 3)
		out[to++] = IPOPT_END;
	out[0] = (uint8_t)(0x40 | to / 4);
	return to;
}

static int fragment_ip4(const struct uvs_packet *p, uint32_t mtu, uint32_t n, uint32_t id, uint8_t *out)
{
	const struct uvs_iphdr *h = &p->iph;
	const uint8_t *ip = p->data + h->off;
	uint32_t hlen = h->len - h->off, payload = h->end - h->len;
	uint32_t first, each, later, at, len, offset;
	uint16_t frag = get16(ip + IP4_FRAG);
	uint8_t header[60];

	later = later_ip4_header(ip, hlen, header);
	if (mtu < hlen + 8)
		return -1;
	first = (mtu - hlen) & ~7u;
	each = (mtu - later) & ~7u;
	at = n ? first + (uint32_t)((uint64_t)(n - 1) * each < payload ? (n - 1) * each : payload) : 0;
	if (at >= payload || (n > 1 && payload - at <= mtu - later - each))
		return 0; /* the one before was the last, perhaps filled to the byte */
	if (!n) {
		memcpy(header, ip, hlen);
		later = hlen;
		each = first;
	}
	len = payload - at;
	if (len > mtu - later)
		len = each;
	offset = h->fragoffs + at;
	if (offset > IP4_OFFSET * 8u)
		return -1;
	/* An atomic datagram may bear any identification (RFC 6864 4.1), its fragments may not. */
	if (!(h->flags & UVS_HDR_FRAGMENT) && h->flags & UVS_HDR_DF && !get16(ip + IP4_ID))
		put16(header + IP4_ID, (uint16_t)id);
	frag = (uint16_t)((frag & IP4_MF) | offset / 8);
	if (at + len < payload)
		frag |= IP4_MF;
	put16(header + IP4_FRAG, frag);
	put16(header + IP4_LEN, (uint16_t)(later + len));
	ip4_send_check(header);
	memcpy(out, header, later);
	memcpy(out + later, p->data + h->len + at, len);
	return (int)(later + len);
}

/* RFC 8200 4.5: the per-fragment headers are those up to a routing header, else a
 * hop-by-hop header.  `next` gets where their last next-header octet stands.  0: there is a
 * Fragment header already. */
static uint32_t unfragmentable(const struct uvs_packet *p, uint32_t *next)
{
	uint32_t at = p->iph.off + IP6_HLEN, field = p->iph.off + IP6_NEXT, part = at;
	uint8_t protocol = p->data[field];
	int32_t len;

	*next = field;
	while ((len = ip6_exthdr_len(p->data, at, p->iph.end, protocol)) > 0) {
		if (protocol == IP_FRAGMENT)
			return 0;
		field = at;
		at += (uint32_t)len;
		if (protocol == IP_HOPOPT || protocol == IP_ROUTING) {
			part = at;
			*next = field;
		}
		protocol = p->data[field];
	}
	return part - p->iph.off;
}

static int fragment_ip6(const struct uvs_packet *p, uint32_t mtu, uint32_t n, uint32_t id, uint8_t *out)
{
	const struct uvs_iphdr *h = &p->iph;
	const uint8_t *ip = p->data + h->off;
	uint32_t next, part = unfragmentable(p, &next), payload, room, each, at, len;
	uint8_t *fh = out + part;

	if (!part || mtu < part + IP6_FRAG_HLEN + 8)
		return -1;
	payload = p->len - part;
	room = mtu - part - IP6_FRAG_HLEN;
	each = room & ~7u;
	/* RFC 7112 5: the first fragment holds the whole header chain, or receivers drop it. */
	if (h->len - h->off - part + ip6_thdr_len(h->protocol) > each)
		return -1;
	if ((uint64_t)n * each >= payload)
		return 0;
	at = n * each;
	if (n && payload - at <= room - each)
		return 0; /* as above */
	len = payload - at;
	if (len > room)
		len = each;
	if (at > 0xfff8)
		return -1;
	memcpy(out, ip, part);
	out[next - h->off] = IP_FRAGMENT;
	put16(out + IP6_LEN, (uint16_t)(part - IP6_HLEN + IP6_FRAG_HLEN + len));
	fh[0] = ip[next - h->off];
	fh[1] = 0;
	put16(fh + 2, (uint16_t)(at | (at + len < payload)));
	put32(fh + 4, id);
	memcpy(fh + IP6_FRAG_HLEN, ip + part + at, len);
	return (int)(part + IP6_FRAG_HLEN + len);
}

int uvs_fragment(const struct uvs_packet *p, uint32_t mtu, uint32_t n, uint32_t id, uint8_t *out)
{
	if (p->len <= mtu) {
		if (n)
			return 0;
		memcpy(out, p->data, p->len);
		return (int)p->len;
	}
	return p->iph.af == UVS_AF_INET ? fragment_ip4(p, mtu, n, id, out) : fragment_ip6(p, mtu, n, id, out);
}
