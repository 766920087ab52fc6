/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * uvs_io.h - the engine's Linux I/O, bound as a module of its own (uvs.engine._io).
 * Errors are returned as negative errno.
 */
#ifndef UVS_IO_H
#define UVS_IO_H

#include <stdint.h>

/* Where a frame goes: a row of the next-hop table.  `eth` is the link-layer header that
 * is put in front (14 bytes on Ethernet, 0 on devices without a link layer). */
struct uvs_nexthop {
	int32_t ifindex;
	uint32_t mtu;
	uint8_t ethlen;
	uint8_t eth[14];
};

/* A packet socket for sending only, with virtio-net headers (PACKET_VNET_HDR), marked
 * with `mark`.  Returns the descriptor. */
int uvs_inject_open(uint32_t mark);

/* Send one IP packet of `len` bytes as it is (checksums whole).  0 or negative errno. */
int uvs_inject(int fd, const struct uvs_nexthop *nh, const uint8_t *data, uint32_t len);

/* The same for a packet with an unfinished checksum and for one larger than the MTU:
 * virtio-net header fields as in linux/virtio_net.h. */
int uvs_inject_offload(int fd, const struct uvs_nexthop *nh, const uint8_t *data, uint32_t len,
		       uint16_t csum_start, uint16_t csum_offset, uint8_t gso_type, uint16_t gso_size,
		       uint16_t hdr_len);

#endif
