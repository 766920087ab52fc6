/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * table.h - what the parts of the table share: arena.c (the file), attach.c (taking
 * an old one over), table.c (records, hash), timer.c, conn.c, proto.c, proto_*.c.
 *
 * The arena is an array of 128-byte records, linked by index.  The first 32 are its
 * header page.  Stores that another run of the director relies on are the entries'
 * own facts; hash chains, free list, timer wheel and counters are rebuilt by attach.c,
 * and what the file says of them is never followed.  A process may be killed between
 * any two stores: `kind` is written last when a record comes and first when it goes.
 */
#ifndef UVS_TABLE_H
#define UVS_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include "service.h"
#include "uvs.h"

#define SEGMENT 16384u  /* records the arena grows by: 2 MiB, a huge page */
#define FIRST 32u       /* the first record; the header page is before it */
#define RECORDS_MAX (1u << 28)
#define WHEEL 8192u     /* slots */
#define TICK_NS 125000000ull
#define MS_NS 1000000ull
#define SECOND_NS 1000000000ull

#define AF_OK(af) ((af) == UVS_AF_INET || (af) == UVS_AF_INET6)

/* Layout of the header and of the records: raise it with every change of either. */
#define ARENA_LAYOUT 4
#define ARENA_MAGIC 0x616e657261737675ull /* "uvsarena", also tells the byte order */

struct arena_header {
	uint64_t magic;
	uint32_t layout, record_size;
	uint8_t boot_id[16];
	uint32_t records; /* that are allocated, this page included; a larger file is a growth cut short */
	uint32_t pad;
	struct uvs_stats total, zeroed;
};

union record {
	_Atomic uint8_t kind;
	struct {
		uint8_t kind_, pad[3];
		uint32_t next; /* free list */
	} free;
	struct uvs_conn conn;
	struct uvs_dest dest;
	struct uvs_service service;
	struct uvs_pe pe;
	struct uvs_app app;
};

_Static_assert(sizeof(union record) == UVS_RECORD_SIZE, "a record is 128 bytes");
_Static_assert(offsetof(struct uvs_conn, deadline) == 64, "what a lookup compares is one cache line");
_Static_assert(sizeof(struct arena_header) <= FIRST * UVS_RECORD_SIZE, "the header fits its page");

struct services {
	struct service **bucket; /* heads of chains; NULL: there are none */
	uint32_t mask, n;
};

struct uvs_table {
	pthread_mutex_t
		*lock; /* the engine lock: of all that follows, of the records, of next hops and services */
	union record *rec; /* start of the reservation; stays where it is */
	uint32_t *bucket;  /* heads of hash chains */
	uint64_t bucket_mask;
	uint64_t sip[4];   /* keyed start of the hash */
	uint32_t no_cport;
	uint32_t free;     /* head of the free list */
	uint32_t fresh;    /* from here on nothing was ever used */
	uint32_t records, records_max; /* allocated; reserved */
	uint32_t conns, templates, dests, services;
	uint32_t attached;
	int fd;            /* -1: private memory */
	uint64_t now;      /* latest time heard of */
	uint64_t full, grow_again;
	void *reservation;
	size_t reserved;
	struct arena_header *header;

	struct services plain; /* service.c */

	uint32_t ident;    /* IP identification of the director's own packets: the last one */
	int todrop[9];     /* defence.c: by in_pkts, how many until the next is dropped */
	int secure_tcp;
	uint32_t tcp_timeout[UVS_TCP_STATES];
	uint32_t udp_timeout[UVS_UDP_STATES];
	uint32_t sctp_timeout[UVS_SCTP_STATES];

	uint64_t tick;     /* next to be visited */
	uint32_t filed;    /* entries in the wheel */
	uint32_t slot[WHEEL];
};

/* The engine lock.  What Python calls takes it (locked.c), and so does each packet's step on the fast path; all
 * below is called with it held.  Not recursive; no I/O and no long work under it. */
static inline void engine_lock(const struct uvs_table *t)
{
	pthread_mutex_lock(t->lock);
}

static inline void engine_unlock(const struct uvs_table *t)
{
	pthread_mutex_unlock(t->lock);
}

/* arena.c: map the file, or private memory; false with errno and `msg`. */
bool arena_open(struct uvs_table *t, const char *path, uint32_t conn_max, const uint8_t *boot_id, char *msg,
		size_t msglen);
void arena_close(struct uvs_table *t);
/* One segment more; false: limit reached, or no space. */
bool arena_grow(struct uvs_table *t);

/* attach.c: check every record and rebuild what is not in the file.  Returns how many were refused. */
uint32_t table_attach(struct uvs_table *t);

/* table.c; those of uvs.h without its prefix do what is said there.  record_next: looks at no more than `most`
 * records, 0 may mean that there are more: *cursor < t->fresh - 1. */
void table_info(const struct uvs_table *t, struct uvs_table_info *info);
struct uvs_conn *conn_at(struct uvs_table *t, uint32_t i);
struct uvs_dest *dest_at(struct uvs_table *t, uint32_t i);
struct uvs_service *service_at(struct uvs_table *t, uint32_t i);
uint32_t record_next(struct uvs_table *t, int kind, uint32_t *cursor, uint32_t most);
uint32_t dest_new(struct uvs_table *t);
int dest_free(struct uvs_table *t, uint32_t i);
uint32_t dest_refcnt(const struct uvs_dest *d);
uint16_t idents(struct uvs_table *t, uint32_t n);
uint32_t service_new(struct uvs_table *t);
void service_free(struct uvs_table *t, uint32_t i);
uint32_t record_new(struct uvs_table *t); /* zeroed, its kind still FREE */
void record_free(struct uvs_table *t, uint32_t i);

static inline void record_publish(struct uvs_table *t, uint32_t i, uint8_t kind)
{
	atomic_store_explicit(&t->rec[i].kind, kind, memory_order_release);
}

static inline struct uvs_conn *conn_of(struct uvs_table *t, uint32_t i)
{
	return &t->rec[i].conn;
}

static inline uint32_t index_of(const struct uvs_table *t, const void *record)
{
	return (uint32_t)((const union record *)record - t->rec);
}

static inline bool addr_equal(uint8_t af, const union uvs_addr *a, const union uvs_addr *b)
{
	return af == UVS_AF_INET6 ? a->d[0] == b->d[0] && a->d[1] == b->d[1] : a->w[0] == b->w[0];
}

/* SipHash-1-3 (Aumasson, Bernstein: SipHash, 2012) of the key, secret from clients. */
#define ROTL64(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define SIP_ROUND(v0, v1, v2, v3)         \
	do {                              \
		v0 += v1;                 \
		v1 = ROTL64(v1, 13) ^ v0; \
		v0 = ROTL64(v0, 32);      \
		v2 += v3;                 \
		v3 = ROTL64(v3, 16) ^ v2; \
		v0 += v3;                 \
		v3 = ROTL64(v3, 21) ^ v0; \
		v2 += v1;                 \
		v1 = ROTL64(v1, 17) ^ v2; \
		v2 = ROTL64(v2, 32);      \
	} while (0)

/* The last word, and what is folded out of the state. */
static inline uint64_t sip_finish(uint64_t v0, uint64_t v1, uint64_t v2, uint64_t v3, uint64_t m)
{
	v3 ^= m;
	SIP_ROUND(v0, v1, v2, v3);
	v0 ^= m;
	v2 ^= 0xff;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The bucket, over what the kernel hashes (ip_vs_conn_hashkey): client address and port,
 * protocol; so one chain serves both directions. */
static inline uint64_t bucket_of(const struct uvs_table *t, uint8_t af, uint8_t protocol,
				 const union uvs_addr *caddr, uint16_t cport)
{
	uint64_t v0 = t->sip[0], v1 = t->sip[1], v2 = t->sip[2], v3 = t->sip[3];
	uint64_t m = (uint64_t)cport << 16 | (uint64_t)protocol << 8 | af;

	if (af == UVS_AF_INET6) {
		v3 ^= caddr->d[0];
		SIP_ROUND(v0, v1, v2, v3);
		v0 ^= caddr->d[0];
		v3 ^= caddr->d[1];
		SIP_ROUND(v0, v1, v2, v3);
		v0 ^= caddr->d[1];
	} else {
		m |= (uint64_t)caddr->w[0] << 32;
	}
	return sip_finish(v0, v1, v2, v3, m) & t->bucket_mask;
}

/* ext.c: what does not fit into an entry.  ext_pe_new: pieces for the entry in record `owner`, 0 when
 * the table is full.  ext_claim: after re-attaching, false if it is not what the entry's it should be;
 * what no entry claimed is freed by ext_sweep. */
uint64_t ext_pe_bucket(const struct uvs_table *t, const uint8_t *pe, uint32_t len);
uint64_t ext_bucket(const struct uvs_table *t, const struct uvs_conn *c);
bool ext_pe_equal(const struct uvs_table *t, const struct uvs_conn *c, const struct uvs_conn_param *key);
uint32_t conn_pe(const struct uvs_table *t, const struct uvs_conn *c, uint8_t *out);
struct uvs_app *conn_app(struct uvs_table *t, const struct uvs_conn *c);
struct uvs_app *conn_app_new(struct uvs_table *t, struct uvs_conn *c);
uint32_t ext_pe_new(struct uvs_table *t, uint32_t owner, const uint8_t *pe, uint32_t len);
void ext_free(struct uvs_table *t, uint32_t ext);
bool ext_ok(union record *r);
bool ext_claim(struct uvs_table *t, struct uvs_conn *c);
void ext_sweep(struct uvs_table *t);

/* A template of a persistence engine is found by its data alone (ip_vs_sip_hashkey_raw). */
static inline uint64_t conn_bucket(const struct uvs_table *t, const struct uvs_conn *c)
{
	if (c->flags & UVS_CONN_F_TEMPLATE && c->ext)
		return ext_bucket(t, c);
	return bucket_of(t, c->af, c->protocol, &c->caddr, c->cport);
}

/* timer.c.  Every connection is filed.  timer_file: by its deadline, it is not filed now;
 * timer_touch: its deadline changed. */
void timer_file(struct uvs_table *t, struct uvs_conn *c);
void timer_remove(struct uvs_table *t, struct uvs_conn *c);
void timer_touch(struct uvs_table *t, struct uvs_conn *c);
uint32_t timer_run(struct uvs_table *t, uint64_t now, uint32_t budget);

/* defence.c: one look at `n` records from `from` on. */
uint32_t drop_entry(struct uvs_table *t, uint64_t now, uint32_t from, uint32_t n);

/* sched.c; those of service.h as above.  sched_next:
 * the place of a packet's destination, -1: the hook path's; `turn`, a copy of the scheduler's, becomes its own if the
 * choice is kept. */
int sched_next(struct uvs_table *t, const struct uvs_sched *s, struct uvs_turn *turn,
	       const struct uvs_iphdr *h);
int sched_turn(struct uvs_table *t, struct uvs_sched *s);
int sched_choose(struct uvs_table *t, const struct uvs_sched *s, int rule);
int sched_insert(struct uvs_sched *s, uint32_t dest);
void sched_remove(struct uvs_sched *s, uint32_t place);
void sched_weigh(struct uvs_sched *s, int32_t cw, int32_t mw, int32_t di);
int sched_fill(struct uvs_sched *s, const uint32_t *places, uint32_t n);
void sched_nexthop(struct uvs_sched *s, uint32_t dest, uint32_t nexthop);

static inline void clock_seen(struct uvs_table *t, uint64_t now)
{
	if (now > t->now)
		t->now = now;
}

/* conn.c; those of uvs.h as above.  conn_expire: its timer fired; how many went.  conn_count: in the table's and the destination's
 * counters.  expire_nodest: of the `n` records from `from` on. */
struct uvs_conn *conn_in_get(struct uvs_table *t, const struct uvs_iphdr *iph);
struct uvs_conn *conn_out_get(struct uvs_table *t, const struct uvs_iphdr *iph);
struct uvs_conn *ct_in_get(struct uvs_table *t, const struct uvs_conn_param *key);
void conn_in_get_batch(struct uvs_table *t, const struct uvs_iphdr *iph, uint32_t n, uint32_t *out);
struct uvs_conn *conn_new(struct uvs_table *t, const struct uvs_conn_param *p, uint32_t flags, uint32_t dest,
			  uint64_t now);
void conn_put(struct uvs_table *t, struct uvs_conn *c, uint64_t now);
void conn_expire_now(struct uvs_table *t, struct uvs_conn *c, uint64_t now);
uint32_t conn_del(struct uvs_table *t, struct uvs_conn *c);
uint32_t expire_nodest(struct uvs_table *t, uint32_t from, uint32_t n);
void control_add(struct uvs_table *t, struct uvs_conn *c, struct uvs_conn *controller);
void conn_rekey(struct uvs_table *t, struct uvs_conn *c, uint16_t cport, uint16_t vport, uint16_t dport);
void conn_fill_cport(struct uvs_table *t, struct uvs_conn *c, uint16_t cport);
void dest_overload(struct uvs_dest *d);
void in_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes);
void out_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes);
void conn_stats(struct uvs_table *t, const struct uvs_conn *c);
void stats_add(struct uvs_stats *s, const struct uvs_stats *by);
void stats_sub(struct uvs_stats *s, const struct uvs_stats *by);
uint32_t conn_expire(struct uvs_table *t, struct uvs_conn *c, uint64_t now);
void conn_count(struct uvs_table *t, const struct uvs_conn *c, int by);

#define TEMPLATE_ASSURED 1 /* state of a template: a connection of it was established */

/* fastpath.c: see fastpath.h. */
struct uvs_fastpath;
struct uvs_way;
int fastpath(struct uvs_fastpath *f, struct uvs_packet *p, int hook, uint64_t now, struct uvs_way *way);
void fastpath_fragmented(struct uvs_fastpath *f, const uint8_t *ends, uint32_t len, int by);

/* trace.c.  trace_ask: as the fast path does it; the connection is the packet's, NULL: it has none.  trace_take_back: it
 * comes once more, or something else became of it. */
struct uvs_trace;
uint8_t trace_ask(struct uvs_trace *t, const struct uvs_packet *p, const struct uvs_conn *c, int hook,
		  int verdict, int why, uint64_t now);
void trace_take_back(struct uvs_trace *t, uint8_t told);

/* service.c.  service_find: the scheduler of the service that a packet is for; NULL: the hook path's. */
int service_put(struct uvs_table *t, uint32_t service, struct uvs_sched *s);
void service_remove(struct uvs_table *t, uint32_t service);
struct uvs_sched *service_find(const struct uvs_table *t, const struct uvs_iphdr *h, uint32_t mark,
			       bool *by_mark);
void services_clear(struct services *all);

/* proto.c, proto_*.c: the packet's header is readable; set state and timeout. */
void set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph);
void secure_tcp(struct uvs_table *t, int on);
void tcp_set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph);
void udp_set_state(struct uvs_table *t, struct uvs_conn *c, int dir);
void sctp_set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph);
const char *tcp_state_name(int state);
const char *udp_state_name(int state);
const char *sctp_state_name(int state);
void tcp_init(struct uvs_table *t);
void udp_init(struct uvs_table *t);
void sctp_init(struct uvs_table *t);
bool tcp_active(int state);
bool sctp_active(int state);
/* What every state machine ends with: counters, ASSURED, the new state. */
void proto_enter(struct uvs_table *t, struct uvs_conn *c, int state, bool active, bool established);
void proto_assure(struct uvs_table *t, const struct uvs_conn *c); /* the controlling template */
int proto_dir(struct uvs_conn *c, int dir); /* INPUT_ONLY while no reply was seen */

#endif
