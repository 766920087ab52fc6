"""Persistence by Call-ID: which header is found, and what becomes of its datagrams."""

import pytest
from support.world import CIP, RIP, VIP, icmp_error, tcp, udp

from uvs.engine.core import ConnFlag, Why
from uvs.ipvs import pe
from uvs.ipvs.pe.sip import call_id
from uvs.ipvs.skb import Verdict

PERSISTENT, ONE_PACKET = 1, 4
S = "OPTIONS sip:x SIP/2.0\r\n"

# As Linux 6.1.0-57 took them; None: the datagram was dropped.
HEADERS = [
    (S + "Call-ID: a@b\r\n", "a@b"),
    (S + "call-id:a@b\r\n", "a@b"),
    (S + "CALL-ID \t: \t a@b\r\n", "a@b"),
    (S + "Call-ID: a@b\n", "a@b"),
    (S + "i: a@b\r\n", "a@b"),
    (S + "I:a@b\r\n", "a@b"),
    (S + "ii: z\r\n", None),
    (S + "i\xe9: z\r\n", None),
    # a header that only begins like it ends the search
    (S + "i-x: z\r\nCall-ID: z\r\n", None),
    (S + "Call-IDX: z\r\nCall-ID: z\r\n", None),
    ("Call-ID: z\r\n", None),  # never the first line
    ("\r\nCall-ID: c\r\n", "c"),
    ("\nCall-ID: c\n", "c"),
    ("\rCall-ID: c\r", "c"),
    ("\n\nCall-ID: c\n", None),  # a line end that follows one starts no line
    ("\n\n\nCall-ID: c\n", "c"),
    ("\r\r\nCall-ID: c\r\n", "c"),
    (S + "\r\nCall-ID: c\r\n", "c"),
    (S + " Call-ID: z\r\n", None),  # continuations
    (S + "Call-ID\r\n : c\r\n", "c"),
    (S + "Call-ID:\r\n c\r\n", "c"),
    (S + "Call-ID:\r\nc\r\n", None),
    (S + "Call-ID: c", None),  # a line end must follow
    (S + "Call-ID: c\r", "c"),
    (S + "Call-ID: c \r\n", None),
    (S + "Call-ID: c@\r\n", None),
    (S + "Call-ID: c@d@e\r\n", None),
    *((S + f"Call-ID: c{bad}x\r\n", None) for bad in ";,&#$=^|\xd7\xf7\xb5\xaa"),
    (S + "Call-ID: -.!%*_+`'~()<>:\\\"/[]?{}@x\r\n", "-.!%*_+`'~()<>:\\\"/[]?{}@x"),
    (S + "Call-ID: \xe9\xc0\xff\r\n", "\xe9\xc0\xff"),
    (S + "Call-ID: " + "x" * 255 + "\r\n", "x" * 255),
    (S + "Call-ID: " + "x" * 256 + "\r\n", None),
    (S + "Call-ID: \r\n", None),
    (S + "Call-ID:", None),
    (S + "Call-ID", None),
    (S + "i", None),
    (S, None),
    ("x", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "found"), HEADERS)
def test_call_id(text, found):
    assert call_id(text.encode("latin-1")) == (None if found is None else found.encode("latin-1"))


def sip(world, port=5060, **kw):
    svc = world.service(port=port, proto=17, pe_name="sip", flags=PERSISTENT, timeout=300, **kw)
    for i in (1, 2, 3):
        world.server(svc, RIP[i], port)
    return svc


def call(client, cid, sport=5060, dport=5060):
    return udp(client, sport, VIP, dport, S.encode() + b"Call-ID: " + cid + b"\r\n")


def templates(world):
    return sorted(
        (world.table.pe_data(c), c.state_name) for c in world.table.conns() if c.flags & ConnFlag.TEMPLATE
    )


def test_engines_by_name():
    assert pe.names() == ["sip"]
    assert (pe.find("sip").name, pe.find("nosuch"), pe.find("")) == ("sip", None, None)


def test_calls_stay_together(world):
    """Whatever port or, under the mask, address the datagrams of a call come from."""
    svc = sip(world, netmask=0xFFFF0000)
    assert world.local_in(call(CIP, b"a@b")).to == RIP[3]
    assert world.local_in(call("10.9.7.7", b"a@b", 5070)).to == RIP[3]
    assert world.local_in(call("10.9.7.7", b"A@b", 5071)).to == RIP[2]
    assert world.local_in(call("10.8.0.1", b"a@b")).to == RIP[1]
    assert templates(world) == [(b"sip A@b", "NONE"), (b"sip a@b", "NONE"), (b"sip a@b", "NONE")]
    assert sum(d.rec.persistconns for d in svc.dests) == 3


def test_known_connections_are_not_parsed(world):
    sip(world)
    world.local_in(call(CIP, b"a"))
    assert world.local_in(udp(CIP, 5060, VIP, 5060, b"")).to == RIP[3]


def test_refused(world):
    """No Call-ID, or no UDP: dropped, and nobody is told."""
    sip(world)
    svc = world.service(port=5060, pe_name="sip", flags=PERSISTENT, timeout=300)
    world.server(svc, RIP[1], 5060)
    for packet in (udp(CIP, 1024, VIP, 5060, b"hello"), tcp(CIP, 1024, VIP, 5060)):
        got = world.local_in(packet)
        assert (got.verdict, got.why, got.sent) == (Verdict.DROP, Why.PE, [])
    assert list(world.table.conns()) == []


def test_an_icmp_error_cannot_be_scheduled(world):
    """fill_param looks at the packet itself, and that is ICMP."""
    sip(world)
    world.ipvs.sysctl.set("schedule_icmp", "1")
    quoted = udp(VIP, 5060, CIP, 5060, S.encode() + b"Call-ID: a\r\n")
    got = world.local_in(icmp_error(CIP, VIP, 3, 3, quoted))
    assert (got.verdict, got.why) == (Verdict.DROP, Why.PE)


def test_an_engine_given_and_taken_away(world):
    svc = sip(world)
    world.local_in(call(CIP, b"a"))
    svc.spec.pe_name = ""
    world.ipvs.services.edit_service(svc.spec)
    assert world.local_in(udp(CIP, 1, VIP, 5060, b"hello")).to == RIP[2]
    assert templates(world) == [(b"", "NONE"), (b"sip a", "NONE")]
    svc.spec.pe_name = "sip"
    world.ipvs.services.edit_service(svc.spec)
    assert world.local_in(call(CIP, b"a", 2)).to == RIP[3]


def test_a_walk_tells_the_call(world):
    sip(world)
    world.ipvs.recorder.want = 2
    world.local_in(call(CIP, b"a@b\xe9"))
    world.local_in(udp(CIP, 1, VIP, 5060))
    told = [{s["function"]: s["decision"] for s in w.to_json()["steps"]} for w in world.ipvs.recorder.walks]
    assert [w["ip_vs_sip_fill_param"] for w in told] == [r"sip a@b\xe9", "refused"]


# ------------------------------------------------------------------ from the real server's side


def reply(i, cid, sport=5060, dport=6000):
    data = S.encode() + b"Call-ID: " + cid + b"\r\n" if cid else b"hello"
    return udp(RIP[i], sport, CIP, dport, data)


def test_a_server_begins(world):
    svc = sip(world)
    got = world.forward(reply(1, b"a"))
    assert (got.verdict, got.why, got.content.src, got.content.sport) == (
        Verdict.ACCEPT, Why.REPLY, VIP, 5060,
    )  # fmt: skip
    assert world.local_in(udp(CIP, 6000, VIP, 5060, b"ok")).to == RIP[1]
    assert world.local_in(call(CIP, b"a", 6001)).to == RIP[1]
    assert templates(world) == [(b"sip a", "ASSURED")]
    assert (svc.rec.stats[0], svc.dests[2].rec.stats[0]) == (2, 2)
    # another server takes the call over: the old template is set aside
    world.forward(reply(2, b"a", dport=6001))
    assert world.local_in(call(CIP, b"a", 6002)).to == RIP[2]
    assert sorted(c.vport for c in world.table.conns() if c.flags & ConnFlag.TEMPLATE) == [5060, 0xFFFF]


@pytest.mark.parametrize(
    ("what", "packet"),
    [
        ("no Call-ID", reply(1, b"")),
        ("from another port", reply(1, b"a", sport=5061)),
        ("no server of it", udp("198.19.0.14", 5060, CIP, 6000, S.encode() + b"Call-ID: a\r\n")),
    ],
)
def test_a_server_does_not_begin(world, what, packet):
    sip(world)
    got = world.forward(packet)
    assert (got.verdict, got.why, got.content) == (Verdict.ACCEPT, Why.NO_CONN, None)


def test_not_of_every_service(world):
    """Not of a mark or every port; without an engine; not at LOCAL_IN."""
    for kw in ({"fwmark": 7}, {"port": 0}):
        svc = world.service(proto=17, pe_name="sip", flags=PERSISTENT, timeout=300, **kw)
        world.server(svc, RIP[1], 5060)
        assert world.forward(reply(1, b"a")).why == Why.NO_CONN
        world.delete(svc, RIP[1], 5060)
    svc = world.service(port=5060, proto=17, flags=PERSISTENT, timeout=300)
    world.server(svc, RIP[1], 5060)
    assert world.forward(reply(1, b"a")).why == Why.NO_CONN
    svc.spec.pe_name = "sip"
    world.ipvs.services.edit_service(svc.spec)
    assert world.local_in(reply(1, b"a")).why == Why.NO_SERVICE
    assert world.local_out(reply(1, b"a")).why == Why.REPLY


def test_a_service_that_is_not_persistent(world):
    """Its servers may begin as well, and need no Call-ID."""
    svc = world.service(port=5060, proto=17, pe_name="sip")
    world.server(svc, RIP[1], 5060)
    assert world.forward(reply(1, b"")).content.src == VIP
    assert templates(world) == []


def test_one_packet(world):
    """Each datagram by the call's template, both ways; nothing else stays."""
    svc = sip(world)
    svc.spec.flags |= ONE_PACKET
    world.ipvs.services.edit_service(svc.spec)
    assert [world.local_in(call(CIP, b"a")).to for _ in range(2)] == [RIP[3], RIP[3]]
    assert world.forward(reply(3, b"a")).content.src == VIP
    assert templates(world) == [(b"sip a", "ASSURED")]
    assert [c.flags & ConnFlag.TEMPLATE for c in world.table.conns()] == [ConnFlag.TEMPLATE]
    assert world.forward(reply(3, b"")).why == Why.NO_CONN


def test_no_room(world):
    """The table is full: the packet passes as if it were nobody's, and no template is left half made."""
    sip(world)
    for i in range(world.table.info()["records"]):
        if (
            world.table.conn_new(2, 6, bytes(4), 1, bytes(4), i % 65536, 2, bytes(4), 1, 0, 0, 0, world.now)
            is None
        ):
            break
    assert world.forward(reply(1, b"a")).why == Why.NO_CONN
    assert world.local_in(call(CIP, b"a")).why == Why.TABLE_FULL
