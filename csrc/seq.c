/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * seq.c - a helper changes a server's TCP payload, and sequence numbers follow.  ip_vs_ftp leaves
 * this to the kernel's NAT: nf_nat_helper.c, nf_conntrack_seqadj.c.
 */
#include "packet.h"

/* RFC 2018 3 */
enum {
	TCPOPT_SACK = 5,
	SACK_BLOCK = 8,
};

static int after(uint32_t a, uint32_t b)
{
	return (int32_t)(b - a) < 0;
}

int uvs_mangle_tcp(struct uvs_packet *p, uint32_t off, uint32_t len, const uint8_t *with, uint32_t n)
{
	struct uvs_iphdr *h = &p->iph;
	uint8_t *ip = p->data + h->off;
	uint32_t size, tail;

	if (h->protocol != IP_TCP || h->flags & UVS_HDR_FRAGMENT || !(h->flags & UVS_HDR_L4) ||
	    h->end != p->len || off > h->end || len > h->end - off || off < h->end - h->segment ||
	    h->len + (p->data[h->len + TCP_DOFF] >> 4) * 4u + h->segment != h->end)
		return UVS_WHY_MALFORMED;
	tail = p->len - off - len;
	size = p->len - len + n;
	if (size > UVS_PACKET_MAX || uvs_packet_resize(p, size > p->len ? size : p->len))
		return UVS_WHY_TOO_BIG;
	memmove(p->data + off + n, p->data + off + len, tail);
	memcpy(p->data + off, with, n);
	uvs_packet_resize(p, size);
	h->end = size;
	h->segment = (uint16_t)(h->segment - len + n);
	put16(ip + (h->af == UVS_AF_INET ? IP4_LEN : IP6_LEN),
	      (uint16_t)(h->af == UVS_AF_INET ? size : size - IP6_HLEN));
	uvs_csum_fill(p);
	return 0;
}

void uvs_seq_resized(struct uvs_app *a, uint32_t seq, int32_t diff)
{
	/* An older segment again: what came after it was moved already. */
	if (a->previous_delta != a->delta && !after(seq, a->init_seq))
		return;
	a->init_seq = seq;
	a->previous_delta = a->delta;
	a->delta = (int32_t)((uint32_t)a->delta + (uint32_t)diff);
}

/* Overwrite a 32-bit number of the TCP header, `at` its start, and keep the checksum right. */
static void store(uint8_t *tcp, uint8_t *at, uint32_t value)
{
	uint8_t now[6] = { 0 }, old[6] = { 0 }, odd = (uint8_t)((at - tcp) & 1);

	put32(now + odd, value);
	memcpy(old + odd, at, 4);
	store_check(tcp + TCP_CHECK, uvs_csum_replace(load_check(tcp + TCP_CHECK), old, now, sizeof(now)));
	memcpy(at, now + odd, 4);
}

void uvs_seq_out(struct uvs_packet *p, const struct uvs_app *a)
{
	uint8_t *tcp = p->data + p->iph.len;
	uint32_t seq;

	if (p->iph.protocol != IP_TCP || !(p->iph.flags & UVS_HDR_L4))
		return;
	seq = get32(tcp + TCP_SEQ);
	store(tcp, tcp + TCP_SEQ, seq + (uint32_t)(after(seq, a->init_seq) ? a->delta : a->previous_delta));
}

/* A number that the client takes from what it saw of the server's. */
static void unmove(uint8_t *tcp, uint8_t *at, const struct uvs_app *a)
{
	uint32_t ack = get32(at);
	int moved = after(ack - (uint32_t)a->previous_delta, a->init_seq);

	store(tcp, at, ack - (uint32_t)(moved ? a->delta : a->previous_delta));
}

int uvs_seq_in(struct uvs_packet *p, const struct uvs_app *a)
{
	uint8_t *tcp = p->data + p->iph.len;
	uint32_t at, end, len, block;

	if (p->iph.protocol != IP_TCP || !(p->iph.flags & UVS_HDR_L4) || !(tcp[TCP_FLAGS] & UVS_TCP_ACK))
		return 0;
	end = (tcp[TCP_DOFF] >> 4) * 4u;
	if (end > p->iph.end - p->iph.len)
		return UVS_WHY_MALFORMED;
	unmove(tcp, tcp + TCP_ACK_SEQ, a);
	for (at = TCP_HLEN; at < end; at += len) {
		if (tcp[at] == TCPOPT_EOL)
			break;
		len = 1;
		if (tcp[at] == TCPOPT_NOP)
			continue;
		if (at + 2 > end || (len = tcp[at + 1]) < 2 || at + len > end)
			return UVS_WHY_MALFORMED;
		if (tcp[at] != TCPOPT_SACK || len < 2 + SACK_BLOCK || (len - 2) % SACK_BLOCK)
			continue;
		for (block = at + 2; block < at + len; block += 4)
			unmove(tcp, tcp + block, a);
	}
	return 0;
}
