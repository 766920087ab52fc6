"""Finding the process of a server on this host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from uvs.config.checks import Fault
from uvs.health.watch import find, is_local, name

V4, V6 = socket.AF_INET, socket.AF_INET6
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LOOPBACK = socket.inet_aton("127.0.0.1")


def line(local: str, state: str, inode: int) -> str:
    return f"   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A master (10) and its worker (11) listen on all addresses at 80, another (12) on ::1 at 53; 13 is a client."""
    tables = {
        "tcp": line("00000000:0050", "0A", 100) + line("0100007F:0050", "01", 103) + line("0200007F:0051", "0A", 104),
        "tcp6": line("00000000000000000000000000000000:1F90", "0A", 105) + line("0000000000000000FFFF00000100007F:1F91", "0A", 106),
        "udp": "",
        "udp6": line("00000000000000000000000001000000:0035", "07", 102),
    }  # fmt: skip
    (tmp_path / "net").mkdir()
    for table, text in tables.items():
        (tmp_path / "net" / table).write_text(HEAD + text)
    for pid, parent, program, inode in ((11, 10, "web", 100), (10, 1, "web", 100), (12, 1, "dns", 102), (13, 1, "(a) b", 103), (14, 1, "java", 105), (15, 1, "java2", 106)):  # fmt: skip
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd" / "3").symlink_to(f"socket:[{inode}]")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({program}) S {parent} 1 1")
        (tmp_path / str(pid) / "comm").write_text(f"{program}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("af", "address", "port", "protocol", "pid"),
    [
        (V4, "127.0.0.1", 80, 6, 10),
        (V4, "127.0.0.1", 81, 6, None),  # it listens at another address
        (V4, "127.0.0.1", 8080, 6, 14),  # at all of both families
        (V4, "127.0.0.1", 8081, 6, 15),  # at an IPv4 address by an IPv6 socket
        (V6, "::1", 53, 17, 12),
        (V6, "::1", 53, 6, None),
        (V6, "::1", 80, 6, None),
    ],
)
def test_by_port(proc: Path, af: int, address: str, port: int, protocol: int, pid: int | None) -> None:
    assert find(Fault(), af, socket.inet_pton(af, address), port, protocol, proc) == pid


@pytest.mark.parametrize(("program", "pid"), [("web", 10), ("dns", 12), ("nothing", None)])
def test_by_name(proc: Path, program: str, pid: int | None) -> None:
    assert find(Fault(process=program), V4, LOOPBACK, 80, 6, proc) == pid


@pytest.mark.parametrize(("text", "pid"), [("12\n", 12), ("x", None), ("", None), (None, None)])
def test_by_pid_file(tmp_path: Path, text: str | None, pid: int | None) -> None:
    file = tmp_path / "pid"
    if text is not None:
        file.write_text(text)
    assert find(Fault(pid_file=str(file)), V4, LOOPBACK, 80, 6) == pid


def test_a_real_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = find(Fault(), V4, LOOPBACK, server.getsockname()[1], 6)
    assert found is not None
    assert name(os.getpid()) == name(found)


@pytest.mark.parametrize(("address", "local"), [("127.0.0.1", True), ("192.0.2.77", False)])
def test_which_addresses_are_this_hosts(address: str, local: bool) -> None:
    assert is_local(V4, socket.inet_aton(address)) is local
