/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * fast.h - the fast path, and what it leaves to be done to a packet, for the fuzz target.
 */
#ifndef UVS_FUZZ_FAST_H
#define UVS_FUZZ_FAST_H

#include "check.h"

/* The packet by the fast path, as a sender's stack may hand it over.  Connections of destination number i of `dest`
 * go by row i + 1.  `arg`: devices, hook, checksum and segments; `how`: the rows and the tunnels. */
void by_fast_path(struct uvs_table *t, const uint32_t *dest, uint32_t n, uint8_t arg, uint8_t how,
		  const uint8_t *data, uint32_t len, uint64_t now);
/* A packet of many segments, cut: in order they give its payload, and each is whole. */
void segments(const struct uvs_packet *p, const struct uvs_conn *c, uint32_t mtu);

#endif
