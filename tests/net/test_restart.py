"""The director is killed in mid-transfer and started again: the transfer completes."""

from __future__ import annotations

import re
import time

import pytest
from support import clients

SIZE = 20_000_000
SOME = 2_000_000


@pytest.mark.parametrize("direction", [clients.upload, clients.download], ids=["up", "down"])
def test_kill_in_mid_transfer(running, family, direction) -> None:
    """Held at 2 MB, the rest cannot have passed: it is more than the sockets' buffers take."""
    progress = clients.Progress(limit=SOME)
    transfer = running.lab.begin("client", direction, running.vip(family), SIZE, progress, 60)
    try:
        progress.wait(SOME)
        assert running.director.kill()
        progress.release()
        time.sleep(0.5)
        stuck = progress.value
        time.sleep(0.3)
        assert progress.value == stuck < SIZE - SOME, "packets of a service pass without the director"
        running.restart()
        assert re.search(r"[1-9]\d* connections", running.log().splitlines()[-1]), (
            "the table was not found again"
        )
        _, there, here = transfer.result(60)
    finally:
        transfer.close()
    assert there == here
