"""The configurations of docs/how-to/health-checks.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from uvs.config.load import parse

PAGE = (Path(__file__).parents[3] / "docs/how-to/health-checks.md").read_text()
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
BEFORE, AFTER = (
    '[[service]]\naddress = "192.0.2.100:80"\n',
    '[[service.server]]\naddress = "198.51.100.11:80"\n',
)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_they_are_right(block: str) -> None:
    whole = block if "[[service]]" in block or block.startswith("[monitor") else BEFORE + block + AFTER
    assert parse(whole.encode(), "uvs.toml")


@pytest.mark.parametrize(("load", "status"), [(0, 22), (1, 12), (19, 3), (100, 2), (None, 1)])
def test_the_weight_that_follows_the_load(load: int | None, status: int, tmp_path: Path) -> None:
    (block,) = (b for b in BLOCKS if "weight = true" in b)
    settings = parse((BEFORE + block + AFTER).encode(), "uvs.toml").service[0].check[0]
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\nexit 22\n" if load is None else f"#!/bin/sh\necho {load}\n")
    curl.chmod(0o755)
    command = settings.command  # type: ignore[union-attr]
    done = subprocess.run(["/bin/sh", "-c", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert done.returncode == status
