/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * proto_sctp.c - SCTP's states as IPVS sees them (ip_vs_proto_sctp.c).
 */
#include "table.h"

/* clang-format off: tables */
enum {
	NO,
	I1,
	IN,
	CS,
	CR,
	CW,
	CO,
	CE,
	ES,
	SS,
	SR,
	SA,
	RJ,
	CL
};
enum {
	DATA,
	INIT,
	INIT_ACK,
	COOKIE_ECHO,
	COOKIE_ACK,
	SHUTDOWN,
	SHUTDOWN_ACK,
	SHUTDOWN_COMPLETE,
	ERROR,
	ABORT,
	EVENTS
};

#define CHUNK_ABORT 6 /* RFC 9260, 3.2 */
#define CHUNK_COOKIE_ECHO 10
#define CHUNK_COOKIE_ACK 11

/* [direction][event][state now] */
static const uint8_t next_state[3][EVENTS][UVS_SCTP_STATES] = {
	[UVS_DIR_INPUT] = {
		/*                       NO  I1  IN  CS  CR  CW  CO  CE  ES  SS  SR  SA  RJ  CL */
		[DATA] =              { ES, I1, IN, CS, CR, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[INIT] =              { I1, IN, IN, CS, CR, CW, CO, CE, ES, SS, SR, SA, IN, IN },
		[INIT_ACK] =          { CW, CW, CW, CS, CR, CO, CO, CE, ES, SS, SR, SA, RJ, CL },
		[COOKIE_ECHO] =       { CR, IN, IN, CR, CR, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[COOKIE_ACK] =        { ES, I1, IN, CS, CR, CW, CO, ES, ES, SS, SR, SA, RJ, CL },
		[SHUTDOWN] =          { SR, I1, IN, CS, CR, CW, CO, CE, SR, SS, SR, SA, RJ, CL },
		[SHUTDOWN_ACK] =      { CL, IN, IN, CS, CR, CW, CO, CE, ES, CL, SR, CL, RJ, CL },
		[SHUTDOWN_COMPLETE] = { CL, CL, CL, CS, CR, CW, CO, CE, ES, SS, SR, CL, RJ, CL },
		[ERROR] =             { CL, I1, IN, CS, CR, CW, CO, CL, ES, SS, SR, SA, RJ, CL },
		[ABORT] =             { CL, CL, CL, CL, CL, RJ, CL, CL, CL, CL, CL, CL, CL, CL },
	},
	[UVS_DIR_OUTPUT] = {
		[DATA] =              { ES, I1, IN, CS, CR, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[INIT] =              { CW, CW, CW, CW, CW, CW, CW, CW, ES, CW, CW, CW, CW, CW },
		[INIT_ACK] =          { CS, CS, CS, CS, CR, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[COOKIE_ECHO] =       { CE, CE, CE, CE, CE, CE, CE, CE, ES, SS, SR, SA, RJ, CL },
		[COOKIE_ACK] =        { ES, ES, ES, ES, ES, ES, ES, ES, ES, SS, SR, SA, RJ, CL },
		[SHUTDOWN] =          { SS, SS, SS, SS, SS, SS, SS, SS, SS, SS, SR, SA, RJ, CL },
		[SHUTDOWN_ACK] =      { SA, SA, SA, SA, SA, CW, CO, CE, ES, SA, SA, SA, RJ, CL },
		[SHUTDOWN_COMPLETE] = { CL, I1, IN, CS, CR, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[ERROR] =             { CL, CL, CL, CL, CL, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[ABORT] =             { CL, RJ, CL, CL, CL, CL, CL, CL, CL, CL, CL, CL, CL, CL },
	},
	[UVS_DIR_INPUT_ONLY] = {
		[DATA] =              { ES, I1, IN, CS, CR, ES, CO, CE, ES, SS, SR, SA, RJ, CL },
		[INIT] =              { I1, IN, IN, IN, IN, IN, CO, CE, ES, SS, SR, SA, IN, IN },
		[INIT_ACK] =          { CE, CE, CE, CE, CE, CE, CO, CE, ES, SS, SR, SA, RJ, CL },
		[COOKIE_ECHO] =       { ES, ES, ES, ES, ES, ES, CO, CE, ES, SS, SR, SA, RJ, CL },
		[COOKIE_ACK] =        { ES, I1, IN, ES, ES, CW, ES, ES, ES, SS, SR, SA, RJ, CL },
		[SHUTDOWN] =          { SR, I1, IN, CS, CR, CW, CO, CE, SR, SS, SR, SA, RJ, CL },
		[SHUTDOWN_ACK] =      { CL, IN, IN, CS, CR, CW, CO, CE, CL, CL, SR, CL, RJ, CL },
		[SHUTDOWN_COMPLETE] = { CL, CL, CL, CL, CL, CW, CO, CE, ES, SS, CL, CL, RJ, CL },
		[ERROR] =             { CL, I1, IN, CS, CR, CW, CO, CE, ES, SS, SR, SA, RJ, CL },
		[ABORT] =             { CL, CL, CL, CL, CL, RJ, CL, CL, CL, CL, CL, CL, CL, CL },
	},
};

static const struct {
	const char *name;
	uint32_t timeout; /* ms */
} states[UVS_SCTP_STATES] = {
	[NO] = { "NONE", 2000 },     [I1] = { "INIT1", 4000 },       [IN] = { "INIT", 61000 },
	[CS] = { "C-SENT", 61000 },  [CR] = { "C-REPLIED", 61000 },  [CW] = { "C-WAIT", 61000 },
	[CO] = { "COOKIE", 61000 },  [CE] = { "C-ECHOED", 61000 },   [ES] = { "ESTABLISHED", 900000 },
	[SS] = { "S-SENT", 61000 },  [SR] = { "S-RECEIVED", 61000 }, [SA] = { "S-ACK-SENT", 61000 },
	[RJ] = { "REJECTED", 4000 }, [CL] = { "CLOSED", 61000 },
};

/* By chunk type; what is not here, or beyond, counts as data. */
static const uint8_t event_of_chunk[] = {
	[1] = INIT,
	[2] = INIT_ACK,
	[CHUNK_ABORT] = ABORT,
	[7] = SHUTDOWN,
	[8] = SHUTDOWN_ACK,
	[9] = ERROR,
	[CHUNK_COOKIE_ECHO] = COOKIE_ECHO,
	[CHUNK_COOKIE_ACK] = COOKIE_ACK,
	[14] = SHUTDOWN_COMPLETE,
};

/* clang-format on */

const char *sctp_state_name(int state)
{
	return state >= 0 && state < UVS_SCTP_STATES ? states[state].name : "ERR!";
}

bool sctp_active(int state)
{
	return state == ES;
}

void sctp_init(struct uvs_table *t)
{
	int i;

	for (i = 0; i < UVS_SCTP_STATES; i++)
		t->sctp_timeout[i] = states[i].timeout;
}

int uvs_sctp_next(int dir, int event, int state)
{
	if (dir < 0 || dir > UVS_DIR_INPUT_ONLY || event < 0 || event >= EVENTS || state < 0 ||
	    state >= UVS_SCTP_STATES)
		return -1;
	return next_state[dir][event][state];
}

/* set_sctp_state: the first chunk, or an ABORT right behind a cookie. */
static int event_of(const struct uvs_iphdr *iph)
{
	uint8_t chunk = iph->chunk;

	if ((chunk == CHUNK_COOKIE_ECHO || chunk == CHUNK_COOKIE_ACK) && iph->next_chunk == CHUNK_ABORT)
		chunk = CHUNK_ABORT;
	return chunk < sizeof(event_of_chunk) ? event_of_chunk[chunk] : DATA;
}

void sctp_set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph)
{
	int state = CL;

	dir = proto_dir(c, dir);
	if (c->state < UVS_SCTP_STATES)
		state = next_state[dir][event_of(iph)][c->state];
	proto_enter(t, c, state, sctp_active(state), state == ES);
	c->timeout = t->sctp_timeout[state];
}
