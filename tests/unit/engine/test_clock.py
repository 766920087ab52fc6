"""One clock in C and in Python, at any rate."""

from __future__ import annotations

import time

import pytest

from uvs.engine.binding import lib
from uvs.engine.core import clock


@pytest.mark.parametrize("rate", [1, 20])
def test_c_and_python_agree(rate) -> None:
    now = clock(rate)
    readings = [time.monotonic_ns() * rate, now(), lib.uvs_now(rate), now(), time.monotonic_ns() * rate]
    assert readings == sorted(readings)
