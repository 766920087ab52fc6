"""What `uvs run` says of what it cannot do; its options are in test_cli.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from uvs import cli
from uvs.run import _explain

PRIVILEGE = "run it as root, or in a namespace of your own (uvs lab)"
FILES = "allow it more (ulimit -n, LimitNOFILE=), or fewer --queues"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(1, "cannot open a packet socket: no"),
            f"cannot open a packet socket: no: {PRIVILEGE}",
        ),
        (PermissionError(13, "Permission denied", "/run/uvs"), f"Permission denied (/run/uvs): {PRIVILEGE}"),
        (
            PermissionError("/x is writable by others: chmod go-w it"),
            "/x is writable by others: chmod go-w it",
        ),
        (OSError(20, "Not a directory", "/etc/passwd/x"), "Not a directory: /etc/passwd/x"),
        (OSError(28, "no space for arena /x", "/x"), "no space for arena /x"),
        (OSError(24, "Too many open files"), f"Too many open files: {FILES}"),
        (OSError(11, "cannot start a thread: no"), "cannot start a thread: no"),
    ],
)
def test_what_is_said_of_an_error(error, said):
    assert _explain(error) == said


def test_check_tells_what_is_in_a_configuration_or_all_that_is_wrong(tmp_path, capsys):
    path = tmp_path / "uvs.toml"
    path.write_text('[[service]]\naddress = "192.0.2.1:80"\n[[service.server]]\naddress = "198.51.100.1"\n')
    assert cli.main(["run", "--check", "--config", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: ok: 1 service, 1 server, 0 checks, 0 sysctls\n"
    path.write_text("x = 1\ny = 2\n")
    assert cli.main(["run", "--check", "--config", str(path)]) == 1
    assert [line.split(" no ")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"{path}:1: x:",
        f"{path}:2: y:",
    ]
    assert cli.main(["run", "--check"]) == 2


def test_a_configuration_that_is_wrong_does_not_start(tmp_path):
    path = tmp_path / "uvs.toml"
    path.write_text("x = 1\ny = 2\n")
    state = tmp_path / "state"
    command = [sys.executable, "-m", "uvs.cli", "run", "--config", path, "--state-dir", state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert [line.partition(" no such key")[0] for line in done.stderr.splitlines()] == [
        f"{path}:1: x:",
        f"{path}:2: y:",
    ]
    assert not state.exists()


def test_a_reload_or_an_upgrade_while_it_starts_is_no_end(tmp_path):
    """The signals would kill a director that is not yet there; the file is read once they wait."""
    path = tmp_path / "uvs.toml"
    path.write_text("")
    program = """if True:
        import os, signal, sys
        from uvs import cli
        from uvs.config import load
        def load_(path):
            wanted = {signal.SIGHUP, signal.SIGUSR2}
            for number in wanted:
                os.kill(os.getpid(), number)
            print(signal.sigpending() == wanted, flush=True)
            raise load.ConfigError([load.Fault(path, 0, "", "enough")])
        load.load = load_
        sys.exit(cli.main(["run", "--config", sys.argv[1]]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "True\n", f"{path}: enough\n")
