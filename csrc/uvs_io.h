/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * uvs_io.h - the engine's Linux I/O, bound as a module of its own (uvs.engine._io).
 * Errors are returned as negative errno.
 */
#ifndef UVS_IO_H
#define UVS_IO_H

#include <stdint.h>
#include "fastpath.h"

/* linux/virtio_net.h: VIRTIO_NET_HDR_GSO_* */
#define UVS_GSO_NONE 0
#define UVS_GSO_TCPV4 1
#define UVS_GSO_UDP 3
#define UVS_GSO_TCPV6 4

#define UVS_ETH_HLEN 14

/* Packet sockets for sending only, both marked with `mark`: `raw` takes frames with a
 * virtio-net header (PACKET_VNET_HDR), `cooked` (SOCK_DGRAM) IP packets for devices whose
 * own header the kernel knows how to build.  Negative: not open.  `part`: room for the segments that are made here. */
#define UVS_FRAMES 64

struct uvs_inject {
	int raw, cooked;
	struct uvs_packet *part[UVS_FRAMES];
};

/* Open both.  0 or negative errno (-EPERM: CAP_NET_RAW and CAP_NET_ADMIN are needed; -ENOMEM). */
int uvs_inject_open(struct uvs_inject *s, uint32_t mark);
void uvs_inject_close(struct uvs_inject *s);

/* Send one IP packet of `len` bytes as it is (checksums whole).  Never blocks.  0 or negative
 * errno: -EAGAIN and -ENOBUFS are passing, -ENETDOWN, -ENXIO and -ENODEV say that the device is
 * down or gone, -EMSGSIZE that the packet is larger than its MTU. */
int uvs_inject_send(const struct uvs_inject *s, const struct uvs_nexthop *nh, const uint8_t *data,
		    uint32_t len);

/* The same for a packet with an unfinished checksum (csum_offset not 0; csum_start counts from
 * the IP header, csum_offset from csum_start, as in linux/virtio_net.h) and for one that the
 * device or kernel shall cut into segments of gso_size bytes (gso_type UVS_GSO_*, hdr_len =
 * IP and transport header, bytes).  -EOPNOTSUPP on a cooked next hop. */
int uvs_inject_offload(const struct uvs_inject *s, const struct uvs_nexthop *nh, const uint8_t *data,
		       uint32_t len, uint16_t csum_start, uint16_t csum_offset, uint8_t gso_type,
		       uint16_t gso_size, uint16_t hdr_len);

/* Packets to be sent in one call.  A partial checksum and the cutting into segments are left to the kernel
 * or the device (never on a cooked next hop); those in a tunnel are cut and made whole here, in their own buffer if
 * they leave as one.  Each gets its `err`: 0 or positive errno. */
struct uvs_frame {
	struct uvs_packet *packet;
	struct uvs_way way;
	int err;
};

void uvs_inject_frames(struct uvs_inject *s, struct uvs_frame *frames, uint32_t n);

/* ------------------------------------------------------------------- NFQUEUE */

/* A queue of packets (linux/netfilter/nfnetlink_queue.h) on a netlink socket that owns it.  One thread takes what
 * comes (uvs_nfq_step), one, the same or another, does what the fast path leaves to the hook path
 * (uvs_nfq_slow, uvs_nfq_verdict). */
struct uvs_nfq;

/* A packet for the hook path. */
struct uvs_queued {
	const uint8_t *data; /* IP datagram */
	uint32_t len, id, mark;
	int32_t indev; /* input interface, 0: none */
	int32_t outdev; /* output interface, 0: none yet */
	uint8_t hook; /* NF_INET_* */
	uint8_t gso; /* it stands for several segments */
	uint8_t traced; /* what the fast path was told of it (trace.h) */
};

struct uvs_nfq_info {
	uint64_t packets; /* handed over */
	uint64_t fast; /* of them, done without the hook path */
	uint64_t slow; /* of them, given to the hook path */
	uint64_t lost; /* never handed over: gaps in their ids */
	uint64_t cut; /* dropped: not the whole packet was handed over */
	uint64_t refused; /* dropped: the kernel would not send them */
	uint64_t unsaid; /* dropped: the kernel did not take the verdict */
};

#define UVS_NFQ_BATCH 64

/* `fd`: non-blocking, open for as long as this is used; `begun`: packets were taken from it before, so that the first
 * need not be number 1.  NULL: no memory. */
struct uvs_nfq *uvs_nfq_new(int fd, uint16_t queue, int begun);
void uvs_nfq_free(struct uvs_nfq *q);
void uvs_nfq_info(const struct uvs_nfq *q, struct uvs_nfq_info *info);
/* Why the last packet that was refused for good was (errno, 0: none since the last call), and its next hop. */
int uvs_nfq_refusal(struct uvs_nfq *q, uint32_t *nexthop);

/* Take up to `budget` (UVS_NFQ_BATCH) of the packets that wait, or what is left of the last batch, and do what the
 * fast path can; never blocks.  How many were done or given to the hook path; 0: none waits, or there is no
 * room for more before the hook path (uvs_nfq_full). */
uint32_t uvs_nfq_step(struct uvs_nfq *q, struct uvs_fastpath *f, struct uvs_inject *s, uint32_t budget);
/* From now on drops may wait for those of the next step, up to half a batch: a system call less for most.
 * uvs_nfq_held: do some wait?  uvs_nfq_settle: they are said. */
void uvs_nfq_hold(struct uvs_nfq *q);
int uvs_nfq_held(const struct uvs_nfq *q);
void uvs_nfq_settle(struct uvs_nfq *q);
/* Is a packet in hand that has no room before the hook path? */
int uvs_nfq_full(const struct uvs_nfq *q);
/* Packets that the hook path was given and has not said a verdict for. */
uint32_t uvs_nfq_open(const struct uvs_nfq *q);

/* The packet whose turn on the hook path it is, 0: none.  It stays until its verdict is said, and `data` with it. */
int uvs_nfq_slow(struct uvs_nfq *q, struct uvs_queued *slow);
/* NF_ACCEPT or NF_DROP for that packet, with another payload if `len` is not 0 (at most UVS_NFQ_PAYLOAD),
 * with another mark if `set_mark`. */
#define UVS_NFQ_PAYLOAD 65531
void uvs_nfq_verdict(struct uvs_nfq *q, uint32_t verdict, const uint8_t *data, uint32_t len, int set_mark,
		     uint32_t mark);

/* ------------------------------------------------------------------- workers */

/* A thread that serves some queues, with packet sockets of its own. */
struct uvs_worker;

/* What sort of packets comes to a queue.  SYN: with a budget while the others have something to do. */
#define UVS_QUEUE_SYN 1

/* `mark`: of what it sends; `wake`: an eventfd, written when packets wait for the hook path; `busy_us`: for so many
 * microseconds it looks for the next packet after a lone one, before it sleeps.  NULL with errno. */
struct uvs_worker *uvs_worker_new(struct uvs_fastpath *f, uint32_t mark, int wake, uint32_t busy_us);
/* Before it starts; queues that come first are served first.  0 or negative errno. */
int uvs_worker_add(struct uvs_worker *w, struct uvs_nfq *q, int fd, uint32_t flags);
int uvs_worker_start(struct uvs_worker *w); /* 0 or negative errno */
/* There may be room before the hook path again. */
void uvs_worker_kick(struct uvs_worker *w);
/* How often it went round, once a second at least: when this stands still the thread hangs. */
uint64_t uvs_worker_turns(const struct uvs_worker *w);
void uvs_worker_stop(struct uvs_worker *w); /* waits for the batch at hand */
void uvs_worker_free(struct uvs_worker *w); /* not its queues */

#endif
