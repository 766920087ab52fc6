"""Where `uvs director` keeps what was there before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from uvs.takeover import command


@pytest.mark.parametrize(
    ("uid", "environment", "folder"),
    [
        (0, {}, "/run/uvs-takeover"),  # not the director's own, who may be another user
        (0, {"UVS_STATE_DIR": "/run/two"}, "/run/two"),
        (0, {"UVS_SOCKET": "/run/two/control.sock"}, "/run/two"),
        (1000, {"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/uvs"),
    ],
)
def test_the_folder(
    monkeypatch: pytest.MonkeyPatch, uid: int, environment: dict[str, str], folder: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    for name in ("UVS_STATE_DIR", "UVS_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert command._folder() == Path(folder)
