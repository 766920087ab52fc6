"""Who answers for the VIP: how long is waited for one more answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from uvs.lab import arp
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology
from uvs.lab.wires import Frame

MAC = "02:00:00:00:00:01"


class Answers:
    """One answer, then silence: what `Listener` is asked for."""

    waits: ClassVar[list[float]] = []

    def __init__(self, *_: Any) -> None:
        self.left = [answer()]

    def frames(self, quiet: float) -> Iterator[Frame]:
        """Yields what is left; silence takes no time here, but its length is kept."""
        while self.left:
            yield self.left.pop()
        self.waits.append(quiet)

    def close(self) -> None:
        """Nothing is open."""


def answer() -> Frame:
    vip = bytes(map(int, VIP[4].split(".")))
    mac = bytes.fromhex(MAC.replace(":", ""))
    data = bytes(12) + arp.ETH_P_ARP + b"\0\1\x08\0\6\4" + arp.REPLY + mac + vip + bytes(10)
    return Frame(0.0, "client", "eth0", False, data)


def test_after_an_answer_the_wait_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one's patience: `uvs lab arp` took 20 s where nothing else came."""
    monkeypatch.setattr(arp, "owners", lambda lab: {MAC: "director"})
    monkeypatch.setattr(arp, "macs", lambda lab, host: {"eth0": MAC})
    monkeypatch.setattr(arp, "opened", lambda *_: contextlib.nullcontext(Sink()))
    monkeypatch.setattr(arp, "Listener", Answers)
    monkeypatch.setattr(arp, "QUIET", 0.01)
    assert arp.who_has(Lab(topology("dr"), 0)) == [("director", MAC)]
    assert Answers.waits
    assert max(Answers.waits) <= arp.QUIET


class Sink:
    def sendto(self, *_: Any) -> None:
        """It goes nowhere."""
