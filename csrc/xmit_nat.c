/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * NAT: requests, replies, and ICMP errors about them.
 */
#include "packet.h"

/* The same where the field holds a plain sum, of the pseudo header alone (RFC 1624 for ~sum). */
static void mangle_partial(uint8_t *at, const uint8_t *with, uint32_t len, uint8_t *check)
{
	store_check(check, (uint16_t)~uvs_csum_replace((uint16_t)~load_check(check), at, with, len));
	memcpy(at, with, len);
}

/* Overwrite `len` bytes and keep the checksum at `check` right (NULL: there is none). */
static void mangle(uint8_t *at, const uint8_t *with, uint32_t len, uint8_t *check)
{
	if (check)
		store_check(check, uvs_csum_replace(load_check(check), at, with, len));
	memcpy(at, with, len);
}

/* The transport's 16-bit checksum if it is there to be adjusted.  A later fragment has
 * none; in a first fragment it covers what follows, and adjusting it is right too. */
static uint8_t *l4_check(const struct uvs_packet *p)
{
	const struct uvs_iphdr *h = &p->iph;
	uint8_t *l4 = p->data + h->len;

	if (!(h->flags & UVS_HDR_L4))
		return NULL;
	if (h->protocol == IP_TCP)
		return l4 + TCP_CHECK;
	if (h->protocol == IP_UDP && load_check(l4 + UDP_CHECK))
		return l4 + UDP_CHECK;
	return NULL;
}

/* Give one end of the packet another address and port: `dst` says which end. */
static void nat(struct uvs_packet *p, const union uvs_addr *addr, uint16_t port, int dst)
{
	struct uvs_iphdr *h = &p->iph;
	union uvs_addr *haddr = dst ? &h->daddr : &h->saddr;
	uint16_t *hport = dst ? &h->dport : &h->sport;
	uint8_t *ip = p->data + h->off, *l4 = p->data + h->len, *check = l4_check(p);
	uint8_t *at, new_port[2];
	uint32_t len;
	int changed = 0;

	if (h->af == UVS_AF_INET) {
		at = ip + (dst ? IP4_DADDR : IP4_SADDR);
		len = 4;
		store_check(ip + IP4_CHECK, uvs_csum_replace(load_check(ip + IP4_CHECK), at, addr->b, len));
	} else {
		at = ip + (dst ? IP6_DADDR : IP6_SADDR);
		len = 16;
	}
	if (p->partial && check)
		mangle_partial(at, addr->b, len, check);
	else
		mangle(at, addr->b, len, check);
	memcpy(haddr->b, addr->b, len);
	if (h->flags & UVS_HDR_PORTS) {
		changed = *hport != port;
		put16(new_port, port);
		mangle(l4 + (dst ? 2 : 0), new_port, 2, p->partial ? NULL : check);
		*hport = port;
	}
	/* udp_dnat_handler(): a datagram without a checksum gets one, and zero is never sent. */
	if (h->protocol == IP_UDP && check && !load_check(check))
		store_check(check, 0xffff);
	if ((h->protocol == IP_UDP && !check) || (h->protocol == IP_SCTP && changed))
		uvs_l4_csum_fill(p);
}

void uvs_dnat(struct uvs_packet *p, const struct uvs_conn *c)
{
	nat(p, &c->daddr, c->dport, 1);
}

void uvs_snat(struct uvs_packet *p, const struct uvs_conn *c)
{
	nat(p, &c->vaddr, c->vport, 0);
}

static void set_addr(uint8_t *ip, struct uvs_iphdr *h, const union uvs_addr *addr, int dst)
{
	if (h->af == UVS_AF_INET) {
		memcpy(ip + (dst ? IP4_DADDR : IP4_SADDR), addr->b, 4);
		ip4_send_check(ip);
		memcpy(dst ? h->daddr.b : h->saddr.b, addr->b, 4);
	} else {
		memcpy(ip + (dst ? IP6_DADDR : IP6_SADDR), addr->b, 16);
		memcpy(dst ? h->daddr.b : h->saddr.b, addr->b, 16);
	}
}

void uvs_nat_icmp(struct uvs_packet *p, const struct uvs_iphdr *quoted, const struct uvs_conn *c, int inout)
{
	const union uvs_addr *addr = inout ? &c->vaddr : &c->daddr;
	uint16_t port = inout ? c->vport : c->dport;
	struct uvs_iphdr q = *quoted;

	/* The ICMP checksum cannot be made over a part of the message. */
	if (p->iph.flags & UVS_HDR_FRAGMENT || !(p->iph.flags & UVS_HDR_L4))
		return;
	set_addr(p->data + p->iph.off, &p->iph, addr, !inout);
	set_addr(p->data + q.off, &q, addr, inout);
	if (q.flags & UVS_HDR_PORTS)
		put16(p->data + q.len + (inout ? 2 : 0), port);
	uvs_l4_csum_fill(p);
}
