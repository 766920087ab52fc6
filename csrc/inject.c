/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "uvs_io.h"
int uvs_inject_open(uint32_t mark) { return -38; }
int uvs_inject(int fd, const struct uvs_nexthop *nh, const uint8_t *data, uint32_t len) {return -38;}
int uvs_inject_offload(int fd, const struct uvs_nexthop *nh, const uint8_t *data, uint32_t len, uint16_t csum_start, uint16_t csum_offset, uint8_t gso_type, uint16_t gso_size,uint16_t hdr_len) {return -38;}
