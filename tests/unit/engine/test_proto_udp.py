"""UDP's one state, AH and ESP on it, and what is no protocol of IPVS (ip_vs_proto_udp.c, _ah_esp.c)."""

from __future__ import annotations

import pytest
from support.table import MASQ, ROUTE, SECOND, World

from uvs.engine.core import Dir, state_name

UDP, ESP, AH = 17, 50, 51


@pytest.mark.parametrize("method", [MASQ, ROUTE], ids=["nat", "dr"])
def test_worked_example_5(method: int) -> None:
    """One datagram: inactive for 300 s after the last one in either direction, never active."""
    with World() as w:
        conn = w.new(method=method, protocol=UDP)
        w.packet(conn, Dir.INPUT)
        for direction in (Dir.INPUT, Dir.OUTPUT, Dir.INPUT):
            w.now += 200 * SECOND
            w.table.expire(w.now)
            w.packet(conn, direction)
            assert (conn.state_name, conn.timeout, conn.remaining(w.now)) == ("UDP", 300_000, 300_000)
            assert w.counters == (0, 1, 0)
        w.now += 300 * SECOND
        w.table.expire(w.now)
        assert w.counters == (0, 0, 0)


def test_only_a_reply_assures_the_template() -> None:
    """ip_vs_proto_udp.c."""
    with World() as w:
        template, conn = w.template(protocol=UDP), w.new(protocol=UDP)
        w.table.control_add(conn, template)
        w.packet(conn, Dir.INPUT)
        assert template.state_name == "NONE"
        w.packet(conn, Dir.OUTPUT)
        assert template.state_name == "ASSURED"


@pytest.mark.parametrize("protocol", [AH, ESP])
def test_ah_and_esp_follow_the_key_exchange(protocol: int) -> None:
    """They find the connection of UDP 500 in both directions, and change neither state nor time-out."""
    with World() as w:
        conn = w.new(protocol=UDP, cport=500, vport=500, dport=500)
        w.packet(conn, Dir.INPUT)
        for direction in (Dir.INPUT, Dir.OUTPUT):
            iph = w.header(conn, direction, protocol=protocol)
            iph.flags = iph.sport = iph.dport = 0
            found = w.table.conn_in_get(iph) if direction == Dir.INPUT else w.table.conn_out_get(iph)
            assert found is not None
            assert found.cport == 500
            w.table.set_timeout(UDP, 0, 1000)
            w.table.set_state(found, direction, iph)
            assert found.timeout == 300_000


def test_other_names() -> None:
    """Templates of fwmark services have protocol 0; what has no states prints ERR!."""
    assert [state_name(p, 0) for p in (UDP, 0, AH, ESP, 1)] == ["UDP", "NONE", "ERR!", "ERR!", "ERR!"]
    assert state_name(UDP, 1) == "ERR!"
