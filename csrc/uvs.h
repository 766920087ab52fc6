/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * uvs.h - the engine's public surface: what cffi reads (csrc/ffi.py).
 *
 * Only declarations that cffi understands stand here: structs, enums, prototypes
 * and `#define NAME NUMBER`.  Everywhere: addresses are bytes in network order (an
 * IPv4 address fills the first four of sixteen, the rest is zero), ports are
 * numbers in host order, `now` is one monotonic clock in nanoseconds, lengths are
 * bytes.  Nothing here does I/O but uvs_table_open().  What is given a table, but open and close, may be called
 * by several threads: it takes the engine lock, for some ten microseconds at most (csrc/locked.c).
 */
#ifndef UVS_H
#define UVS_H

#include <stdint.h>
#include <stddef.h>

/* --------------------------------------------------------------------- clock */

/* CLOCK_MONOTONIC in ns, `rate` times as fast (1; tests have time-outs run out sooner). */
uint64_t uvs_now(uint32_t rate);

/* ------------------------------------------------------------------- reasons */

/* Why a packet got its verdict.  Counted alike in C and Python; walks, metrics
 * and doctor use uvs_why_name().  Append only. */
enum uvs_why {
	UVS_WHY_NONE,          /* no reason yet */
	/* handled */
	UVS_WHY_FORWARDED,     /* request sent to its real server */
	UVS_WHY_LOCAL,         /* request for a real server on this host */
	UVS_WHY_REPLY,         /* reply of a real server, translated or seen */
	UVS_WHY_ICMP_IN,       /* ICMP error from the client's side, passed on */
	UVS_WHY_ICMP_OUT,      /* ICMP error from the server's side, passed on */
	UVS_WHY_BYPASS,        /* cache_bypass: sent to its own destination */
	/* not ours: accepted untouched */
	UVS_WHY_NOT_FOR_HOST,  /* broadcast, multicast, another host's frame */
	UVS_WHY_BACKUP_ONLY,   /* sysctl backup_only on a backup */
	UVS_WHY_PROTOCOL,      /* a protocol IPVS does not balance */
	UVS_WHY_NO_SERVICE,    /* no virtual service matches */
	UVS_WHY_NOT_SYN,       /* TCP without SYN, SCTP without INIT, of no connection */
	UVS_WHY_NO_CONN,       /* no connection on the way out, or for an ICMP error */
	UVS_WHY_CLIENT_PORT,   /* client port 20 */
	UVS_WHY_OWN_REPLY,     /* reply of a local real server */
	UVS_WHY_FRAGMENT,      /* a later fragment, alone */
	UVS_WHY_ICMP_TYPE,     /* ICMP that is no error */
	UVS_WHY_FTP_DATA,      /* data port of an FTP service without a server */
	/* dropped */
	UVS_WHY_SHORT,         /* header cut short */
	UVS_WHY_MALFORMED,     /* lengths or offsets that lie */
	UVS_WHY_CUT,           /* the queue handed over only a part of the packet */
	UVS_WHY_CHECKSUM,      /* bad checksum where IPVS looks at it */
	UVS_WHY_NO_DEST,       /* no real server at all, or none is usable */
	UVS_WHY_WEIGHT_0,      /* every real server has weight 0 */
	UVS_WHY_OVERLOAD,      /* every real server that has weight is over its threshold */
	UVS_WHY_DEAD_DEST,     /* the connection's real server was deleted */
	UVS_WHY_RESCHEDULE,    /* dropped so that a retransmission is scheduled anew */
	UVS_WHY_DROP_RATE,     /* sysctl drop_packet */
	UVS_WHY_TABLE_FULL,    /* no memory for a connection */
	UVS_WHY_NO_ROUTE,      /* no route to the real server */
	UVS_WHY_NO_NEIGHBOUR,  /* the real server does not answer ARP or ND */
	UVS_WHY_TOO_BIG,       /* larger than the MTU and not to be fragmented */
	UVS_WHY_TTL,           /* TTL or hop limit exceeded */
	UVS_WHY_BOUNDARY,      /* local/remote boundary check of the transmitter */
	UVS_WHY_PE,            /* the persistence engine refused the packet */
	UVS_WHY_NAT_ICMP,      /* a server's packet of no connection, refused (nat_icmp_send) */
	UVS_WHY_APP,           /* an application helper refused the packet */
	UVS_WHY_SEND,          /* the kernel refused to send it */
	UVS_WHY_TUNNEL_ICMP,   /* ICMP about our tunnel packet: consumed or told to the client */
	UVS_WHY_GATHERED,      /* a fragment: kept until its datagram is whole */
	UVS_WHY_REASSEMBLY,    /* a fragment that contradicts others, or no room for it */
	UVS_WHY_MAX
};

/* "no_service" for UVS_WHY_NO_SERVICE; "?" outside the range. */
const char *uvs_why_name(int why);

/* ------------------------------------------------------------------- packets */

#define UVS_AF_INET 2
#define UVS_AF_INET6 10

/* Room before a packet for an encapsulation. */
#define UVS_HEADROOM 128
#define UVS_PACKET_MAX 65535

union uvs_addr {
	uint8_t b[16];
	uint32_t w[4];
	uint64_t d[2];
};

/* flags of struct uvs_iphdr */
#define UVS_HDR_INVERSE 1  /* addresses and ports are read swapped */
#define UVS_HDR_ICMP 2     /* quoted in an ICMP error */
#define UVS_HDR_FRAGMENT 4 /* part of a fragmented datagram; not an atomic fragment (RFC 6946) */
#define UVS_HDR_LATER 8    /* not its first part: no transport header */
#define UVS_HDR_PORTS 16   /* both ports are readable */
#define UVS_HDR_L4 32      /* the whole fixed transport header is readable */
#define UVS_HDR_DF 64      /* IPv4 don't fragment */
#define UVS_HDR_ATOMIC 128 /* an atomic fragment (RFC 6946): whole, behind a Fragment header */

#define UVS_TCP_FIN 1
#define UVS_TCP_SYN 2
#define UVS_TCP_RST 4
#define UVS_TCP_ACK 16

/* What IPVS needs to know of one IP header (the kernel's struct ip_vs_iphdr). */
struct uvs_iphdr {
	union uvs_addr saddr, daddr;
	uint32_t off;      /* where this IP header starts, from the packet's first byte */
	uint32_t len;      /* where the transport header starts, from the packet's first byte */
	uint32_t end;      /* where this datagram's readable bytes end */
	uint32_t fragoffs; /* bytes before this fragment; 0 for a first or only one */
	uint16_t sport, dport;
	uint8_t af, protocol, flags, tos, ttl;
	uint8_t tcp_flags;             /* octet 13 of the TCP header, with UVS_HDR_L4 */
	uint8_t icmp_type, icmp_code;  /* with UVS_HDR_L4 */
	uint8_t chunk, next_chunk;     /* SCTP chunk types, with UVS_HDR_L4; 255 = none */
	uint16_t segment;              /* TCP payload bytes */
	uint16_t mss;                  /* what a SYN says of it, 0: nothing */
};

/* A packet and its buffer: UVS_HEADROOM bytes, then up to UVS_PACKET_MAX (IPv6: 40 more,
 * since its length field leaves the IP header out). */
struct uvs_packet {
	uint8_t *data;     /* first byte of the IP header */
	uint32_t len;      /* of the IP datagram */
	uint32_t mark;     /* netfilter mark */
	int32_t indev,
		outdev; /* indexes of the devices in and out, for the fast path; 0, 1: none, the loopback device */
	uint32_t frag_max; /* largest fragment that it was put together from, 0: none (frag_max_size) */
	uint8_t partial; /* TCP: the checksum is the pseudo header's sum, to be finished (CHECKSUM_PARTIAL) */
	uint8_t gso; /* TCP: it stands for several segments (skb_is_gso) */
	uint8_t traced; /* what the fast path was told of it (trace.h) */
	struct uvs_iphdr iph;
};

struct uvs_packet *uvs_packet_new(void); /* NULL: no memory */
void uvs_packet_free(struct uvs_packet *p);

/* Copy an IP datagram in and parse it.  Every length is checked here and nowhere
 * else.  Bytes after the datagram's own length are dropped.  Returns 0,
 * UVS_WHY_SHORT or UVS_WHY_MALFORMED (then only data and len are valid). */
int uvs_packet_load(struct uvs_packet *p, const uint8_t *data, uint32_t len, uint32_t mark);

/* The same without a copy, for a reader that puts its messages into the buffer itself: its whole room, and
 * then where in it the datagram begins; what stands before is room for an encapsulation. */
uint8_t *uvs_packet_buffer(struct uvs_packet *p, uint32_t *room);
int uvs_packet_at(struct uvs_packet *p, uint32_t off, uint32_t len, uint32_t mark);

/* Parse p->data again (after encapsulation, for tests).  Returns as above. */
int uvs_packet_parse(struct uvs_packet *p);

/* The header quoted in an ICMP or ICMPv6 error, or, by _at, an IP header of family
 * `af` that starts `off` bytes into the packet.  The quoted total length is not looked
 * at: it may exceed what is there, and some senders swap or shorten it.  Flag ICMP is
 * set.  Returns 0, or UVS_WHY_SHORT when there is no such header to read. */
int uvs_quoted_parse(const struct uvs_packet *p, struct uvs_iphdr *quoted);
int uvs_quoted_parse_at(const struct uvs_packet *p, uint32_t off, int af, struct uvs_iphdr *quoted);

/* ----------------------------------------------------------------- checksums */

/* Ones' complement sum of RFC 1071 over bytes, folded and complemented; `sum` is an
 * unfolded partial sum to start from, made over an even number of bytes.  The result is in
 * memory order: store it as is. */
uint16_t uvs_csum(const uint8_t *data, uint32_t len, uint64_t sum);
/* Unfolded sum of a range, and of the pseudo header of `iph` for `l4len` bytes (IPv6: final
 * protocol; the destination is the IP header's, a routing header is not followed). */
uint64_t uvs_csum_add(const uint8_t *data, uint32_t len, uint64_t sum);
uint64_t uvs_csum_pseudo(const struct uvs_iphdr *iph, uint32_t l4len);
/* RFC 1624: a 16-bit checksum after `len` (even) bytes changed from a to b. */
uint16_t uvs_csum_replace(uint16_t check, const uint8_t *a, const uint8_t *b, uint32_t len);
uint32_t uvs_crc32c(const uint8_t *data, uint32_t len);
/* Is the transport checksum right?  1 yes (or UDP 0 over IPv4, or unknown protocol),
 * 0 no, or a fragment. */
int uvs_l4_csum_ok(const struct uvs_packet *p);
/* Finish a partial checksum. */
void uvs_csum_finish(struct uvs_packet *p);
/* Compute the IPv4 header checksum and, unless it is a fragment, the transport checksum. */
void uvs_csum_fill(struct uvs_packet *p);

/* --------------------------------------------------------------- the table */

#define UVS_KIND_FREE 0
#define UVS_KIND_CONN 1 /* struct uvs_conn, templates too */
#define UVS_KIND_DEST 2 /* struct uvs_dest */
#define UVS_KIND_SERVICE 3 /* struct uvs_service */
#define UVS_KIND_PE 4 /* struct uvs_pe */
#define UVS_KIND_APP 5 /* struct uvs_app */

/* Connection flags: include/uapi/linux/ip_vs.h, IP_VS_CONN_F_*. */
#define UVS_CONN_F_MASQ 0x0000
#define UVS_CONN_F_LOCALNODE 0x0001
#define UVS_CONN_F_TUNNEL 0x0002
#define UVS_CONN_F_DROUTE 0x0003
#define UVS_CONN_F_BYPASS 0x0004
#define UVS_CONN_F_FWD_MASK 0x0007
#define UVS_CONN_F_SYNC 0x0020
#define UVS_CONN_F_HASHED 0x0040
#define UVS_CONN_F_NOOUTPUT 0x0080
#define UVS_CONN_F_INACTIVE 0x0100
#define UVS_CONN_F_OUT_SEQ 0x0200
#define UVS_CONN_F_IN_SEQ 0x0400
#define UVS_CONN_F_NO_CPORT 0x0800
#define UVS_CONN_F_TEMPLATE 0x1000
#define UVS_CONN_F_ONE_PACKET 0x2000
#define UVS_CONN_F_NFCT 0x10000

#define UVS_SVC_F_ONEPACKET 4

/* A destination's route: the MTU in bytes, and whether a router told it (a nexthop exception). */
#define UVS_ROUTE_MTU 0xffff
#define UVS_ROUTE_LEARNED 0x10000

#define UVS_DEST_F_AVAILABLE 1
#define UVS_DEST_F_OVERLOAD 2

/* One connection: 128 bytes, all that a lookup compares in the first 64. */
struct uvs_conn {
	uint8_t kind, af, daf, protocol;
	uint16_t cport, vport, dport;
	uint16_t state;
	uint32_t hnext; /* next in the hash chain */
	union uvs_addr caddr, vaddr, daddr;
	uint64_t deadline; /* ns */
	uint32_t flags;
	uint32_t timeout; /* ms */
	uint32_t tnext, tprev, filed; /* timer wheel: neighbours, tick it is filed under */
	uint32_t dest; /* record of the real server; 0 = none */
	uint32_t control; /* record of the controlling connection; 0 = none */
	uint32_t n_control; /* how many it controls */
	uint32_t in_pkts;
	uint32_t fwmark;
	uint32_t nexthop; /* index into the next-hop table; 0 = not known yet */
	uint32_t ext; /* record with what does not fit here; a template: uvs_pe, others: uvs_app; 0 = none */
	uint16_t old_state; /* state last synced */
	uint16_t mss; /* smallest of the SYNs and path MTUs seen, 0: none was */
	uint32_t sync_endtime;
};

struct uvs_stats {
	uint64_t conns, inpkts, outpkts, inbytes, outbytes;
};

struct uvs_dest {
	uint8_t kind, af, vaf, protocol;
	uint16_t port, vport;
	uint32_t vfwmark;
	uint16_t tun_port;
	uint8_t tun_type, tun_flags;
	union uvs_addr addr, vaddr;
	struct uvs_stats stats;
	uint16_t conn_flags; /* FWD method and what a new connection inherits */
	uint16_t flags; /* UVS_DEST_F_* */
	int32_t weight, last_weight; /* the latter: the last that was not 0 */
	uint32_t u_threshold, l_threshold;
	int32_t activeconns, inactconns, persistconns;
	uint32_t route; /* tunnels: as the last packet found it (dest_dst), UVS_ROUTE_*; 0 = none yet */
	uint32_t service; /* record of the service */
};

struct uvs_service {
	uint8_t kind, af, protocol, pad0;
	uint16_t port, pad1;
	uint32_t fwmark;
	uint32_t flags; /* UVS_SVC_F_* */
	union uvs_addr addr;
	struct uvs_stats stats;
	uint8_t pad2[56];
};

/* A piece of what a persistence engine knows a template by: its name, a blank, its data.  All
 * pieces but the last are full. */
#define UVS_PE_PIECE 116
#define UVS_PE_MAX 272 /* IP_VS_PENAME_MAXLEN + IP_VS_PEDATA_MAXLEN and the blank */

struct uvs_pe {
	uint8_t kind, claimed;
	uint16_t len; /* bytes here */
	uint32_t owner; /* record of the template */
	uint32_t next; /* record of the next piece; 0 = none */
	uint8_t data[UVS_PE_PIECE];
};

/* What an application helper keeps of a connection.  A server's bytes after init_seq are moved by
 * delta, those before it by previous_delta (struct ip_vs_seq, nf_conntrack_seqadj.c). */
struct uvs_app {
	uint8_t kind, claimed, mode, pad0;
	uint32_t owner; /* record of the connection */
	uint32_t init_seq;
	int32_t delta, previous_delta;
	uint8_t pad1[108];
};

/* What a connection is looked up or made by (the kernel's ip_vs_conn_param).  pe_len 0: no
 * persistence engine. */
struct uvs_conn_param {
	uint8_t af, daf, protocol;
	uint8_t once; /* if meanwhile somebody made another than `found` for the same packets, that one is meant */
	uint16_t cport, vport, dport, pe_len;
	union uvs_addr caddr, vaddr, daddr;
	uint32_t fwmark;
	uint32_t found; /* record that the packet's lookup found, 0: none */
	uint8_t pe[UVS_PE_MAX];
};

struct uvs_table;

struct uvs_table_info {
	uint32_t conns, templates, no_cport, dests, services;
	uint32_t records; /* capacity that is allocated */
	uint32_t conn_max; /* capacity that it may grow to */
	uint32_t attached; /* 1: an existing arena was taken over */
	uint64_t bytes; /* of the arena and of what stands beside it */
	uint64_t full; /* how often a record was refused */
};

#define UVS_RECORD_SIZE 128

/* Open or make the arena.  `path` NULL: private memory, for sans-io use and tests.
 * `boot_id`: 16 bytes; an arena of another boot is set aside, since its deadlines
 * mean nothing.  A file that is torn, foreign, of another layout, or not ours is
 * renamed to `path`.aside and a fresh one made; `msg` then says so (empty when there
 * is nothing to say).  NULL on failure with errno and the reason in `msg`. */
struct uvs_table *uvs_table_open(const char *path, uint32_t conn_max, const uint8_t *boot_id, uint64_t now,
				 char *msg, size_t msglen);
void uvs_table_close(struct uvs_table *t);
void uvs_table_info(const struct uvs_table *t, struct uvs_table_info *info);
/* Kept in the arena's header: everything since it was made, and what of that was counted before the
 * last zeroing. */
struct uvs_stats *uvs_table_total(struct uvs_table *t);
struct uvs_stats *uvs_table_zeroed(struct uvs_table *t);

/* Records by index, checked: NULL unless the record is of that kind. */
struct uvs_conn *uvs_conn_at(struct uvs_table *t, uint32_t i);
struct uvs_dest *uvs_dest_at(struct uvs_table *t, uint32_t i);
struct uvs_service *uvs_service_at(struct uvs_table *t, uint32_t i);
uint32_t uvs_record_index(const struct uvs_table *t, const void *record);
/* Next record of `kind` after *cursor (start with 0), or 0.  Records may come and go
 * meanwhile; each that stays is seen once. */
uint32_t uvs_record_next(struct uvs_table *t, int kind, uint32_t *cursor);

/* IP identifications for packets of the director's own, one after the other, never 0: the first of `n`. */
uint16_t uvs_idents(struct uvs_table *t, uint32_t n);
#define UVS_IDENTS 65535

/* Empty records (all zero but the kind), 0 when full; and back.  One whose family is not stored yet is taken
 * for unfinished, and forgotten, by the next process.  A destination must
 * have no entries when it goes: -1 otherwise.  uvs_dest_refcnt: how many point to it. */
uint32_t uvs_dest_new(struct uvs_table *t);
int uvs_dest_free(struct uvs_table *t, uint32_t i);
uint32_t uvs_dest_refcnt(struct uvs_table *t, const struct uvs_dest *d);
void uvs_dest_set_route(struct uvs_table *t, struct uvs_dest *d, uint32_t route);
uint32_t uvs_service_new(struct uvs_table *t);
void uvs_service_free(struct uvs_table *t, uint32_t i);

/* OVERLOAD anew, after a connection came or went or a threshold was set: full at the upper
 * threshold, open again below the lower one, or below three quarters of the upper. */
void uvs_dest_overload(struct uvs_table *t, struct uvs_dest *d);
/* AVAILABLE or not. */
void uvs_dest_set_available(struct uvs_table *t, struct uvs_dest *d, int yes);

/* Lookups (ip_vs_conn_in_get, ip_vs_conn_out_get, ip_vs_ct_in_get).  NULL: none.  `iph` says by
 * UVS_HDR_INVERSE how to read it. */
struct uvs_conn *uvs_conn_in_get(struct uvs_table *t, const struct uvs_iphdr *iph);
struct uvs_conn *uvs_conn_out_get(struct uvs_table *t, const struct uvs_iphdr *iph);
struct uvs_conn *uvs_ct_in_get(struct uvs_table *t, const struct uvs_conn_param *key); /* templates */
/* The same for up to 64 headers at once: memory latency overlaps.  out[i] = record or 0. */
void uvs_conn_in_get_batch(struct uvs_table *t, const struct uvs_iphdr *iph, uint32_t n, uint32_t *out);

/* A new connection (ip_vs_conn_new): state 0, timeout 3 s, bound to `dest` (0 = none;
 * counters and OVERLOAD, ip_vs_bind_dest), flags |= the destination's conn_flags, hashed
 * unless ONE_PACKET, filed with the timer.  NULL: table full. */
struct uvs_conn *uvs_conn_new(struct uvs_table *t, const struct uvs_conn_param *p, uint32_t flags,
			      uint32_t dest, uint64_t now);
void uvs_conn_put(struct uvs_table *t, struct uvs_conn *c, uint64_t now); /* release: restart its timer;
			      an OPS connection is gone after this */
void uvs_conn_expire_now(struct uvs_table *t, struct uvs_conn *c, uint64_t now);
/* ip_vs_conn_del: at once, controllers follow; how many entries went. */
uint32_t uvs_conn_del(struct uvs_table *t, struct uvs_conn *c);
/* The connections of destinations that are not AVAILABLE, at once, and their controllers as these
 * become free; returns how many connections. */
uint32_t uvs_expire_nodest(struct uvs_table *t);
void uvs_control_add(struct uvs_table *t, struct uvs_conn *c, struct uvs_conn *controller);
void uvs_conn_rekey(struct uvs_table *t, struct uvs_conn *c, uint16_t cport, uint16_t vport, uint16_t dport);
void uvs_conn_fill_cport(struct uvs_table *t, struct uvs_conn *c, uint16_t cport);

/* A template's persistence engine data into `out` (room UVS_PE_MAX): its length, 0 for none. */
uint32_t uvs_conn_pe(const struct uvs_table *t, const struct uvs_conn *c, uint8_t *out);
/* What a helper keeps of a connection: NULL if nothing yet; _new makes it, NULL when the table is full. */
struct uvs_app *uvs_conn_app(struct uvs_table *t, const struct uvs_conn *c);
struct uvs_app *uvs_conn_app_new(struct uvs_table *t, struct uvs_conn *c);

/* Run the wheel up to `now`, at most `budget` entries; returns how many were looked at
 * (== budget: call again).  uvs_conn_remaining: ms until it expires, 0 if due. */
uint32_t uvs_expire(struct uvs_table *t, uint64_t now, uint32_t budget);
uint32_t uvs_conn_remaining(const struct uvs_conn *c, uint64_t now);

/* Look at one in 32 records from a random one on, and drop what a flood leaves behind: half-open
 * connections, templates that no connection assured, and of those that saw few packets and were not
 * refreshed for a minute one in as many as they saw packets.  Returns how many. */
uint32_t uvs_drop_entry(struct uvs_table *t, uint64_t now, uint32_t random);

/* in_pkts one more; it wraps. */
void uvs_conn_count_in(struct uvs_table *t, struct uvs_conn *c);
/* Counters: a packet of `bytes` for the connection's destination, its service, the total. */
void uvs_in_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes);
void uvs_out_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes);
void uvs_conn_stats(struct uvs_table *t, const struct uvs_conn *c);
/* Each counter more, or less, by another's; they wrap. */
void uvs_stats_add(struct uvs_table *t, struct uvs_stats *s, const struct uvs_stats *by);
void uvs_stats_sub(struct uvs_table *t, struct uvs_stats *s, const struct uvs_stats *by);

/* ------------------------------------------------------------ state machines */

#define UVS_DIR_INPUT 0
#define UVS_DIR_OUTPUT 1
#define UVS_DIR_INPUT_ONLY 2

#define UVS_TCP_STATES 11
#define UVS_SCTP_STATES 14
#define UVS_UDP_STATES 1

/* set_state of the protocol (ip_vs_set_state): state, timeout, active/inactive, ASSURED of
 * the template.  `dir` is INPUT or OUTPUT; INPUT_ONLY follows from NOOUTPUT. */
void uvs_set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph);
/* One cell of the tables; -1 outside.  event: 0 syn 1 fin 2 ack 3 rst; SCTP: column 0..9. */
int uvs_tcp_next(int secure, int dir, int event, int state);
int uvs_sctp_next(int dir, int event, int state);
/* Name and time-out (ms) of a state; the pointer may be written (SET_CONFIG).  NULL: no such protocol. */
const char *uvs_state_name(int protocol, int state);
uint32_t *uvs_timeouts(struct uvs_table *t, int protocol);
void uvs_secure_tcp(struct uvs_table *t, int on);

#endif
