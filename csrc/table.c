/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * table.c - records: open and close, come and go, iterate; destinations and services.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>
#include "table.h"

/* Two buckets and more for each entry: a known connection is found in one load of the
 * bucket and hardly more than one of an entry. */
static bool buckets_new(struct uvs_table *t)
{
	uint64_t n = 1024, key[2];

	while (n < (uint64_t)t->records_max * 2)
		n *= 2;
	if (getentropy(key, sizeof(key)) < 0)
		return false;
	t->bucket = mmap(NULL, n * sizeof(*t->bucket), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (t->bucket == MAP_FAILED) {
		t->bucket = NULL;
		return false;
	}
#ifdef MADV_HUGEPAGE
	madvise(t->bucket, n * sizeof(*t->bucket), MADV_HUGEPAGE);
#endif
	t->bucket_mask = n - 1;
	t->sip[0] = key[0] ^ 0x736f6d6570736575ull;
	t->sip[1] = key[1] ^ 0x646f72616e646f6dull;
	t->sip[2] = key[0] ^ 0x6c7967656e657261ull;
	t->sip[3] = key[1] ^ 0x7465646279746573ull;
	return true;
}

struct uvs_table *uvs_table_open(const char *path, uint32_t conn_max, const uint8_t *boot_id, uint64_t now,
				 char *msg, size_t msglen)
{
	static const uint8_t no_boot[16];
	struct uvs_table *t = calloc(1, sizeof(*t));
	uint32_t bad;
	int err;

	if (msglen)
		msg[0] = 0;
	if (!t)
		return NULL;
	t->fd = -1;
	t->lock = calloc(1, sizeof(*t->lock));
	if (!t->lock || pthread_mutex_init(t->lock, NULL)) {
		err = ENOMEM;
		goto failed_at_once;
	}
	t->now = now;
	t->tick = now / TICK_NS;
	t->fresh = FIRST;
	tcp_init(t);
	udp_init(t);
	sctp_init(t);
	if (!arena_open(t, path, conn_max ? conn_max : 1, boot_id ? boot_id : no_boot, msg, msglen))
		goto failed;
	if (!buckets_new(t)) {
		err = errno;
		snprintf(msg, msglen, "no memory for the hash of %u connections: lower conn_max",
			 t->records_max);
		errno = err;
		goto failed;
	}
	if (t->attached) {
		bad = table_attach(t);
		if (bad)
			snprintf(msg, msglen, "arena %s: %u damaged records dropped", path, bad);
	}
	return t;

failed:
	err = errno;
failed_at_once:
	uvs_table_close(t);
	errno = err;
	return NULL;
}

void uvs_table_close(struct uvs_table *t)
{
	if (!t)
		return;
	if (t->bucket)
		munmap(t->bucket, (t->bucket_mask + 1) * sizeof(*t->bucket));
	arena_close(t);
	if (t->lock)
		pthread_mutex_destroy(t->lock);
	free(t->lock);
	services_clear(&t->plain);
	free(t);
}

void table_info(const struct uvs_table *t, struct uvs_table_info *info)
{
	*info = (struct uvs_table_info){
		.conns = t->conns,
		.templates = t->templates,
		.no_cport = t->no_cport,
		.dests = t->dests,
		.services = t->services,
		.records = t->records - FIRST,
		.conn_max = t->records_max - FIRST,
		.attached = t->attached,
		.bytes = (uint64_t)t->records * UVS_RECORD_SIZE + (t->bucket_mask + 1) * sizeof(*t->bucket) +
			 sizeof(*t),
		.full = t->full,
	};
}

struct uvs_stats *uvs_table_total(struct uvs_table *t)
{
	return &t->header->total;
}

struct uvs_stats *uvs_table_zeroed(struct uvs_table *t)
{
	return &t->header->zeroed;
}

uint32_t record_new(struct uvs_table *t)
{
	uint32_t i = t->free;

	if (i) {
		t->free = t->rec[i].free.next;
	} else {
		if (t->fresh == t->records && !arena_grow(t)) {
			t->full++;
			return 0;
		}
		i = t->fresh++;
	}
	memset(&t->rec[i], 0, UVS_RECORD_SIZE);
	return i;
}

void record_free(struct uvs_table *t, uint32_t i)
{
	record_publish(t, i, UVS_KIND_FREE);
	t->rec[i].free.next = t->free;
	t->free = i;
}

static bool is(const struct uvs_table *t, uint32_t i, uint8_t kind)
{
	return i >= FIRST && i < t->fresh && t->rec[i].kind == kind;
}

struct uvs_conn *conn_at(struct uvs_table *t, uint32_t i)
{
	return is(t, i, UVS_KIND_CONN) ? &t->rec[i].conn : NULL;
}

struct uvs_dest *dest_at(struct uvs_table *t, uint32_t i)
{
	return is(t, i, UVS_KIND_DEST) ? &t->rec[i].dest : NULL;
}

struct uvs_service *service_at(struct uvs_table *t, uint32_t i)
{
	return is(t, i, UVS_KIND_SERVICE) ? &t->rec[i].service : NULL;
}

uint32_t uvs_record_index(const struct uvs_table *t, const void *record)
{
	return index_of(t, record);
}

uint32_t record_next(struct uvs_table *t, int kind, uint32_t *cursor, uint32_t most)
{
	uint32_t i = *cursor < FIRST ? FIRST : *cursor + 1;

	for (; i < t->fresh && most; i++, most--) {
		*cursor = i;
		if (t->rec[i].kind == kind)
			return i;
	}
	return 0;
}

uint16_t idents(struct uvs_table *t, uint32_t n)
{
	const uint32_t last = t->ident;

	t->ident = (last + n) % UVS_IDENTS;
	return (uint16_t)(last + 1);
}

uint32_t dest_new(struct uvs_table *t)
{
	uint32_t i = record_new(t);

	if (i) {
		record_publish(t, i, UVS_KIND_DEST);
		t->dests++;
	}
	return i;
}

/* Each entry counts in one of the three (conn_count). */
uint32_t dest_refcnt(const struct uvs_dest *d)
{
	return (uint32_t)(d->activeconns + d->inactconns + d->persistconns);
}

int dest_free(struct uvs_table *t, uint32_t i)
{
	struct uvs_dest *d = dest_at(t, i);

	if (!d || dest_refcnt(d))
		return -1;
	t->dests--;
	record_free(t, i);
	return 0;
}

uint32_t service_new(struct uvs_table *t)
{
	uint32_t i = record_new(t);

	if (i) {
		record_publish(t, i, UVS_KIND_SERVICE);
		t->services++;
	}
	return i;
}

void service_free(struct uvs_table *t, uint32_t i)
{
	if (service_at(t, i)) {
		t->services--;
		record_free(t, i);
	}
}
