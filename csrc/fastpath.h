/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fastpath.h - packets of known connections, and of new ones, without Python; read by cffi like uvs.h.
 */
#ifndef UVS_FASTPATH_H
#define UVS_FASTPATH_H

#include "trace.h"
#include "xmit.h"

/* A row of the next-hop table: where the frames to one address go.  `eth` is the link-layer header that
 * is put in front: `ethlen` is 14 on Ethernet, 0 on devices without one. */
struct uvs_nexthop {
	uint32_t index; /* as connections hold it; its low 16 bits are the row's slot.  0 = no row */
	int32_t ifindex;
	uint32_t mtu;
	uint8_t quick; /* a packet within mtu may be sent at once: nothing is to be asked, none waits */
	uint8_t cooked; /* the kernel adds whatever header the device has; then no offload */
	uint8_t learned; /* a router told this MTU */
	uint8_t local; /* the address is this host's own: nothing is sent there */
	uint8_t ethlen;
	uint8_t eth[14];
	union uvs_addr saddr; /* preferred source towards it: of a tunnel's outer header */
};

#define UVS_NEXTHOPS 65536

/* The rows, by slot; zero at first.  `table`: whose engine lock guards them; NULL: nobody else looks at them yet. */
struct uvs_nexthops {
	struct uvs_table *table;
	struct uvs_nexthop row[UVS_NEXTHOPS];
};

/* Put a row into its slot; may the fast path use it, which leads where it did; it is gone. */
void uvs_nexthops_put(struct uvs_nexthops *h, const struct uvs_nexthop *row);
void uvs_nexthops_hasten(struct uvs_nexthops *h, uint32_t index, int quick);
void uvs_nexthops_remove(struct uvs_nexthops *h, uint32_t index);

/* Netfilter hooks: NF_INET_* (include/uapi/linux/netfilter.h). */
#define UVS_LOCAL_IN 1
#define UVS_FORWARD 2
#define UVS_LOCAL_OUT 3

/* What may not be decided without the hook path. */
#define UVS_FAST_OFF 1 /* anything: every packet is being told of */
#define UVS_FAST_PE 2 /* a server's datagram may begin a connection (persistence engines) */
#define UVS_FAST_NAT_ICMP 4 /* a server's packet of no connection may be answered (nat_icmp_send) */
#define UVS_FAST_REROUTE 8 /* a reply goes by the route from its new source (snat_reroute) */
#define UVS_FAST_SLOPPY_TCP 16 /* any segment may open a connection (sloppy_tcp, sloppy_sctp) */
#define UVS_FAST_SLOPPY_SCTP 32
#define UVS_FAST_DROP_RATE 64 /* one in some that may open a connection is dropped (drop_packet) */
#define UVS_FAST_NODEST 128 /* a SYN leaves a server of weight 0 (expire_nodest_conn) */
#define UVS_FAST_REUSE 256 /* a client's port may be used again (conn_reuse_mode) */
#define UVS_FAST_REUSE_FIN_WAIT 512 /* bit 1 of it */
#define UVS_FAST_TRACE 1024 /* what somebody traces, as far as it is to be shown */

#define UVS_FRAGMENTED 65536

struct uvs_fastpath {
	struct uvs_table *table;
	const struct uvs_nexthops *nexthops;
	struct uvs_trace *trace; /* with UVS_FAST_TRACE */
	uint32_t flags; /* UVS_FAST_* */
	uint32_t clock_rate; /* of uvs_now() */
	/* Of tunnels: uvs_fastpath_tunnels(). */
	uint32_t flow_seed;
	uint16_t port_min, port_max;
	uint8_t pmtu_disc;
	uint64_t why[UVS_WHY_MAX]; /* packets that were done here, by reason */
	int32_t fragments
		[2]; /* IPv4, IPv6: sockets to read while the heads of fragments wait to be looked at; -1: none */
	uint32_t whole; /* a longer datagram came in fragments, seen or not */
	uint32_t fragmented; /* datagrams whose fragments were seen, and that did not come yet (frag_max) */
	uint16_t fragmented_by[UVS_FRAGMENTED]; /* the same by a hash of their addresses */
};

/* What is to be looked at besides the table, changed at once. */
void uvs_fastpath_set(struct uvs_fastpath *f, uint32_t flags, uint32_t whole);
/* What outer headers are made of: the hash that a gue flow's source port comes from, and its range; have they DF? */
void uvs_fastpath_tunnels(struct uvs_fastpath *f, uint32_t flow_seed, uint16_t port_min, uint16_t port_max,
			  int pmtu_disc);
/* Sockets that heads of fragments come by; while one of them is readable, no datagram may be taken. */
void uvs_fastpath_watch(struct uvs_fastpath *f, int32_t v4, int32_t v6);
/* A packet that was left could not be handed to the hook path: it comes once more. */
void uvs_fastpath_again(struct uvs_fastpath *f, const struct uvs_packet *p);
/* A packet that was taken got another reason on its way out. */
void uvs_fastpath_count(struct uvs_fastpath *f, int why);
/* The counts by reason since the last call, UVS_WHY_MAX of them. */
void uvs_fastpath_take(struct uvs_fastpath *f, uint64_t *why);
/* `by` more datagrams from and to these addresses came in fragments: source and destination, `len` bytes in all. */
void uvs_fastpath_fragmented(struct uvs_fastpath *f, const uint8_t *ends, uint32_t len, int by);

enum uvs_step {
	UVS_STEP_SLOW, /* to the hook path; nothing was touched */
	UVS_STEP_ACCEPT, /* unchanged */
	UVS_STEP_REWRITTEN, /* accepted, with new content */
	UVS_STEP_SEND, /* consumed: the packet is to be sent by `way` */
};

/* How a packet leaves. */
struct uvs_way {
	uint8_t local; /* it does not: its server is on this host */
	struct uvs_nexthop nexthop; /* as it was when the packet was looked at */
	uint32_t gso_size; /* payload of each segment, 0: the packet is one */
	uint8_t tunnelled; /* outer headers by `tunnel` are to be put in front of each; its id is the first one's */
	struct uvs_tunnel tunnel;
};

/* One packet of a known connection, of a new one to a plain service, or one that cannot open any, as nf_hook() of
 * uvs/ipvs/hooks.py does it, by the same primitives; everything else is for the hook path.  `now`: ns.  Returns enum
 * uvs_step.  May be called by several threads. */
int uvs_fastpath(struct uvs_fastpath *f, struct uvs_packet *p, int hook, uint64_t now, struct uvs_way *way);

/* What is left to be done to a packet that is sent, and needs neither table nor lock (way.c).
 *
 * Put one that leaves as one in its tunnel; a partial checksum is finished before.  0 or enum uvs_why. */
int uvs_way_encap(struct uvs_packet *p, const struct uvs_way *way);
/* Write segment number `n` (from 0) of one that stands for many to `part`, in its tunnel if it has one, checksums
 * whole.  0: there are no more. */
int uvs_way_part(const struct uvs_packet *p, const struct uvs_way *way, uint32_t n, struct uvs_packet *part);

#endif
