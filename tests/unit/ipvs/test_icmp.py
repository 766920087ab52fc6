"""ICMP errors: from servers and routers to clients, from clients to servers, about our own tunnels."""

import pytest
from scapy.layers.inet import ICMP, IP, IPerror, UDPerror
from support.world import (
    CIP,
    DIP,
    DROUTE,
    MASQ,
    RIP,
    TUNNEL,
    VIP,
    ends,
    icmp_error,
    packed,
    sums_right,
    tcp,
    udp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

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


@pytest.mark.parametrize(("df", "told"), [(True, 880), (False, None)])
def test_router_on_the_way_of_a_tunnel(world, df, told):
    """Its frag-needed is about our packet: we learn the MTU, the client hears of its own packet."""
    dest = world.server(world.service(), RIP[1], 80, TUNNEL)
    packet = tcp(CIP, 1024, VIP, 80)
    if df:
        packet[IP].flags = "DF"
    sent = world.local_in(packet).sent[0][1]
    error = icmp_error("198.19.0.77", DIP, 3, 4, sent, mtu=900)
    out = world.local_in(error)
    assert (out.verdict, out.why) == (STOLEN, Why.TUNNEL_ICMP)
    assert world.routes.pmtu == {packed(RIP[1]): 900}
    if not told:
        assert out.sent == []
        return
    answer = out.sent[0][1]
    assert (out.to, ends(answer), answer[ICMP].nexthopmtu) == (CIP, (VIP, CIP), told)
    # Counted as it passes LOCAL_OUT, and for what it quotes.
    assert dest.rec.stats[2::2] == (2, len(answer) + len(packet))
    assert ends(answer[IPerror]) == (CIP, VIP)
    assert sums_right(answer)


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
