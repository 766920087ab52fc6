/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Checksums: RFC 1071, incremental by RFC 1624, and CRC32c of RFC 9260 appendix A.
 *
 * The ones' complement sum does not care about byte order, so that sums are made of
 * words as they lie in memory, eight bytes at a time.
 */
#include "packet.h"

static inline uint64_t add64(uint64_t sum, uint64_t v)
{
	sum += v;
	return sum + (sum < v);
}

static inline uint64_t load64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return v;
}

static uint16_t fold(uint64_t sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (uint16_t)sum;
}

uint64_t uvs_csum_add(const uint8_t *data, uint32_t len, uint64_t sum)
{
	uint64_t b = 0, c = 0, d = 0; /* four sums beside each other: none waits for another's carry */
	uint8_t tail[8] = { 0 };

	for (; len >= 32; data += 32, len -= 32) {
		sum = add64(sum, load64(data));
		b = add64(b, load64(data + 8));
		c = add64(c, load64(data + 16));
		d = add64(d, load64(data + 24));
	}
	sum = add64(add64(sum, b), add64(c, d));
	for (; len >= 8; data += 8, len -= 8)
		sum = add64(sum, load64(data));
	if (len) {
		memcpy(tail, data, len);
		sum = add64(sum, load64(tail));
	}
	return sum;
}

uint16_t uvs_csum(const uint8_t *data, uint32_t len, uint64_t sum)
{
	return (uint16_t)~fold(uvs_csum_add(data, len, sum));
}

/* RFC 793 3.1 and RFC 8200 8.1.  With a routing header the destination summed is the one in
 * the IPv6 header, not the final one: IPVS balances packets that have arrived. */
uint64_t uvs_csum_pseudo(const struct uvs_iphdr *iph, uint32_t l4len)
{
	uint32_t alen = iph->af == UVS_AF_INET ? 4 : 16;
	uint8_t tail[8] = { 0 };
	uint64_t sum;

	sum = uvs_csum_add(iph->saddr.b, alen, 0);
	sum = uvs_csum_add(iph->daddr.b, alen, sum);
	put32(tail, l4len);
	tail[7] = iph->protocol;
	return uvs_csum_add(tail, sizeof(tail), sum);
}

/* RFC 1624 equation 3: HC' = ~(~HC + ~m + m'). */
uint16_t uvs_csum_replace(uint16_t check, const uint8_t *a, const uint8_t *b, uint32_t len)
{
	uint64_t sum = (uint16_t)~check;

	sum = add64(sum, (uint16_t)~fold(uvs_csum_add(a, len, 0)));
	return (uint16_t)~fold(uvs_csum_add(b, len, sum));
}

/* ---------------------------------------------------------------------- CRC32c */

static uint32_t crc_table[256];

/* The reflected polynomial of RFC 9260 appendix A (Castagnoli). */
__attribute__((constructor)) static void crc_init(void)
{
	uint32_t i, c;
	int bit;

	for (i = 0; i < 256; i++) {
		for (c = i, bit = 0; bit < 8; bit++)
			c = c & 1 ? c >> 1 ^ 0x82f63b78 : c >> 1;
		crc_table[i] = c;
	}
}

static uint32_t crc_bytes(uint32_t crc, const uint8_t *data, uint32_t len)
{
	while (len--)
		crc = crc >> 8 ^ crc_table[(crc ^ *data++) & 255];
	return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC_WORDS 1
__attribute__((target("sse4.2"))) static uint32_t crc_words(uint32_t crc, const uint8_t *data, uint32_t len)
{
	uint64_t c = crc;

	for (; len; data += 8, len -= 8)
		c = __builtin_ia32_crc32di(c, load64(data));
	return (uint32_t)c;
}
#endif

static uint32_t crc_add(uint32_t crc, const uint8_t *data, uint32_t len)
{
#ifdef CRC_WORDS
	if (__builtin_cpu_supports("sse4.2")) {
		crc = crc_words(crc, data, len & ~7u);
		data += len & ~7u;
		len &= 7;
	}
#endif
	return crc_bytes(crc, data, len);
}

uint32_t uvs_crc32c(const uint8_t *data, uint32_t len)
{
	return ~crc_add(0xffffffff, data, len);
}

/* The checksum of an SCTP packet, made as if the field were zero; little-endian on the wire. */
static void sctp_check(const uint8_t *l4, uint32_t len, uint8_t out[4])
{
	static const uint8_t zero[4];
	uint32_t crc;

	crc = crc_add(0xffffffff, l4, SCTP_CHECK);
	crc = crc_add(crc, zero, sizeof(zero));
	crc = ~crc_add(crc, l4 + SCTP_HLEN, len - SCTP_HLEN);
	out[0] = (uint8_t)crc;
	out[1] = (uint8_t)(crc >> 8);
	out[2] = (uint8_t)(crc >> 16);
	out[3] = (uint8_t)(crc >> 24);
}

/* ------------------------------------------------------------ transport checksum */

/* Bytes that the transport checksum covers: UDP by its own length (RFC 768), unless it lies. */
static uint32_t l4_len(const uint8_t *l4, const struct uvs_iphdr *h)
{
	uint32_t len = h->end - h->len;
	uint32_t udp;

	if (h->protocol == IP_UDP) {
		udp = get16(l4 + UDP_LEN);
		if (udp >= UDP_HLEN && udp < len)
			len = udp;
	}
	return len;
}

/* Where the 16-bit checksum stands in the transport header, -1: nowhere. */
static int check_offset(const struct uvs_iphdr *h)
{
	switch (h->protocol) {
	case IP_TCP: return TCP_CHECK;
	case IP_UDP: return UDP_CHECK;
	case IP_ICMP: return h->af == UVS_AF_INET ? ICMP_CHECK : -1;
	case IP_ICMPV6: return h->af == UVS_AF_INET6 ? ICMP_CHECK : -1;
	}
	return -1;
}

int uvs_l4_csum_ok(const struct uvs_packet *p)
{
	const struct uvs_iphdr *h = &p->iph;
	const uint8_t *l4 = p->data + h->len;
	int at = check_offset(h);
	uint8_t crc[4];
	uint32_t len;

	if (h->flags & UVS_HDR_FRAGMENT)
		return 0;
	if (at < 0 && h->protocol != IP_SCTP)
		return 1;
	if (!(h->flags & UVS_HDR_L4))
		return 0;
	if (h->protocol == IP_SCTP) {
		sctp_check(l4, h->end - h->len, crc);
		return !memcmp(crc, l4 + SCTP_CHECK, sizeof(crc));
	}
	if (h->protocol == IP_UDP && !load_check(l4 + UDP_CHECK))
		return h->af == UVS_AF_INET;
	len = l4_len(l4, h);
	return !uvs_csum(l4, len, h->protocol == IP_ICMP ? 0 : uvs_csum_pseudo(h, len));
}

void uvs_l4_csum_fill(struct uvs_packet *p)
{
	const struct uvs_iphdr *h = &p->iph;
	uint8_t *l4 = p->data + h->len;
	int at = check_offset(h);
	uint16_t check;
	uint32_t len;

	if (h->flags & UVS_HDR_FRAGMENT || !(h->flags & UVS_HDR_L4))
		return;
	if (h->protocol == IP_SCTP) {
		sctp_check(l4, h->end - h->len, l4 + SCTP_CHECK);
		return;
	}
	if (at < 0)
		return;
	len = l4_len(l4, h);
	store_check(l4 + at, 0);
	check = uvs_csum(l4, len, h->protocol == IP_ICMP ? 0 : uvs_csum_pseudo(h, len));
	if (h->protocol == IP_UDP && !check)
		check = 0xffff; /* RFC 768: zero means that there is none */
	store_check(l4 + at, check);
}

void uvs_csum_finish(struct uvs_packet *p)
{
	const struct uvs_iphdr *h = &p->iph;
	uint8_t *l4 = p->data + h->len;

	if (p->partial && h->protocol == IP_TCP && h->flags & UVS_HDR_L4)
		store_check(l4 + TCP_CHECK, uvs_csum(l4, h->end - h->len, 0));
	p->partial = 0;
}

void uvs_csum_fill(struct uvs_packet *p)
{
	if (p->iph.af == UVS_AF_INET)
		ip4_send_check(p->data + p->iph.off);
	uvs_l4_csum_fill(p);
}
