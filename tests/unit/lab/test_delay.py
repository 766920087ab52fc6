"""Frames under way on a link that delays and loses, on a socket pair and at times of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from uvs.lab.delay import WAITING_MAX, Way

Ends = tuple[socket.socket, socket.socket, socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Where a test writes, where the way reads; where the way writes, where a test reads."""
    near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    target, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (source, target, far):
        end.setblocking(False)
    yield near, source, target, far
    for end in (near, source, target, far):
        end.close()


def test_in_its_order_and_late(ends: Ends) -> None:
    near, source, target, far = ends
    way = Way(source.fileno(), target.fileno(), delay=2.0, loss=0.0)
    near.send(b"first")
    way.take(10.0)
    near.send(b"second")
    way.take(10.5)
    assert way.give(11.0) == 1.0
    with pytest.raises(BlockingIOError):
        far.recv(100)
    assert way.give(12.25) == 0.25
    assert far.recv(100) == b"first"
    assert way.give(12.5) is None
    assert far.recv(100) == b"second"


def test_all_lost(ends: Ends) -> None:
    near, source, target, _ = ends
    way = Way(source.fileno(), target.fileno(), delay=0.0, loss=1.0)
    near.send(b"frame")
    way.take(0.0)
    assert not way.waiting


def test_no_more_than_fit(ends: Ends) -> None:
    """As a router's queue: the latest are lost."""
    near, source, target, _ = ends
    way = Way(source.fileno(), target.fileno(), delay=1.0, loss=0.0)
    way.waiting.extend([(1.0, b"")] * (WAITING_MAX - 1))
    near.send(b"fits")
    near.send(b"does not")
    way.take(5.0)
    assert (len(way.waiting), way.waiting[-1]) == (WAITING_MAX, (6.0, b"fits"))


def test_an_end_that_is_down(ends: Ends) -> None:
    """What cannot be written is lost; the way goes on."""
    near, source, target, far = ends
    way = Way(source.fileno(), target.fileno(), delay=0.0, loss=0.0)
    far.close()
    near.send(b"frame")
    way.take(0.0)
    assert way.give(1.0) is None
