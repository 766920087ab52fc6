/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * proto_tcp.c - TCP's states as IPVS sees them (ip_vs_proto_tcp.c).
 */
#include "table.h"

/* clang-format off: tables */
enum {
	NO,
	ES,
	SS,
	SR,
	FW,
	TW,
	CL,
	CW,
	LA,
	LI,
	SA
};
enum {
	SYN,
	FIN,
	ACK,
	RST
};

/* [secure][direction][event][state now] */
static const uint8_t next_state[2][3][4][UVS_TCP_STATES] = {
	{
		[UVS_DIR_INPUT] = {
			/*         NO  ES  SS  SR  FW  TW  CL  CW  LA  LI  SA */
			[SYN] = { SR, ES, ES, SR, SR, SR, SR, SR, SR, SR, SR },
			[FIN] = { CL, CW, SS, TW, TW, TW, CL, CW, LA, LI, TW },
			[ACK] = { ES, ES, SS, ES, FW, TW, CL, CW, CL, LI, ES },
			[RST] = { CL, CL, CL, SR, CL, CL, CL, CL, LA, LI, SR },
		},
		[UVS_DIR_OUTPUT] = {
			[SYN] = { SS, ES, SS, SR, SS, SS, SS, SS, SS, LI, SR },
			[FIN] = { TW, FW, SS, TW, FW, TW, CL, TW, LA, LI, TW },
			[ACK] = { ES, ES, SS, ES, FW, TW, CL, CW, LA, ES, ES },
			[RST] = { CL, CL, SS, CL, CL, TW, CL, CL, CL, CL, CL },
		},
		[UVS_DIR_INPUT_ONLY] = {
			[SYN] = { SR, ES, ES, SR, SR, SR, SR, SR, SR, SR, SR },
			[FIN] = { CL, FW, SS, TW, FW, TW, CL, CW, LA, LI, TW },
			[ACK] = { ES, ES, SS, ES, FW, TW, CL, CW, CL, LI, ES },
			[RST] = { CL, CL, CL, SR, CL, CL, CL, CL, LA, LI, CL },
		},
	},
	{ /* secure_tcp: a SYN goes by SYNACK, the client's ACK alone establishes nothing */
		[UVS_DIR_INPUT] = {
			[SYN] = { SR, ES, ES, SR, SR, SR, SR, SR, SR, SR, SA },
			[FIN] = { CL, CW, SS, TW, TW, TW, CL, CW, LA, LI, SA },
			[ACK] = { ES, ES, SS, SR, FW, TW, CL, CW, CL, LI, SA },
			[RST] = { CL, CL, CL, SR, CL, CL, CL, CL, LA, LI, CL },
		},
		[UVS_DIR_OUTPUT] = {
			[SYN] = { SS, ES, SS, SA, SS, SS, SS, SS, SS, LI, SA },
			[FIN] = { TW, FW, SS, TW, FW, TW, CL, TW, LA, LI, TW },
			[ACK] = { ES, ES, SS, ES, FW, TW, CL, CW, LA, ES, ES },
			[RST] = { CL, CL, SS, CL, CL, TW, CL, CL, CL, CL, CL },
		},
		[UVS_DIR_INPUT_ONLY] = {
			[SYN] = { SA, ES, ES, SR, SA, SA, SA, SA, SA, SA, SA },
			[FIN] = { CL, FW, SS, TW, FW, TW, CL, CW, LA, LI, TW },
			[ACK] = { ES, ES, SS, ES, FW, TW, CL, CW, CL, LI, ES },
			[RST] = { CL, CL, CL, SR, CL, CL, CL, CL, LA, LI, CL },
		},
	},
};

static const struct {
	const char *name;
	uint32_t timeout; /* ms */
	bool active;      /* counted in activeconns */
} states[UVS_TCP_STATES] = {
	[NO] = { "NONE", 2000, false },       [ES] = { "ESTABLISHED", 900000, true },
	[SS] = { "SYN_SENT", 120000, true },  [SR] = { "SYN_RECV", 60000, true },
	[FW] = { "FIN_WAIT", 120000, false }, [TW] = { "TIME_WAIT", 120000, false },
	[CL] = { "CLOSE", 10000, false },     [CW] = { "CLOSE_WAIT", 60000, false },
	[LA] = { "LAST_ACK", 30000, false },  [LI] = { "LISTEN", 120000, false },
	[SA] = { "SYNACK", 120000, true },
};

/* clang-format on */

const char *tcp_state_name(int state)
{
	return state >= 0 && state < UVS_TCP_STATES ? states[state].name : "ERR!";
}

bool tcp_active(int state)
{
	return states[state].active;
}

void tcp_init(struct uvs_table *t)
{
	int i;

	for (i = 0; i < UVS_TCP_STATES; i++)
		t->tcp_timeout[i] = states[i].timeout;
}

int uvs_tcp_next(int secure, int dir, int event, int state)
{
	if (dir < 0 || dir > UVS_DIR_INPUT_ONLY || event < 0 || event > RST || state < 0 ||
	    state >= UVS_TCP_STATES)
		return -1;
	return next_state[!!secure][dir][event][state];
}

void secure_tcp(struct uvs_table *t, int on)
{
	t->secure_tcp = !!on;
}

/* tcp_state_idx: the first of these that is set; none of them closes. */
static int event_of(uint8_t flags)
{
	if (flags & UVS_TCP_RST)
		return RST;
	if (flags & UVS_TCP_SYN)
		return SYN;
	if (flags & UVS_TCP_FIN)
		return FIN;
	return flags & UVS_TCP_ACK ? ACK : -1;
}

void tcp_set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph)
{
	int event = event_of(iph->tcp_flags), state = CL;

	if (iph->mss && (!c->mss || iph->mss < c->mss))
		c->mss = iph->mss;
	dir = proto_dir(c, dir);
	if (event >= 0 && c->state < UVS_TCP_STATES)
		state = next_state[t->secure_tcp][dir][event][c->state];
	proto_enter(t, c, state, states[state].active, state == ES);
	c->timeout = t->tcp_timeout[state];
}
