/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * trace.h - which packets' walks somebody wants to see, and how many of them; read by cffi like uvs.h.
 */
#ifndef UVS_TRACE_H
#define UVS_TRACE_H

#include "uvs.h"

#define UVS_TRACERS 4 /* at once */
#define UVS_TRACE_PROGRAM 64 /* conditions and operators of one */
#define UVS_TRACE_DEPTH 16 /* values that wait for their operator, at most */
#define UVS_TRACE_RATE 1000 /* walks a second of one, at most */

/* Verdicts: NF_* (include/uapi/linux/netfilter.h). */
#define UVS_NF_DROP 0
#define UVS_NF_ACCEPT 1
#define UVS_NF_STOLEN 2

/* What a condition is about.  The first three combine what stands before them. */
enum uvs_cond_op {
	UVS_COND_AND,
	UVS_COND_OR,
	UVS_COND_NOT,
	UVS_COND_CLIENT, /* address and port of the connection; without one of the packet, where it can be one's */
	UVS_COND_SERVICE,
	UVS_COND_SERVER,
	UVS_COND_HOST, /* source or destination address of the packet as it came */
	UVS_COND_PORT, /* the same for ports: number */
	UVS_COND_PROTO, /* number */
	UVS_COND_FAMILY, /* number: UVS_AF_* */
	UVS_COND_MARK,
	UVS_COND_HOOK, /* number: NF_INET_* */
	UVS_COND_VERDICT, /* number: UVS_NF_* */
	UVS_COND_WHY, /* number: enum uvs_why */
	UVS_COND_MAX
};

struct uvs_cond {
	uint8_t op;
	uint8_t af, bits; /* of addr; bits that count */
	uint8_t pad;
	uint16_t port; /* 0: any */
	uint16_t pad1;
	uint32_t number;
	union uvs_addr addr;
};

/* So many a second, and as many at once after a quiet second. */
struct uvs_bucket {
	uint64_t each; /* ns between two */
	uint64_t due; /* when it is full again */
};

/* One who looks: a program in postfix notation (of no condition: everything), and how much of it is shown. */
struct uvs_tracer {
	uint32_t n; /* of program */
	struct uvs_cond program[UVS_TRACE_PROGRAM];
	struct uvs_bucket bucket;
	uint64_t matched, suppressed; /* packets; of them, not shown because of the rate */
};

/* What the hook path has in hand. */
struct uvs_traced {
	struct uvs_iphdr iph; /* as it came; zero if it could not be read */
	struct uvs_conn conn; /* if has_conn */
	uint32_t mark;
	uint8_t hook, has_conn, open, asked;
};

/* All of a director.  Guarded by the engine lock of `table`. */
struct uvs_trace {
	struct uvs_table *table;
	uint32_t on; /* tracers, a bit each */
	struct uvs_tracer tracer[UVS_TRACERS];
	struct uvs_bucket
		tries; /* walks recorded before it is known whether somebody wants them, of all together */
	struct uvs_traced hand;
};

/* `tries`: walks a second that may be recorded in vain. */
void uvs_trace_init(struct uvs_trace *t, struct uvs_table *table, uint32_t tries);
/* A tracer more: its number, or negative errno: EBUSY there is no room, EINVAL no such program or rate. */
int uvs_trace_add(struct uvs_trace *t, const struct uvs_cond *program, uint32_t n, uint32_t rate);
void uvs_trace_remove(struct uvs_trace *t, uint32_t which);
void uvs_trace_counts(const struct uvs_trace *t, uint32_t which, uint64_t *matched, uint64_t *suppressed);

/* The fast path asks before it changes anything, once what becomes of a packet is known; what it is told stays with
 * the packet (`traced` of struct uvs_packet): the tracers that get its walk, so that it is the hook path's, and in the
 * upper half those that do not because of their rate. */
#define UVS_TRACED 15

/* The hook path, for each packet: begin; found, for each connection that it comes to belong to; end.
 *
 * begin: `p` NULL: it could not be read; `asked`: what the fast path was told, 0: it was not.  NOBODY wants its walk, and
 * that is all; it is to be JUDGEd in the end; or recorded for that (WALK).
 * end: by verdict and reason, and whether there is a walk: who gets it, a bit each.  Something else may have become of it
 * than the fast path took for sure: it is judged anew, and what was counted in vain is taken back. */
#define UVS_TRACE_NOBODY 0
#define UVS_TRACE_JUDGE 1
#define UVS_TRACE_WALK 2
int uvs_trace_begin(struct uvs_trace *t, const struct uvs_packet *p, int hook, uint32_t mark, int asked,
		    uint64_t now);
void uvs_trace_found(struct uvs_trace *t, const struct uvs_conn *c);
int uvs_trace_end(struct uvs_trace *t, int verdict, int why, int walked, uint64_t now);

/* Does a program take the packet in hand?  2 yes, 1 it is not known yet (verdict and why -1), 0 no. */
int uvs_trace_judge(const struct uvs_trace *t, const struct uvs_cond *program, uint32_t n, int verdict,
		    int why);

#endif
