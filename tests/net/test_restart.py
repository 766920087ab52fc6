"""The director is killed in mid-transfer and started again: the transfer completes."""

from __future__ import annotations

import time

import pytest
from support import clients

SIZE = 20_000_000
SOME = 2_000_000


@pytest.mark.parametrize("direction", [clients.upload, clients.download], ids=["up", "down"])
def test_kill_in_mid_transfer(running, family, direction) -> None:
    progress = clients.Progress()
    transfer = running.lab.begin("client", direction, running.vip(family), SIZE, progress, 60)
    try:
        progress.wait(SOME)
        assert running.director.kill()
        assert progress.value < SIZE // 2, "too late for mid-transfer"
        if running.mode == "nat" or direction is clients.upload:
            time.sleep(0.3)
            stuck = progress.value
            time.sleep(0.2)
            assert progress.value == stuck, "packets of a service pass without the director"
        running.restart()
        _, there, here = transfer.result(60)
    finally:
        transfer.close()
    assert there == here
