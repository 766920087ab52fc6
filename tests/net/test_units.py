"""A director with what uvs.service leaves it: two capabilities, no new privileges, no memory to write code in.

Under systemd itself the unit is not started here; what it may do is taken from its text.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.running import Running
from support.sandbox import wait_for

from uvs.lab import processes
from uvs.lab.namespaces import SOCKET, STATE_DIR
from uvs.units.unit import files

UNIT = files("/opt/uvs/bin/uvs")[0].text
NOBODY = 61184  # the first that systemd gives to a dynamic user
MDWE = "import ctypes, os, sys; assert not ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def capabilities() -> list[str]:
    (bounding,), (ambient,) = (
        re.findall(rf"^{name}=(.*)$", UNIT, re.M) for name in ("CapabilityBoundingSet", "AmbientCapabilities")
    )
    assert bounding == ambient
    return [name.removeprefix("CAP_").lower() for name in bounding.split()]


def for_all(path: str) -> bool:
    """May everybody run it?"""
    file = Path(path).resolve()
    return all(each.stat().st_mode & 0o001 for each in (file, *file.parents))


def confined(running_as: int | None) -> list[str]:
    """`uvs run` with those rights, and as another user if that one can read the Python that we run."""
    wanted = ",".join(f"+{name}" for name in capabilities())
    change = ["--reuid", str(running_as), "--regid", str(running_as), "--clear-groups"] if running_as else []
    rights = [*change, "--inh-caps", f"-all,{wanted}", "--ambient-caps", f"-all,{wanted}"]
    setpriv = ["setpriv", "--no-new-privs", "--bounding-set", f"-all,{wanted}", *rights]
    return [*setpriv, sys.executable, "-c", MDWE, *processes.UVS, *processes.RUN]


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Running]) -> Running:
    running = make_lab("nat", servers=2, services=False)
    assert running.director.kill(signal.SIGTERM)
    user = NOBODY if os.geteuid() == 0 and for_all(sys.executable) and for_all(__file__) else None
    if user:
        for path in {os.path.dirname(SOCKET), STATE_DIR}:  # as RuntimeDirectory= and StateDirectory= do
            os.chown(running.lab.path(path), user, user)
    running.program = confined(user)  # type: ignore[attr-defined]
    running.director = running.lab.start("director", "uvs", running.program, notify=True)  # type: ignore[attr-defined]
    processes.add_services(running.lab)
    return running


def ask(lab: Running, family: int) -> str:
    url = f"http://{lab.vip(family)}/" if family == 4 else f"http://[{lab.vip(family)}]/"
    return lab.lab.check("client", ["curl", "-s", "-m", "30", url]).strip()


def status(lab: Running) -> dict[str, str]:
    lines = Path(f"/proc/{lab.director.pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def test_it_has_no_more_rights(lab: Running) -> None:
    found = status(lab)
    bits = {"net_admin": 12, "net_raw": 13}  # include/uapi/linux/capability.h
    expected = f"{sum(1 << bits[name] for name in capabilities()):016x}"
    assert sorted(capabilities()) == sorted(bits)
    assert {found[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {expected}
    assert found["NoNewPrivs"] == "1"


def test_it_forwards(lab: Running, family: int) -> None:
    assert {ask(lab, family) for _ in range(4)} == {"rs1", "rs2"}


def test_it_reloads_and_upgrades(lab: Running) -> None:
    """SIGHUP does no harm; SIGUSR2 becomes the installed version, with the same rights."""
    os.kill(lab.director.pid, signal.SIGHUP)
    ready = lab.log().count(" ready: ")
    os.kill(lab.director.pid, signal.SIGUSR2)
    wait_for(lambda: lab.log().count(" ready: ") > ready, lab.log, 60)
    test_it_has_no_more_rights(lab)
    assert ask(lab, 4).startswith("rs")


def test_it_keeps_its_table(lab: Running) -> None:
    """Killed and started again it has services and connections; told to stop, it removes its rules."""
    with lab.client() as client:
        before = len(client.services()), len(list(client.conns()))
    assert all(before)
    assert lab.director.kill()
    lab.director = lab.lab.start("director", "uvs", lab.program, notify=True)  # type: ignore[attr-defined]
    with lab.client() as client:
        assert (len(client.services()), len(list(client.conns()))) == before
    assert ask(lab, 4).startswith("rs")
    assert lab.director.kill(signal.SIGTERM)
    assert "left in place" not in lab.log()
