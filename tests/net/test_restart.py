"""The director is killed in mid-transfer and started again: the transfer completes."""

from __future__ import annotations

import re

import pytest
from support import clients

SIZE = 20_000_000
SOME = 2_000_000
PATIENCE_S = (
    120  # TCP doubles its time-out for as long as the director is away, and a busy machine starts it slowly
)


@pytest.mark.parametrize("direction", [clients.upload, clients.download], ids=["up", "down"])
def test_kill_in_mid_transfer(running, family, direction) -> None:
    """Held at 2 MB, the rest cannot have passed: it is more than the sockets' buffers take."""
    progress = clients.Progress(limit=SOME)
    transfer = running.lab.begin("client", direction, running.vip(family), SIZE, progress, PATIENCE_S)
    try:
        progress.wait(SOME)
        assert running.director.kill()
        said = len(running.log())
        try:
            progress.release()
            assert progress.stands_still() < SIZE - SOME, "packets of a service pass without the director"
        finally:  # the tests after this one have the same lab
            running.restart()
        assert re.search(r"ready: .*\b[1-9]\d* connections", running.log()[said:]), (
            "the table was not found again"
        )
        _, there, here = transfer.result(PATIENCE_S)
    finally:
        transfer.close()
    assert there == here
