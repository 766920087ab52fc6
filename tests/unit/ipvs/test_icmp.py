"""ICMP errors: from servers and routers to clients, from clients to servers, about our own tunnels."""

import pytest
from scapy.layers.inet import ICMP, IP, IPerror, UDPerror
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from scapy.packet import Raw
from support.packets import loaded
from support.world import (
    CIP,
    DIP,
    DROUTE,
    FAMILIES,
    MASQ,
    RIP,
    TUNNEL,
    VIP,
    VIP6,
    dissect,
    ends,
    icmp_error,
    packed,
    sums_right,
    tcp,
    udp,
)

from uvs.engine.core import TUN_F_CSUM, TUN_GRE, TUN_GUE, Why
from uvs.ipvs.skb import Verdict
from uvs.ipvs.unreachable import no_neighbour

STOLEN, ACCEPT, DROP = Verdict.STOLEN, Verdict.ACCEPT, Verdict.DROP


def test_icmp_error_of_a_server_reaches_the_client(world):
    world.server(world.service(VIP, 53, 17), RIP[1], 5353)
    world.local_in(udp(CIP, 2000, VIP, 53))
    quoted = udp(CIP, 2000, RIP[1], 5353)
    for source, keep in ((RIP[1], None), (RIP[1], 8), (RIP[1], 4), ("198.19.0.77", 8)):
        out = world.forward(icmp_error(source, CIP, 3, 3, quoted, keep=keep))
        assert (out.verdict, out.why) == (ACCEPT, Why.ICMP_OUT)
        assert (ends(out.content), sums_right(out.content)) == ((VIP, CIP), True)
        inner = out.content[IPerror]
        assert (ends(inner), bytes(inner.payload)[2:4]) == ((CIP, VIP), (53).to_bytes(2, "big"))
        if keep is None:
            assert out.content[UDPerror].sport == 2000
    wrong = icmp_error(RIP[1], CIP, 3, 3, quoted)
    wrong[ICMP].chksum = 1
    assert world.forward(wrong).why == Why.CHECKSUM
    other = icmp_error(RIP[1], CIP, 3, 3, udp(CIP, 2001, RIP[1], 5353))
    out = world.forward(other)
    assert (out.verdict, out.why, out.content) == (ACCEPT, Why.NO_CONN, None)
    not_handled = icmp_error(RIP[1], CIP, 12, 0, quoted)
    assert world.forward(not_handled).content is None


@pytest.mark.parametrize(("fwd", "target"), [(MASQ, RIP[1]), (DROUTE, VIP), (TUNNEL, VIP)])
def test_icmp_error_of_the_client_reaches_the_server(world, fwd, target):
    world.server(world.service(), RIP[1], 80, fwd)
    world.local_in(tcp(CIP, 1024, VIP, 80))
    error = icmp_error(CIP, VIP, 3, 4, tcp(VIP, 80, CIP, 1024, "A"), mtu=1300)
    out = world.local_in(error)
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.ICMP_IN, RIP[1])
    sent = out.sent[0][1]
    sent = sent.payload if fwd == TUNNEL else sent
    assert (sent.dst, sent[ICMP].nexthopmtu, sent[IPerror].src) == (target, 1300, target)
    assert sums_right(sent)
    before = world.entries
    assert before == [("SYN_RECV", 60)]


def test_icmp_of_no_connection_goes_to_the_local_stack(world):
    world.server(world.service(), RIP[1])
    out = world.local_in(icmp_error(CIP, VIP, 3, 3, tcp(VIP, 80, CIP, 1024, "A")))
    assert (out.verdict, out.why) == (ACCEPT, Why.NO_CONN)


GUE = {"tun_type": TUN_GUE, "tun_port": 6080}
TUNNELS = [
    ("ipip", {}, 0),
    ("gue", GUE, 12),
    ("gre", {"tun_type": TUN_GRE}, 4),
    ("gre, csum", {"tun_type": TUN_GRE, "tun_flags": TUN_F_CSUM}, 8),
]
tunnels = pytest.mark.parametrize(("tunnel", "encap"), [t[1:] for t in TUNNELS], ids=[t[0] for t in TUNNELS])
ROUTER = "198.19.0.77"


def _df(packet):
    packet[IP].flags = "DF"
    return packet


@tunnels
def test_router_on_the_way_of_a_tunnel(world, tunnel, encap):
    """Its frag-needed is about our packet: we learn the MTU, the client hears of its own packet.

    What it hears is the MTU of the route as the last packet found it.
    """
    dest = world.server(world.service(), RIP[1], 80, TUNNEL, **tunnel)
    packet = _df(tcp(CIP, 1024, VIP, 80))
    sent = world.local_in(packet).sent[0][1]

    def told(mtu):
        out = world.local_in(icmp_error(ROUTER, DIP, 3, 4, sent, mtu=mtu))
        assert (out.verdict, out.why) == (STOLEN, Why.TUNNEL_ICMP)
        answer = out.sent[0][1]
        assert (out.to, ends(answer), ends(answer[IPerror])) == (CIP, (VIP, CIP), (CIP, VIP))
        assert sums_right(answer)
        return answer, answer[ICMP].nexthopmtu + encap

    answer, mtu = told(900)
    # Counted as it passes LOCAL_OUT, and for what it quotes.
    assert dest.rec.stats[2::2] == (2, len(answer) + len(packet))
    assert (world.routes.pmtu, mtu) == ({packed(RIP[1]): 900}, 1480)
    assert told(850)[1] == 1480
    out = world.local_in(_df(tcp(CIP, 1024, VIP, 80, "A", data=bytes(900))))
    assert (out.why, out.sent[0][1][ICMP].nexthopmtu + encap) == (Why.TOO_BIG, 830)
    assert told(800)[1] == 780


@tunnels
def test_a_client_that_allows_fragments_is_not_told(world, tunnel, encap):
    world.server(world.service(), RIP[1], 80, TUNNEL, **tunnel)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    out = world.local_in(icmp_error(ROUTER, DIP, 3, 4, sent, mtu=900))
    assert (out.verdict, out.why, out.sent) == (STOLEN, Why.TUNNEL_ICMP, [])
    assert world.routes.pmtu == {packed(RIP[1]): 900}


def test_each_server_of_an_address_has_its_own_cached_route(world):
    """Two services by one server: who sent nothing since has the MTU of before; an edit forgets it."""
    services = [world.service(VIP, port) for port in (80, 81)]
    sent = []
    for svc in services:
        world.server(svc, RIP[1], svc.key.port, TUNNEL)
        sent.append(world.local_in(_df(tcp(CIP, 1024, VIP, svc.key.port))).sent[0][1])

    def told(which, mtu):
        out = world.local_in(icmp_error(ROUTER, DIP, 3, 4, sent[which], mtu=mtu))
        return out.sent[0][1][ICMP].nexthopmtu

    assert [told(0, 900), told(1, 900)] == [1480, 1480]
    world.local_in(tcp(CIP, 1024, VIP, 80, "A"))
    assert [told(0, 800), told(1, 800)] == [780, 1480]
    world.edit(services[1], RIP[1], 81, TUNNEL, weight=2)
    assert told(1, 700) == 680  # no route is cached: what the router said


@tunnels
@pytest.mark.parametrize(("typ", "code"), [(3, 0), (3, 1), (3, 3), (11, 0), (4, 0)])
def test_other_errors_about_a_tunnel_are_passed_on(world, tunnel, encap, typ, code):
    dest = world.server(world.service(), RIP[1], 80, TUNNEL, **tunnel)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80, tos=0x10)).sent[0][1]
    error = loaded(_changed(bytes(icmp_error(ROUTER, DIP, typ, code, sent)), 24, b"\0\0\x04\xd2"))
    error.csum_fill()
    out = world.local_in(error.data)
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.TUNNEL_ICMP, CIP)
    answer = out.sent[0][1]
    assert (answer[ICMP].type, answer[ICMP].code, bytes(answer[ICMP])[4:8]) == (typ, code, b"\0\0\x04\xd2")
    assert (ends(answer), answer.tos, ends(answer[IPerror])) == ((VIP, CIP), 0xD0, (CIP, VIP))
    assert dest.rec.stats[2] == 2


def _changed(data, at, value):
    out = bytearray(data)
    out[at : at + len(value)] = value
    return bytes(out)


# what it shows, tunnel, change of the quoted packet (function of its bytes), reason
QUOTES = [
    ("outer header alone", {}, lambda q: q[:20], Why.SHORT),
    ("gue: outer header alone", GUE, lambda q: q[:20], Why.NO_CONN),
    ("gue: UDP header alone", GUE, lambda q: q[:28], Why.NO_CONN),
    ("gue: without the inner header", GUE, lambda q: q[:32], Why.SHORT),
    ("gue: inner header cut", GUE, lambda q: q[:51], Why.SHORT),
    ("gue: without ports", GUE, lambda q: q[:52], Why.NO_CONN),
    ("gue: half a port", GUE, lambda q: q[:55], Why.NO_CONN),
    ("gue: ports alone", GUE, lambda q: q[:56], Why.TUNNEL_ICMP),
    ("gue: version 1", GUE, lambda q: _changed(q, 28, b"\x40"), Why.NO_CONN),
    ("gue: control", GUE, lambda q: _changed(q, 28, b"\x20"), Why.NO_CONN),
    ("gue: IPv6 inside", GUE, lambda q: _changed(q, 29, b"\x29"), Why.NO_CONN),
    ("gue: another port", GUE, lambda q: _changed(q, 22, b"\0\1"), Why.NO_CONN),
    ("gue: an option", GUE, lambda q: _changed(q[:32], 28, b"\1") + bytes(4) + q[32:], Why.TUNNEL_ICMP),
    ("gre: outer header alone", {"tun_type": TUN_GRE}, lambda q: q[:20], Why.PROTOCOL),
    ("gre: a key", {"tun_type": TUN_GRE}, lambda q: _changed(q, 20, b"\x20"), Why.PROTOCOL),
    ("gre: version 1", {"tun_type": TUN_GRE}, lambda q: _changed(q, 21, b"\1"), Why.PROTOCOL),
    ("gre: IPv6 inside", {"tun_type": TUN_GRE}, lambda q: _changed(q, 22, b"\x86\xdd"), Why.PROTOCOL),
    (
        "gre: a checksum we did not send",
        {"tun_type": TUN_GRE},
        lambda q: _changed(q[:24], 20, b"\x80") + bytes(4) + q[24:],
        Why.TUNNEL_ICMP,
    ),
    ("another destination", {}, lambda q: _changed(q, 19, b"\x37"), Why.PROTOCOL),
    ("gue: another destination", GUE, lambda q: _changed(q, 19, b"\x37"), Why.NO_CONN),
    ("a later fragment", GUE, lambda q: _changed(q, 6, b"\0\x10"), Why.FRAGMENT),
    ("inner protocol unknown", {}, lambda q: _changed(q, 29, b"\x2f"), Why.PROTOCOL),
    ("inner version 6", {}, lambda q: _changed(q, 20, b"\x65"), Why.SHORT),
    ("unknown connection", {}, lambda q: _changed(q, 40, b"\x09"), Why.NO_CONN),
]


@pytest.mark.parametrize(("tunnel", "change", "why"), [q[1:] for q in QUOTES], ids=[q[0] for q in QUOTES])
def test_quotes_of_tunnel_packets(world, tunnel, change, why):
    world.server(world.service(), RIP[1], 80, TUNNEL, **tunnel)
    sent = bytes(world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1])
    out = world.local_in(IP(src=ROUTER, dst=DIP) / ICMP(type=3, code=1) / Raw(change(sent)))
    ours = why == Why.TUNNEL_ICMP
    assert (out.verdict, out.why, len(out.sent)) == (STOLEN if ours else ACCEPT, why, int(ours))


def test_a_tunnels_error_with_a_wrong_checksum(world):
    world.server(world.service(), RIP[1], 80, TUNNEL, **GUE)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    error = icmp_error(ROUTER, DIP, 3, 1, sent)
    error[ICMP].chksum = 1
    out = world.local_in(error)
    assert (out.verdict, out.why, out.sent) == (DROP, Why.CHECKSUM, [])


def test_a_tunnels_error_on_its_way_elsewhere_is_not_ours(world):
    world.server(world.service(), RIP[1], 80, TUNNEL, **GUE)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    out = world.forward(icmp_error(ROUTER, CIP, 3, 1, sent))
    assert (out.verdict, out.sent) == (ACCEPT, [])


@tunnels
def test_a_tunnel_whose_server_does_not_answer_arp(world, tunnel, encap):
    """The director's error about its own packet is consumed, and counted; the client is not told."""
    dest = world.server(world.service(), RIP[1], 80, TUNNEL, **tunnel)
    packet = tcp(CIP, 1024, VIP, 80)
    sent = bytes(world.local_in(packet).sent[0][1])
    assert no_neighbour(world.ipvs, sent) == []
    assert dest.rec.stats[2::2] == (1, len(packet))


@pytest.mark.parametrize(("fwd", "family", "source"), [
    (MASQ, 4, VIP), (MASQ, 6, VIP6), (DROUTE, 4, DIP), (DROUTE, 6, VIP6),
])  # fmt: skip
def test_a_server_that_does_not_answer_arp(world, fwd, family, source):
    """The client is told: by NAT from the virtual address, by direct routing from the director's own (IPv4)."""
    client, vip, rip, _ = FAMILIES[family]
    world.server(world.service(vip), rip, 80, fwd)
    sent = bytes(world.local_in(tcp(client, 1024, vip, 80)).sent[0][1])
    ((to, error),) = no_neighbour(world.ipvs, sent)
    assert (world.routes.describe(to), ends(dissect(error))) == (client, (source, client))
    assert error[21 if family == 4 else 41] == (1 if family == 4 else 3)


@pytest.mark.parametrize(("fwd", "passed"), [(MASQ, False), (DROUTE, True), (TUNNEL, True)])
@pytest.mark.parametrize("family", [4, 6])
def test_a_checksum_is_looked_at_where_the_message_is_changed(world, family, fwd, passed):
    client, vip, rip, _ = FAMILIES[family]
    world.server(world.service(vip), rip, 80, fwd)
    world.local_in(tcp(client, 1024, vip, 80))
    reply = tcp(vip, 80, client, 1024, "A")
    if family == 4:
        error = bytearray(bytes(icmp_error(client, vip, 3, 3, reply)))
    else:
        error = bytearray(bytes(IPv6(src=client, dst=vip) / ICMPv6DestUnreach(code=4) / reply))
    error[-1] ^= 1
    out = world.local_in(bytes(error))
    assert (out.why, out.to) == ((Why.ICMP_IN, rip) if passed else (Why.CHECKSUM, None))


def test_error_about_a_later_fragment_of_a_tunnel_packet(world):
    world.server(world.service(), RIP[1], 80, TUNNEL)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    sent.frag = 100
    out = world.local_in(icmp_error("198.19.0.77", DIP, 3, 4, sent, mtu=900))
    assert (out.verdict, out.why, world.routes.pmtu) == (ACCEPT, Why.FRAGMENT, {})


@pytest.mark.parametrize(("port", "why"), [(21, Why.NO_DEST), (2000, Why.FTP_DATA)])
def test_error_for_an_ftp_service_without_servers(world, port, why):
    """schedule_icmp: the port that counts is the quoted one on the service's side."""
    world.ipvs.sysctl.set("schedule_icmp", 1)
    world.service(VIP, 21, flags=1)
    error = icmp_error(CIP, VIP, 3, 3, tcp(VIP, port, CIP, 1024, "A"))
    out = world.local_in(error)
    assert (out.verdict, out.why, out.sent) == (DROP if port == 21 else ACCEPT, why, [])


def test_error_about_somebody_elses_tunnel(world):
    world.server(world.service(), RIP[1], 80, TUNNEL)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    sent.dst = RIP[2]
    out = world.local_in(icmp_error("198.19.0.77", DIP, 3, 4, sent, mtu=900))
    assert (out.verdict, out.why, world.routes.pmtu) == (ACCEPT, Why.PROTOCOL, {})


@pytest.mark.parametrize(("mtu", "length"), [(1500, 576), (400, 400)])
def test_how_much_the_directors_own_error_quotes(world, mtu, length):
    """576 bytes in all (RFC 1812), or what the way back takes."""
    world.service()
    world.routes.pmtu[packed(CIP)] = mtu
    error = world.local_in(tcp(CIP, 1024, VIP, 80, data=bytes(1000))).sent[0][1]
    assert len(bytes(error)) == length
    assert sums_right(error)


def test_a_flow_label_for_the_directors_own_errors(world):
    """The same for one host, another for another; none with net.ipv6.auto_flowlabels=0."""

    def label(client):
        return world.local_in(tcp(client, 1024, VIP6, 80)).sent[0][1].fl

    world.service(VIP6)
    labels = [label(client) for client in ("2001:db8:9::1", "2001:db8:9::1", "2001:db8:9::2")]
    assert labels[0] == labels[1] != labels[2]
    assert 0 not in labels
    world.ipvs.auto_flowlabels = False
    assert label("2001:db8:9::1") == 0
