"""What a director has counted."""

from __future__ import annotations

import pytest
from support.machine import QUEUE, TABLE, Fault, Machine, check, of

from uvs.doctor.host import Director


def counted(queue: dict[str, int | str | None], **table: int) -> Machine:
    """A good machine whose director has counted what else would be 0."""
    return Machine(told=Director([QUEUE, QUEUE | queue], TABLE | table))


FAULTS: list[Fault] = [
    ("no director", Machine(told="no director listens on /run/x"),
     "director", "note", "no director listens on /run/x", None),
    ("no room in the socket", counted({"lost": 10, "dropped": 10}),
     "queue dropping", "warn", "queue 1 (tcp): 10 of 100 packets found no room", "net.core.rmem_max"),
    ("no room, in a user namespace", counted({"lost": 10, "dropped": None, "waiting": None}),
     "queue dropping", "warn", "10 of 100 packets found no room", "uvs run --queues N"),
    ("no room, every packet by Python", counted({"class": "all", "lost": 1, "dropped": 1}),
     "queue dropping", "warn", "queue 1 (all): 1 of 91 packets", "uvs run --driver native"),
    ("queue full", counted({"dropped": 7}),
     "queue dropping", "warn", "7 packets found the queue full", "uvs run --queues N"),
    ("cut", counted({"cut": 2}), "queue dropping", "warn", "2 of 90 packets handed over in part", "smaller datagrams"),
    ("not sent", counted({"refused": 2}), "queue dropping", "warn", "kernel refused", "log"),
    ("no verdict", counted({"unsaid": 2}), "queue dropping", "warn", "verdict", "net.core.wmem_max"),
    ("the director failed", counted({"errors": 2}), "queue dropping", "warn", "2 of 90 packets dropped", "log"),
    ("table full", counted({}, full=4),
     "table full", "warn", "4 times: 9 of 1024 records", "uvs run --conn-max 2048"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_each_loss_of_each_queue_is_told() -> None:
    """Packets that found the queue full have no number, so that no gap tells of them."""
    worse = QUEUE | {"lost": 3, "dropped": 10, "cut": 1}
    machine = Machine(told=Director([worse, worse | {"queue": 2}], TABLE))
    found = [f.detail for f in of(machine, "queue dropping")]
    assert [detail.split(" (")[0] for detail in found] == ["queue 1"] * 3 + ["queue 2"] * 3
    assert "3 of 93 packets found no room" in found[0]
    assert "7 packets found the queue full" in found[1]
