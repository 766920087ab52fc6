"""ldirectord, as the distribution has it, above a director: it reads and changes the table by the real ipvsadm."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from support import tools
from support.tools import RESTARTS, asking

from uvs.lab.enter import Daemon
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology

CONF = "/run/ldirectord.cf"
LOG = "checked"
WEB, WEB6 = f"{VIP[4]}:80", f"[{VIP[6]}]:80"
RS = {n: f"198.51.100.{10 + n}:80" for n in (1, 2, 3, 4)}
RS6 = {n: f"[2001:db8:b::{10 + n}]:80" for n in (1, 2, 3)}
PAGE = tools.from_page("ldirectord.md", "/etc/ha.d/ldirectord.cf")
BOTH = {WEB: {RS[1]: 1, RS[2]: 1}, WEB6: {RS6[1]: 1, RS6[2]: 1}}


@pytest.fixture(scope="module")
def whole() -> Iterator[tools.Site]:
    with Lab.create(topology("nat", 4)) as lab:
        yield tools.Site(lab)


@pytest.fixture
def site(whole: tools.Site) -> tools.Site:
    whole.start_all()
    assert whole.table() == {}
    return whole


def in_the_lab(configuration: str) -> str:
    """The configuration with its log in the lab."""
    return f'logfile="/run/log/director-{LOG}.log"\n{configuration}'


@contextlib.contextmanager
def ldirectord(site: tools.Site, configuration: str) -> Iterator[None]:
    """It is started as its init script does, and stopped: then the table is empty."""
    site.write(CONF, in_the_lab(configuration))
    pidfile = site.lab.path("/run/ldirectord.ldirectord.cf.pid")
    site.under("ldirectord", CONF, "start")
    try:
        yield
        assert "is running" in site.lab.run("director", ["ldirectord", CONF, "status"]).stderr
    finally:
        running = [
            p for p in site.lab.processes() if "ldirectord" in " ".join(p.argv) and p.host == "director"
        ]
        try:
            site.under("ldirectord", CONF, "stop")
            tools.until(lambda: not pidfile.exists(), lambda: site.lab.log("director", LOG)[-3000:])
        finally:
            for process in running:
                Daemon("director", "ldirectord", process.pid).kill(signal.SIGKILL)
            pidfile.unlink(missing_ok=True)
    assert site.table() == {}


def change(site: tools.Site, configuration: str) -> None:
    """Change the configuration under ldirectord's eyes (autoreload).

    ldirectord takes what it finds at its first look, after its second round of checks, for what it has
    read: a change before that stays unseen. So change a remark until one is noticed.
    """
    before = site.lab.path(CONF).read_text()

    def noticed() -> int:
        return site.lab.log("director", LOG).count("has changed on disk")

    seen = noticed()
    for turn in range(1, 50):
        site.write(CONF, f"{before}# {turn}\n")
        with contextlib.suppress(AssertionError):
            tools.until(lambda: noticed() != seen, str, 5)
            break
    assert noticed() != seen, site.lab.log("director", LOG)[-3000:]
    site.write(CONF, in_the_lab(configuration))


def service(*lines: str, real: str = "", quiescent: str = "no", check: str = "connect") -> str:
    """A configuration of one service, with rs1 and rs2 unless others are named.

    When ldirectord begins with a server it adds it, removes it, checks it, and adds it again: two that are new are
    both in the table only when the second has been checked. So what `Site.shows` waits for has two new ones.
    """
    return "\n".join(
        [
            f"checktimeout=30\nnegotiatetimeout=30\ncheckinterval=1\nautoreload=yes\nquiescent={quiescent}",
            f"virtual={WEB}",
            real or "\n".join(f"\treal={RS[n]} masq" for n in (1, 2)),
            "\tservice=http\n\tscheduler=rr\n\tprotocol=tcp",
            f"\tchecktype={check}",
            *(f"\t{line}" for line in lines),
            "",
        ]
    )


def test_servers_fail_and_return(site) -> None:
    """The page's configuration: negotiate and connect checks, both families, the fallback."""
    with ldirectord(site, PAGE):
        site.shows(BOTH, LOG)
        with asking(site) as client, asking(site, VIP[6]) as client6:
            assert client.more() == client6.more() == {"rs1", "rs2"}
            with client.may_fail(), client6.may_fail():
                site.stop(1)
                site.shows({WEB: {RS[2]: 1}, WEB6: {RS6[2]: 1}}, LOG)
            assert client.more() == client6.more() == {"rs2"}
            with client.may_fail(), client6.may_fail():
                site.stop(2)
                site.shows({WEB: {RS[3]: 1}, WEB6: {RS6[3]: 1}}, LOG)
            assert client.more() == client6.more() == {"rs3"}
            with client.may_fail(), client6.may_fail():  # the fallback is removed
                site.start(1, 2)
                site.shows(BOTH, LOG)
            assert client.more() == client6.more() == {"rs1", "rs2"}


def test_quiescent(site) -> None:
    """A server that fails stays, with weight 0, and gets no new connection."""
    with ldirectord(site, service(quiescent="yes")):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, LOG)
        with asking(site) as client:
            with client.may_fail():
                site.stop(1)
                site.shows({WEB: {RS[1]: 0, RS[2]: 1}}, LOG)
            assert client.more() == {"rs2"}
            site.start(1)
            site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, LOG)
            assert client.more() == {"rs1", "rs2"}


def test_negotiate_reads_the_page(site) -> None:
    """A server that answers, but not what is wanted, is taken out."""
    answers = 'receive="rs"'
    page = service('request="/"', answers, check="negotiate")
    with ldirectord(site, page):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, LOG)
        with asking(site) as client:
            with client.may_fail():  # rs1 is removed
                change(site, page.replace(answers, 'receive="rs2"'))
                site.shows({WEB: {RS[2]: 1}}, LOG)
            assert client.more() == {"rs2"}


def test_autoreload(site) -> None:
    """The file changes: a server goes, others come; later a weight changes, and no request fails for that."""
    with ldirectord(site, service()):
        site.shows({WEB: {RS[1]: 1, RS[2]: 1}}, LOG)
        with asking(site) as client:
            assert client.more() == {"rs1", "rs2"}
            real = "\n".join(f"\treal={RS[n]} masq {n}" for n in (2, 3, 4))
            with client.may_fail():  # rs1 is removed
                change(site, service(real=real))
                site.shows({WEB: {RS[2]: 2, RS[3]: 3, RS[4]: 4}}, LOG)
            assert client.more() == {"rs2", "rs3", "rs4"}
            change(site, service(real=real.replace("masq 4", "masq 7")))
            site.shows({WEB: {RS[2]: 2, RS[3]: 3, RS[4]: 7}}, LOG)
            assert client.more() == {"rs2", "rs3", "rs4"}


@pytest.mark.parametrize("number", RESTARTS, ids=str)
def test_the_director_restarts(number, site) -> None:
    """Under ldirectord: service and connection go on, and so do the checks."""
    with ldirectord(site, PAGE):
        site.shows(BOTH, LOG)
        with asking(site) as client:
            client.more()
            tools.restart(site, client, number)
            assert client.more() == {"rs1", "rs2"}
            with client.may_fail():
                site.stop(1)
                site.shows({WEB: {RS[2]: 1}, WEB6: {RS6[2]: 1}}, LOG)
            assert client.more() == {"rs2"}
            site.start(1)
            site.shows(BOTH, LOG)
