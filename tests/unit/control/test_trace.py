"""Traces over the control socket: a client's own, and gone with it."""

from __future__ import annotations

import errno
import json

import pytest
from support.world import CIP, RIP, VIP, tcp

from uvs.control import extension
from uvs.engine.trace import TRACERS
from uvs.ipvs.spec import IpvsError


def syn(director, port=80, source=1024):
    director.do(lambda: director.world.local_in(tcp(CIP, source, VIP, port)))


def test_each_has_its_own(client, director):
    director.do(lambda: director.world.server(director.world.service(), RIP[1]))
    with director.client() as other:
        assert client.trace("TCP  port 80", 50) == "tcp and port 80"
        assert other.trace("verdict accept", 50) == "verdict accept"
        client.record(1)
        for port in (80, 81, 80):
            syn(director, port)
        mine, others = ([json.loads(text) for text in each.walks()] for each in (client, other))
        assert [(w["number"], w["why"]) for w in mine] == [(1, "forwarded"), (2, "forwarded")]
        assert [(w["number"], w["why"]) for w in others] == [(1, "no_service")]
        assert client.walks() == [], "each is handed out once"
        assert client.traced() == (2, 0)
        with director.client() as third:
            assert [json.loads(text)["why"] for text in third.walks()] == ["forwarded"], (
                "the recorder's, as ever"
            )


def test_a_trace_ends_with_its_connection(client, director):
    others = [director.client() for _ in range(TRACERS)]
    for other in others:
        other.trace("", 1)
    with pytest.raises(IpvsError) as caught:
        client.trace("", 1)
    assert caught.value.errno == errno.EBUSY
    others.pop().close()
    client.total()  # by then the director has seen it
    assert client.trace("", 1) == ""
    for other in others:
        other.close()
    client.total()
    director.do(lambda: None)
    assert director.ipvs.tracers.trace.on.bit_count() == 1


def test_another_instead(client, director):
    """The same client's next trace; 0 ends it."""
    client.trace("why no_service", 1)
    syn(director)
    client.trace("port 99", 7)
    assert client.walks() == []
    assert client.traced() == (0, 0)
    (info,) = client.request(extension.FAMILY_NAME, extension.Cmd.GET_TRACE)
    assert json.loads(info[extension.Attr.JSON]) == {
        "filter": "port 99", "rate": 7, "matched": 0, "suppressed": 0,
    }  # fmt: skip
    client.request(extension.FAMILY_NAME, extension.Cmd.TRACE, extension.count(0))
    assert not director.ipvs.tracers
    with pytest.raises(IpvsError) as caught:
        client.traced()
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    "payload",
    [
        extension.text("nosuch") + extension.count(1),
        extension.text("tcp " * 1000) + extension.count(1),
        extension.text("(" * 500) + extension.count(1),
        extension.attribute(extension.Attr.TEXT, b"\xff") + extension.count(1),
        extension.text("tcp") + extension.count(1001),
        extension.text("tcp") + extension.count(1 << 63),
        extension.text("tcp"),
        b"",
    ],
)
def test_a_text_from_the_socket_is_not_trusted(client, director, payload):
    with pytest.raises(IpvsError) as caught:
        client.request(extension.FAMILY_NAME, extension.Cmd.TRACE, payload)
    assert caught.value.errno == errno.EINVAL
    assert not director.ipvs.tracers


def test_totals_outlive_their_traces(client, director):
    """What all traces have come to stands among the table's figures, with the walks of the recorder."""

    def totals():
        found = json.loads(client.total()[1])
        return [found[name] for name in ("traces", "traced", "untold", "walks")]

    assert totals() == [0, 0, 0, 0]
    client.trace("", 1)
    client.record(2)
    for source in (1024, 1025):
        syn(director, source=source)
    assert totals() == [1, 2, 1, 2]  # one a second is told
    client.request(extension.FAMILY_NAME, extension.Cmd.TRACE, extension.count(0))
    assert totals() == [0, 2, 1, 2]
    with director.client() as other:
        other.trace("port 80", 50)
        syn(director)
        assert totals() == [1, 3, 1, 2]


def test_of_many_segments_some_are_told(client, director):
    """As many as are handed out: no others are looked at while the packet waits."""
    world = director.world
    director.do(lambda: world.server(world.service(), RIP[1]))
    syn(director)
    client.trace("", 10)
    director.do(lambda: world.local_in(tcp(CIP, 1024, VIP, 80, "A", b"x" * 60_000), gso=True))
    (walk,) = (json.loads(text) for text in client.walks())
    assert (walk["length"], len(walk["sent"])) == (60_040, 16)
    assert walk["omitted"] > 16
