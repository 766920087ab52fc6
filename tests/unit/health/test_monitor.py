"""The monitor over checks that are made up, and a director that is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from uvs.config.load import parse
from uvs.config.schema import Config
from uvs.control.client import Unreachable
from uvs.health.checks.base import Result, Target, server_name
from uvs.health.monitor import Monitor
from uvs.health.switch import InProcess, Known, well
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey
from uvs.layers import Health, ServerId, text

ONE, TWO = "198.51.100.11:80", "198.51.100.12:80"
PATIENCE_S = 60.0


def config(more: str = "", check: str = "", servers: tuple[str, ...] = (ONE, TWO)) -> Config:
    """A service with two servers, checked every 50 ms; `more`: of the service, before its tables."""
    listed = "\n".join(f'[[service.server]]\naddress = "{s}"' for s in servers)
    body, _, tables = more.partition("---")
    return parse(
        f'[[service]]\naddress = "192.0.2.100:80"\n{body}\n[[service.check]]\ntype = "tcp"\ninterval = {0.05 if "timeout" not in check else 60}\n{check}\n'
        f"{tables}\n{listed}\n".encode(),
        "uvs.toml",
    )


class Site:
    """The servers, as checks find them, and a director that notes what it is told."""

    def __init__(self) -> None:
        self.well: dict[str, Result] = {}
        self.health: dict[str, Health | None] = {}
        self.fallback: DestSpec | None = None
        self.told: list[tuple[str, Any]] = []
        self.known_: Known = {}
        self.refusal: OSError | None = None
        self.running: dict[str, int] = {}
        self.most = 0  # runs of a check at a time
        self.runs: list[str] = []
        self.closed = False

    async def run(self, target: Target, settings: Any) -> Result:
        name = server_name(target.server)
        self.running[name] = self.running.get(name, 0) + 1
        self.most = max(self.most, self.running[name])
        try:
            await asyncio.sleep(0.001)
        finally:
            self.running[name] -= 1
        self.runs.append(f"{name} {settings.type}")
        return self.well.get(name, Result(True, "connected"))

    async def set_health(self, service: ServiceKey, server: ServerId, health: Health | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.health[text(server)] = health
        self.told.append((text(server), health and health.up))

    async def set_fallback(self, service: ServiceKey, dest: DestSpec | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        if dest != self.fallback:
            self.told.append(("fallback", dest is not None))
        self.fallback = dest

    async def known(self) -> Known:
        if self.refusal is not None:
            raise self.refusal
        return self.known_

    def close(self) -> None:
        self.closed = True

    # ---- what tests do

    def break_(self, *names: str, why: str = "refused") -> None:
        for name in names:
            self.well[name] = Result(False, why)

    def mend(self, *names: str) -> None:
        for name in names:
            self.well.pop(name, None)

    def up(self, name: str) -> bool | None:
        health = self.health.get(name)
        return health.up if health is not None else None

    def state(self, name: str) -> object:
        health = self.health.get(name)
        return health.about["state"] if health is not None else None

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.005)

    async def further(self, count: int = 3) -> None:
        """So many runs more of every server's checks."""
        begin = len(self.runs)
        names = [name for name, health in self.health.items() if health is not None]
        await self.until(
            lambda: all([r.split()[0] for r in self.runs[begin:]].count(n) >= count for n in names)
        )


@contextlib.asynccontextmanager
async def monitoring(site: Site, settings: Config) -> AsyncIterator[Monitor]:
    monitor = Monitor(settings, site, run=site.run)
    monitor.start()
    try:
        yield monitor
    finally:
        await monitor.close()
        assert site.closed
        assert site.most <= 1


def play(story: Callable[[Site], Awaitable[None]]) -> None:
    asyncio.run(story(Site()))  # type: ignore[arg-type]


def test_a_server_goes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story(site: Site) -> None:
        async with monitoring(site, config()):
            await site.until(lambda: site.up(ONE) and site.up(TWO))
            await site.further()
            site.break_(TWO, why="status 503")
            await site.until(lambda: site.up(TWO) is False)
            assert (site.up(ONE), site.state(TWO)) == (True, "FAULTED")
            site.mend(TWO)
            await site.until(lambda: site.up(TWO))
            about = site.health[TWO].about
            assert [c["after"] for c in about["history"]][-2:] == ["FAULTED", "OK"]
            assert about["checks"][0]["detail"] == "connected"

    play(story)
    lines = [record.getMessage() for record in caplog.records]
    assert "198.51.100.12 is gone: tcp 192.0.2.100:80, tcp check: status 503" in lines
    assert "198.51.100.12 is back: tcp 192.0.2.100:80, tcp check: connected" in lines


def test_what_is_down_at_the_beginning_stays_down() -> None:
    """Of another monitor's time, or the director's before its restart: nobody is revived by a start."""

    async def story(site: Site) -> None:
        key = ServiceKey(socket.AF_INET, 6, socket.inet_aton("192.0.2.100"), 80)
        two = (socket.AF_INET, socket.inet_aton("198.51.100.12"), 80)
        site.known_ = {(key.lookup, two): Health(up=False)}
        site.break_(TWO)
        async with monitoring(site, config()):
            await site.until(lambda: site.up(TWO) is not None)
            await site.further(5)
            assert (TWO, True) not in site.told
            site.mend(TWO)
            await site.until(lambda: site.up(TWO))

    play(story)


def test_reloads_at_any_moment_revive_no_dead_server() -> None:
    """Unchanged, changed, with other servers beside: the dead one stays dead, and the living one serves."""

    async def story(site: Site) -> None:
        async with monitoring(site, config()) as monitor:
            await site.until(lambda: site.up(ONE) and site.up(TWO))
            site.break_(TWO)
            await site.until(lambda: site.up(TWO) is False)
            begin = len(site.told)
            for n in range(40):
                kinds = (
                    config(),
                    config(check="rise = 3"),
                    config(check="fall = 5"),
                    config(servers=(ONE, TWO, "198.51.100.13:80")),
                )
                monitor.reload(kinds[n % 4])
                await asyncio.sleep(0.01)
            await site.further()
            assert {up for name, up in site.told[begin:] if name == TWO} == {False}
            assert {up for name, up in site.told[begin:] if name == ONE} == {True}
            assert site.state(ONE) == "OK"

    play(story)


def test_what_is_no_longer_checked_is_told() -> None:
    async def story(site: Site) -> None:
        site.break_(TWO)
        async with monitoring(site, config()) as monitor:
            await site.until(lambda: site.up(TWO) is False)
            monitor.reload(config(servers=(ONE,)))
            await site.until(lambda: site.health[TWO] is None)
            assert site.up(ONE)
            monitor.reload(parse(b"", "uvs.toml"))
            await site.until(lambda: site.health[ONE] is None)
            runs = len(site.runs)
            await asyncio.sleep(0.2)
            assert len(site.runs) == runs

    play(story)


def test_a_director_that_is_away_is_told_everything_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story(site: Site) -> None:
        async with monitoring(site, config()):
            await site.until(lambda: site.up(ONE) and site.up(TWO))
            site.refusal = Unreachable(errno.ECONNREFUSED, "no director runs at /run/uvs/control.sock")
            site.break_(ONE)
            await site.until(lambda: any("is gone" in r.getMessage() for r in caplog.records))
            site.health.clear()
            site.refusal = None
            await site.until(lambda: site.up(ONE) is False and site.up(TWO))

    play(story)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("will be told everything again" in line for line in lines) == 1
    assert "the director is back, and is told everything again" in lines
    assert sum("is gone" in line for line in lines) == 1


def test_a_director_that_comes_later() -> None:
    async def story(site: Site) -> None:
        site.refusal = Unreachable(errno.ECONNREFUSED, "no director runs")
        async with monitoring(site, config()) as monitor:
            await asyncio.sleep(0.05)
            monitor.reload(config(servers=(ONE,)))
            site.refusal = None
            await site.until(lambda: site.up(ONE))
            assert TWO not in site.health

    play(story)


def test_a_director_that_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """It is not repeated at once, no hook is run, and what is shown is what is so."""

    async def story(site: Site) -> None:
        async with monitoring(site, config("---[service.hooks]\ndown = 'false'")) as monitor:
            await site.until(lambda: site.up(ONE) and site.up(TWO))
            site.refusal = IpvsError(errno.ESRCH, "No such process")
            site.break_(TWO)
            await site.until(lambda: any("refuses" in r.getMessage() for r in caplog.records))
            site.refusal = None
            begin = len(site.told)
            await site.until(lambda: site.up(TWO) is False)
            assert site.told[begin:].count((TWO, False)) >= 1
            await monitor.hooks.idle()

    play(story)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("198.51.100.12, tcp 192.0.2.100:80: the director refuses: No such process") >= 1
    assert sum("down hook" in line for line in lines) == 1


def test_quorum_and_fallback() -> None:
    """The fallback comes before the others stand aside, and goes after they are back."""

    async def story(site: Site) -> None:
        more = 'quorum = 2\nfallback = "198.51.100.13:80"\n'
        async with monitoring(site, config(more)):
            await site.until(lambda: site.up(ONE) and site.up(TWO))
            begin = len(site.told)
            site.break_(TWO)
            await site.until(lambda: site.up(ONE) is False)
            assert site.fallback is not None
            assert (site.state(ONE), site.health[ONE].about["held"]) == ("OK", True)
            told = site.told[begin:]
            assert told.index(("fallback", True)) < told.index((ONE, False))
            begin = len(site.told)
            site.mend(TWO)
            await site.until(lambda: site.fallback is None)
            assert site.up(ONE)
            assert site.up(TWO)
            told = site.told[begin:]
            assert told.index((ONE, True)) < told.index(("fallback", False))

    play(story)


def test_slow_start_weight_and_remove() -> None:
    async def story(site: Site) -> None:
        more = 'slow_start = 1\non_failure = "remove"'
        async with monitoring(site, config(more)):
            await site.until(lambda: site.up(TWO))
            assert site.health[TWO].share == 1
            site.break_(TWO)
            await site.until(lambda: site.up(TWO) is False)
            assert site.health[TWO].remove
            site.well[TWO] = Result(True, "weight 7", 7)
            await site.until(lambda: site.up(TWO))
            assert site.health[TWO].weight == 7
            assert site.health[TWO].share < 0.5
            await site.until(lambda: site.health[TWO].share == 1)

    play(story)


def test_a_slow_start_goes_on_in_its_steps_however_often_it_is_told_in_between() -> None:
    async def story(site: Site) -> None:
        settings = config("slow_start = 2", servers=(ONE,))
        async with monitoring(site, settings) as monitor:
            site.break_(ONE)
            await site.until(lambda: site.up(ONE) is False)
            site.mend(ONE)
            await site.until(lambda: site.up(ONE))
            for _ in range(40):
                told = len(site.told)
                monitor.reload(settings)
                await site.until(lambda told=told: len(site.told) > told)
            told = len(site.told)
            await site.until(lambda: site.health[ONE] == Health(about=site.health[ONE].about))  # type: ignore[union-attr]
            assert len(site.told) - told < 40  # 20 steps, and the checks' own

    play(story)


def test_hooks_are_run_once_per_change_and_in_order(tmp_path: Path) -> None:
    file = tmp_path / "hooks"

    def line(kind: str) -> str:
        return f"""{kind} = 'echo "{kind} $UVS_CHANGE $UVS_SERVER $UVS_SERVICE $UVS_STATE $UVS_REASON" >> {file}'"""

    async def story(site: Site) -> None:
        kinds = ("up", "down", "quorum_up", "quorum_down")
        hooks = "---[service.hooks]\n" + "\n".join(map(line, kinds))
        async with monitoring(site, config(hooks, servers=(ONE,))) as monitor:
            await site.until(lambda: site.up(ONE))
            for _ in range(2):
                site.break_(ONE)
                await site.until(lambda: site.up(ONE) is False)
                site.mend(ONE)
                await site.until(lambda: site.up(ONE))
            await monitor.hooks.idle()

    play(story)
    service = "tcp 192.0.2.100:80"
    gone = f"down down {ONE} {service} FAULTED tcp check: refused"
    back = f"up up {ONE} {service} OK tcp check: connected"
    lost, found = f"quorum_down quorum_down  {service} down ", f"quorum_up quorum_up  {service} up "
    lines = file.read_text().splitlines()
    assert [line for line in lines if not line.startswith("quorum")] == [gone, back] * 2
    assert [line.rstrip() for line in lines if line.startswith("quorum")] == [
        lost.rstrip(),
        found.rstrip(),
    ] * 2


def test_a_hook_that_fails_or_hangs_is_logged_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story(site: Site) -> None:
        hooks = "---[service.hooks]\ntimeout = 0.2\ndown = 'sleep 100'\nup = 'echo no mail; exit 3'"
        async with monitoring(site, config(hooks, servers=(ONE,))) as monitor:
            site.break_(ONE)
            await site.until(lambda: site.up(ONE) is False)
            site.mend(ONE)
            await site.until(lambda: site.up(ONE))
            await monitor.hooks.idle()

    play(story)
    lines = [record.getMessage() for record in caplog.records]
    assert f"down hook of {ONE}: killed at its time-out" in lines
    assert f"up hook of {ONE}: exit status 3: no mail" in lines


def test_the_restart_command(tmp_path: Path) -> None:
    file = tmp_path / "restarts"

    async def story(site: Site) -> None:
        fault = f"---[service.fault]\nretry_count = 2\nretry_interval = 60\nrestart = 'echo $UVS_SERVER >> {file}'\n"
        async with monitoring(site, config(fault, check="fall = 9")):
            await site.until(lambda: site.up(ONE) and site.up(TWO))
            await site.further()
            site.break_(TWO)
            await site.until(lambda: site.up(TWO) is False)
            assert site.state(ONE) == "OK"
            states = [c["after"] for c in site.health[TWO].about["history"]]
            assert states == ["DEGRADED", "FAULTED"]

    play(story)
    assert file.read_text() == f"{TWO}\n"


SERVER = """
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_local_process_that_ends_is_noticed_at_once() -> None:
    """Long before a check's next run: there is none within the test's patience."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        assert server.stdin
        local = f"127.0.0.1:{server.stdout.readline().strip()}"

        async def story(site: Site) -> None:
            settings = config("---[service.fault]\nretry_count = 5", servers=(local,))
            async with monitoring(site, settings) as monitor:
                await site.until(lambda: "process" in (site.health.get(local) or Health()).about)
                assert site.health[local].about["process"] == server.pid  # type: ignore[union-attr]
                slow = config("---[service.fault]\nretry_count = 5", "fall = 1000", (local,))
                monitor.reload(slow)
                await site.until(lambda: "process" in site.health[local].about)  # type: ignore[union-attr]
                os.kill(server.pid, signal.SIGKILL)
                await site.until(lambda: site.up(local) is False)
                reason = str(site.health[local].about["reason"])  # type: ignore[union-attr]
                assert reason.startswith(f"process {server.pid} (")
                assert reason.endswith(") has ended")

        play(story)


def test_in_the_directors_process_layers_are_told() -> None:
    class Layers:
        def __init__(self) -> None:
            self.calls: list[object] = []

        def set_health(self, *what: object) -> None:
            self.calls.append(what)

        def set_fallback(self, *what: object) -> None:
            self.calls.append(what)

        def every(self) -> list[object]:
            return []

    async def story() -> None:
        layers = Layers()
        switch = InProcess(layers)  # type: ignore[arg-type]
        key: Any = object()
        await switch.set_health(key, (2, b"", 0), None)
        await switch.set_fallback(key, None)
        assert layers.calls == [(key, (2, b"", 0), None), (key, None)]
        assert await switch.known() == {}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("health", "is_well"),
    [
        (Health(), True),
        (Health(up=False, about={"state": "FAULTED"}), False),
        (Health(up=False, about={"state": "FAULTED", "held": True}), False),
        (Health(up=False, about={"state": "OK", "held": True}), True),
        (Health(up=False), False),
    ],
)
def test_a_server_that_only_stands_aside_is_not_known_as_dead(health: Health, is_well: bool) -> None:
    """Or a monitor that begins anew would tell that it is back, which never was gone."""
    assert well(health) is is_well


def test_the_fallback_serves_a_service_whose_last_server_was_taken_out_of_the_file() -> None:
    async def story(site: Site) -> None:
        more = 'fallback = "198.51.100.13:80"\n'
        async with monitoring(site, config(more, servers=(ONE,))) as monitor:
            await site.until(lambda: site.up(ONE))
            monitor.reload(config(more, servers=()))
            await site.until(lambda: site.fallback is not None)
            monitor.reload(config(more, servers=(ONE,)))
            await site.until(lambda: site.fallback is None)

    play(story)


def test_a_slow_start_and_a_commands_weight_outlive_the_monitor() -> None:
    """A server that had just come back, or had asked for no clients, is not given all of them."""

    async def story(site: Site) -> None:
        key = ServiceKey(socket.AF_INET, 6, socket.inet_aton("192.0.2.100"), 80)
        one, two = ((socket.AF_INET, socket.inet_aton(s.split(":")[0]), 80) for s in (ONE, TWO))
        site.known_ = {(key.lookup, one): Health(share=0.2), (key.lookup, two): Health(weight=0)}
        more = 'slow_start = 600\n---[[service.check]]\ntype = "command"\ncommand = "x"\nweight = true'
        async with monitoring(site, config(more)):
            await site.until(lambda: site.health.get(ONE) and site.health.get(TWO))
            assert 0.2 <= site.health[ONE].share < 0.5  # type: ignore[union-attr]
            assert (site.health[TWO].share, site.health[TWO].weight) == (1, 0)  # type: ignore[union-attr]

    play(story)


def test_a_quorum_that_was_lost_before_is_no_news() -> None:
    """The fallback stays; nothing says that it is lost once more."""

    async def story(site: Site) -> None:
        key = ServiceKey(socket.AF_INET, 6, socket.inet_aton("192.0.2.100"), 80)
        for address in ("198.51.100.11", "198.51.100.12"):
            site.known_[key.lookup, (socket.AF_INET, socket.inet_aton(address), 80)] = Health(up=False)
        site.break_(ONE, TWO)
        hooks = "fallback = '198.51.100.13:80'\n---[service.hooks]\nquorum_down = 'exit 9'"
        async with monitoring(site, config(hooks)) as monitor:
            await site.until(lambda: site.up(TWO) is False and site.fallback)
            assert monitor.hooks._task is None
            assert ("fallback", False) not in site.told

    play(story)


# ---------------------------------------------------------------------------- how long it takes


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting, the clock is put forward."""

    clock = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout:
            self.clock += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.clock


@pytest.mark.parametrize(
    ("interval", "timeout", "fall", "rise"), [(5, 3, 3, 2), (1, 1, 1, 1), (10, 0.5, 2, 5), (0.3, 0.2, 7, 3)]
)
@pytest.mark.parametrize("takes", [0.0, 0.5, 1.0])
def test_a_server_is_out_within_fall_intervals_and_a_time_out(
    interval: float, timeout: float, fall: int, rise: int, takes: float
) -> None:
    """Whenever it fails, and however long (a share of the time-out) its runs then take; and back within `rise`."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        site = Site()
        dead = False

        async def run(target: Target, settings: Any) -> Result:
            begun_dead = dead
            await asyncio.sleep(settings.timeout * (takes if begun_dead else 0.01))
            return Result(not (begun_dead or dead), "")

        settings = config(check=f"timeout = {timeout}\nfall = {fall}\nrise = {rise}", servers=(ONE,))
        service = settings.service[0]
        check = service.check[0].model_copy(update={"interval": interval})
        settings = settings.model_copy(update={"service": [service.model_copy(update={"check": [check]})]})
        monitor = Monitor(settings, site, run=run)
        monitor.start()
        await asyncio.sleep(3 * interval)
        chance = random.Random(1)
        for _ in range(50):
            await asyncio.sleep(chance.uniform(0, 2 * interval))
            for dead, limit in ((True, fall * interval + timeout), (False, (rise + 1) * interval + timeout)):
                begin = loop.time()
                while site.up(ONE) is dead:
                    await asyncio.sleep(interval / 50)
                    assert loop.time() - begin <= limit + interval / 25
        await monitor.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
