"""The director's parts among themselves; the whole of it is run by tests/net/test_director.py."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, PropertyMock

from support.world import World

from uvs.control.credentials import Access
from uvs.director import Director
from uvs.egress import FragmentWatch
from uvs.engine.core import Fast, FastPath, NextHops, Table, Why
from uvs.netfilter.tool import NetfilterError


def test_a_change_that_the_kernel_does_not_take_is_saved_and_acknowledged(caplog):
    """`commit` raises nothing: the client, which waits for its answer, gets it."""
    director = Director(queue=0, socket_path="", state_dir=Path(), conn_max=1, access=Access())
    director.ipvs = SimpleNamespace()
    director.keeper, director.layers = Mock(), Mock()

    async def flushed():
        raise NetfilterError("cannot divert packets any longer: no")

    director.diversion = SimpleNamespace(flushed=flushed)
    with caplog.at_level(logging.ERROR):
        asyncio.run(director._commit())
    director.keeper.commit.assert_called_once_with()
    assert "cannot divert packets any longer: no" in caplog.text


def test_packets_that_the_queue_cut_are_counted_by_their_reason():
    director = Director(queue=0, socket_path="", state_dir=Path(), conn_max=1, access=Access())
    director.ipvs = Mock(why=[0] * len(Why), icmp_limit={2: Mock(), 10: Mock()})
    director.ipvs.services.expiring_trash.return_value = ()
    director.diverted, director.diversion, director.driver = Mock(), Mock(), Mock()
    director.driver.counters.return_value = [{"cut": 1}, {"cut": 2}]
    director.diverted.releasing.return_value = ()
    director.keeper, director.layers = Mock(), Mock()
    director._rules = Mock(done=lambda: False)
    director._second()
    assert director.ipvs.why[Why.CUT] == 3


def test_what_the_fast_path_knows_of_fragments():
    """Datagrams are kept from it where one may have come in fragments, not everywhere."""
    director = Director(queue=0, socket_path="", state_dir=Path(), conn_max=1, access=Access())
    director.fragments, director.fastpath = FragmentWatch(), FastPath(Table(None, 1), NextHops())
    director.ipvs, director.egress = World().ipvs, Mock(smallest_mtu=1500)
    director._refresh()
    assert (director.fastpath.flags, director.fastpath.whole) == (Fast.REUSE, 1500)


def test_rules_of_routing_that_the_kernel_does_not_tell(caplog):
    """Every packet goes by the hook path then, and that is said."""
    director = Director(queue=0, socket_path="", state_dir=Path(), conn_max=1, access=Access())
    director.fastpath, director.ipvs = FastPath(Table(None, 1), NextHops()), World().ipvs
    director.egress = Mock()
    type(director.egress).smallest_mtu = PropertyMock(side_effect=OSError("no"))
    director._refresh()
    assert director.fastpath.flags == Fast.OFF
    assert "the fast path is off: no" in caplog.text


def test_a_flow_keeps_its_label_and_its_port():
    """What is read anew every second is the host's settings, not the seed of the hash of flows."""
    director = Director(queue=0, socket_path="", state_dir=Path(), conn_max=1, access=Access())
    director.ipvs = Mock(why=[0] * len(Why), icmp_limit={2: Mock(), 10: Mock()}, flow_seed=7)
    director.ipvs.services.expiring_trash.return_value = ()
    director.diverted, director.diversion, director.driver = Mock(), Mock(), Mock()
    director.driver.counters.return_value = []
    director.diverted.releasing.return_value = ()
    director.keeper, director.layers = Mock(), Mock()
    director._rules = Mock(done=lambda: False)
    director._second()
    assert director.ipvs.flow_seed == 7
