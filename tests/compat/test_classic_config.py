"""docs/how-to/classic-scripts.md: what scripts did for twenty years, by its configuration (compare test_scripts.py)."""

from __future__ import annotations

import re

from support import tools
from support.tools import asking

from uvs.lab import processes
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology

WEB = f"{VIP[4]}:80"
RS = {n: f"198.51.100.{10 + n}:80" for n in (1, 2, 3)}
FILE = "/run/uvs.toml"
RUN = (*processes.UVS, *processes.RUN, "--config", FILE)


def test_servers_that_do_not_answer_leave_the_table_and_come_back() -> None:
    with Lab.create(topology("nat", 3)) as lab:
        lab.path(FILE).write_text(tools.from_page("classic-scripts.md", "/etc/uvs/uvs.toml"))
        site = tools.Site(lab, RUN)
        site.shows({WEB: {RS[1]: 1, RS[2]: 1, RS[3]: 1}}, "uvs")
        with asking(site) as client:
            assert client.more() == {"rs1", "rs2", "rs3"}
            with client.may_fail():
                site.stop(1, 3)
                site.shows({WEB: {RS[2]: 1}}, "uvs")
            assert client.more() == {"rs2"}
            site.start(3)
            site.shows({WEB: {RS[2]: 1, RS[3]: 1}}, "uvs")
            assert client.more() == {"rs2", "rs3"}
            assert site.director.kill()
            site.director = lab.start("director", "uvs", RUN, notify=True)
            assert client.more() == {"rs2", "rs3"}
            assert site.table() == {WEB: {RS[2]: 1, RS[3]: 1}}
            site.start(1)
            site.shows({WEB: {RS[1]: 1, RS[2]: 1, RS[3]: 1}}, "uvs")
            assert client.more() == {"rs1", "rs2", "rs3"}
        log = site.log()
        assert f"198.51.100.11 is gone: tcp {WEB}, http check: connection refused" in log
        assert f"198.51.100.11 is back: tcp {WEB}, http check: status 200" in log
        status = lab.run("director", [*processes.UVS, "monitor", "status"])
        assert (status.returncode, len(re.findall(r":80 +OK +", status.stdout))) == (0, 3), status.stdout
        hooks = lab.path("/run/log/servers").read_text().splitlines()
        changes = [re.sub(r"^\S+ |:.*", "", line) for line in hooks]
        assert sorted(changes) == sorted(
            f"198.51.100.1{n} is {what}" for n in (1, 3) for what in ("gone", "back")
        )
