/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * clock.c - the one clock of packets and time-outs.
 */
#include <time.h>

#include "uvs.h"

uint64_t uvs_now(uint32_t rate)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ((uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec) * rate;
}
