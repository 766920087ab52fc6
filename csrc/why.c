/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Names of the reasons, as walks, metrics and doctor show them.
 */
#include "uvs.h"

static const char *const names[UVS_WHY_MAX] = {
	[UVS_WHY_NONE] = "none",
	[UVS_WHY_FORWARDED] = "forwarded",
	[UVS_WHY_LOCAL] = "local",
	[UVS_WHY_REPLY] = "reply",
	[UVS_WHY_ICMP_IN] = "icmp_in",
	[UVS_WHY_ICMP_OUT] = "icmp_out",
	[UVS_WHY_BYPASS] = "bypass",
	[UVS_WHY_NOT_FOR_HOST] = "not_for_host",
	[UVS_WHY_BACKUP_ONLY] = "backup_only",
	[UVS_WHY_PROTOCOL] = "protocol",
	[UVS_WHY_NO_SERVICE] = "no_service",
	[UVS_WHY_NOT_SYN] = "not_syn",
	[UVS_WHY_NO_CONN] = "no_conn",
	[UVS_WHY_CLIENT_PORT] = "client_port",
	[UVS_WHY_OWN_REPLY] = "own_reply",
	[UVS_WHY_FRAGMENT] = "fragment",
	[UVS_WHY_ICMP_TYPE] = "icmp_type",
	[UVS_WHY_FTP_DATA] = "ftp_data",
	[UVS_WHY_SHORT] = "short",
	[UVS_WHY_MALFORMED] = "malformed",
	[UVS_WHY_CUT] = "cut",
	[UVS_WHY_CHECKSUM] = "checksum",
	[UVS_WHY_NO_DEST] = "no_dest",
	[UVS_WHY_WEIGHT_0] = "weight_0",
	[UVS_WHY_OVERLOAD] = "overload",
	[UVS_WHY_DEAD_DEST] = "dead_dest",
	[UVS_WHY_RESCHEDULE] = "reschedule",
	[UVS_WHY_DROP_RATE] = "drop_rate",
	[UVS_WHY_TABLE_FULL] = "table_full",
	[UVS_WHY_NO_ROUTE] = "no_route",
	[UVS_WHY_NO_NEIGHBOUR] = "no_neighbour",
	[UVS_WHY_TOO_BIG] = "too_big",
	[UVS_WHY_TTL] = "ttl",
	[UVS_WHY_BOUNDARY] = "boundary",
	[UVS_WHY_PE] = "pe",
	[UVS_WHY_NAT_ICMP] = "nat_icmp",
	[UVS_WHY_APP] = "app",
	[UVS_WHY_SEND] = "send",
	[UVS_WHY_TUNNEL_ICMP] = "tunnel_icmp",
	[UVS_WHY_GATHERED] = "gathered",
	[UVS_WHY_REASSEMBLY] = "reassembly",
};

const char *uvs_why_name(int why)
{
	return why < 0 || why >= UVS_WHY_MAX || !names[why] ? "?" : names[why];
}
