/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * ext.c - what does not fit into a connection's record: a template's persistence engine
 * data (ip_vs_pe.c), and what an application helper keeps (ip_vs_app.c).
 *
 * They stand in records of their own, which name their owner.  They are published before the
 * owner and freed after it, so that a process killed in between leaves some that nobody claims.
 */
#include <string.h>
#include "table.h"

#define PIECES ((UVS_PE_MAX + UVS_PE_PIECE - 1) / UVS_PE_PIECE)

static const struct uvs_pe *pe_at(const struct uvs_table *t, uint32_t i)
{
	return i >= FIRST && i < t->fresh && t->rec[i].kind == UVS_KIND_PE ? &t->rec[i].pe : NULL;
}

static struct uvs_app *app_at(struct uvs_table *t, uint32_t i)
{
	return i >= FIRST && i < t->fresh && t->rec[i].kind == UVS_KIND_APP ? &t->rec[i].app : NULL;
}

/* ------------------------------------------------------- persistence engine data */

/* SipHash-1-3 of bytes: clients choose them. */
uint64_t ext_pe_bucket(const struct uvs_table *t, const uint8_t *pe, uint32_t len)
{
	uint64_t v0 = t->sip[0], v1 = t->sip[1], v2 = t->sip[2], v3 = t->sip[3], m;
	uint32_t at;

	for (at = 0; at + 8 <= len; at += 8) {
		memcpy(&m, pe + at, 8);
		v3 ^= m;
		SIP_ROUND(v0, v1, v2, v3);
		v0 ^= m;
	}
	m = (uint64_t)len << 56;
	memcpy(&m, pe + at, len - at);
	return sip_finish(v0, v1, v2, v3, m) & t->bucket_mask;
}

uint32_t conn_pe(const struct uvs_table *t, const struct uvs_conn *c, uint8_t *out)
{
	const struct uvs_pe *e = c->flags & UVS_CONN_F_TEMPLATE ? pe_at(t, c->ext) : NULL;
	uint32_t len = 0;

	for (; e && len + e->len <= UVS_PE_MAX; e = pe_at(t, e->next)) {
		memcpy(out + len, e->data, e->len);
		len += e->len;
	}
	return len;
}

uint64_t ext_bucket(const struct uvs_table *t, const struct uvs_conn *c)
{
	uint8_t pe[UVS_PE_MAX];

	return ext_pe_bucket(t, pe, conn_pe(t, c, pe));
}

bool ext_pe_equal(const struct uvs_table *t, const struct uvs_conn *c, const struct uvs_conn_param *key)
{
	const struct uvs_pe *e = pe_at(t, c->ext);
	uint32_t at = 0;

	for (; e; e = pe_at(t, e->next)) {
		if (at + e->len > key->pe_len || memcmp(e->data, key->pe + at, e->len))
			return false;
		at += e->len;
	}
	return at == key->pe_len;
}

/* Last piece first, so that each is whole when it is published. */
uint32_t ext_pe_new(struct uvs_table *t, uint32_t owner, const uint8_t *pe, uint32_t len)
{
	uint32_t i, next = 0, at;

	if (len > UVS_PE_MAX)
		return 0;
	for (at = (len - 1) / UVS_PE_PIECE * UVS_PE_PIECE;; at -= UVS_PE_PIECE) {
		struct uvs_pe *e;

		i = record_new(t);
		if (!i) {
			ext_free(t, next);
			return 0;
		}
		e = &t->rec[i].pe;
		e->len = (uint16_t)(len - at < UVS_PE_PIECE ? len - at : UVS_PE_PIECE);
		e->owner = owner;
		e->next = next;
		memcpy(e->data, pe + at, e->len);
		record_publish(t, i, UVS_KIND_PE);
		next = i;
		if (!at)
			return i;
	}
}

/* ------------------------------------------------------------------ helpers' data */

struct uvs_app *conn_app(struct uvs_table *t, const struct uvs_conn *c)
{
	return c->flags & UVS_CONN_F_TEMPLATE ? NULL : app_at(t, c->ext);
}

struct uvs_app *conn_app_new(struct uvs_table *t, struct uvs_conn *c)
{
	struct uvs_app *a = conn_app(t, c);
	uint32_t i;

	if (a || c->flags & UVS_CONN_F_TEMPLATE)
		return a;
	i = record_new(t);
	if (!i)
		return NULL;
	a = &t->rec[i].app;
	a->owner = index_of(t, c);
	record_publish(t, i, UVS_KIND_APP);
	c->ext = i;
	return a;
}

/* ------------------------------------------------------------------ life of both */

void ext_free(struct uvs_table *t, uint32_t ext)
{
	uint32_t next;

	for (; ext; ext = next) {
		const struct uvs_pe *e = pe_at(t, ext);

		next = e ? e->next : 0;
		record_free(t, ext);
	}
}

bool ext_ok(union record *r)
{
	r->pe.claimed = 0;
	return r->kind == UVS_KIND_APP || (r->pe.len && r->pe.len <= UVS_PE_PIECE);
}

/* All pieces from `at` on are the entry's, and whole; each is claimed. */
static bool pe_claim(struct uvs_table *t, uint32_t owner, uint32_t at)
{
	const struct uvs_pe *e;
	uint32_t n;

	for (n = 0; at; n++, at = e->next) {
		e = pe_at(t, at);
		if (n == PIECES || !e || e->owner != owner || e->claimed ||
		    (e->next && e->len != UVS_PE_PIECE))
			return false;
		t->rec[at].pe.claimed = 1;
	}
	return true;
}

bool ext_claim(struct uvs_table *t, struct uvs_conn *c)
{
	uint32_t i = index_of(t, c);
	struct uvs_app *a;

	if (!(c->flags & UVS_CONN_F_TEMPLATE)) {
		a = app_at(t, c->ext);
		if (!a || a->owner != i || a->claimed) {
			c->ext = 0;
			c->flags &= ~(uint32_t)UVS_CONN_F_OUT_SEQ;
			return true;
		}
		a->claimed = 1;
		return true;
	}
	return pe_claim(t, i, c->ext);
}

void ext_sweep(struct uvs_table *t)
{
	uint32_t i;

	for (i = FIRST; i < t->fresh; i++) {
		union record *r = &t->rec[i];

		if (r->kind != UVS_KIND_PE && r->kind != UVS_KIND_APP)
			continue;
		if (!r->pe.claimed || !conn_at(t, r->pe.owner))
			record_free(t, i);
	}
}
