/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * check.h - what must hold of a packet at any time, for the fuzz target.
 */
#ifndef UVS_FUZZ_CHECK_H
#define UVS_FUZZ_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include "uvs.h"
#include "reasm.h"
#include "fastpath.h"

#define CHECK(what)                                                                               \
	do {                                                                                      \
		if (!(what)) {                                                                    \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what); \
			abort();                                                                  \
		}                                                                                 \
	} while (0)

void check_header(const struct uvs_packet *p, const struct uvs_iphdr *h);
int header_right(const struct uvs_packet *p);
/* Both checksums are as they ought to be, so far as that can be known. */
int all_right(const struct uvs_packet *p);
/* What the parser said still holds: the steps keep struct uvs_iphdr true. */
void check_iph(struct uvs_packet *p);

#endif
