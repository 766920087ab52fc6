"""The queue drivers: each packet gets its verdict, and a flood, a fault or a death does no harm.

The hosts are those of support.netfilter; the rules that fill the queue are of whatever back end works here.
test_netfilter_user.py runs this file as an ordinary user.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.netfilter import (
    AF_INET,
    LOCAL_IN,
    MARK,
    PATIENCE_S,
    QUEUE,
    VIP,
    Net,
    Tap,
    needs_net_admin,
    open_driver,
    service,
)
from support.sandbox import wait_for

from uvs.director import DRIVERS
from uvs.netfilter import Diversion, NetfilterError, driver, native, netfilterqueue, nfnetlink
from uvs.netfilter.native import NativeDriver
from uvs.netfilter.plan import one_queue

pytestmark = needs_net_admin
SERVICE = VIP[AF_INET], 80
# A batch may begin with the last packet of the budget.
TURN = max(netfilterqueue.BATCH, native.BUDGET + 63)


@pytest.fixture(params=DRIVERS)
def driver_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tap(net: Net, driver_name: str) -> Iterator[Tap]:
    made = Tap(driver=driver_name)
    with closing(made.driver):
        yield made


@pytest.fixture(autouse=True)
def diversion(net: Net) -> Iterator[None]:
    made = Diversion(one_queue(QUEUE), MARK, MARK)
    made.add(service(AF_INET))
    made.start()
    yield
    made.stop()


def test_handler_that_fails(net: Net, tap: Tap, caplog: pytest.LogCaptureFixture) -> None:
    """Each packet gets a verdict, the fault is counted, and told once."""
    tap.answer = RuntimeError("broken")
    for _ in range(3):
        net.udp("client", AF_INET, SERVICE)
    assert tap.hooks(3) == [LOCAL_IN] * 3
    assert [tap.count(each) for each in ("errors", "packets", "lost")] == [3, 3, 0]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    row = nfnetlink.queue_row(QUEUE)  # unreadable in a user namespace
    assert row is None or row[2] == 0, "a packet without verdict"


def test_buffers(tap: Tap) -> None:
    """What net.core.wmem_default allows, a packet of 64 KiB need not fit."""
    assert tap.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 2 * (128 << 10)


def test_verdicts(net: Net, tap: Tap) -> None:
    """Accept, drop, and accept with another payload; what arrives is what was said."""
    with net.socket("director", AF_INET) as sock:
        sock.bind(SERVICE)
        for answer, arrives in ((True, b"xxxx"), (False, None), (b"", None), (b"XXXX", b"XXXX")):
            tap.answer = answer
            net.udp("client", AF_INET, SERVICE)
            assert tap.hooks(1) == [LOCAL_IN]
            seconds = PATIENCE_S if arrives else 0.1
            got = sock.recv(99) if select.select([sock], [], [], seconds)[0] else None
            assert got == arrives, answer


def test_cut_packets(net: Net, tap: Tap) -> None:
    """What the queue cut is dropped and counted, never handed on."""
    tap.socket.send(nfnetlink.queue_parameters(QUEUE, 100))
    tap.answer = False
    net.udp("client", AF_INET, SERVICE, size=200)
    net.udp("client", AF_INET, SERVICE, size=20)
    wait_for(lambda: tap.driver.run() or tap.count("packets") == 2, "both", PATIENCE_S)
    assert tap.hooks() == [LOCAL_IN]
    assert (tap.count("cut"), tap.count("packets")) == (1, 2)
    (counters,) = tap.driver.counters()
    names = ("queue", "packets", "fast", "lost", "cut", "refused", "unsaid", "errors")
    assert [counters[name] for name in names] == [QUEUE, 2, 0, 0, 1, 0, 0, 0]
    # The native driver's cut packets do not come as far as the hook path.
    assert (counters["class"], counters["slow"]) in (("all", 2), ("all", 1))


def test_flood_leaves_the_loop_its_turn(net: Net, tap: Tap) -> None:
    """One run() handles a bounded batch, and the rest waits."""
    for _ in range(TURN + 400):
        net.udp("client", AF_INET, SERVICE)
    assert select.select([tap.driver.fileno()], [], [], PATIENCE_S)[0]
    tap.driver.run()
    batch = len(tap.seen)
    assert 0 < batch <= TURN
    # The kernel's own queue in front of ours is every namespace's: a busy machine may lose some there.
    assert len(tap.hooks(TURN + 100)) > batch
    assert tap.count("lost") == 0


def test_handed_over_with_no_room_before_the_hook_path(net: Net) -> None:
    """Every packet has its verdict from this driver or from the next: those that waited for room too."""
    sent = 1200
    tap = Tap(driver="native")
    with closing(tap.driver):
        assert isinstance(tap.driver, NativeDriver)
        with net.socket("client", AF_INET) as sock:
            for _ in range(sent):
                sock.sendto(bytes(1400), SERVICE)
        wait_for(lambda: tap.driver._queues[0].queue.full, "a full ring", PATIENCE_S)
        left = tap.driver.hand_over()
    following = Tap(driver="native", bound=left.__getitem__)
    with closing(following.driver):
        wait_for(
            lambda: following.driver.run() or len(tap.seen) + len(following.seen) >= sent,
            lambda: f"{len(tap.seen)} and {len(following.seen)} of {sent}",
            PATIENCE_S,
        )
        assert (tap.count("lost"), following.count("lost")) == (0, 0)


def test_queue_of_a_killed_director(net: Net, driver_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is ours as soon as it is dead."""
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            held = open_driver(driver_name, QUEUE, lambda *_: True)
            os.write(writer, b"bound")
            signal.pause()
            held.close()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 5) == b"bound"
        with pytest.raises(NetfilterError, match=f"queue {QUEUE} is taken"):
            open_driver(driver_name, QUEUE, lambda *_: True)
        # A process needs its turn to die: on a busy machine that may take longer than the patience for it.
        monkeypatch.setattr(driver, "BIND_PATIENCE", PATIENCE_S)
        os.kill(first, signal.SIGKILL)
        open_driver(driver_name, QUEUE, lambda *_: True).close()
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        os.close(reader)
