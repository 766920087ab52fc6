"""A director on paper that a configuration rules, with its control socket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.control import Running
from uvs.control.layer_ops import LayerOps
from uvs.control.server import Server
from uvs.rule import Rule

VIP, RIPS = "192.0.2.100:80", ("198.51.100.11:80", "198.51.100.12:80")
GOOD = f"""\
[sysctl]
expire_nodest_conn = 1

[[service]]
address = "{VIP}"
scheduler = "rr"

[[service.server]]
address = "{RIPS[0]}"
weight = 4

[[service.server]]
address = "{RIPS[1]}"
"""


@contextmanager
def ruled(directory: Path, text: str = GOOD) -> Iterator[Running]:
    """Its file is `directory`/uvs.toml."""
    path = directory / "uvs.toml"
    path.write_text(text)
    it = Running(directory)
    rule = Rule(str(path))
    more = LayerOps(it.layers, rule).ops()
    it.server = Server(it.ipvs, it.path, it._commit, None, it.layers.settle, more)
    rule.begin(it.ipvs, it.layers)
    it.start()
    logger = logging.getLogger(
        "uvs"
    )  # what is told to people is compared, and another test may have a handler
    disabled, logger.disabled = logger.disabled, True
    try:
        yield it
    finally:
        it.stop()
        logger.disabled = disabled
