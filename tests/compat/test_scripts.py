"""Shell scripts as people have had them for twenty years, with the real ipvsadm, above a director."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import tools
from support.tools import asking

from uvs.lab import processes
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology

HERE = Path(__file__).parent
WEB = f"{VIP[4]}:80"


@pytest.fixture(params=["nat", "dr"])
def site(request: pytest.FixtureRequest) -> Iterator[tools.Site]:
    with Lab.create(topology(request.param, 3)) as lab:
        yield tools.Site(lab)


def test_director_start_stop_status(site) -> None:
    """Started it serves; the status shows it; stopped there is nothing, and the script says so."""
    script = str(HERE / f"director-{site.mode}")
    exec_ = (*processes.UVS, "exec", "--", script)

    def run(word: str) -> tuple[int, str, str]:
        ran = site.lab.run("director", (*exec_, word))
        return ran.returncode, ran.stdout, ran.stderr

    assert run("status") == (3, "stopped\n", "")
    for _ in range(2):  # a second start begins anew
        assert run("start") == (0, "", "")
    with asking(site) as client:
        assert client.more() == {"rs1", "rs2"}
        status, said, wrong = run("status")
    assert (status, wrong) == (0, "")
    if site.mode == "nat":
        assert f"TCP  {WEB} wlc\n" in said
        assert re.search(r"-> 198\.51\.100\.11:80 +Masq +1 ", said)
        assert re.search(r"^  -> C633640B:0050 +Masq +1 ", said, re.M)
    else:
        counted = re.compile(rf"^TCP  {re.escape(WEB)} +[1-9]", re.M)
        tools.until(lambda: counted.search(run("status")[1]), lambda: run("status")[1])  # counters come late
        assert said.splitlines()[-2:] == ["5", "1"]  # the head's line among them; the sysctl
        assert site.lab.call("client", echo_once, VIP[4]) == b"uvs"
    assert run("stop") == (0, "", "")
    assert site.table() == {}
    assert run("status") == (3, "stopped\n", "")
    assert run("dance")[0] == 2


def echo_once(address: str) -> bytes:
    """A datagram there and back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        sock.sendto(b"uvs", (address, 7))
        return sock.recv(100)


@pytest.mark.parametrize("site", ["nat"], indirect=True)
def test_check_loop(site) -> None:
    """Servers that do not answer curl leave the table, and come back; later requests do not notice."""
    rs = {n: f"198.51.100.{10 + n}:80" for n in (1, 2, 3)}
    loop = site.daemon("loop", str(HERE / "check-loop"))
    site.shows({WEB: {rs[1]: 1, rs[2]: 1, rs[3]: 1}}, "loop")
    with asking(site) as client:
        assert client.more() == {"rs1", "rs2", "rs3"}
        with client.may_fail():
            site.stop(1, 3)
            site.shows({WEB: {rs[2]: 1}}, "loop")
        assert client.more() == {"rs2"}
        site.start(3)
        site.shows({WEB: {rs[2]: 1, rs[3]: 1}}, "loop")
        assert client.more() == {"rs2", "rs3"}
        assert site.director.kill()
        site.restart()
        site.start(1)
        site.shows({WEB: {rs[1]: 1, rs[2]: 1, rs[3]: 1}}, "loop")
        assert client.more() == {"rs1", "rs2", "rs3"}
    assert loop.running
