"""What each balanced protocol decides: may this packet open a connection (ip_vs_proto_*.c)?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from uvs.engine.core import Conn, ConnFlag, Hdr, Header, Why
from uvs.ipvs.ipproto import IPPROTO_AH, IPPROTO_ESP, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.skb import NetnsIpvs

SYN, RST = 2, 4
TCP_S_FIN_WAIT, TCP_S_TIME_WAIT, TCP_S_CLOSE = 4, 5, 6
SCTP_S_CLOSED = 13
SCTP_INIT, SCTP_ABORT = 1, 6


@dataclass(frozen=True, slots=True)
class Protocol:
    """struct ip_vs_protocol. `schedulable` returns Why.NONE for yes, or why not (SHORT drops)."""

    name: str
    number: int
    is_new_conn: Callable[[Header], bool]
    expects_new: Callable[[Conn, int], bool]
    schedulable: Callable[[NetnsIpvs, Header], Why]


def _tcp_new(iph: Header) -> bool:
    return bool(iph.flags & Hdr.L4 and iph.tcp_flags & SYN)


def _tcp_expects(cp: Conn, mode: int) -> bool:
    """is_new_conn_expected for TCP."""
    state = cp.state
    if state in (TCP_S_TIME_WAIT, TCP_S_CLOSE):
        return True
    return bool(mode & 2 and state == TCP_S_FIN_WAIT and cp.flags & ConnFlag.NOOUTPUT)


def _tcp_schedulable(ipvs: NetnsIpvs, iph: Header) -> Why:
    """tcp_conn_schedule. A SYN+ACK is schedulable: active FTP."""
    if iph.flags & Hdr.ICMP:
        return Why.NONE if iph.flags & Hdr.PORTS else Why.SHORT
    if not iph.flags & Hdr.L4:
        return Why.SHORT
    flags = iph.tcp_flags
    if flags & RST or not (flags & SYN or ipvs.sysctl.sloppy_tcp):
        return Why.NOT_SYN
    return Why.NONE


def _udp_schedulable(ipvs: NetnsIpvs, iph: Header) -> Why:
    """udp_conn_schedule."""
    needed = Hdr.PORTS if iph.flags & Hdr.ICMP else Hdr.L4
    return Why.NONE if iph.flags & needed else Why.SHORT


def _sctp_new(iph: Header) -> bool:
    return bool(iph.flags & Hdr.L4 and iph.chunk == SCTP_INIT)


def _sctp_schedulable(ipvs: NetnsIpvs, iph: Header) -> Why:
    """sctp_conn_schedule."""
    if iph.flags & Hdr.ICMP:
        return Why.NONE if iph.flags & Hdr.PORTS else Why.SHORT
    if not iph.flags & Hdr.L4:
        return Why.SHORT
    if iph.chunk == SCTP_ABORT or not (iph.chunk == SCTP_INIT or ipvs.sysctl.sloppy_sctp):
        return Why.NOT_SYN
    return Why.NONE


def _never(*_: object) -> bool:
    return False


def _follows_only(ipvs: NetnsIpvs, iph: Header) -> Why:
    """ah_esp_conn_schedule: AH and ESP only follow a connection of UDP 500."""
    return Why.NO_CONN


_PROTOCOLS = (
    Protocol("TCP", IPPROTO_TCP, _tcp_new, _tcp_expects, _tcp_schedulable),
    Protocol("UDP", IPPROTO_UDP, _never, _never, _udp_schedulable),
    Protocol("SCTP", IPPROTO_SCTP, _sctp_new, lambda cp, mode: cp.state == SCTP_S_CLOSED, _sctp_schedulable),
    Protocol("ESP", IPPROTO_ESP, _never, _never, _follows_only),
    Protocol("AH", IPPROTO_AH, _never, _never, _follows_only),
)

BY_NUMBER = {p.number: p for p in _PROTOCOLS}
