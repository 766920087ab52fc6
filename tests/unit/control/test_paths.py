"""Where state is; which directories are trusted with a socket, and which with files that are believed."""

import os
from pathlib import Path

import pytest

from uvs.control import paths
from uvs.control.paths import private_directory


@pytest.mark.parametrize(
    ("uid", "option", "environment", "run", "saved"),
    [
        (0, None, {}, "/run/uvs", "/var/lib/uvs"),
        (0, "/a", {"UVS_STATE_DIR": "/b"}, "/a", "/a"),
        (0, None, {"UVS_STATE_DIR": "/b", "UVS_SOCKET": "/c/s"}, "/b", "/b"),
        (0, None, {"UVS_SOCKET": "/c/s"}, "/c", "/c"),
        (0, None, {"UVS_SOCKET": "/run/uvs/other"}, "/run/uvs", "/var/lib/uvs"),
        (1000, None, {}, "/run/user/1000/uvs", "/u/.local/state/uvs"),
        (1000, None, {"UVS_SOCKET": ""}, "/run/user/1000/uvs", "/u/.local/state/uvs"),  # as if not set
        (1000, None, {"UVS_SOCKET": "/run/user/1000/uvs/s"}, "/run/user/1000/uvs", "/u/.local/state/uvs"),
        (1000, None, {"XDG_STATE_HOME": "/x"}, "/run/user/1000/uvs", "/x/uvs"),
        (1000, None, {"UVS_SOCKET": "/c/s"}, "/c", "/c"),
    ],
)  # fmt: skip
def test_where_state_is(uid, option, environment, run, saved, monkeypatch):
    for name in ("UVS_SOCKET", "UVS_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    usual = {"XDG_RUNTIME_DIR": f"/run/user/{uid}", "HOME": "/u"}
    for name, value in (usual | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert paths.state_directories(option) == (Path(run), Path(saved))


def test_it_is_made_for_nobody_else(tmp_path):
    path = tmp_path / "a" / "b"
    assert private_directory(str(path), "--state-dir") is True
    assert path.stat().st_mode & 0o7777 == 0o700
    assert private_directory(str(path), "--state-dir") is False


@pytest.mark.parametrize(
    ("mode", "for_files", "for_a_socket"),
    [
        (0o700, True, True),
        (0o755, True, True),
        (0o770, False, False),
        (0o777, False, False),
        (0o1777, False, True),  # /tmp: a table that somebody puts there would be restored
    ],
)
def test_one_that_is_there(mode, for_files, for_a_socket, tmp_path):
    tmp_path.chmod(mode)
    for sticky, good in ((False, for_files), (True, for_a_socket)):
        if good:
            assert private_directory(str(tmp_path), "--state-dir", sticky=sticky) is False
        else:
            with pytest.raises(PermissionError, match="writable by others: name another with --state-dir"):
                private_directory(str(tmp_path), "--state-dir", sticky=sticky)


def test_somebody_else_s(tmp_path, monkeypatch):
    stranger = os.stat_result((0o40755, 1, 1, 1, 12345, 12345, 0, 0, 0, 0))
    monkeypatch.setattr(paths.os, "stat", lambda path: stranger)
    with pytest.raises(PermissionError, match="belongs to somebody else: name another with --socket"):
        private_directory(str(tmp_path), "--socket", sticky=True)


def test_a_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(NotADirectoryError, match="is not a directory: move it away"):
        private_directory(str(path), "--socket")
