/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * defence.c - drop entries under a flood (ip_vs_conn.c, ip_vs_random_dropentry).
 */
#include "packet.h"
#include "table.h"

#define YOUNG_NS 60000000000u /* an entry refreshed since is spared */
#define FEW_PACKETS 8         /* more than this, and it is somebody's real connection */

enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_RECV = 3,
	TCP_SYNACK = 10
};
enum {
	SCTP_INIT1 = 1,
	SCTP_INIT = 2,
	SCTP_ESTABLISHED = 8
};

/* todrop_entry: of those with n packets one in n goes; none without packets. */
static bool todrop(struct uvs_table *t, const struct uvs_conn *c, uint64_t now)
{
	uint32_t n = c->in_pkts;

	if (now + c->timeout * MS_NS < c->deadline + YOUNG_NS || n > FEW_PACKETS || n == 0)
		return false;
	if (--t->todrop[n] > 0)
		return false;
	t->todrop[n] = (int)n;
	return true;
}

/* ip_vs_conn_ops_mode */
static bool of_one_packet_service(struct uvs_table *t, const struct uvs_conn *c)
{
	const struct uvs_dest *d = dest_at(t, c->dest);
	const struct uvs_service *s = d ? service_at(t, d->service) : NULL;

	return s && s->flags & UVS_SVC_F_ONEPACKET;
}

static bool drop(struct uvs_table *t, const struct uvs_conn *c, uint64_t now)
{
	if (c->n_control)
		return false;
	if (c->flags & UVS_CONN_F_TEMPLATE) {
		if (of_one_packet_service(t, c))
			return todrop(t, c, now);
		return !(c->state & TEMPLATE_ASSURED);
	}
	if (c->protocol == IP_TCP) {
		if (c->state == TCP_SYN_RECV || c->state == TCP_SYNACK)
			return true;
		return c->state == TCP_ESTABLISHED && todrop(t, c, now);
	}
	if (c->protocol == IP_SCTP) {
		if (c->state == SCTP_INIT1 || c->state == SCTP_INIT)
			return true;
		return c->state == SCTP_ESTABLISHED && todrop(t, c, now);
	}
	return todrop(t, c, now);
}

uint32_t drop_entry(struct uvs_table *t, uint64_t now, uint32_t from, uint32_t n)
{
	uint32_t i, dropped = 0;

	clock_seen(t, now);
	for (i = from; n && i < t->fresh; n--, i++) {
		struct uvs_conn *c = conn_at(t, i);

		if (c && drop(t, c, now)) {
			conn_del(t, c);
			dropped++;
		}
	}
	return dropped;
}
