/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * service.h - virtual services as packets find them, and what their schedulers keep; read by cffi like uvs.h.
 */
#ifndef UVS_SERVICE_H
#define UVS_SERVICE_H

#include "uvs.h"

/* Schedulers that are done here too; each has its meaning in uvs/ipvs/scheduling. */
#define UVS_SCHED_NONE 0 /* the hook path's alone */
#define UVS_SCHED_RR 1
#define UVS_SCHED_WRR 2
#define UVS_SCHED_COMPARE 3 /* by a rule of UVS_CHOOSE_* */
#define UVS_SCHED_DH 4
#define UVS_SCHED_SH 5
#define UVS_SCHED_MH 6

/* Rules of comparison, of destinations of weight > 0 that are not OVERLOADed, but for LIGHT; of equals the first. */
#define UVS_CHOOSE_LC 0 /* fewest connections */
#define UVS_CHOOSE_WLC 1 /* the same for its weight */
#define UVS_CHOOSE_SED 2 /* shortest expected delay */
#define UVS_CHOOSE_NQ 3 /* the first without active connections, else as SED */
#define UVS_CHOOSE_FO 4 /* highest weight */
#define UVS_CHOOSE_OVF 5 /* the same, of those with no more active connections than weight */
#define UVS_CHOOSE_LIGHT 6 /* the first with less than half as many active connections as weight */

#define UVS_SVC_F_SCHED1 8 /* sh, mh: another server when that one cannot */
#define UVS_SVC_F_SCHED2 16 /* sh, mh: the client's port counts too */

/* How far rr and wrr have come: all that a choice changes. */
struct uvs_turn {
	uint32_t last; /* place in the list of the one chosen last, from 1; 0: the list's head */
	int32_t cw; /* wrr: current weight */
};

/* What a scheduler keeps of its service.  Changed by the functions below alone. */
struct uvs_sched {
	int kind, rule; /* UVS_SCHED_*, UVS_CHOOSE_* */
	uint32_t flags; /* of the service, UVS_SVC_F_* */
	uint32_t n, room;
	uint32_t *dests; /* records of the destinations, in list order */
	uint32_t *nexthops; /* the rows that their connections went by last; 0: none did */
	struct uvs_turn turn;
	int32_t mw, di; /* wrr: maximum weight, step from pass to pass */
	uint32_t *slot; /* dh, sh, mh: a place in the list for each */
	uint32_t slots; /* 0: the table is to be filled anew */
};

/* NULL: no memory. */
struct uvs_sched *uvs_sched_new(int kind, int rule);
void uvs_sched_free(struct uvs_sched *s);

/* A destination came, at the list's head, or went; the turn stays where it was (ip_vs_rr_del_dest: at the
 * predecessor), the table of slots is to be filled anew.  0, or -1: no memory. */
int uvs_sched_insert(struct uvs_table *t, struct uvs_sched *s, uint32_t dest);
void uvs_sched_remove(struct uvs_table *t, struct uvs_sched *s, uint32_t place);

/* wrr begins at the list's head, with these. */
void uvs_sched_weigh(struct uvs_table *t, struct uvs_sched *s, int32_t cw, int32_t mw, int32_t di);
/* The table of slots: places in the list.  n 0: to be filled anew.  0, or -1: no memory, or no such place. */
int uvs_sched_fill(struct uvs_table *t, struct uvs_sched *s, const uint32_t *places, uint32_t n);

/* The next connection's destination, by rr, wrr or a comparison: its place in the list, -1 if none will do. */
int uvs_sched_turn(struct uvs_table *t, struct uvs_sched *s);
/* The one that a rule prefers, without a turn. */
int uvs_sched_choose(struct uvs_table *t, const struct uvs_sched *s, int rule);

/* Connections to that destination go by this row of the next-hop table. */
void uvs_sched_nexthop(struct uvs_table *t, struct uvs_sched *s, uint32_t dest, uint32_t nexthop);

/* The service in a record is found by packets from now on, by mark or by protocol, address and port; it is
 * scheduled by `s`, which stays the caller's, NULL: by the hook path.  0, or -1: no memory; then it is not
 * found, which is for the hook path as well. */
int uvs_service_put(struct uvs_table *t, uint32_t service, struct uvs_sched *s);
void uvs_service_remove(struct uvs_table *t, uint32_t service);

#endif
