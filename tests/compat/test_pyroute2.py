"""docs/how-to/pyroute2.md: its programs, started as it says, against a director on paper."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.control import running
from support.world import packed

from uvs.ipvs.spec import SVC_F_PERSISTENT, ServiceKey

PAGE = (Path(__file__).parents[2] / "docs/how-to/pyroute2.md").read_text()
PLAIN, LINES, EXAMPLE, PRINTED = re.findall(r"^```(?:python)?\n(.*?)^```$", PAGE, re.M | re.S)
TCP, MASQ, TUNNEL, GUE = 6, 0, 2, 1
WEB = ServiceKey(2, TCP, packed("192.0.2.100"), 80)
SIX = ServiceKey(10, TCP, packed("2001:db8::100"), 80)


@pytest.fixture
def director(tmp_path):
    with running(tmp_path) as it:
        yield it


@pytest.fixture
def start(director, tmp_path):
    """Runs a program, as `balance.py`, with a command line."""

    def start(program, command):
        (tmp_path / "balance.py").write_text(program)
        path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"  # uvs and python3 of one environment
        env = os.environ | {"UVS_SOCKET": director.path, "PATH": path}
        env.pop("LD_PRELOAD", None)
        words = command.split()
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return start


@pytest.mark.parametrize(
    ("program", "command"),
    [(EXAMPLE, PLAIN), (LINES + EXAMPLE, "python3 balance.py")],
    ids=["uvs exec", "three lines"],
)
def test_the_example(program, command, start, director):
    assert len(LINES.replace("\n\n", "\n").splitlines()) == 3
    assert start(program, command) == (0, PRINTED, "")
    svc = director.ipvs.services.get(WEB)
    found = {d.spec.addr: (d.spec.fwd, d.spec.port, d.spec.tun_type, d.spec.tun_port) for d in svc.dests}
    assert found == {
        packed("198.51.100.11"): (MASQ, 8080, 0, 0),
        packed("198.51.100.12"): (TUNNEL, 80, GUE, 6080),
    }
    assert director.ipvs.services.get(SIX).spec.netmask == 128


HEAD = """\
import errno
from pyroute2 import IPVS, IPVSDest, IPVSService
from pyroute2.netlink.exceptions import NetlinkError
web = IPVSService(addr="192.0.2.100", port=80, protocol=6)
server = IPVSDest(addr="198.51.100.11", port=80)
"""


def test_what_the_table_of_faults_says(start, director):
    program = (
        HEAD
        + """
with IPVS() as ipvs:
    ipvs.service("add", service=web)
    ipvs.dest("add", service=web, dest=server)
    ipvs.dest("set", service=web, dest=IPVSDest(addr="198.51.100.11", port=80, weight=9))
    six = dict(addr="2001:db8::100", port=80, protocol=6)
    for change in (
        lambda: ipvs.service("add", service=web),
        lambda: ipvs.service("get", service=IPVSService(addr="192.0.2.7", port=80, protocol=6)),
        lambda: ipvs.service("add", service=IPVSService(**six)),
    ):
        try:
            change()
        except NetlinkError as e:
            print(errno.errorcode[e.code])
    ipvs.service("add", service=IPVSService(netmask="64.0.0.0", timeout=60, flags={"flags": 1, "mask": 1}, **six))
"""
    )
    assert start(program, PLAIN) == (0, "EEXIST\nESRCH\nEINVAL\n", "")
    assert [d.spec.weight for d in director.ipvs.services.get(WEB).dests] == [9]
    six = director.ipvs.services.get(SIX).spec
    assert (six.flags & SVC_F_PERSISTENT, six.timeout, six.netmask) == (1, 60, 64)
    gone = (
        HEAD
        + "with IPVS() as ipvs:\n    ipvs.dest('update', service=web, dest=server)\n    ipvs.service('update', service=web)\n"
    )
    assert start(gone, PLAIN)[0] == 0
    assert [svc.key for svc in director.ipvs.services] == [SIX]


def test_in_an_event_loop_of_the_program_s_own(start, director):
    """pyroute2 puts its socket into asyncio's epoll set before it asks for the family."""
    program = """
import asyncio
from pyroute2 import AsyncIPVS, IPVSService
from pyroute2.netlink.generic.ipvs import ipvsmsg

async def main():
    async with AsyncIPVS() as ipvs:
        await ipvs.bind("IPVS", ipvsmsg)
        await ipvs.service("add", service=IPVSService(addr="192.0.2.100", port=80, protocol=6))
        print(len(await ipvs.service("dump")))

asyncio.run(main())
"""
    assert start(program, PLAIN) == (0, "1\n", "")


def test_without_a_director(start, director):
    director.do(director.server.close)
    status, out, err = start(LINES + EXAMPLE, "python3 balance.py")
    assert (status, out) == (1, "")
    assert err.startswith("uvs exec: no director listens on ")
    assert err.count("\n") == 1
