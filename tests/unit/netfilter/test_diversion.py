"""Reference counts and bursts, over a back end that only writes down what it is told."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Collection

import pytest

from uvs.netfilter import diversion
from uvs.netfilter.diversion import Diversion
from uvs.netfilter.plan import AF_INET, Element, Entry, Plan, one_queue, queues_by_class
from uvs.netfilter.tool import NetfilterError, ToolError

WEB = Element("service", AF_INET, 6, socket.inet_aton("192.0.2.1"), 80)
FTP = Element("service", AF_INET, 6, socket.inet_aton("192.0.2.1"), 21)
PATIENCE_S = 15.0  # for what must come
ANY = Element("service", AF_INET, 17, socket.inet_aton("192.0.2.1"), 0)


class Notebook:
    name = kind = program = "notebook"

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.said: list[tuple[str, set[Entry], set[Entry]]] = []
        self.whole = True
        self.refuses = False
        self.full = False
        self.left: set[int] | None = None

    def leftovers(self) -> set[int] | None:
        return self.left

    def install(self, plan: Plan) -> None:
        if self.full:
            raise ToolError("no memory")
        self.whole = True
        self.said.append(("install", set(plan.entries), set()))

    def change(self, plan: Plan, added: Collection[Entry], removed: Collection[Entry]) -> None:
        if self.refuses:
            raise ToolError("the set does not exist")
        self.said.append(("change", set(added), set(removed)))

    def intact(self) -> bool:
        return self.whole

    def remove(self) -> None:
        self.said.append(("remove", set(), set()))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    monkeypatch.setattr(diversion, "BACKENDS", {"notebook": lambda: made})
    monkeypatch.setattr(diversion.nfnetlink, "has_net_admin", lambda: True)
    monkeypatch.delenv("UVS_BACKEND", raising=False)
    return made


@pytest.fixture
def started(backend: Notebook) -> Diversion:
    made = Diversion(one_queue(0), 1, 1)
    made.start()
    backend.said.clear()
    return made


def test_what_was_added_before_the_start_is_installed_at_once(backend: Notebook) -> None:
    made = Diversion(one_queue(0), 1, 1)
    made.add(WEB)
    made.start()
    assert backend.said == [("install", {*WEB.entries()}, set())]


@pytest.mark.parametrize(("left", "said"), [(None, [("remove", set(), set())]), ({0}, [])])
def test_a_start_that_fails_leaves_things_as_they_were(
    backend: Notebook, left: set[int] | None, said: list[object]
) -> None:
    """Half of our own rules go; those of a crashed director stay: it fails closed."""
    backend.full, backend.left = True, left
    with pytest.raises(NetfilterError):
        Diversion(one_queue(0), 1, 1).start()
    assert backend.said == said


@pytest.mark.parametrize(
    ("left", "owned", "refused"),
    [
        ({*range(4)}, {3, *range(4, 12)}, "queue 3 is taken"),
        ({*range(4)}, {*range(4, 12)}, None),  # a crashed one's
        ({*range(12)}, {*range(4, 12)}, None),  # it had some of ours, and they are ours now
        ({*range(14)}, {*range(4, 12), 12, 13}, "queue 12 is taken"),
    ],
)
def test_whose_queues_the_rules_name(
    backend: Notebook, monkeypatch: pytest.MonkeyPatch, left: set[int], owned: set[int], refused: str | None
) -> None:
    """Rules that name a queue which somebody else owns are another director's."""
    backend.left = left
    monkeypatch.setattr(diversion.nfnetlink, "queue_errno", lambda n: errno.EPERM if n in owned else 0)
    made = Diversion(queues_by_class(4, 2), 1, 1)
    if refused is None:
        made.start()
        return
    with pytest.raises(NetfilterError, match=f"another director .* {refused}"):
        made.start()
    assert backend.said == []


def test_a_burst_is_one_change_and_only_what_differs(backend: Notebook, started: Diversion) -> None:
    for element in (WEB, WEB, FTP, ANY):  # FTP and ANY are the same member
        started.add(element)
    started.discard(WEB)
    started.flush()
    assert backend.said == [("change", {*WEB.entries(), *FTP.entries()}, set())]
    started.discard(FTP)
    started.add(WEB)
    started.discard(WEB)
    started.flush()
    started.flush()
    assert len(backend.said) == 1, "nothing differs"
    started.discard(ANY)
    started.discard(WEB)
    started.flush()
    assert backend.said[1:] == [("change", set(), {*ANY.entries(), *WEB.entries()})]


def test_one_discard_too_many(started: Diversion) -> None:
    with pytest.raises(KeyError):
        started.discard(WEB)


def test_a_change_that_fails_makes_all_of_it_again(backend: Notebook, started: Diversion) -> None:
    backend.refuses = True
    started.add(WEB)
    started.flush()
    assert backend.said == [("install", {*WEB.entries()}, set())]
    assert (started.check(), started.check(), started.put_back) == (True, False, 1)


def test_what_could_not_be_made_again_is_tried_by_each_check(backend: Notebook, started: Diversion) -> None:
    """The rules look whole all the while: they say nothing of what the sets hold."""
    backend.refuses = backend.full = True
    started.add(WEB)
    for attempt in (started.flush, started.check, started.check):
        with pytest.raises(NetfilterError):
            attempt()
    backend.full = False
    assert (started.check(), started.check()) == (True, False)
    assert backend.said == [("install", {*WEB.entries()}, set())]


def test_check_puts_back(backend: Notebook, started: Diversion) -> None:
    backend.whole = False
    assert (started.check(), started.check(), started.put_back) == (True, False, 1)
    assert backend.said == [("install", set(), set())]


def test_apart_from_the_loop(backend: Notebook, started: Diversion, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on while a program runs; who cannot wait for its end takes its turn after it."""
    entered, leave = threading.Event(), threading.Event()
    change = backend.change

    def slow(plan: Plan, added: Collection[Entry], removed: Collection[Entry]) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)
        change(plan, added, removed)

    async def burst() -> bool:
        monkeypatch.setattr(backend, "change", slow)
        started.add(WEB)
        running = asyncio.create_task(started.flushed())
        while not entered.is_set():
            await asyncio.sleep(0)
        started.discard(WEB)
        started.add(FTP)
        checked = asyncio.create_task(started.checked())
        assert backend.said == []
        threading.Timer(0.05, leave.set).start()
        started.flush()
        await running
        return await checked

    assert asyncio.run(burst()) is False
    assert backend.said == [
        ("change", {*WEB.entries()}, set()),
        ("change", {FTP.entry()}, {WEB.entry()}),
    ]
    started.stop()
    assert backend.said[2:] == [("remove", set(), set())]


def test_what_another_has_taken_is_waited_for(
    backend: Notebook, started: Diversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look after the rules, once a second, may take a client's change before the commit does."""
    leave = threading.Event()
    change = backend.change

    def slow(plan: Plan, added: Collection[Entry], removed: Collection[Entry]) -> None:
        assert leave.wait(PATIENCE_S)
        change(plan, added, removed)

    async def acknowledged_after() -> list[tuple[str, set[Entry], set[Entry]]]:
        monkeypatch.setattr(backend, "change", slow)
        started.add(WEB)
        looking = asyncio.create_task(started.flushed())
        await asyncio.sleep(0)  # it has taken the change
        threading.Timer(0.05, leave.set).start()
        await started.flushed()
        said = list(backend.said)
        await looking
        return said

    assert asyncio.run(acknowledged_after()) == [("change", {*WEB.entries()}, set())]
    started.stop()


def test_apart_from_the_loop_a_refusal_is_told(backend: Notebook, started: Diversion) -> None:
    backend.refuses = backend.full = True
    started.add(WEB)
    with pytest.raises(NetfilterError):
        asyncio.run(started.flushed())
    with pytest.raises(NetfilterError):
        asyncio.run(started.checked())


def test_unknown_back_end() -> None:
    with pytest.raises(NetfilterError, match=r"no back end 'pf': choose one of nft, iptables"):
        Diversion(one_queue(0), 1, 1, "pf")
