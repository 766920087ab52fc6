"""What was changed is found again, or a message says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from uvs.errors import UserError
from uvs.takeover import remembered
from uvs.takeover.changes import Address, Change, Sysctl
from uvs.takeover.plan import Request

ASKED = Request("eth0", ("192.0.2.100", "2001:db8:a::100"), False)
CHANGES: tuple[Change, ...] = (
    Sysctl("net/ipv4/conf/eth0/forwarding", None, "0"),
    Sysctl("net/ipv4/ip_forward", "1", "0"),
    Address("192.0.2.100", "eth0"),
)


def test_there_and_back(tmp_path: Path) -> None:
    assert remembered.load(tmp_path) is None
    saved = remembered.save(tmp_path, ASKED, CHANGES)
    assert remembered.load(tmp_path) == saved
    assert (saved.asked, saved.changes) == (ASKED, CHANGES)
    for _ in range(2):
        remembered.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"asked": {}, "changes": []}', "\0",
                                  '{"asked": {"interface": "e", "vips": []}, "changes": [{"kind": "x"}]}'])  # fmt: skip
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / remembered.FILE).write_text(text)
    with pytest.raises(UserError, match=r"director-host.json cannot be read"):
        remembered.load(tmp_path)
