/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * xmit.h - transmitters: what is done to a packet on its way out; read by cffi like uvs.h.
 */
#ifndef UVS_XMIT_H
#define UVS_XMIT_H

#include "uvs.h"

/* TTL or hop limit less one, IPv4 header checksum kept right.  0, or UVS_WHY_TTL (untouched). */
int uvs_decrease_ttl(struct uvs_packet *p);
/* NAT of a request (address and port of the real server) and of a reply (of the virtual
 * service); checksums incremental, UDP 0 over IPv4 made whole, SCTP CRC if a port changes. */
void uvs_dnat(struct uvs_packet *p, const struct uvs_conn *c);
void uvs_snat(struct uvs_packet *p, const struct uvs_conn *c);
/* NAT of an ICMP error and its quoted header (ip_vs_nat_icmp). inout 1: from the server.  A fragment of
 * such a message is left alone. */
void uvs_nat_icmp(struct uvs_packet *p, const struct uvs_iphdr *quoted, const struct uvs_conn *c, int inout);
/* Replace `len` bytes that start `off` bytes into the packet, inside the transport's payload, by
 * `n` others; lengths and checksums are made right, p->iph stays true.  0; UVS_WHY_TOO_BIG (nothing is
 * done) beyond 65535 bytes; UVS_WHY_MALFORMED if that is no place in an unfragmented TCP payload. */
int uvs_mangle_tcp(struct uvs_packet *p, uint32_t off, uint32_t len, const uint8_t *with, uint32_t n);
/* The server's TCP payload from sequence number `seq` on grew by `diff` (nf_ct_seqadj_set). */
void uvs_seq_resized(struct uvs_app *a, uint32_t seq, int32_t diff);
/* Sequence number of a server's packet; acknowledgement and SACK blocks of a client's.  0, or
 * UVS_WHY_MALFORMED if its options cannot be read. */
void uvs_seq_out(struct uvs_packet *p, const struct uvs_app *a);
int uvs_seq_in(struct uvs_packet *p, const struct uvs_app *a);
/* A tunnel: IP_VS_CONN_F_TUNNEL_TYPE_* and IP_VS_TUNNEL_ENCAP_FLAG_* (include/uapi/linux/ip_vs.h).
 * Any other type is ipip. */
#define UVS_TUN_IPIP 0
#define UVS_TUN_GUE 1
#define UVS_TUN_GRE 2
#define UVS_TUN_F_CSUM 1
#define UVS_TUN_F_REMCSUM 2

struct uvs_tunnel {
	union uvs_addr saddr, daddr; /* of the outer header */
	uint16_t sport, dport; /* gue */
	uint16_t id; /* for an outer IPv4 header without DF */
	uint8_t af; /* of the outer header */
	uint8_t type, flags; /* UVS_TUN_* */
	uint8_t pmtu_disc; /* 1: an outer IPv4 header has the inner one's DF */
};

/* Bytes between the outer IP header and the inner packet. */
uint32_t uvs_tunnel_hlen(uint8_t type, uint8_t flags);
/* Source port of a gue tunnel out of [min, max), the same for all packets of a flow (udp_flow_src_port). */
uint16_t uvs_flow_src_port(const struct uvs_iphdr *iph, uint32_t seed, uint16_t min, uint16_t max);
/* Put outer headers in front (ip_vs_tunnel_xmit).  Checksums inside are whole, so that REMCSUM has
 * nothing to leave to the other end: it means CSUM.  p->iph is the outer header afterwards.  0, or
 * UVS_WHY_TOO_BIG beyond 65535 (untouched). */
int uvs_encap(struct uvs_packet *p, const struct uvs_tunnel *t);

/* Fragments of a packet that is larger than `mtu` (RFC 791; for IPv6 as its source does,
 * RFC 8200 4.5, with `id`).  Writes fragment number `n` (from 0) to `out` (room `mtu`) and returns
 * its length; 0 after the last; -1 if it may not or cannot be fragmented.  DF is not looked at and not
 * kept; an IPv4 packet with DF and identification 0 gets `id`. */
int uvs_fragment(const struct uvs_packet *p, uint32_t mtu, uint32_t n, uint32_t id, uint8_t *out);

/* Payload bytes of the segments that a packet of many may be cut into: what its sender uses, by the MSS of the
 * connection, and what fits `mtu`; without a known MSS those that every host takes (RFC 9293 3.7.1).  0: it
 * cannot be cut. */
uint32_t uvs_segment_size(const struct uvs_packet *p, const struct uvs_conn *c, uint32_t mtu);
/* TCP segments of `size` bytes of payload, as the kernel cuts them (tcp_gso_segment).  Writes number `n` (from
 * 0) to `out` (room: the headers and `size`), checksums whole, and returns its length; 0 after the last. */
uint32_t uvs_segment(const struct uvs_packet *p, uint32_t size, uint32_t n, uint8_t *out);

#endif
