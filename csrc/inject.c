/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * inject.c - egress by AF_PACKET: frames leave with the link-layer header of a next hop.
 */
#define _GNU_SOURCE /* sendmmsg */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>

#include "packet.h"
#include "uvs_io.h"

_Static_assert(UVS_GSO_TCPV4 == VIRTIO_NET_HDR_GSO_TCPV4 && UVS_GSO_TCPV6 == VIRTIO_NET_HDR_GSO_TCPV6 &&
		       UVS_GSO_UDP == VIRTIO_NET_HDR_GSO_UDP,
	       "linux/virtio_net.h");
_Static_assert(UVS_ETH_HLEN == ETH_HLEN, "linux/if_ether.h");

#define SEND_BUFFER (4 << 20)

static int open_socket(int type, uint32_t mark)
{
	const int fd = socket(AF_PACKET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), size = SEND_BUFFER, on = 1;
	int err;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) ||
	    (type == SOCK_RAW && setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)))) {
		err = -errno;
		close(fd);
		return err;
	}
	/* FORCE is refused in a user namespace; a small buffer only means -EAGAIN earlier. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	return fd;
}

int uvs_inject_open(struct uvs_inject *s, uint32_t mark)
{
	uint32_t i;
	int err;

	memset(s, 0, sizeof(*s));
	s->raw = s->cooked = -1;
	s->raw = open_socket(SOCK_RAW, mark);
	err = s->raw < 0 ? s->raw : 0;
	if (!err) {
		s->cooked = open_socket(SOCK_DGRAM, mark);
		err = s->cooked < 0 ? s->cooked : 0;
	}
	for (i = 0; !err && i < UVS_FRAMES; i++) {
		s->part[i] = uvs_packet_new();
		err = s->part[i] ? 0 : -ENOMEM;
	}
	if (err)
		uvs_inject_close(s);
	return err;
}

void uvs_inject_close(struct uvs_inject *s)
{
	uint32_t i;

	if (s->raw >= 0)
		close(s->raw);
	if (s->cooked >= 0)
		close(s->cooked);
	s->raw = s->cooked = -1;
	for (i = 0; i < UVS_FRAMES; i++) {
		uvs_packet_free(s->part[i]);
		s->part[i] = NULL;
	}
}

static void address(struct sockaddr_ll *to, const struct uvs_nexthop *nh, const uint8_t *data)
{
	memset(to, 0, sizeof(*to));
	to->sll_family = AF_PACKET;
	to->sll_ifindex = nh->ifindex;
	/* The protocol is given with each packet, not by bind(): a TCPV6 GSO packet on a socket
	 * bound to ETH_P_IP is refused, and devices without a link layer know it from here only. */
	to->sll_protocol = htons(data[0] >> 4 == 6 ? ETH_P_IPV6 : ETH_P_IP);
}

static int inject(const struct uvs_inject *s, const struct uvs_nexthop *nh, struct virtio_net_hdr *vnet,
		  const uint8_t *data, uint32_t len)
{
	struct sockaddr_ll to;
	struct iovec iov[3] = { { vnet, sizeof(*vnet) },
				{ (void *)nh->eth, nh->ethlen },
				{ (void *)data, len } };
	struct msghdr msg = { .msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = iov, .msg_iovlen = 3 };
	int fd = s->raw;

	if (!len)
		return -EINVAL;
	address(&to, nh, data);
	if (nh->cooked) {
		fd = s->cooked;
		msg.msg_iov = &iov[2];
		msg.msg_iovlen = 1;
	} else if (!nh->ethlen) {
		iov[1] = iov[2];
		msg.msg_iovlen = 2;
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int uvs_inject_send(const struct uvs_inject *s, const struct uvs_nexthop *nh, const uint8_t *data,
		    uint32_t len)
{
	struct virtio_net_hdr vnet = { 0 };

	return inject(s, nh, &vnet, data, len);
}

int uvs_inject_offload(const struct uvs_inject *s, const struct uvs_nexthop *nh, const uint8_t *data,
		       uint32_t len, uint16_t csum_start, uint16_t csum_offset, uint8_t gso_type,
		       uint16_t gso_size, uint16_t hdr_len)
{
	struct virtio_net_hdr vnet = { .gso_type = gso_type, .gso_size = gso_size };

	if (nh->cooked)
		return -EOPNOTSUPP;
	if (gso_type)
		vnet.hdr_len = (uint16_t)(nh->ethlen + hdr_len);
	if (csum_offset) {
		vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		vnet.csum_start = (uint16_t)(nh->ethlen + csum_start);
		vnet.csum_offset = csum_offset;
	}
	return inject(s, nh, &vnet, data, len);
}

/* What is left to be done to a TCP packet (linux/virtio_net.h). */
static void offload(struct virtio_net_hdr *vnet, const struct uvs_packet *p, const struct uvs_way *way)
{
	const uint8_t ethlen = way->nexthop.ethlen;

	memset(vnet, 0, sizeof(*vnet));
	if (way->tunnelled)
		return;
	if (p->partial) {
		vnet->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		vnet->csum_start = (uint16_t)(ethlen + p->iph.len);
		vnet->csum_offset = TCP_CHECK;
	}
	if (way->gso_size) {
		vnet->gso_type = p->iph.af == UVS_AF_INET ? UVS_GSO_TCPV4 : UVS_GSO_TCPV6;
		if (p->iph.tcp_flags & TCP_CWR) /* of the first segment only (RFC 3168 6.1.2) */
			vnet->gso_type |= VIRTIO_NET_HDR_GSO_ECN;
		vnet->gso_size = (uint16_t)way->gso_size;
		vnet->hdr_len = (uint16_t)(ethlen + p->iph.end - p->iph.segment);
	}
}

/* Frames that go out in one sendmmsg(). */
struct batch {
	uint32_t n;
	struct uvs_frame *frame[UVS_FRAMES]; /* that each is, or is a part of */
	struct virtio_net_hdr vnet[UVS_FRAMES];
	struct sockaddr_ll to[UVS_FRAMES];
	struct iovec iov[UVS_FRAMES][3];
	struct mmsghdr msgs[UVS_FRAMES];
};

static void flush(const struct uvs_inject *s, struct batch *b)
{
	uint32_t done = 0;

	while (done < b->n) {
		const int sent = sendmmsg(s->raw, b->msgs + done, b->n - done, MSG_NOSIGNAL);

		if (sent < 0)
			b->frame[done++]->err = errno;
		else
			done += (uint32_t)sent;
	}
	b->n = 0;
}

static void add(const struct uvs_inject *s, struct batch *b, struct uvs_frame *f, struct uvs_packet *p)
{
	const struct uvs_nexthop *nh = &f->way.nexthop;
	const uint32_t n = b->n;

	if (nh->cooked) {
		const int err = uvs_inject_send(s, nh, p->data, p->len);

		f->err = err ? -err : f->err;
		return;
	}
	b->frame[n] = f;
	offload(&b->vnet[n], p, &f->way);
	address(&b->to[n], nh, p->data);
	b->iov[n][0] = (struct iovec){ &b->vnet[n], sizeof(b->vnet[n]) };
	b->iov[n][1] = (struct iovec){ (void *)nh->eth, nh->ethlen };
	b->iov[n][2] = (struct iovec){ p->data, p->len };
	b->msgs[n].msg_hdr = (struct msghdr){
		.msg_name = &b->to[n], .msg_namelen = sizeof(b->to[n]), .msg_iov = b->iov[n], .msg_iovlen = 3
	};
	if (++b->n == UVS_FRAMES)
		flush(s, b);
}

void uvs_inject_frames(struct uvs_inject *s, struct uvs_frame *frames, uint32_t n)
{
	struct batch b;
	uint32_t i, k;

	b.n = 0;
	for (i = 0; i < n && i < UVS_FRAMES; i++) {
		struct uvs_frame *f = &frames[i];

		f->err = 0;
		if (!f->way.tunnelled)
			add(s, &b, f, f->packet);
		else if (!f->way.gso_size && !uvs_way_encap(f->packet, &f->way))
			add(s, &b, f, f->packet);
		else if (!f->way.gso_size)
			f->err = EMSGSIZE;
		else
			for (k = 0; uvs_way_part(f->packet, &f->way, k, s->part[b.n]); k++)
				add(s, &b, f, s->part[b.n]);
	}
	flush(s, &b);
}
