"""The engine's constants by name: reasons, flags, families (`csrc/uvs.h`)."""

from __future__ import annotations

import enum
from typing import Any, Final

from uvs.engine import _core  # type: ignore[attr-defined]

lib: Any = _core.lib

RECORD_SIZE: int = lib.UVS_RECORD_SIZE
PACKET_MAX: int = lib.UVS_PACKET_MAX
PE_MAX: int = lib.UVS_PE_MAX
AF_INET: int = lib.UVS_AF_INET
AF_INET6: int = lib.UVS_AF_INET6
# IP_VS_CONN_F_TUNNEL_TYPE_* and IP_VS_TUNNEL_ENCAP_FLAG_* of include/uapi/linux/ip_vs.h.
TUN_IPIP: Final[int] = lib.UVS_TUN_IPIP
TUN_GUE: Final[int] = lib.UVS_TUN_GUE
TUN_GRE: Final[int] = lib.UVS_TUN_GRE
TUN_F_CSUM: Final[int] = lib.UVS_TUN_F_CSUM
TUN_F_REMCSUM: Final[int] = lib.UVS_TUN_F_REMCSUM
ROUTE_MTU: Final[int] = lib.UVS_ROUTE_MTU
ROUTE_LEARNED: Final[int] = lib.UVS_ROUTE_LEARNED


class Choose(enum.IntEnum):
    """Rules by which schedulers compare destinations (`UVS_CHOOSE_*`); the schedulers say what each means."""

    LC = lib.UVS_CHOOSE_LC
    WLC = lib.UVS_CHOOSE_WLC
    SED = lib.UVS_CHOOSE_SED
    NQ = lib.UVS_CHOOSE_NQ
    FO = lib.UVS_CHOOSE_FO
    OVF = lib.UVS_CHOOSE_OVF
    LIGHT = lib.UVS_CHOOSE_LIGHT


class Why(enum.IntEnum):
    """Why a packet got its verdict: `enum uvs_why` of csrc/uvs.h, which explains each."""

    NONE = lib.UVS_WHY_NONE
    # handled
    FORWARDED = lib.UVS_WHY_FORWARDED
    LOCAL = lib.UVS_WHY_LOCAL
    REPLY = lib.UVS_WHY_REPLY
    ICMP_IN = lib.UVS_WHY_ICMP_IN
    ICMP_OUT = lib.UVS_WHY_ICMP_OUT
    BYPASS = lib.UVS_WHY_BYPASS
    # not ours: accepted untouched
    NOT_FOR_HOST = lib.UVS_WHY_NOT_FOR_HOST
    BACKUP_ONLY = lib.UVS_WHY_BACKUP_ONLY
    PROTOCOL = lib.UVS_WHY_PROTOCOL
    NO_SERVICE = lib.UVS_WHY_NO_SERVICE
    NOT_SYN = lib.UVS_WHY_NOT_SYN
    NO_CONN = lib.UVS_WHY_NO_CONN
    CLIENT_PORT = lib.UVS_WHY_CLIENT_PORT
    OWN_REPLY = lib.UVS_WHY_OWN_REPLY
    FRAGMENT = lib.UVS_WHY_FRAGMENT
    ICMP_TYPE = lib.UVS_WHY_ICMP_TYPE
    FTP_DATA = lib.UVS_WHY_FTP_DATA
    # dropped
    SHORT = lib.UVS_WHY_SHORT
    MALFORMED = lib.UVS_WHY_MALFORMED
    CUT = lib.UVS_WHY_CUT
    CHECKSUM = lib.UVS_WHY_CHECKSUM
    NO_DEST = lib.UVS_WHY_NO_DEST
    WEIGHT_0 = lib.UVS_WHY_WEIGHT_0
    OVERLOAD = lib.UVS_WHY_OVERLOAD
    DEAD_DEST = lib.UVS_WHY_DEAD_DEST
    RESCHEDULE = lib.UVS_WHY_RESCHEDULE
    DROP_RATE = lib.UVS_WHY_DROP_RATE
    TABLE_FULL = lib.UVS_WHY_TABLE_FULL
    NO_ROUTE = lib.UVS_WHY_NO_ROUTE
    NO_NEIGHBOUR = lib.UVS_WHY_NO_NEIGHBOUR
    TOO_BIG = lib.UVS_WHY_TOO_BIG
    TTL = lib.UVS_WHY_TTL
    BOUNDARY = lib.UVS_WHY_BOUNDARY
    PE = lib.UVS_WHY_PE
    NAT_ICMP = lib.UVS_WHY_NAT_ICMP
    APP = lib.UVS_WHY_APP
    SEND = lib.UVS_WHY_SEND
    TUNNEL_ICMP = lib.UVS_WHY_TUNNEL_ICMP
    GATHERED = lib.UVS_WHY_GATHERED
    REASSEMBLY = lib.UVS_WHY_REASSEMBLY

    @property
    def label(self) -> str:
        """The name that walks, metrics and doctor show, such as `no_service`."""
        return self.name.lower()


class Hdr:
    """Flags of a parsed IP header: `UVS_HDR_*`."""

    INVERSE: Final[int] = lib.UVS_HDR_INVERSE
    ICMP: Final[int] = lib.UVS_HDR_ICMP
    FRAGMENT: Final[int] = lib.UVS_HDR_FRAGMENT
    LATER: Final[int] = lib.UVS_HDR_LATER
    PORTS: Final[int] = lib.UVS_HDR_PORTS
    L4: Final[int] = lib.UVS_HDR_L4
    DF: Final[int] = lib.UVS_HDR_DF
    ATOMIC: Final[int] = lib.UVS_HDR_ATOMIC


class ConnFlag:
    """Connection flags: `IP_VS_CONN_F_*` of include/uapi/linux/ip_vs.h."""

    MASQ: Final[int] = lib.UVS_CONN_F_MASQ
    LOCALNODE: Final[int] = lib.UVS_CONN_F_LOCALNODE
    TUNNEL: Final[int] = lib.UVS_CONN_F_TUNNEL
    DROUTE: Final[int] = lib.UVS_CONN_F_DROUTE
    BYPASS: Final[int] = lib.UVS_CONN_F_BYPASS
    FWD_MASK: Final[int] = lib.UVS_CONN_F_FWD_MASK
    SYNC: Final[int] = lib.UVS_CONN_F_SYNC
    HASHED: Final[int] = lib.UVS_CONN_F_HASHED
    NOOUTPUT: Final[int] = lib.UVS_CONN_F_NOOUTPUT
    INACTIVE: Final[int] = lib.UVS_CONN_F_INACTIVE
    OUT_SEQ: Final[int] = lib.UVS_CONN_F_OUT_SEQ
    IN_SEQ: Final[int] = lib.UVS_CONN_F_IN_SEQ
    NO_CPORT: Final[int] = lib.UVS_CONN_F_NO_CPORT
    TEMPLATE: Final[int] = lib.UVS_CONN_F_TEMPLATE
    ONE_PACKET: Final[int] = lib.UVS_CONN_F_ONE_PACKET
    NFCT: Final[int] = lib.UVS_CONN_F_NFCT


class DestFlag:
    """Destination flags: `IP_VS_DEST_F_*` of include/uapi/linux/ip_vs.h."""

    AVAILABLE: Final[int] = lib.UVS_DEST_F_AVAILABLE
    OVERLOAD: Final[int] = lib.UVS_DEST_F_OVERLOAD


class Dir(enum.IntEnum):
    """Direction of a packet for the state machines."""

    INPUT = lib.UVS_DIR_INPUT
    OUTPUT = lib.UVS_DIR_OUTPUT
    INPUT_ONLY = lib.UVS_DIR_INPUT_ONLY
