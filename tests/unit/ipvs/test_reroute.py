"""sysctl snat_reroute: a translated reply goes by the route from its new source (ip_vs_route_me_harder)."""

import pytest
from support.world import (
    CIP,
    CIP6,
    DROUTE,
    RIP,
    RIP6,
    VIP,
    VIP6,
    ends,
    icmp_error,
    packed,
    sums_right,
    tcp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

GATEWAY = {4: "198.18.0.254", 6: "2001:db8:18::254"}


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def way(request, world):
    """A connection by NAT, and a rule that sends what comes from the virtual address by a gateway."""
    four = request.param == 4
    vip, rip, cip = (VIP, RIP[1], CIP) if four else (VIP6, RIP6[1], CIP6)
    world.server(world.service(vip), rip)
    world.local_in(tcp(cip, 1024, vip, 80))
    world.routes.ways[packed(vip), 7] = packed(GATEWAY[request.param])
    return vip, rip, cip, GATEWAY[request.param]


@pytest.mark.parametrize("value", [1, -1, 2])
def test_a_reply_is_taken_out_and_sent(world, way, value):
    vip, rip, cip, gateway = way
    world.ipvs.sysctl.set("snat_reroute", value)
    out = world.forward(tcp(rip, 80, cip, 1024, "SA"), mark=7)
    assert (out.verdict, out.why, out.to) == (Verdict.STOLEN, Why.REPLY, gateway)
    assert ends(out.sent[0][1]) == (vip, cip)
    assert sums_right(out.sent[0][1])
    assert world.entries[0][0] == "SYN_RECV"


def test_so_is_an_error_from_a_server(world):
    world.server(world.service(), RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.routes.ways[packed(VIP), 0] = packed(GATEWAY[4])
    out = world.forward(icmp_error(RIP[1], CIP, 3, 1, tcp(CIP, 1024, RIP[1], 80)))
    assert (out.verdict, out.why, out.to) == (Verdict.STOLEN, Why.ICMP_OUT, GATEWAY[4])
    assert ends(out.sent[0][1]) == (VIP, CIP)


def test_switched_off_it_keeps_its_route(world, way):
    _, rip, cip, _ = way
    world.ipvs.sysctl.set("snat_reroute", 0)
    out = world.forward(tcp(rip, 80, cip, 1024, "SA"), mark=7)
    assert (out.verdict, out.why, out.sent) == (Verdict.ACCEPT, Why.REPLY, [])


@pytest.mark.parametrize("why", ["no rules", "not an address of this host", "local out", "local in"])
def test_where_there_is_nothing_to_do_it_keeps_its_route(world, way, why):
    vip, rip, cip, _ = way
    reply = tcp(rip, 80, cip, 1024, "SA")
    if why == "no rules":
        world.routes.ways.clear()
    elif why == "not an address of this host":  # a marked packet taken in: the kernel cannot be asked
        world.routes.local.discard(packed(vip))
    send = {"local out": world.local_out, "local in": world.local_in}.get(why, world.forward)
    out = send(reply, mark=7)
    assert (out.verdict, out.why, out.sent) == (Verdict.ACCEPT, Why.REPLY, [])


def test_no_route_from_there(world, way):
    _, rip, cip, gateway = way
    world.routes.unreachable.add(packed(gateway))
    world.pass_time(20)
    out = world.forward(tcp(rip, 80, cip, 1024, "R"), mark=7)
    assert (out.verdict, out.why, out.sent) == (Verdict.DROP, Why.NO_ROUTE, [])
    (dest,) = next(iter(world.ipvs.services)).dests
    assert dest.rec.stats[2] == 0
    assert world.entries == [("SYN_RECV", 60)]  # its timer starts anew; the RST is not followed


def test_no_route_for_an_error(world):
    world.server(world.service(), RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.routes.ways[packed(VIP), 0] = packed(GATEWAY[4])
    world.routes.unreachable.add(packed(GATEWAY[4]))
    out = world.forward(icmp_error(RIP[1], CIP, 3, 1, tcp(CIP, 1024, RIP[1], 80)))
    assert (out.verdict, out.why, out.sent) == (Verdict.DROP, Why.NO_ROUTE, [])
    (dest,) = next(iter(world.ipvs.services)).dests
    assert dest.rec.stats[2] == 0


def test_what_is_not_translated_keeps_its_route(world):
    world.server(world.service(), RIP[1], fwd=DROUTE)
    world.routes.ways[packed(VIP), 0] = packed(GATEWAY[4])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    assert world.forward(tcp(VIP, 80, CIP, 1024, "SA")).verdict == Verdict.ACCEPT
