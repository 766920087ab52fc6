"""FTP by NAT: data connections belong to their control connection (ip_vs_ftp.c).

A client in passive mode must be told the virtual address instead of the real server's; the entry for the data
connection is made beforehand, so that both come out of one real server.
"""

from __future__ import annotations

from uvs.engine.core import AF_INET, Conn, ConnFlag, Dir, Header, Why
from uvs.ipvs import walk
from uvs.ipvs.apps.ftp_text import Mode, Place, passive_command, passive_reply, port_command
from uvs.ipvs.ipproto import IPPROTO_TCP
from uvs.ipvs.skb import NetnsIpvs, Skb

PORT = 21  # module parameter `ports`
_ESTABLISHED, _LISTEN = 1, 9


def _payload(skb: Skb, iph: Header) -> tuple[int, bytes]:
    """Offset in the packet, and bytes; empty if the TCP header says nonsense."""
    data = skb.pkt.data
    words = data[iph.len + 12] >> 4
    start = iph.len + 4 * words
    return start, data[start : iph.end] if words >= 5 else b""


def _listen(ipvs: NetnsIpvs, cp: Conn, now: int) -> None:
    """ip_vs_tcp_conn_listen."""
    cp.state = _LISTEN
    cp.timeout = ipvs.table.timeouts(IPPROTO_TCP)[_LISTEN]
    ipvs.table.conn_put(cp, now)


def _set_mode(ipvs: NetnsIpvs, cp: Conn, mode: Mode) -> Why:
    app = ipvs.table.app_data(cp, make=mode != Mode.ACTIVE)
    if app:
        app.mode = mode
    return Why.NONE if app or mode == Mode.ACTIVE else Why.TABLE_FULL


def ip_vs_ftp_in(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Why:
    """A client's packet: PASV and EPSV are remembered until the reply, PORT and EPRT make the entry."""
    if cp.state != _ESTABLISHED:
        return Why.NONE
    _, text = _payload(skb, iph)
    mode = passive_command(text, cp.af)
    if mode == Mode.ACTIVE:
        return Why.NONE
    if mode is not None:
        if skb.walk:
            skb.walk.step(2, "ip_vs_ftp_in", f"passive mode asked for: {mode.name.lower()}")
        return _set_mode(ipvs, cp, mode)
    place = port_command(text, cp.af)
    if place is None or place.addr is None:
        return Why.NONE
    _set_mode(ipvs, cp, Mode.ACTIVE)
    return _active(ipvs, skb, cp, place.addr, place.port)


def _active(ipvs: NetnsIpvs, skb: Skb, cp: Conn, addr: bytes, port: int) -> Why:
    """The server will connect from its port 20 to what the client told; the client sees the VIP's."""
    table, vport, dport = ipvs.table, (cp.vport - 1) & 0xFFFF, (cp.dport - 1) & 0xFFFF
    data = table.conn_between(cp.af, IPPROTO_TCP, addr, port, cp.vaddr, vport, Dir.INPUT)
    if data is None:
        data = table.conn_new(
            cp.af, IPPROTO_TCP, addr, port, cp.vaddr, vport, cp.af, cp.daddr, dport,
            skb.mark, 0, cp.dest, skb.now,
        )  # fmt: skip
        if data is None:
            return Why.TABLE_FULL
        table.control_add(data, cp)
    _listen(ipvs, data, skb.now)
    if skb.walk:
        skb.walk.step(2, "ip_vs_ftp_in", "data connection awaited", **walk.entry(data, skb.now))
    return Why.NONE


def ip_vs_ftp_out(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Why:
    """A server's packet: the reply to PASV or EPSV gets the virtual address."""
    app = ipvs.table.app_data(cp)
    if app is None or app.mode == Mode.ACTIVE or cp.state != _ESTABLISHED:
        return Why.NONE
    mode = Mode(app.mode)
    start, text = _payload(skb, iph)
    place = passive_reply(text, mode, cp.af)
    if place is None:
        return Why.NONE
    data = _passive(ipvs, skb, cp, place)
    if data is None:
        return Why.TABLE_FULL
    told = _told(data, mode)
    seq = int.from_bytes(skb.pkt.view[iph.len + 4 : iph.len + 8], "big")
    size = place.end - place.start
    why = Why(skb.pkt.mangle_tcp(start + place.start, size, told))
    if not why and size != len(told):
        app.resized(seq, len(told) - size)
        cp.flags |= ConnFlag.OUT_SEQ
    app.mode = Mode.ACTIVE
    _listen(ipvs, data, skb.now)
    if skb.walk:
        skb.walk.step(2, "ip_vs_ftp_out", f"the client is told {told.decode()}", **walk.entry(data, skb.now))
    return why


def _passive(ipvs: NetnsIpvs, skb: Skb, cp: Conn, place: Place) -> Conn | None:
    """The entry for the port that the server told, from whatever port the client will use."""
    table, addr, port = ipvs.table, place.addr or cp.daddr, place.port
    data = table.conn_between(cp.af, IPPROTO_TCP, addr, port, cp.caddr, 0, Dir.OUTPUT)
    if data is None:
        data = table.conn_new(
            cp.af, IPPROTO_TCP, cp.caddr, 0, cp.vaddr, port, cp.af, addr, port,
            skb.mark, ConnFlag.NO_CPORT, cp.dest, skb.now,
        )  # fmt: skip
        if data:
            table.control_add(data, cp)
    return data


def _told(data: Conn, mode: Mode) -> bytes:
    """The virtual address and port as the reply has them."""
    if mode == Mode.EPSV:
        return b"|||%d|" % data.vport
    vaddr = data.vaddr if data.af == AF_INET else bytes(4)
    return b",".join(b"%d" % n for n in (*vaddr, data.vport >> 8, data.vport & 0xFF))
