/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * table.c - how fast the connection table is; table.py builds and runs it.
 *
 * usage: table FILE ENTRIES.  FILE is made, and removed in the end.  Prints lines of
 * "name value" (seconds of processor time, or bytes).
 *
 * "Bare load": a chain of loads, each of which tells the address of the next, one per
 * record of the arena in random order, so every load misses as a lookup's does.  It walks
 * the arena itself: the same memory, the same pages, nothing computed.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "uvs.h"

#define BATCH 64
#define LOOKUPS (1u << 20)
#define SECOND 1000000000ull

static uint64_t seed = 88172645463325252ull;
static volatile uint64_t sink;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static double now(void)
{
	struct timespec ts;

	/* Of this process: it waits for nothing, and what others run here is not its doing. */
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

static uint32_t client(uint32_t i)
{
	return (i * 2654435761u) | 1;
}

/* Memory of the benchmark's own, in huge pages, so that reading it costs little. */
static void *huge(size_t len)
{
	size_t page = 2 << 20;
	void *p = aligned_alloc(page, (len + page - 1) / page * page);

	if (p)
		madvise(p, len, MADV_HUGEPAGE);
	return p;
}

/* The header of a packet of connection `i`. */
static void header(struct uvs_iphdr *h, uint32_t i)
{
	memset(h, 0, sizeof(*h));
	h->af = UVS_AF_INET;
	h->protocol = 6;
	h->flags = UVS_HDR_PORTS | UVS_HDR_L4;
	h->saddr.w[0] = client(i);
	h->daddr.w[0] = 0x010200c0;
	h->sport = (uint16_t)(1024 + i % 60000);
	h->dport = 80;
}

static void insert(struct uvs_table *t, uint32_t n, uint32_t dest, uint64_t clock)
{
	struct uvs_conn_param p = {
		.af = UVS_AF_INET, .daf = UVS_AF_INET, .protocol = 6, .vport = 80, .dport = 80
	};
	struct uvs_iphdr h;
	uint32_t i;

	for (i = 0; i < n; i++) {
		header(&h, i);
		p.caddr.w[0] = h.saddr.w[0];
		p.cport = h.sport;
		p.vaddr.w[0] = h.daddr.w[0];
		p.daddr.w[0] = 0x0200000a;
		struct uvs_conn *c = uvs_conn_new(t, &p, 0, dest, clock);
		if (!c)
			die("the table is full");
		uvs_conn_put(t, c, clock);
	}
}

static double one_by_one(struct uvs_table *t, const struct uvs_iphdr *h)
{
	double begin;
	uint32_t i, at = 0;

	begin = now();
	for (i = 0; i < LOOKUPS; i++) {
		/* The next packet depends on what was found, so lookups do not overlap. */
		const struct uvs_conn *c = uvs_conn_in_get(t, &h[(i + (at & 1)) & (LOOKUPS - 1)]);

		if (!c)
			die("a connection is missing");
		at = c->hnext;
	}
	sink = at;
	return (now() - begin) / LOOKUPS;
}

static double batches(struct uvs_table *t, const struct uvs_iphdr *h)
{
	uint32_t out[BATCH], i, k;
	double begin = now();

	for (i = 0; i < LOOKUPS; i += BATCH) {
		uvs_conn_in_get_batch(t, h + i, BATCH, out);
		for (k = 0; k < BATCH; k++)
			if (!out[k])
				die("a connection is missing");
	}
	return (now() - begin) / LOOKUPS;
}

/* One cycle through all connections in random order, linked by `nexthop`, which no lookup reads. */
static double bare(struct uvs_table *t, uint32_t n)
{
	uint32_t *order = malloc(n * sizeof(*order)), cursor = 0, i, k;
	struct uvs_conn *c;
	double begin;

	if (!order)
		die("no memory");
	for (i = 0; i < n; i++)
		order[i] = uvs_record_next(t, UVS_KIND_CONN, &cursor);
	for (i = n - 1; i; i--) {
		k = (uint32_t)(rnd() % (i + 1));
		uint32_t swap = order[i];
		order[i] = order[k];
		order[k] = swap;
	}
	for (i = 0; i < n; i++)
		uvs_conn_at(t, order[i])->nexthop = order[(i + 1) % n];
	const struct uvs_conn *base = uvs_conn_at(t, order[0]) - order[0];
	k = order[0];
	c = NULL;
	begin = now();
	for (i = 0; i < LOOKUPS; i++)
		k = base[k].nexthop;
	begin = (now() - begin) / LOOKUPS;
	sink = k + (uintptr_t)c;
	free(order);
	return begin;
}

static double best(double a, double b)
{
	return a < b ? a : b;
}

int main(int argc, char **argv)
{
	uint8_t boot[16] = { 0 };
	struct uvs_table_info info;
	struct uvs_iphdr *h = huge(LOOKUPS * sizeof(*h));
	uint64_t clock = 1000 * SECOND;
	double begin, chase = 1, single = 1, batch = 1;
	char msg[256];
	uint32_t i, n, dest;

	if (argc != 3 || !h)
		die("usage: table FILE ENTRIES");
	n = (uint32_t)strtoul(argv[2], NULL, 10);
	unlink(argv[1]);
	struct uvs_table *t = uvs_table_open(argv[1], n + 2, boot, clock, msg, sizeof(msg));
	if (!t)
		die(msg);
	dest = uvs_dest_new(t);
	struct uvs_dest *d = uvs_dest_at(t, dest);
	d->af = d->vaf = UVS_AF_INET;
	d->conn_flags = UVS_CONN_F_INACTIVE;
	d->flags = UVS_DEST_F_AVAILABLE;

	begin = now();
	insert(t, n, dest, clock);
	printf("insert %.9f\n", now() - begin);
	uvs_table_info(t, &info);
	printf("bytes %.1f\n", (double)info.bytes / n);

	for (i = 0; i < LOOKUPS; i++)
		header(&h[i], (uint32_t)(rnd() % n));
	for (i = 0; i < 3; i++) {
		chase = best(chase, bare(t, n));
		single = best(single, one_by_one(t, h));
		batch = best(batch, batches(t, h));
	}
	printf("bare %.12f\nsingle %.12f\nbatch %.12f\n", chase, single, batch);

	uvs_table_close(t);
	begin = now();
	t = uvs_table_open(argv[1], n + 2, boot, clock + SECOND, msg, sizeof(msg));
	printf("attach %.9f\n", now() - begin);
	if (!t || msg[0])
		die(msg);
	uvs_table_info(t, &info);
	if (info.conns != n || uvs_dest_refcnt(t, uvs_dest_at(t, dest)) != n)
		die("connections were lost at re-attach");

	begin = now();
	for (i = 0; i < 2 * 8 && info.conns; i++) { /* as a director does, some steps of the clock */
		clock += SECOND / 4;
		while (uvs_expire(t, clock, 1000) == 1000)
			;
		uvs_table_info(t, &info);
	}
	printf("expire %.9f\n", now() - begin);
	if (info.conns)
		die("connections did not expire");
	uvs_table_close(t);
	unlink(argv[1]);
	free(h);
	return 0;
}
