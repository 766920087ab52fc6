/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * nfq.c - packets from an NFQUEUE: received in batches, done by the fast path where it can, verdicts said
 * in batches.
 *
 * Messages are received into packet buffers, so that a packet is looked at and rewritten where it lies.
 * Verdicts and frames are collected and go out before the hook path has its turn and at a batch's end.
 */
#define _GNU_SOURCE /* recvmmsg */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>

#include "uvs_io.h"

#define BATCH 64
/* A message with all its verdicts must fit the socket's send buffer (SEND_BUFFER of uvs/netfilter/driver.py). */
#define SAY_MAX (128 << 10)

_Static_assert(BATCH <= UVS_FRAMES, "a batch's packets may all be sent");
_Static_assert(UVS_LOCAL_IN == NF_INET_LOCAL_IN && UVS_FORWARD == NF_INET_FORWARD &&
		       UVS_LOCAL_OUT == NF_INET_LOCAL_OUT,
	       "linux/netfilter.h");

/* One verdict, as the kernel reads it; mark and payload may follow. */
struct said {
	struct nlmsghdr nlh;
	struct nfgenmsg nfg;
	struct nlattr hdr_attr;
	struct nfqnl_msg_verdict_hdr hdr;
	struct nlattr mark_attr; /* only if the mark is set: the payload's stands here otherwise */
	uint32_t mark;
	struct nlattr payload_attr;
};

struct uvs_nfq {
	int fd;
	uint16_t queue;
	uint32_t last_id, received, at; /* messages of the batch; next to be done */
	uint64_t now;
	struct uvs_nfq_info info;
	struct uvs_packet *packet[BATCH];
	struct mmsghdr in[BATCH];
	struct iovec in_iov[BATCH];
	struct said said[BATCH];
	struct iovec out[BATCH * 3];
	uint32_t saying, pieces, bytes; /* verdicts collected; their pieces in `out` */
	struct uvs_frame frame[BATCH];
	uint32_t frames;
};

struct uvs_nfq *uvs_nfq_new(int fd, uint16_t queue)
{
	struct uvs_nfq *q = calloc(1, sizeof(*q));
	uint32_t i, room;

	if (!q)
		return NULL;
	q->fd = fd;
	q->queue = queue;
	for (i = 0; i < BATCH; i++) {
		q->packet[i] = uvs_packet_new();
		if (!q->packet[i]) {
			uvs_nfq_free(q);
			return NULL;
		}
		q->in_iov[i].iov_base = uvs_packet_buffer(q->packet[i], &room);
		q->in_iov[i].iov_len = room;
		q->in[i].msg_hdr.msg_iov = &q->in_iov[i];
		q->in[i].msg_hdr.msg_iovlen = 1;
	}
	return q;
}

void uvs_nfq_free(struct uvs_nfq *q)
{
	uint32_t i;

	for (i = 0; q && i < BATCH; i++)
		uvs_packet_free(q->packet[i]);
	free(q);
}

struct uvs_nfq_info *uvs_nfq_info(struct uvs_nfq *q)
{
	return &q->info;
}

/* ------------------------------------------------------------------ what goes out */

static int take(struct uvs_nfq *q, struct iovec *pieces, uint32_t n)
{
	struct msghdr msg = { .msg_iov = pieces, .msg_iovlen = n };

	return sendmsg(q->fd, &msg, MSG_NOSIGNAL) >= 0;
}

/* A packet without a verdict would stay in the queue for good: one whose content is too much for the socket, or
 * for the kernel's memory now, is dropped. */
static void say_each(struct uvs_nfq *q)
{
	uint32_t i, at = 0, end;

	for (i = 0; i < q->saying; i++, at = end) {
		struct said *v = &q->said[i];

		for (end = at + 1; end < q->pieces && q->out[end].iov_base != v + 1; end++)
			;
		if (take(q, &q->out[at], end - at))
			continue;
		q->info.unsaid++;
		v->hdr.verdict = htonl(NF_DROP);
		v->nlh.nlmsg_len = offsetof(struct said, mark_attr);
		q->out[at].iov_len = v->nlh.nlmsg_len;
		take(q, &q->out[at], 1);
	}
}

static void say(struct uvs_nfq *q)
{
	if (q->saying && !take(q, q->out, q->pieces))
		say_each(q);
	q->saying = q->pieces = q->bytes = 0;
}

/* What became of a frame that was not sent, as of one of the hook path (Egress._failed() of uvs/egress). */
static void refused(struct uvs_nfq *q, struct uvs_fastpath *f, const struct uvs_frame *frame)
{
	const int err = frame->err, gone = err == ENETDOWN || err == ENXIO || err == ENODEV;

	q->info.refused++;
	uvs_fastpath_count(f, gone ? UVS_WHY_NO_ROUTE : UVS_WHY_SEND);
	if (err != ENOBUFS && err != EAGAIN) {
		q->info.nexthop = frame->way.nexthop.index;
		q->info.err = err;
	}
}

static void send_frames(struct uvs_nfq *q, struct uvs_fastpath *f, const struct uvs_inject *s)
{
	uint32_t i;

	if (!q->frames)
		return;
	uvs_inject_frames(s, q->frame, q->frames);
	for (i = 0; i < q->frames; i++) {
		if (q->frame[i].err)
			refused(q, f, &q->frame[i]);
	}
	q->frames = 0;
}

static void piece(struct uvs_nfq *q, const void *data, size_t len)
{
	q->out[q->pieces++] = (struct iovec){ (void *)data, len };
	q->bytes += (uint32_t)len;
}

static void collect(struct uvs_nfq *q, uint32_t id, uint32_t verdict, const uint8_t *data, uint32_t len,
		    int set_mark, uint32_t mark)
{
	static const uint8_t zero[4];
	struct nlattr *payload;
	struct said *v;
	size_t head;

	if (q->saying == BATCH || q->bytes + len > SAY_MAX)
		say(q);
	v = &q->said[q->saying++];
	memset(v, 0, sizeof(*v));
	payload = set_mark ? &v->payload_attr : &v->mark_attr;
	head = (size_t)((uint8_t *)payload - (uint8_t *)v) + (len ? NLA_HDRLEN : 0);
	v->nlh.nlmsg_len = (uint32_t)(head + NLA_ALIGN(len));
	v->nlh.nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_VERDICT;
	v->nlh.nlmsg_flags = NLM_F_REQUEST;
	v->nfg.res_id = htons(q->queue);
	v->hdr_attr.nla_len = NLA_HDRLEN + sizeof(v->hdr);
	v->hdr_attr.nla_type = NFQA_VERDICT_HDR;
	v->hdr.verdict = htonl(verdict);
	v->hdr.id = htonl(id);
	if (set_mark) {
		v->mark_attr.nla_len = NLA_HDRLEN + sizeof(v->mark);
		v->mark_attr.nla_type = NFQA_MARK;
		v->mark = htonl(mark);
	}
	if (len) {
		payload->nla_len = (uint16_t)(NLA_HDRLEN + len);
		payload->nla_type = NFQA_PAYLOAD;
	}
	piece(q, v, head);
	if (len)
		piece(q, data, len);
	if (len & 3)
		piece(q, zero, 4 - (len & 3));
}

void uvs_nfq_verdict(struct uvs_nfq *q, uint32_t id, uint32_t verdict, const uint8_t *data, uint32_t len,
		     int set_mark, uint32_t mark)
{
	collect(q, id, verdict, data, len, set_mark, mark);
	say(q); /* `data` is the caller's */
}

/* ------------------------------------------------------------------- what comes in */

/* The attributes of a packet's message, of which `len` bytes are there; false: it is none. */
static int read_message(const uint8_t *msg, size_t len, struct uvs_queued *p, uint32_t *caplen,
			uint32_t *info)
{
	const struct nlmsghdr *nlh = (const struct nlmsghdr *)msg;
	size_t at = NLMSG_HDRLEN + NLMSG_ALIGN(sizeof(struct nfgenmsg));

	memset(p, 0, sizeof(*p));
	*caplen = *info = 0;
	if (len < at || nlh->nlmsg_type != (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET))
		return 0;
	if (nlh->nlmsg_len < len) /* else it was cut: its head says whose verdict is due */
		len = nlh->nlmsg_len;
	while (at + NLA_HDRLEN <= len) {
		const struct nlattr *a = (const struct nlattr *)(msg + at);
		const uint8_t *value = msg + at + NLA_HDRLEN;
		uint32_t number;

		if (a->nla_len < NLA_HDRLEN || a->nla_len > len - at)
			break;
		memcpy(&number, value, a->nla_len >= NLA_HDRLEN + 4 ? 4 : 0);
		switch (a->nla_type & NLA_TYPE_MASK) {
		case NFQA_PACKET_HDR: {
			const struct nfqnl_msg_packet_hdr *h = (const void *)value;

			p->id = ntohl(h->packet_id);
			p->hook = h->hook;
			break;
		}
		case NFQA_MARK: p->mark = ntohl(number); break;
		case NFQA_IFINDEX_INDEV: p->indev = (int32_t)ntohl(number); break;
		case NFQA_SKB_INFO: *info = ntohl(number); break;
		case NFQA_CAP_LEN: *caplen = ntohl(number); break;
		case NFQA_PAYLOAD:
			p->data = value;
			p->len = a->nla_len - NLA_HDRLEN;
			break;
		}
		at += NLA_ALIGN(a->nla_len);
	}
	return p->hook != 0;
}

uint32_t uvs_nfq_receive(struct uvs_nfq *q, uint32_t rate)
{
	uint32_t i, room;
	int n;

	if (q->at < q->received) /* something went wrong before they were done */
		return q->received - q->at;
	for (i = 0; i < q->received; i++) /* nobody may touch what stood there; the kernel may */
		uvs_packet_buffer(q->packet[i], &room);
	q->received = q->at = 0;
	n = recvmmsg(q->fd, q->in, BATCH, MSG_DONTWAIT, NULL);
	if (n <= 0)
		return 0;
	q->now = uvs_now(rate);
	q->received = (uint32_t)n;
	return q->received;
}

/* One message; true: it is for the hook path. */
static int one(struct uvs_nfq *q, struct uvs_fastpath *f, uint32_t i, struct uvs_queued *slow)
{
	const uint8_t *msg = q->in_iov[i].iov_base;
	struct uvs_packet *p = q->packet[i];
	struct uvs_way way;
	uint32_t caplen, info;
	int why;

	if (!read_message(msg, q->in[i].msg_len, slow, &caplen, &info))
		return 0;
	q->info.packets++;
	q->info.lost += slow->id - q->last_id - 1;
	q->last_id = slow->id;
	if (q->in[i].msg_hdr.msg_flags & MSG_TRUNC || caplen > slow->len || !slow->len) {
		q->info.cut++;
		collect(q, slow->id, NF_DROP, NULL, 0, 0, 0);
		return 0;
	}
	why = uvs_packet_at(p, (uint32_t)(slow->data - msg), slow->len, slow->mark);
	slow->len = p->len; /* no more than the datagram */
	if (why)
		return 1;
	p->indev = slow->indev;
	p->partial = !!(info & NFQA_SKB_CSUMNOTREADY) && p->iph.protocol == IPPROTO_TCP;
	p->gso = slow->gso = !!(info & NFQA_SKB_GSO) && p->iph.protocol == IPPROTO_TCP;
	switch (uvs_fastpath(f, p, slow->hook, q->now, &way)) {
	case UVS_STEP_SLOW: uvs_csum_finish(p); return 1;
	case UVS_STEP_ACCEPT: collect(q, slow->id, NF_ACCEPT, NULL, 0, 0, 0); break;
	case UVS_STEP_REWRITTEN: collect(q, slow->id, NF_ACCEPT, p->data, p->len, 0, 0); break;
	case UVS_STEP_SEND:
		q->frame[q->frames++] = (struct uvs_frame){ p, way, 0 };
		collect(q, slow->id, NF_DROP, NULL, 0, 0, 0);
		break;
	}
	q->info.fast++;
	return 0;
}

int uvs_nfq_run(struct uvs_nfq *q, struct uvs_fastpath *f, const struct uvs_inject *s,
		struct uvs_queued *slow)
{
	int found = 0;

	while (!found && q->at < q->received)
		found = one(q, f, q->at++, slow);
	send_frames(q, f, s);
	say(q);
	return found;
}
