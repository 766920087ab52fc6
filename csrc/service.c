/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * service.c - the services that a packet may open a connection to, by what it says of them.
 *
 * Services.find() of uvs/ipvs/services.py is the meaning; what is not found here the hook path looks for
 * once more.
 */
#include <stdlib.h>
#include "table.h"

#define FEWEST 64u /* heads of chains; doubled when there are as many services */

struct service {
	struct service *next;
	struct uvs_sched *sched;
	union uvs_addr addr;
	uint32_t record, fwmark;
	uint16_t port;
	uint8_t af, protocol;
};

/* FNV-1a.  Clients do not choose what is in the chains. */
static uint32_t hash_of(const struct service *key)
{
	const uint8_t *b = key->addr.b, *end = b + (key->af == UVS_AF_INET6 ? 16 : 4);
	uint32_t hash = 2166136261u ^ key->fwmark ^ (uint32_t)key->port << 8 ^ key->protocol;

	while (b < end)
		hash = (hash ^ *b++) * 16777619u;
	return hash ^ hash >> 16;
}

static bool same(const struct service *a, const struct service *b)
{
	return a->fwmark == b->fwmark && a->port == b->port && a->af == b->af && a->protocol == b->protocol &&
	       addr_equal(a->af, &a->addr, &b->addr);
}

static struct service **place_of(const struct services *all, const struct service *key)
{
	struct service **link;

	for (link = &all->bucket[hash_of(key) & all->mask]; *link; link = &(*link)->next) {
		if (same(*link, key))
			break;
	}
	return link;
}

/* ServiceKey.lookup: one found by its mark has neither protocol nor address. */
static struct service key_of(struct uvs_table *t, uint32_t record)
{
	const struct uvs_service *s = &t->rec[record].service;
	struct service key = { .af = s->af, .fwmark = s->fwmark, .record = record };

	if (!s->fwmark) {
		key.protocol = s->protocol;
		key.port = s->port;
		key.addr = s->addr;
	}
	return key;
}

static bool widen(struct services *all)
{
	const uint32_t old = all->bucket ? all->mask + 1 : 0, n = old ? old * 2 : FEWEST;
	struct service **bucket, **before = all->bucket, *each, *next;
	uint32_t i;

	if (all->n < old)
		return true;
	bucket = calloc(n, sizeof(*bucket));
	if (!bucket)
		return old != 0;
	all->bucket = bucket;
	all->mask = n - 1;
	for (i = 0; i < old; i++) {
		for (each = before[i]; each; each = next) {
			struct service **head = &bucket[hash_of(each) & all->mask];

			next = each->next;
			each->next = *head;
			*head = each;
		}
	}
	free(before);
	return true;
}

int service_put(struct uvs_table *t, uint32_t service, struct uvs_sched *s)
{
	struct service key, **link;

	if (!service_at(t, service) || !widen(&t->plain))
		return -1;
	key = key_of(t, service);
	link = place_of(&t->plain, &key);
	if (!*link) {
		struct service *fresh = malloc(sizeof(*fresh));

		if (!fresh)
			return -1;
		*fresh = key;
		*link = fresh;
		t->plain.n++;
	}
	(*link)->record = service;
	(*link)->sched = s;
	if (s)
		s->flags = t->rec[service].service.flags;
	return 0;
}

void service_remove(struct uvs_table *t, uint32_t service)
{
	struct service key, **link, *gone;

	if (!t->plain.bucket || !service_at(t, service))
		return;
	key = key_of(t, service);
	link = place_of(&t->plain, &key);
	gone = *link;
	if (!gone)
		return;
	*link = gone->next;
	t->plain.n--;
	free(gone);
}

void services_clear(struct services *all)
{
	struct service *each, *next;
	uint32_t i;

	for (i = 0; all->bucket && i <= all->mask; i++) {
		for (each = all->bucket[i]; each; each = next) {
			next = each->next;
			free(each);
		}
	}
	free(all->bucket);
}

struct uvs_sched *service_find(const struct uvs_table *t, const struct uvs_iphdr *h, uint32_t mark,
			       bool *by_mark)
{
	struct service key = { .af = h->af, .fwmark = mark };
	const struct service *found = NULL;

	if (!t->plain.bucket)
		return NULL;
	if (mark)
		found = *place_of(&t->plain, &key);
	*by_mark = found != NULL;
	if (!found) {
		key.fwmark = 0;
		key.protocol = h->protocol;
		key.port = h->dport;
		key.addr = h->daddr;
		found = *place_of(&t->plain, &key);
	}
	return found ? found->sched : NULL;
}
