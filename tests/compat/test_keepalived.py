"""keepalived, as the distribution has it, above a director: its checks rule the table, and clients do not notice."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
from collections.abc import Iterator

import pytest
from support import tools
from support.tools import RESTARTS, asking

from uvs.lab import processes
from uvs.lab.enter import Daemon
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology

CONF = "/run/keepalived.conf"
WEB, WEB6 = f"{VIP[4]}:80", f"[{VIP[6]}]:80"
RS = {n: f"198.51.100.{10 + n}:80" for n in (1, 2, 3)}
PAGE = tools.from_page("keepalived.md", "/etc/keepalived/keepalived.conf")
DROP_IN = tools.from_page("keepalived.md", "/etc/systemd/system/keepalived.service.d/uvs.conf")
CHECK = "TCP_CHECK {\n connect_timeout 5\n retry 1\n delay_before_retry 1\n}"


@pytest.fixture(scope="module")
def whole() -> Iterator[tools.Site]:
    with Lab.create(topology("nat", 3)) as lab:
        yield tools.Site(lab)


@pytest.fixture
def site(whole: tools.Site) -> tools.Site:
    whole.start_all()
    assert whole.table() == {}
    return whole


@contextlib.contextmanager
def keepalived(site: tools.Site, configuration: str, *, vrrp: bool = False) -> Iterator[Daemon]:
    """It runs with that configuration; when it is stopped, the table is empty."""
    site.write(CONF, configuration)
    words = ("keepalived", "--dont-fork", "--log-console", "--use-file", CONF)
    words += () if vrrp else ("--check",)
    daemon = site.daemon("keepalived", *words)
    try:
        yield daemon
        assert daemon.running, site.lab.log("director", "keepalived")[-3000:]
    finally:
        ended = daemon.kill(signal.SIGTERM)
        if not ended:
            daemon.kill()
    assert ended, "keepalived does not end"
    assert site.table() == {}


def service(*servers: str, virtual: str = f"{VIP[4]} 80", more: str = "") -> str:
    """A virtual_server block."""
    return "\n".join(
        [
            f"virtual_server {virtual} {{",
            "delay_loop 1\nlvs_sched rr\nlvs_method NAT\nprotocol TCP",
            more,
            *servers,
            "}\n",
        ]
    )


def server(n: int, check: str = CHECK, more: str = "", network: str = "198.51.100.") -> str:
    return f"real_server {network}{10 + n} 80 {{\nweight 1\n{more}\n{check}\n}}"


def test_servers_fail_and_return(site) -> None:
    """The page's configuration: HTTP_GET, TCP_CHECK, sorry_server."""
    with keepalived(site, PAGE):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
        with asking(site) as client:
            assert client.more() == {"rs1", "rs2"}
            with client.may_fail():
                site.stop(1)
                site.shows({WEB: {RS[2]: 1}}, "keepalived")
            assert client.more() == {"rs2"}
            with client.may_fail():
                site.stop(2)
                site.shows({WEB: {RS[3]: 1}}, "keepalived")
            assert client.more() == {"rs3"}
            with client.may_fail():  # keepalived takes the sorry server out before it puts the others in
                site.start(1, 2)
                site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
            assert client.more() == {"rs1", "rs2"}


def test_inhibit_on_failure(site) -> None:
    """The server stays, with weight 0: the transfer that it serves goes on when only its check fails."""
    checks = [server(n, misc(n), "inhibit_on_failure") for n in (1, 2)]
    for n in (1, 2):
        site.write(f"/run/status{n}", "0")
    with keepalived(site, service(*checks)):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
        with asking(site) as client:
            site.write("/run/status1", "1")
            site.shows({WEB: {RS[1]: 0, RS[2]: 1}}, "keepalived")
            assert client.more() == {"rs2"}
            site.write("/run/status1", "0")
            site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
            assert client.more() == {"rs1", "rs2"}


def misc(n: int) -> str:
    """A check whose exit status is what stands in a file."""
    path = f"\"/bin/sh -c 'exit $(cat /run/status{n})'\""
    return f"MISC_CHECK {{\nmisc_path {path}\nmisc_dynamic\nmisc_timeout 30\nuser root\n}}"


def test_misc_dynamic(site) -> None:
    """An exit status from 2 to 255 is a weight, less 2; 0 leaves the weight; 1 is a failure."""
    site.write("/run/status1", "52")
    site.write("/run/status2", "0")
    with keepalived(site, service(server(1, misc(1)), server(2, misc(2)))):
        site.shows({WEB: {RS[1]: 50, RS[2]: 1}}, "keepalived")
        site.write("/run/status1", "9")
        site.shows({WEB: {RS[1]: 7, RS[2]: 1}}, "keepalived")
        site.write("/run/status2", "1")
        site.shows({WEB: {RS[1]: 7}}, "keepalived")


def test_quorum(site) -> None:
    """Below it the sorry server takes all, and scripts are told; they reach the director."""
    script = "#!/bin/sh\n{ echo $1; ipvsadm -Sn; } >/run/quorum.new; mv /run/quorum.new /run/quorum\n"
    told = site.lab.path(site.write("/run/quorum", ""))
    site.write("/run/tell", script, 0o755)
    more = 'sorry_server 198.51.100.13 80\nquorum 2\nquorum_up "/run/tell up" root\nquorum_down "/run/tell down" root'
    with keepalived(site, service(server(1), server(2), more=more)):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
        with asking(site) as client:
            with client.may_fail():
                site.stop(1)
                tools.until(lambda: told.read_text().startswith("down\n"), told.read_text)
                site.shows({WEB: {RS[3]: 1}}, "keepalived")
            assert client.more() == {"rs3"}
            assert f"-A -t {WEB} -s rr\n" in told.read_text()
            with client.may_fail():  # as above
                site.start(1)
                tools.until(lambda: told.read_text().startswith("up\n"), told.read_text)
                site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
            assert client.more() == {"rs1", "rs2"}


def test_reload(site) -> None:
    """SIGHUP: a server comes, one goes, a second service (IPv6) is made, the scheduler changes."""
    with keepalived(site, service(server(1), server(2))) as daemon:
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
        with asking(site) as client:
            client.more()
            changed = service(server(2), server(3)).replace("lvs_sched rr", "lvs_sched wlc")
            v6 = service(server(1, network="2001:db8:b::"), virtual=f"{VIP[6]} 80")
            site.write(CONF, changed + v6)
            wanted = {WEB: {RS[2]: 1, RS[3]: 1}, WEB6: {"[2001:db8:b::11]:80": 1}}
            with client.may_fail():  # rs1 is removed
                daemon.kill(signal.SIGHUP, 0)
                site.shows(wanted, "keepalived")
            assert client.more() <= {"rs2", "rs3"}
            with asking(site, VIP[6]) as client6:
                assert client6.more() == {"rs1"}
        assert f"-A -t {WEB} -s wlc\n" in site.under("ipvsadm", "-Sn")


@pytest.mark.parametrize("number", RESTARTS, ids=str)
def test_the_director_restarts(number, site) -> None:
    """Under keepalived: service and connection go on, and so do the checks."""
    with keepalived(site, PAGE) as daemon:
        both = {WEB: {RS[1]: 1, RS[2]: 1}}
        site.shows(both, "keepalived")
        with asking(site) as client:
            client.more()
            tools.restart(site, client, number)
            assert client.more() == {"rs1", "rs2"}
            with client.may_fail():
                site.stop(1)
                site.shows({WEB: {RS[2]: 1}}, "keepalived")
            assert client.more() == {"rs2"}
            site.start(1)
            site.shows(both, "keepalived")
            assert daemon.running


def test_sync_daemon(site) -> None:
    """There is none yet: keepalived that wants one is told, and goes on, VRRP with it."""
    vrrp = (
        "global_defs {\nlvs_sync_daemon eth0 VI_1\n}\nvrrp_instance VI_1 {\nstate MASTER\ninterface eth0\n"
        "virtual_router_id 51\npriority 100\nadvert_int 1\nvirtual_ipaddress {\n192.0.2.101/32\n}\n}\n"
    )
    with keepalived(site, vrrp + PAGE, vrrp=True):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "keepalived")
        tools.until(
            lambda: "192.0.2.101/" in site.lab.check("director", ["ip", "-o", "address"]),
            lambda: site.lab.log("director", "keepalived")[-3000:],
        )
        with asking(site) as client:
            assert client.more() == {"rs1", "rs2"}
    assert "a sync daemon was asked for" in site.log()


def test_the_unit(site) -> None:
    """The page's drop-in: its command works."""
    words = shlex.split(re.findall(r"^ExecStart=(.+)$", DROP_IN, re.M)[-1])
    assert words[1:3] == ["exec", "--"]
    site.write(CONF, PAGE)
    arguments = ["-l", "-C", "-f", CONF]
    command = [w for word in words[1:] for w in (arguments if word == "$DAEMON_ARGS" else [word])]
    daemon = site.lab.start("director", "unit", [*processes.UVS, *command])
    try:
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, "unit")
    finally:
        assert daemon.kill(signal.SIGTERM)
    assert site.table() == {}
