/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Fragments put together, as ip_defrag() (net/ipv4/ip_fragment.c) and nf_ct_frag6_gather()
 * (net/ipv6/netfilter/nf_conntrack_reasm.c) do it for IPVS.
 *
 * All memory is there from the start: queues, one for each unfinished datagram, and blocks, in which
 * payloads stand.  Numbers of queues and blocks begin with 1; 0 is none.
 */
#include <stdlib.h>
#include "packet.h"
#include "reasm.h"

#define SECOND 1000000000ull
#define BLOCK 2032      /* payload bytes in a block */
#define HEADERS_MAX 256 /* of the unfragmentable part of an IPv6 packet */
#define PAYLOAD_MAX 65535u

struct block {
	uint32_t next; /* the next fragment's first block, or the next free one */
	uint32_t more; /* the same fragment's next block */
	uint32_t at, len; /* of the whole fragment: place in the datagram, bytes */
	uint8_t data[BLOCK];
};

/* Two of them: IPv4 and IPv6 wait differently long, so that each is a list by age. */
struct age {
	uint32_t oldest, newest;
	uint64_t wait;
};

struct queue {
	union uvs_addr saddr, daddr;
	uint64_t deadline;
	uint32_t id;
	uint8_t af, protocol, user, ecn;
	uint32_t first, last; /* fragments by place */
	uint32_t len;         /* of the datagram's payload, as far as is known */
	uint32_t meat;        /* bytes that are there */
	uint32_t largest, largest_df;
	uint32_t hnext, older, younger;
	uint16_t hlen, next; /* of the first fragment: bytes before its payload, where the protocol stands */
	uint8_t complete; /* the last fragment is there, `len` is final */
	uint8_t header[HEADERS_MAX];
};

struct uvs_reasm {
	struct queue *queue;
	struct block *block;
	uint32_t *bucket, mask, seed;
	uint32_t free_queue, free_block; /* lists by hnext, next */
	struct age age[2];
	struct uvs_reasm_info info;
};

/* A fragment as it is read from a packet. */
struct piece {
	const uint8_t *header, *data;
	uint32_t hlen, next, at, len, id;
	uint8_t protocol, more;
};

struct uvs_reasm *uvs_reasm_new(uint32_t queues, uint32_t blocks, uint32_t seed)
{
	struct uvs_reasm *r = calloc(1, sizeof(*r));
	uint32_t i, n = 1;

	if (!r)
		return NULL;
	while (n < queues)
		n *= 2;
	r->mask = n - 1;
	r->seed = seed;
	r->bucket = calloc(n, sizeof(*r->bucket));
	r->queue = calloc(queues + 1ull, sizeof(*r->queue));
	r->block = calloc(blocks + 1ull, sizeof(*r->block));
	if (!r->bucket || !r->queue || !r->block) {
		uvs_reasm_free(r);
		return NULL;
	}
	/* ipfrag_time, ip6frag_time */
	r->age[0].wait = 30 * SECOND;
	r->age[1].wait = 60 * SECOND;
	for (i = queues; i; i--) {
		r->queue[i].hnext = r->free_queue;
		r->free_queue = i;
	}
	for (i = blocks; i; i--) {
		r->block[i].next = r->free_block;
		r->free_block = i;
	}
	return r;
}

void uvs_reasm_free(struct uvs_reasm *r)
{
	if (!r)
		return;
	free(r->bucket);
	free(r->queue);
	free(r->block);
	free(r);
}

void uvs_reasm_info(const struct uvs_reasm *r, struct uvs_reasm_info *info)
{
	*info = r->info;
}

static struct age *age_of(struct uvs_reasm *r, uint8_t af)
{
	return &r->age[af == UVS_AF_INET6];
}

static uint32_t mix(uint32_t h, uint32_t v)
{
	h = (h ^ v) * 0x9e3779b1u;
	return h ^ h >> 15;
}

static uint32_t *bucket_of(struct uvs_reasm *r, const union uvs_addr *saddr, const union uvs_addr *daddr,
			   uint32_t id, uint32_t user)
{
	uint32_t h = mix(r->seed, id), i;

	for (i = 0; i < 4; i++)
		h = mix(mix(h, saddr->w[i]), daddr->w[i]);
	return &r->bucket[mix(h, user) & r->mask];
}

static void free_blocks(struct uvs_reasm *r, struct queue *q)
{
	uint32_t i, after, next;

	for (i = q->first; i; i = next) {
		next = r->block[i].next;
		for (; i; i = after) {
			after = r->block[i].more;
			r->block[i].next = r->free_block;
			r->free_block = i;
			r->info.blocks--;
		}
	}
}

static void kill(struct uvs_reasm *r, struct queue *q)
{
	uint32_t self = (uint32_t)(q - r->queue), *link = bucket_of(r, &q->saddr, &q->daddr, q->id, q->user);
	struct age *age = age_of(r, q->af);

	free_blocks(r, q);
	while (*link != self)
		link = &r->queue[*link].hnext;
	*link = q->hnext;
	*(q->older ? &r->queue[q->older].younger : &age->oldest) = q->younger;
	*(q->younger ? &r->queue[q->younger].older : &age->newest) = q->older;
	q->hnext = r->free_queue;
	r->free_queue = self;
	r->info.queues--;
}

void uvs_reasm_expire(struct uvs_reasm *r, uint64_t now)
{
	int i;

	for (i = 0; i < 2; i++) {
		while (r->age[i].oldest && r->queue[r->age[i].oldest].deadline <= now) {
			kill(r, &r->queue[r->age[i].oldest]);
			r->info.expired++;
		}
	}
}

static struct queue *find(struct uvs_reasm *r, const struct uvs_iphdr *h, const struct piece *f, uint8_t user,
			  uint64_t now)
{
	uint32_t *head = bucket_of(r, &h->saddr, &h->daddr, f->id, user), i;
	struct age *age = age_of(r, h->af);
	struct queue *q;

	for (i = *head; i; i = q->hnext) {
		q = &r->queue[i];
		if (q->id == f->id && q->user == user && q->af == h->af && q->protocol == f->protocol &&
		    !memcmp(&q->saddr, &h->saddr, sizeof(q->saddr)) &&
		    !memcmp(&q->daddr, &h->daddr, sizeof(q->daddr)))
			return q;
	}
	i = r->free_queue;
	if (!i)
		return NULL;
	q = &r->queue[i];
	r->free_queue = q->hnext;
	memset(q, 0, offsetof(struct queue, header));
	q->saddr = h->saddr;
	q->daddr = h->daddr;
	q->id = f->id;
	q->af = h->af;
	q->protocol = f->protocol;
	q->user = user;
	q->deadline = now + age->wait;
	q->hnext = *head;
	*head = i;
	q->older = age->newest;
	*(q->older ? &r->queue[q->older].younger : &age->oldest) = i;
	age->newest = i;
	r->info.queues++;
	return q;
}

/* Read the fragment's place and where its headers end.  0: malformed. */
static int read_piece(const struct uvs_packet *p, struct piece *f)
{
	const struct uvs_iphdr *h = &p->iph;
	const uint8_t *ip = p->data + h->off;
	uint32_t at, field;
	int32_t len;
	uint16_t frag;

	memset(f, 0, sizeof(*f));
	f->header = ip;
	if (h->af == UVS_AF_INET) {
		f->hlen = h->len - h->off;
		f->at = h->fragoffs;
		f->id = get16(ip + IP4_ID);
		f->protocol = h->protocol;
		f->more = !!(get16(ip + IP4_FRAG) & IP4_MF);
		f->data = p->data + h->len;
		f->len = h->end - h->len;
		if (f->more)
			f->len &= ~7u;
		return f->len && f->at + f->len <= PAYLOAD_MAX;
	}
	at = h->off + IP6_HLEN;
	field = h->off + IP6_NEXT;
	while ((len = ip6_exthdr_len(p->data, at, h->end, p->data[field])) > 0 &&
	       p->data[field] != IP_FRAGMENT) {
		field = at;
		at += (uint32_t)len;
	}
	if (len <= 0 || at - h->off > HEADERS_MAX)
		return 0;
	frag = get16(p->data + at + 2);
	f->hlen = at - h->off;
	f->next = field - h->off;
	f->at = frag & 0xfff8;
	f->id = get32(p->data + at + 4);
	f->more = frag & 1;
	f->data = p->data + at + IP6_FRAG_HLEN;
	f->len = h->end - at - IP6_FRAG_HLEN;
	return f->len && !(f->more && f->len & 7) && f->at + f->len <= PAYLOAD_MAX;
}

/* Is all of it there already, without a gap? */
static int is_duplicate(const struct uvs_reasm *r, uint32_t i, uint32_t at, uint32_t end)
{
	while (i && r->block[i].at <= at && at < end) {
		if (at < r->block[i].at + r->block[i].len)
			at = r->block[i].at + r->block[i].len;
		i = r->block[i].next;
	}
	return at >= end;
}

static int store(struct uvs_reasm *r, struct queue *q, uint32_t before, const struct piece *f)
{
	uint32_t need = (f->len + BLOCK - 1) / BLOCK, n, i, done = 0, first = 0, *link = &first;
	const uint32_t after = before ? r->block[before].next : q->first;
	struct block *b;

	for (n = 0, i = r->free_block; i && n < need; i = r->block[i].next)
		n++;
	if (n < need)
		return 0;
	for (; done < f->len; done += n) {
		i = r->free_block;
		b = &r->block[i];
		r->free_block = b->next;
		n = f->len - done < BLOCK ? f->len - done : BLOCK;
		memcpy(b->data, f->data + done, n);
		b->more = b->next = 0;
		*link = i;
		link = &b->more;
		r->info.blocks++;
	}
	b = &r->block[first];
	b->at = f->at;
	b->len = f->len;
	b->next = after;
	*(before ? &r->block[before].next : &q->first) = first;
	if (!after)
		q->last = first;
	q->meat += f->len;
	return 1;
}

/* 0: kept; else why not.  A contradiction ends the datagram, a duplicate does not (RFC 5722, erratum 3089;
 * inet_frag_queue_insert() of net/ipv4/inet_fragment.c). */
static int insert(struct uvs_reasm *r, struct queue *q, const struct piece *f)
{
	uint32_t end = f->at + f->len, before = 0, i = q->first;

	if (f->more ? q->complete && end > q->len : end < q->len || (q->complete && end != q->len))
		goto bad;
	if (q->last && f->at > r->block[q->last].at) {
		before = q->last; /* as they usually come */
	} else {
		for (; i && r->block[i].at <= f->at; i = r->block[i].next)
			before = i;
	}
	i = before ? r->block[before].next : q->first;
	if (is_duplicate(r, before ? before : i, f->at, end)) {
		r->info.duplicates++;
		return UVS_WHY_GATHERED;
	}
	if ((before && r->block[before].at + r->block[before].len > f->at) || (i && end > r->block[i].at))
		goto bad;
	if (!store(r, q, before, f)) {
		r->info.refused++;
		return UVS_WHY_REASSEMBLY;
	}
	if (end > q->len)
		q->len = end;
	q->complete |= !f->more;
	return 0;
bad:
	r->info.contradictions++;
	kill(r, q);
	return UVS_WHY_REASSEMBLY;
}

/* RFC 3168 5.3: CE if any part has it; a mixture with Not-ECT is no ECN (ip_frag_ecn_table).  -1: drop. */
static int ecn_of(uint8_t seen)
{
	if (seen & 1)
		return seen == 1 ? 0 : -1;
	return seen & 8 && seen != 8 ? 3 : 0;
}

/* The whole datagram takes the fragment's place in the buffer. */
static int finish(struct uvs_reasm *r, struct queue *q, struct uvs_packet *p)
{
	uint32_t total = q->hlen + q->len, largest = q->largest, i, j, n, done;
	int ecn = ecn_of(q->ecn), v4 = q->af == UVS_AF_INET;
	uint8_t *out;

	if (ecn < 0 || (v4 ? total : total - IP6_HLEN) > PAYLOAD_MAX) {
		r->info.contradictions++;
		kill(r, q);
		return UVS_WHY_REASSEMBLY;
	}
	out = uvs_packet_room(p, total);
	memcpy(out, q->header, q->hlen);
	for (i = q->first; i; i = r->block[i].next) {
		for (j = i, done = 0; j; j = r->block[j].more, done += n) {
			n = r->block[i].len - done < BLOCK ? r->block[i].len - done : BLOCK;
			memcpy(out + q->hlen + r->block[i].at + done, r->block[j].data, n);
		}
	}
	if (v4) {
		out[IP4_TOS] |= (uint8_t)ecn;
		put16(out + IP4_LEN, (uint16_t)total);
		put16(out + IP4_FRAG, q->largest_df == largest ? IP4_DF : 0);
		ip4_send_check(out);
	} else {
		out[1] |= (uint8_t)(ecn << 4);
		put16(out + IP6_LEN, (uint16_t)(total - IP6_HLEN));
	}
	kill(r, q);
	r->info.whole++;
	i = (uint32_t)uvs_packet_parse(p);
	p->frag_max = largest;
	return (int)i;
}

/* RFC 6946: an atomic fragment is a datagram by itself, whatever else is on its way. */
static int unwrap(struct uvs_packet *p, const struct piece *f)
{
	uint32_t len = p->len;
	uint8_t *out = p->data;
	int why;

	out[f->next] = out[f->hlen];
	memmove(out + f->hlen, out + f->hlen + IP6_FRAG_HLEN, len - f->hlen - IP6_FRAG_HLEN);
	p->len -= IP6_FRAG_HLEN;
	put16(out + IP6_LEN, (uint16_t)(p->len - IP6_HLEN));
	why = uvs_packet_parse(p);
	p->frag_max = len;
	return why;
}

/* RFC 8200 4.5: a first fragment holds all headers; the kernel lets one that does not go its way alone
 * (ipv6frag_thdr_truncated() of net/ipv6/reassembly.c). */
static int is_cut_short(const struct uvs_iphdr *h)
{
	return h->af == UVS_AF_INET6 && !h->fragoffs && h->end - h->len < ip6_thdr_len(h->protocol);
}

int uvs_reassemble(struct uvs_reasm *r, struct uvs_packet *p, uint8_t user, uint64_t now)
{
	const struct uvs_iphdr *h = &p->iph;
	struct piece f;
	struct queue *q;
	int why;

	if (!(h->flags & UVS_HDR_FRAGMENT) && !(h->flags & UVS_HDR_ATOMIC))
		return 0;
	uvs_reasm_expire(r, now);
	if (!read_piece(p, &f)) {
		r->info.contradictions++;
		return UVS_WHY_REASSEMBLY;
	}
	if (h->flags & UVS_HDR_ATOMIC)
		return unwrap(p, &f);
	if (is_cut_short(h))
		return 0;
	q = find(r, h, &f, user, now);
	if (!q) {
		r->info.refused++;
		return UVS_WHY_REASSEMBLY;
	}
	why = insert(r, q, &f);
	if (why)
		return why;
	q->ecn |= (uint8_t)(1 << (h->tos & 3));
	if (p->len > q->largest)
		q->largest = p->len;
	if (h->flags & UVS_HDR_DF && p->len > q->largest_df)
		q->largest_df = p->len;
	if (!f.at) {
		q->hlen = (uint16_t)f.hlen;
		memcpy(q->header, f.header, f.hlen);
		if (h->af == UVS_AF_INET6)
			q->header[f.next] = f.header[f.hlen];
	}
	return q->complete && q->meat == q->len ? finish(r, q, p) : UVS_WHY_GATHERED;
}
