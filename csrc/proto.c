/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * proto.c - what the state machines share (ip_vs_proto.c), and which one a packet runs.
 */
#include "packet.h"
#include "table.h"

int proto_dir(struct uvs_conn *c, int dir)
{
	if (!(c->flags & UVS_CONN_F_NOOUTPUT))
		return dir;
	if (dir != UVS_DIR_OUTPUT)
		return UVS_DIR_INPUT_ONLY;
	c->flags &= ~(uint32_t)UVS_CONN_F_NOOUTPUT;
	return dir;
}

/* ip_vs_control_assure_ct */
void proto_assure(struct uvs_table *t, const struct uvs_conn *c)
{
	struct uvs_conn *ct = conn_at(t, c->control);

	if (ct && ct->flags & UVS_CONN_F_TEMPLATE)
		ct->state |= TEMPLATE_ASSURED;
}

void proto_enter(struct uvs_table *t, struct uvs_conn *c, int state, bool active, bool established)
{
	struct uvs_dest *d = dest_at(t, c->dest);

	if (state == c->state)
		return;
	if (d && active && c->flags & UVS_CONN_F_INACTIVE) {
		d->activeconns++;
		d->inactconns--;
		c->flags &= ~(uint32_t)UVS_CONN_F_INACTIVE;
	} else if (d && !active && !(c->flags & UVS_CONN_F_INACTIVE)) {
		d->activeconns--;
		d->inactconns++;
		c->flags |= UVS_CONN_F_INACTIVE;
	}
	if (established)
		proto_assure(t, c);
	c->state = (uint16_t)state;
}

/* By the packet's protocol: AH and ESP on the connection of their key exchange change nothing. */
void set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph)
{
	if (c->flags & UVS_CONN_F_TEMPLATE)
		return;
	if (iph->protocol == IP_UDP)
		udp_set_state(t, c, dir);
	else if (iph->protocol == IP_TCP && iph->flags & UVS_HDR_L4)
		tcp_set_state(t, c, dir, iph);
	else if (iph->protocol == IP_SCTP && iph->flags & UVS_HDR_L4)
		sctp_set_state(t, c, dir, iph);
}

const char *uvs_state_name(int protocol, int state)
{
	switch (protocol) {
	case IP_TCP: return tcp_state_name(state);
	case IP_UDP: return udp_state_name(state);
	case IP_SCTP: return sctp_state_name(state);
	default: return NULL;
	}
}

uint32_t *uvs_timeouts(struct uvs_table *t, int protocol)
{
	switch (protocol) {
	case IP_TCP: return t->tcp_timeout;
	case IP_UDP: return t->udp_timeout;
	case IP_SCTP: return t->sctp_timeout;
	default: return NULL;
	}
}
