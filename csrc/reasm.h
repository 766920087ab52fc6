/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * reasm.h - fragments put together; read by cffi like uvs.h.
 */
#ifndef UVS_REASM_H
#define UVS_REASM_H

#include "uvs.h"

/* Fragments put together, in memory bounded by `queues` unfinished datagrams (about 400 bytes each) and
 * `blocks` of 2 KiB of payload.  An unfinished datagram is given up after 30 s (IPv6: 60 s); one whose
 * fragments overlap or contradict each other, at once; new ones are refused while there is no room
 * (RFC 791, RFC 8200 4.5, RFC 5722).  `seed`: for the hash.  NULL: no memory. */
struct uvs_reasm;
struct uvs_reasm_info {
	uint32_t queues, blocks; /* in use */
	uint64_t whole, expired, duplicates, contradictions, refused;
};
struct uvs_reasm *uvs_reasm_new(uint32_t queues, uint32_t blocks, uint32_t seed);
void uvs_reasm_free(struct uvs_reasm *r);
void uvs_reasm_info(const struct uvs_reasm *r, struct uvs_reasm_info *info);
/* Returns 0 with a whole datagram in `p`, parsed, p->frag_max set unless it came whole; an atomic fragment
 * loses its header, and an IPv6 first fragment without the whole transport header stays as it is.
 * UVS_WHY_GATHERED: the fragment is kept (or was there).  UVS_WHY_REASSEMBLY: drop it.
 * Fragments of different `user` (the hook) are never put together. */
int uvs_reassemble(struct uvs_reasm *r, struct uvs_packet *p, uint8_t user, uint64_t now);
/* Give up what is due; uvs_reassemble() does so itself. */
void uvs_reasm_expire(struct uvs_reasm *r, uint64_t now);

#endif
