/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * uvs_io.h - the engine's Linux I/O, bound as a module of its own (uvs.engine._io).
 * Errors are returned as negative errno.
 */
#ifndef UVS_IO_H
#define UVS_IO_H

#include <stdint.h>

/* linux/virtio_net.h: VIRTIO_NET_HDR_GSO_* */
#define UVS_GSO_NONE 0
#define UVS_GSO_TCPV4 1
#define UVS_GSO_UDP 3
#define UVS_GSO_TCPV6 4

#define UVS_ETH_HLEN 14

/* Where a frame goes: a row of the next-hop table.  `eth` is the link-layer header that
 * is put in front: `ethlen` is UVS_ETH_HLEN on Ethernet, 0 on devices without one. */
struct uvs_nexthop {
	int32_t ifindex;
	uint32_t mtu;
	uint8_t ethlen;
	uint8_t eth[14]; /* UVS_ETH_HLEN */
	uint8_t cooked;  /* the kernel adds whatever header the device has; then no offload */
};

/* Packet sockets for sending only, both marked with `mark`: `raw` takes frames with a
 * virtio-net header (PACKET_VNET_HDR), `cooked` (SOCK_DGRAM) IP packets for devices whose
 * own header the kernel knows how to build.  Negative: not open. */
struct uvs_inject {
	int raw, cooked;
};

/* Open both.  0 or negative errno (-EPERM: CAP_NET_RAW and CAP_NET_ADMIN are needed). */
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

#endif
