/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * nfq.c - packets from an NFQUEUE: received in batches, done by the fast path where it can, verdicts said
 * in batches.
 *
 * Messages are received into packet buffers, so that a packet is looked at and rewritten where it lies.
 * Verdicts and frames are collected and go out at a batch's end.  What is for the hook path is copied into a
 * ring, from which another thread takes it; its verdict is said apart.
 */
#define _GNU_SOURCE /* recvmmsg */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>

#include "ring.h"
#include "uvs_io.h"

#define BATCH UVS_NFQ_BATCH
/* A message with all its verdicts must fit the socket's send buffer (SEND_BUFFER of uvs/netfilter/driver.py). */
#define SAY_MAX (128 << 10)
#define HELD_MAX (BATCH / 2) /* packets whose drop may wait for others' */
#define RING (1u << 20) /* bytes that may wait for the hook path */

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

/* One thread counts, others look. */
typedef _Atomic uint64_t counter;

struct uvs_nfq {
	int fd;
	uint16_t queue;
	int begun; /* the next packet may have any number */
	uint32_t last_id, received, at; /* messages of the batch; next to be done */
	int unread; /* do heads of fragments wait?  -1: not looked yet, in this batch */
	_Atomic int full;
	uint64_t now;
	struct uvs_packet *packet[BATCH];
	struct mmsghdr in[BATCH];
	struct iovec in_iov[BATCH];
	struct said said[BATCH + 1];
	struct iovec out[BATCH * 3 + 1];
	uint32_t saying, pieces, bytes; /* verdicts collected; their pieces in `out` */
	uint32_t drops, drop_id; /* to be dropped, not collected: all up to this one */
	int may_hold, held; /* may drops wait for the next batch's?  And do they? */
	struct uvs_frame frame[BATCH];
	uint32_t frames;

	counter packets, fast, slow, lost, cut, refused, unsaid, unsaid_slow;
	_Atomic uint64_t refusal; /* errno and, in the upper half, next hop */
	struct ring ring;
	_Atomic uint32_t open; /* given to the hook path and without a verdict */
};

static void count(counter *c)
{
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + 1, memory_order_relaxed);
}

struct uvs_nfq *uvs_nfq_new(int fd, uint16_t queue, int begun)
{
	struct uvs_nfq *q = calloc(1, sizeof(*q));
	uint32_t i, room;

	if (!q)
		return NULL;
	q->fd = fd;
	q->queue = queue;
	q->begun = begun;
	if (ring_init(&q->ring, RING)) {
		uvs_nfq_free(q);
		return NULL;
	}
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

	if (!q)
		return;
	for (i = 0; i < BATCH; i++)
		uvs_packet_free(q->packet[i]);
	ring_free(&q->ring);
	free(q);
}

void uvs_nfq_info(const struct uvs_nfq *q, struct uvs_nfq_info *info)
{
	*info = (struct uvs_nfq_info){
		q->packets, q->fast, q->slow, q->lost, q->cut, q->refused, q->unsaid + q->unsaid_slow
	};
}

int uvs_nfq_refusal(struct uvs_nfq *q, uint32_t *nexthop)
{
	const uint64_t was = atomic_exchange(&q->refusal, 0);

	*nexthop = (uint32_t)(was >> 32);
	return (int)(uint32_t)was;
}

/* ------------------------------------------------------------------ what goes out */

static int take(const struct uvs_nfq *q, struct iovec *pieces, uint32_t n)
{
	struct msghdr msg = { .msg_iov = pieces, .msg_iovlen = n };

	return sendmsg(q->fd, &msg, MSG_NOSIGNAL) >= 0;
}

static void piece(struct iovec *to, const void *data, size_t len)
{
	*to = (struct iovec){ (void *)data, len };
}

/* A verdict in up to three pieces; returns how many. */
static uint32_t compose(const struct uvs_nfq *q, struct said *v, struct iovec *pieces, uint32_t id,
			uint32_t verdict, const uint8_t *data, uint32_t len, int set_mark, uint32_t mark)
{
	static const uint8_t zero[4];
	struct nlattr *payload = set_mark ? &v->payload_attr : &v->mark_attr;
	const size_t head = (size_t)((uint8_t *)payload - (uint8_t *)v) + (len ? NLA_HDRLEN : 0);
	uint32_t n = 0;

	memset(v, 0, sizeof(*v));
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
	piece(&pieces[n++], v, head);
	if (len)
		piece(&pieces[n++], data, len);
	if (len & 3)
		piece(&pieces[n++], zero, 4 - (len & 3));
	return n;
}

static void drop_instead(struct said *v, struct iovec *first)
{
	v->hdr.verdict = htonl(NF_DROP);
	v->nlh.nlmsg_len = offsetof(struct said, mark_attr);
	first->iov_len = v->nlh.nlmsg_len;
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
		count(&q->unsaid);
		drop_instead(v, &q->out[at]);
		take(q, &q->out[at], 1);
	}
}

/* What was collected, and after it the drops, in a verdict for all that are left up to the last of them. */
static void say(struct uvs_nfq *q)
{
	if (q->drops) {
		struct said *v = &q->said[q->saying++];

		q->pieces += compose(q, v, &q->out[q->pieces], q->drop_id, NF_DROP, NULL, 0, 0, 0);
		if (q->drops > 1)
			v->nlh.nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_VERDICT_BATCH;
	}
	if (q->saying && !take(q, q->out, q->pieces))
		say_each(q);
	q->saying = q->pieces = q->bytes = q->drops = 0;
}

/* What became of a frame that was not sent, as of one of the hook path (Egress._failed() of uvs/egress). */
static void refused(struct uvs_nfq *q, struct uvs_fastpath *f, const struct uvs_frame *frame)
{
	const int err = frame->err, gone = err == ENETDOWN || err == ENXIO || err == ENODEV;

	count(&q->refused);
	uvs_fastpath_count(f, gone ? UVS_WHY_NO_ROUTE : UVS_WHY_SEND);
	if (err != ENOBUFS && err != EAGAIN)
		atomic_store(&q->refusal, (uint64_t)frame->way.nexthop.index << 32 | (uint32_t)err);
}

static void send_frames(struct uvs_nfq *q, struct uvs_fastpath *f, struct uvs_inject *s)
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

static void collect(struct uvs_nfq *q, uint32_t id, uint32_t verdict, const uint8_t *data, uint32_t len)
{
	if (q->saying == BATCH || q->bytes + len > SAY_MAX)
		say(q);
	q->pieces += compose(q, &q->said[q->saying++], &q->out[q->pieces], id, verdict, data, len, 0, 0);
	q->bytes += len;
}

/* One verdict does for many if nobody else's packet is among them.  One that a program on this host sent is dropped
 * soon: until then it counts against its socket. */
static void drop(struct uvs_nfq *q, uint32_t id, uint8_t hook)
{
	if (hook == UVS_LOCAL_OUT)
		q->held = 0;
	if (atomic_load_explicit(&q->open, memory_order_acquire)) {
		collect(q, id, NF_DROP, NULL, 0);
		return;
	}
	q->drops++;
	q->drop_id = id;
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
		case NFQA_IFINDEX_OUTDEV: p->outdev = (int32_t)ntohl(number); break;
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

void uvs_nfq_hold(struct uvs_nfq *q)
{
	q->may_hold = 1;
}

int uvs_nfq_held(const struct uvs_nfq *q)
{
	return q->drops != 0;
}

void uvs_nfq_settle(struct uvs_nfq *q)
{
	say(q);
}

static int receive(struct uvs_nfq *q, uint32_t budget)
{
	uint32_t i, room;
	int n;

	for (i = 0; i < q->received; i++) /* nobody may touch what stood there; the kernel may */
		uvs_packet_buffer(q->packet[i], &room);
	q->received = q->at = 0;
	n = recvmmsg(q->fd, q->in, budget < BATCH ? budget : BATCH, MSG_DONTWAIT, NULL);
	if (n <= 0)
		return 0;
	q->received = (uint32_t)n;
	q->unread = -1;
	return n;
}

/* May the datagram have come in fragments whose heads nobody looked at yet?  They came before it. */
static int in_doubt(struct uvs_nfq *q, const struct uvs_fastpath *f, const struct uvs_packet *p, uint8_t hook)
{
	if (hook != UVS_LOCAL_IN || p->iph.protocol == IPPROTO_TCP)
		return 0;
	if (q->unread < 0) {
		struct pollfd fds[2] = {
			{ .fd = __atomic_load_n(&f->fragments[0], __ATOMIC_RELAXED), .events = POLLIN },
			{ .fd = __atomic_load_n(&f->fragments[1], __ATOMIC_RELAXED), .events = POLLIN }
		};

		q->unread = poll(fds, 2, 0) > 0;
	}
	return q->unread;
}

/* Into the ring; false: there is no room. */
static int give(struct uvs_nfq *q, struct uvs_packet *p, const struct uvs_queued *slow)
{
	uint8_t *to = ring_reserve(&q->ring, (uint32_t)sizeof(*slow) + slow->len); /* its data follows it */

	if (!to)
		return 0;
	if (p)
		uvs_csum_finish(p);
	memcpy(to, slow, sizeof(*slow));
	memcpy(to + sizeof(*slow), slow->data, slow->len);
	atomic_fetch_add_explicit(&q->open, 1, memory_order_acq_rel);
	ring_commit(&q->ring);
	count(&q->slow);
	return 1;
}

/* One message; false: it has to wait, for room before the hook path. */
static int one(struct uvs_nfq *q, struct uvs_fastpath *f, uint32_t i)
{
	const uint8_t *msg = q->in_iov[i].iov_base;
	struct uvs_packet *p = q->packet[i];
	struct uvs_queued slow;
	struct uvs_way way;
	uint32_t caplen, info;
	int step = UVS_STEP_SLOW, read = 0;

	if (!read_message(msg, q->in[i].msg_len, &slow, &caplen, &info))
		return 1;
	if (q->in[i].msg_hdr.msg_flags & MSG_TRUNC || caplen > slow.len || !slow.len) {
		count(&q->cut);
		drop(q, slow.id, slow.hook);
		goto done;
	}
	read = !uvs_packet_at(p, (uint32_t)(slow.data - msg), slow.len, slow.mark);
	slow.len = p->len; /* no more than the datagram */
	if (read) {
		p->partial = !!(info & NFQA_SKB_CSUMNOTREADY) && p->iph.protocol == IPPROTO_TCP;
		p->gso = slow.gso = !!(info & NFQA_SKB_GSO) && p->iph.protocol == IPPROTO_TCP;
		p->indev = slow.indev;
		p->outdev = slow.outdev;
		if (!in_doubt(q, f, p, slow.hook))
			step = uvs_fastpath(f, p, slow.hook, q->now, &way);
		slow.traced = p->traced;
	}
	switch (step) {
	case UVS_STEP_SLOW:
		if (!give(q, read ? p : NULL, &slow)) {
			if (read)
				uvs_fastpath_again(f, p);
			uvs_packet_buffer(p, &caplen); /* its message is read once more */
			return 0;
		}
		break;
	case UVS_STEP_ACCEPT: collect(q, slow.id, NF_ACCEPT, NULL, 0); break;
	case UVS_STEP_REWRITTEN: collect(q, slow.id, NF_ACCEPT, p->data, p->len); break;
	case UVS_STEP_SEND:
		q->frame[q->frames++] = (struct uvs_frame){ p, way, 0 };
		drop(q, slow.id, slow.hook);
		break;
	}
	if (step != UVS_STEP_SLOW)
		count(&q->fast);
done:
	count(&q->packets);
	if (slow.id != q->last_id + 1 && !q->begun)
		atomic_fetch_add(&q->lost, slow.id - q->last_id - 1);
	q->last_id = slow.id;
	q->begun = 0;
	return 1;
}

uint32_t uvs_nfq_step(struct uvs_nfq *q, struct uvs_fastpath *f, struct uvs_inject *s, uint32_t budget)
{
	uint32_t before;

	if (q->at == q->received && !receive(q, budget))
		return 0;
	q->now = uvs_now(f->clock_rate); /* what had no room before the hook path may have waited for long */
	before = q->at;
	q->held = q->may_hold;
	while (q->at < q->received && one(q, f, q->at))
		q->at++;
	atomic_store(&q->full, q->at < q->received);
	send_frames(q, f, s);
	if (!q->held || q->saying || q->drops >= HELD_MAX)
		say(q);
	return q->at - before;
}

uint32_t uvs_nfq_open(const struct uvs_nfq *q)
{
	return atomic_load(&q->open);
}

int uvs_nfq_full(const struct uvs_nfq *q)
{
	return atomic_load(&q->full);
}

/* -------------------------------------------------------------------- the hook path */

int uvs_nfq_slow(struct uvs_nfq *q, struct uvs_queued *slow)
{
	const uint8_t *at = ring_first(&q->ring);

	if (!at)
		return 0;
	memcpy(slow, at, sizeof(*slow));
	slow->data = at + sizeof(*slow);
	return 1;
}

void uvs_nfq_verdict(struct uvs_nfq *q, uint32_t verdict, const uint8_t *data, uint32_t len, int set_mark,
		     uint32_t mark)
{
	struct iovec pieces[3];
	struct uvs_queued slow;
	struct said v;
	uint32_t n;

	if (!uvs_nfq_slow(q, &slow))
		return;
	n = compose(q, &v, pieces, slow.id, verdict, data, len, set_mark, mark);
	if (!take(q, pieces, n)) {
		count(&q->unsaid_slow);
		drop_instead(&v, pieces);
		take(q, pieces, 1);
	}
	ring_pop(&q->ring);
	atomic_fetch_sub(&q->open, 1);
}
