"""The texts of /proc/net/ip_vs*, as a kernel writes them (*_seq_show in ip_vs_ctl.c, _conn.c and _app.c).

Each function yields lines as they are read, so that a million connections need no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from socket import AF_INET, htonl

from uvs.control.messages import CONN_TAB_SIZE
from uvs.engine.core import Conn, ConnFlag
from uvs.ipvs import apps
from uvs.ipvs.ipproto import PROTO_NAMES
from uvs.ipvs.knobs import HZ
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import NetnsIpvs

# ip_vs_fwd_name
_METHODS = {int(ConnFlag.LOCALNODE): "Local", int(ConnFlag.TUNNEL): "Tunnel", int(ConnFlag.DROUTE): "Route"}
_U32, _U64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def _protocol(number: int) -> str:
    return PROTO_NAMES.get(number, f"IP_{number}")


def _address(af: int, addr: bytes) -> str:
    """%08X of an IPv4 address in host order, %pI6 of the other."""
    if af == AF_INET:
        return addr.hex().upper()
    text = addr.hex()
    return ":".join(text[i : i + 4] for i in range(0, 32, 4))


def _endpoint(af: int, addr: bytes, port: int) -> str:
    text = _address(af, addr)
    return f"{text}:{port:04X}" if af == AF_INET else f"[{text}]:{port:04X}"


def ip_vs(ipvs: NetnsIpvs) -> Iterator[str]:
    """ip_vs_info_seq_show: services and their destinations, services by mark last."""
    yield f"IP Virtual Server version 1.2.1 (size={CONN_TAB_SIZE})\n"
    yield "Prot LocalAddress:Port Scheduler Flags\n"
    yield "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
    services = list(ipvs.services)
    for svc in sorted(services, key=lambda svc: svc.key.fwmark != 0):
        yield _service(svc)
        for dest in svc.dests[:]:
            yield _dest(dest)


def _service(svc: Service) -> str:
    key, spec = svc.key, svc.spec
    ops = "ops " if svc.one_packet else ""
    if key.fwmark:
        line = f"FWM  {key.fwmark:08X} {spec.sched_name} {ops}"
    elif key.af == AF_INET:
        where = _endpoint(key.af, key.addr, key.port)
        line = f"{_protocol(key.protocol)}  {where} {spec.sched_name} {ops} "
    else:
        line = f"{_protocol(key.protocol)}  {_endpoint(key.af, key.addr, key.port)} {spec.sched_name} "
    if svc.persistent:
        # The netmask of IPv6 is a prefix length that goes through the same ntohl.
        mask = spec.netmask if key.af == AF_INET else htonl(spec.netmask)
        line += f"persistent {_signed(spec.timeout * HZ)} {mask & _U32:08X}"
    return line + "\n"


def _dest(dest: Dest) -> str:
    rec = dest.rec
    method = _METHODS.get(rec.conn_flags & ConnFlag.FWD_MASK, "Masq")
    where = _endpoint(dest.spec.af, dest.spec.addr, dest.spec.port)
    return f"  -> {where}      {method:<7} {rec.weight:<6} {rec.activeconns:<10} {rec.inactconns:<10}\n"


def _signed(value: int) -> int:
    value &= _U32
    return value - (1 << 32) if value >> 31 else value


def _conn(conn: Conn) -> str:
    """What both listings of connections begin with."""
    return (
        f"{_protocol(conn.protocol):<3} {_address(conn.af, conn.caddr)} {conn.cport:04X} "
        f"{_address(conn.af, conn.vaddr)} {conn.vport:04X} "
        f"{_address(conn.daf, conn.daddr)} {conn.dport:04X} {conn.state_name:<11}"
    )


def ip_vs_conn(ipvs: NetnsIpvs) -> Iterator[str]:
    """ip_vs_conn_seq_show; a persistence engine's name and data stand last."""
    yield "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n"
    for conn in ipvs.table.conns():
        pe = ipvs.table.pe_data(conn).decode(errors="surrogateescape")
        yield f"{_conn(conn)} {conn.remaining(ipvs.clock()) // 1000:7}{' ' if pe else ''}{pe}\n"


def ip_vs_conn_sync(ipvs: NetnsIpvs) -> Iterator[str]:
    """ip_vs_conn_sync_seq_show: the same with where an entry comes from."""
    yield "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Origin Expires\n"
    for conn in ipvs.table.conns():
        origin = "SYNC" if conn.flags & ConnFlag.SYNC else "LOCAL"
        yield f"{_conn(conn)} {origin:<6} {conn.remaining(ipvs.clock()) // 1000:7}\n"


_TOTALS = "   Total Incoming Outgoing         Incoming         Outgoing\n"
_COLUMNS = "Conns  Packets  Packets            Bytes            Bytes\n"
_RATES = " Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s\n"


def _row(values: Iterable[int]) -> str:
    conns, inpkts, outpkts, inbytes, outbytes = (v & _U64 for v in values)
    return f"{conns:8X} {inpkts:8X} {outpkts:8X} {inbytes:16X} {outbytes:16X}\n"


def ip_vs_stats(ipvs: NetnsIpvs) -> Iterator[str]:
    """ip_vs_stats_show: the snapshot's totals, and the rates."""
    total = ipvs.services.total
    yield _TOTALS + "   " + _COLUMNS + _row(total.counters) + "\n" + _RATES + _row(total.rates)


def ip_vs_stats_percpu(ipvs: NetnsIpvs) -> Iterator[str]:
    """ip_vs_stats_percpu_show: live counters by CPU, then as in ip_vs_stats.

    One thread counts all: the first CPU has everything.
    """
    total = ipvs.services.total
    yield "    " + _TOTALS + "CPU " + "   " + _COLUMNS
    for cpu in range(max(ipvs.sysctl.cpus, default=0) + 1):
        yield f"{cpu:3X} " + _row(ipvs.table.total.raw if cpu == 0 else (0,) * 5)
    yield "  ~ " + _row(total.counters) + "\n    " + _RATES + "    " + _row(total.rates)


def ip_vs_app(ipvs: NetnsIpvs) -> Iterator[str]:
    """ip_vs_app_seq_show: application helpers, and how many connections each has."""
    yield "prot port    usecnt name\n"
    used = sum(1 for conn in ipvs.table.conns() if apps.bound(conn))
    yield f"{'TCP':<3}  {apps.ftp.PORT:<7} {used:<6} {'ftp':<17}\n"


TEXTS: dict[str, Callable[[NetnsIpvs], Iterator[str]]] = {
    "ip_vs": ip_vs,
    "ip_vs_app": ip_vs_app,
    "ip_vs_conn": ip_vs_conn,
    "ip_vs_conn_sync": ip_vs_conn_sync,
    "ip_vs_stats": ip_vs_stats,
    "ip_vs_stats_percpu": ip_vs_stats_percpu,
}


def chunks(lines: Iterable[str], size: int = 8192) -> Iterator[str]:
    """Lines joined to pieces of about `size` characters."""
    waiting: list[str] = []
    length = 0
    for line in lines:
        waiting.append(line)
        length += len(line)
        if length >= size:
            yield "".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield "".join(waiting)
