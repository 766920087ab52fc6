/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * proto_udp.c - UDP's single state (ip_vs_proto_udp.c).
 */
#include "table.h"

const char *udp_state_name(int state)
{
	return state == 0 ? "UDP" : "ERR!";
}

void udp_init(struct uvs_table *t)
{
	t->udp_timeout[0] = 300000;
}

void udp_set_state(struct uvs_table *t, struct uvs_conn *c, int dir)
{
	c->timeout = t->udp_timeout[0];
	if (dir == UVS_DIR_OUTPUT)
		proto_assure(t, c);
}
