/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * segment.c - TCP segments of a packet that stands for many of them.
 */
#include "packet.h"

#define TCP_FIN_PSH 0x09
/* RFC 9293 3.7.1: what every host takes, without a word about it. */
#define MSS_IP4 536
#define MSS_IP6 1220

static uint32_t headers_len(const struct uvs_packet *p)
{
	return p->iph.end - p->iph.segment;
}

uint32_t uvs_segment_size(const struct uvs_packet *p, const struct uvs_conn *c, uint32_t mtu)
{
	const uint32_t head = headers_len(p), options = head - p->iph.len - TCP_HLEN;
	uint32_t size = p->iph.af == UVS_AF_INET ? MSS_IP4 : MSS_IP6;

	if (p->iph.protocol != IP_TCP || !(p->iph.flags & UVS_HDR_L4) || p->iph.flags & UVS_HDR_FRAGMENT)
		return 0;
	if (c->mss)
		size = c->mss;
	size -= size > options ? options : 0; /* an MSS leaves room for them (RFC 6691) */
	if (head + size > mtu)
		size = mtu > head ? mtu - head : 0;
	return size;
}

uint32_t uvs_segment(const struct uvs_packet *p, uint32_t size, uint32_t n, uint8_t *out)
{
	const struct uvs_iphdr *h = &p->iph;
	const uint32_t head = headers_len(p), l4len = head - h->len;
	uint32_t at = n * size, len = h->segment > at ? h->segment - at : 0;
	uint8_t *tcp = out + h->len;

	if (!len && (n || h->segment))
		return 0;
	if (len > size)
		len = size;
	memcpy(out, p->data, head);
	memcpy(out + head, p->data + head + at, len);
	if (h->af == UVS_AF_INET) {
		put16(out + IP4_LEN, (uint16_t)(head + len));
		put16(out + IP4_ID, (uint16_t)(get16(p->data + IP4_ID) + n));
		ip4_send_check(out);
	} else {
		put16(out + IP6_LEN, (uint16_t)(head + len - IP6_HLEN));
	}
	put32(tcp + TCP_SEQ, get32(tcp + TCP_SEQ) + at);
	if (at + len < h->segment)
		tcp[TCP_FLAGS] &= (uint8_t)~TCP_FIN_PSH;
	if (n)
		tcp[TCP_FLAGS] &= (uint8_t)~TCP_CWR;
	store_check(tcp + TCP_CHECK, 0);
	store_check(tcp + TCP_CHECK, uvs_csum(tcp, l4len + len, uvs_csum_pseudo(h, l4len + len)));
	return head + len;
}
