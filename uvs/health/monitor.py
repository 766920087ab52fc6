"""The monitor: runs the checks, and tells the director and the hooks what has changed.

A task for each check, one for telling. What is decided is in `state`; what is told is made of it anew each
time, so that a director that was away is told everything again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from uvs.config.checks import Common, Fault
from uvs.config.schema import Config
from uvs.control.client import Unreachable
from uvs.health import checks, process, state
from uvs.health.checks.base import Result, Target, server_name
from uvs.health.hooks import Hook, Hooks
from uvs.health.plan import ServerPlan, ServicePlan, plan
from uvs.health.state import Change, Quorum, State
from uvs.health.switch import Known, Switch, last
from uvs.health.watch import Watcher, find, is_local
from uvs.ipvs.spec import IpvsError
from uvs.layers import Health, Lookup, ServerId

log = logging.getLogger("uvs.health")

RETRY_S = 0.5  # until a director that is away is tried again
ABOUT_S = 1.0  # between two tellings of nothing but when a check was run
STEPS = 20  # of a slow start
REASON_MAX = 200
Run = Callable[[Target, Common], Any]


class Watched:
    """A real server that is looked after."""

    def __init__(self, service: Looked, plan: ServerPlan, state: state.Server) -> None:
        self.service, self.plan, self.state = service, plan, state
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.changes: list[Change] = []  # not told of yet
        self.told_at = float("-inf")
        self.told_up = True  # as the director has it
        self.unable: dict[str, str] = {}  # checks that could not be run, and why
        self.watcher: Watcher | None = None
        self.watched_by: Fault | None = None  # settings that the watcher is made of
        self.restart: asyncio.Task[None] | None = None
        self.growing: asyncio.TimerHandle | None = None  # the next step of its slow start

    @property
    def name(self) -> str:
        """For the log: its address, with the port if that is not the service's."""
        full = server_name(self.plan.spec)
        if self.plan.spec.port == self.service.plan.key.port:
            return full.rpartition(":")[0].strip("[]")
        return full

    @property
    def weight(self) -> int:
        """When it is in service."""
        return self.plan.spec.weight if self.state.weight is None else self.state.weight

    @property
    def target(self) -> Target:
        """For checks."""
        return Target(self.service.plan.key, self.plan.spec)

    def end(self) -> None:
        """Look after it no longer."""
        for task in (*self.tasks.values(), *([self.restart] if self.restart else ())):
            task.cancel()
        if self.growing is not None:
            self.growing.cancel()
        self.unwatched()

    def unwatched(self) -> None:
        """Watch its process no longer."""
        if self.watcher is not None:
            self.watcher.close()


class Looked:
    """A service that is looked after."""

    def __init__(self, plan: ServicePlan) -> None:
        self.plan = plan
        self.quorum = Quorum(plan.quorum, plan.hysteresis)
        self.servers: dict[ServerId, Watched] = {}

    @property
    def held(self) -> bool:
        """Have the servers that are well to stand aside, since too few are, and the fallback serves?"""
        return self.plan.fallback is not None and not self.quorum.up

    @property
    def weight(self) -> int:
        """Of the servers in service."""
        return sum(server.weight for server in self.servers.values() if server.state.up)

    def take_weight(self) -> bool:
        """Is the quorum another now?"""
        return self.quorum.take(self.weight, sum(server.weight for server in self.servers.values()))


class Monitor:
    """Looks after the servers of a configuration. `switch` is closed with it; `run` is for tests."""

    def __init__(self, config: Config, switch: Switch, *, run: Run = checks.run) -> None:
        self.config, self.switch, self._run = config, switch, run
        self.hooks = Hooks()
        self._services: dict[Lookup, Looked] = {}
        self._dirty: dict[tuple[Lookup, ServerId | None], None] = {}  # what is to be told, in order
        self._untold: dict[tuple[Lookup, ServerId | None], tuple[Any, Any]] = {}  # no longer looked after
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(config.monitor.concurrency)
        self._telling: asyncio.Task[None] | None = None
        self._known: Known = {}
        self._begun = self._away = False

    # ---- life

    def start(self) -> None:
        """Begin, in the running loop."""
        self._telling = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        """What is down already, by whomever was here before, stays down until its checks say otherwise."""
        while True:
            try:
                self._known = await self.switch.known()
                break
            except Unreachable as error:
                self._gone(error)
            except OSError as error:
                log.warning("what is known of servers is not told: %s", error.strerror or error)
                break
            await asyncio.sleep(RETRY_S)
        self._take(self.config)
        self._begun, self._known = True, {}
        await self._tell_all()

    def reload(self, config: Config) -> None:
        """Go on with another configuration: what has not changed keeps its state, and its run under way."""
        self.config = config
        self._room = asyncio.Semaphore(config.monitor.concurrency)
        if self._begun:
            self._take(config)

    async def close(self) -> None:
        """End; what was told of servers stays (fail static)."""
        for service in self._services.values():
            for server in service.servers.values():
                server.end()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])
        await self.hooks.close()
        self.switch.close()

    # ---- configuration

    def _take(self, config: Config) -> None:
        plans = plan(config)
        for lookup in [k for k in self._services if k not in plans]:
            service = self._services.pop(lookup)
            for server in list(service.servers):
                self._drop(service, server)
            if service.plan.fallback is not None:
                self._forget((lookup, None), (service.plan.key, None))
        for lookup, new in plans.items():
            looked = self._services.get(lookup)
            fresh = looked is None
            if looked is None:
                looked = self._services[lookup] = Looked(new)
            looked.plan = new
            looked.quorum.quorum, looked.quorum.hysteresis = new.quorum, new.hysteresis
            for server in [s for s in looked.servers if s not in new.servers]:
                self._drop(looked, server)
            for server, wanted in new.servers.items():
                self._take_server(looked, server, wanted)
            if fresh and not self._begun:
                looked.take_weight()  # lost before we came: no change of ours to be told
            self._weigh(looked)
            self._mark(looked, None)

    def _take_server(self, service: Looked, server: ServerId, wanted: ServerPlan) -> None:
        now = asyncio.get_running_loop().time()
        fault, kept = service.plan.fault, self.config.monitor.history
        watched = service.servers.get(server)
        if watched is None:
            known = self._known.get((service.plan.key.lookup, server))
            begun = state.begin(now, wanted.checks, fault, kept, **last(known, now, service.plan.slow_start))
            watched = service.servers[server] = Watched(service, wanted, begun)
            watched.told_up = known is None or known.up
        else:
            same = {name for name, c in wanted.checks.items() if watched.plan.checks.get(name) == c}
            for name in [n for n in watched.tasks if n not in same]:
                watched.tasks.pop(name).cancel()
            state.begin(now, wanted.checks, fault, kept, watched.state, same)
        watched.plan = wanted
        for name, settings in wanted.checks.items():
            if name not in watched.tasks:
                task = self._checking(watched, name, settings)
                watched.tasks[name] = asyncio.get_running_loop().create_task(task)
        self._watch(watched)
        self._mark(service, server)

    def _watch(self, server: Watched) -> None:
        """A fault monitor knows the process of a server on this host."""
        fault, spec = server.service.plan.fault, server.plan.spec
        if fault is None or not fault.watch_process or not server.plan.checks:
            server.unwatched()
            server.watched_by = server.watcher = None
        elif server.watched_by != fault:
            server.unwatched()
            server.watched_by, server.watcher = fault, None
            if not is_local(spec.af, spec.addr):
                return
            protocol = server.service.plan.key.protocol
            server.watcher = Watcher(
                lambda: find(fault, spec.af, spec.addr, spec.port, protocol),
                lambda reason: self._process_ended(server, reason),
            )

    def _drop(self, service: Looked, server: ServerId) -> None:
        service.servers.pop(server).end()
        self._forget((service.plan.key.lookup, server), (service.plan.key, server))

    def _forget(self, key: tuple[Lookup, ServerId | None], what: tuple[Any, Any]) -> None:
        self._untold[key] = what
        self._wake.set()

    # ---- checks

    async def _checking(self, server: Watched, name: str, settings: Common) -> None:
        """One check, again and again: from begin to begin `interval`, never two runs at a time."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0, settings.interval))
        while True:
            begin = loop.time()
            async with self._room:
                result = await self._run(server.target, settings)
            self._took(server, name, result)
            await asyncio.sleep(max(0.0, begin + settings.interval - loop.time()))

    def _took(self, server: Watched, name: str, result: Result) -> None:
        now = asyncio.get_running_loop().time()
        if result.counts:
            server.unable.pop(name, None)
        elif server.unable.get(name) != result.detail:
            server.unable[name] = result.detail
            log.warning(
                "%s, %s: the %s check says nothing: %s",
                server.name,
                server.service.plan.name,
                name,
                result.detail,
            )
        if result.ok and server.watcher is not None:
            server.watcher.look()
        weight = server.state.weight
        restart = self._noting(server, lambda: server.state.take(now, name, result))
        if restart:
            self._restart(server)
        if server.changes or server.state.weight != weight or now - server.told_at >= ABOUT_S:
            self._mark(server.service, self._id(server))

    def _process_ended(self, server: Watched, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._noting(server, lambda: server.state.process_ended(now, reason)):
            self._restart(server)
        self._mark(server.service, self._id(server))

    def _noting(self, server: Watched, decide: Callable[[], bool]) -> bool:
        """Decide, and note the change of state if there is one."""
        before, weight = server.state.state, server.state.weight
        decided = decide()
        if server.state.state != before:
            server.changes.append(server.state.history[-1])
        if server.state.state != before or server.state.weight != weight:
            self._weigh(server.service)
        return decided

    def _restart(self, server: Watched) -> None:
        server.restart = asyncio.get_running_loop().create_task(self._restarting(server))

    async def _restarting(self, server: Watched) -> None:
        fault = server.service.plan.fault
        if fault is None or fault.restart is None:
            server.state.restarting = False
            return
        log.info("%s, %s: restarting it", server.name, server.service.plan.name)
        done = await process.run(fault.restart, server.target.environment, fault.restart_timeout)
        refused = None if done.status == 0 else done.why
        if refused is not None:
            log.error("%s, %s: restart: %s", server.name, server.service.plan.name, refused)
        server.state.restarted(asyncio.get_running_loop().time(), refused)
        self._mark(server.service, self._id(server))

    # ---- quorum

    def _weigh(self, service: Looked) -> None:
        if not service.take_weight():
            return
        up = service.quorum.up
        log.warning(
            "%s: quorum %s: weight %d of %d", service.plan.name, "is back" if up else "is lost",
            service.weight, service.plan.quorum,
            extra={"event": "quorum", "service": service.plan.name},
        )  # fmt: skip
        environment = {
            "UVS_SERVICE": service.plan.name,
            "UVS_STATE": "up" if up else "down",
            "UVS_WEIGHT": str(service.weight),
            "UVS_QUORUM": str(service.plan.quorum),
        }
        self._hook(service, "quorum_up" if up else "quorum_down", service.plan.name, environment)
        if service.plan.fallback is not None:
            # The fallback server comes before the others stand aside, and goes after they are back.
            order: list[ServerId | None] = [*service.servers]
            for server in [*order, None] if up else [None, *order]:
                self._mark(service, server)

    # ---- telling

    def _id(self, server: Watched) -> ServerId:
        return server.plan.spec.af, server.plan.spec.addr, server.plan.spec.port

    def _mark(self, service: Looked, server: ServerId | None) -> None:
        self._dirty[service.plan.key.lookup, server] = None
        self._wake.set()

    async def _tell_all(self) -> None:
        """Tell what is marked, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._untold or self._dirty:
                    await self._tell_next()
                    await asyncio.sleep(0)  # in the director's process packets go between
            except Unreachable as error:
                self._gone(error)
                await asyncio.sleep(RETRY_S)
                self._everything()
            except Exception:
                log.exception("telling the director went wrong")  # the next is told all the same

    def _gone(self, error: OSError) -> None:
        if not self._away:
            log.warning("%s; checks go on, and it will be told everything again", error.strerror)
        self._away = True

    def _everything(self) -> None:
        for service in self._services.values():
            for server in (*service.servers, None):
                self._mark(service, server)

    async def _tell_next(self) -> None:
        if self._untold:
            key, (service_key, server) = next(iter(self._untold.items()))
            try:
                if server is None:
                    await self.switch.set_fallback(service_key, None)
                else:
                    await self.switch.set_health(service_key, server, None)
            except IpvsError:
                pass  # it is gone
            self._untold.pop(key, None)
            return
        key = next(iter(self._dirty))
        del self._dirty[key]
        lookup, server = key
        if (service := self._services.get(lookup)) is None:
            return
        try:
            if server is None:
                await self._tell_fallback(service)
            elif (watched := service.servers.get(server)) is not None:
                await self._tell_server(service, server, watched)
        except Unreachable:
            self._dirty[key] = None
            raise
        if self._away:
            self._away = False
            log.info("the director is back, and is told everything again")

    async def _tell_fallback(self, service: Looked) -> None:
        dest = service.plan.fallback if service.held else None
        try:
            await self.switch.set_fallback(service.plan.key, dest)
        except IpvsError as error:
            log.error("%s: the director refuses the fallback server: %s", service.plan.name, error.strerror)

    async def _tell_server(self, service: Looked, server: ServerId, watched: Watched) -> None:
        now = asyncio.get_running_loop().time()
        health = self._health(service, watched, now)
        changes, watched.changes = watched.changes, []
        try:
            await self.switch.set_health(service.plan.key, server, health)
        except IpvsError as error:
            reason = f"the director refuses: {error.strerror}"
            if health is not None and health.up != watched.told_up:
                watched.state.not_applied(now, watched.told_up, reason)
                self._weigh(service)
            log.error("%s, %s: %s", watched.name, service.plan.name, reason)
            return
        except Unreachable:
            self._announce(service, watched, changes)  # it is so, whether the director knows it or not
            raise
        watched.told_at = now
        watched.told_up = health is None or health.up
        self._announce(service, watched, changes)
        if watched.growing is not None:
            watched.growing.cancel()  # one at a time, however often it is told in between
        if health is not None and health.share < 1:
            step = max(0.1, service.plan.slow_start / STEPS)
            watched.growing = asyncio.get_running_loop().call_later(step, self._mark, service, server)

    def _health(self, service: Looked, watched: Watched, now: float) -> Health | None:
        if not watched.plan.checks and not service.held:
            return None
        it = watched.state
        return Health(
            up=it.up and not service.held,
            weight=it.weight,
            share=round(it.share(now, service.plan.slow_start), 3),
            remove=service.plan.remove,
            about=about(watched, now, service.held),
        )

    # ---- announcing

    def _announce(self, service: Looked, watched: Watched, changes: list[Change]) -> None:
        for change in changes:
            what = {State.FAULTED: "gone", State.DEGRADED: "degraded", State.OK: "well"}[change.after]
            if change.before == State.FAULTED:
                what = "back"
            level = logging.WARNING if change.after != State.OK else logging.INFO
            log.log(
                level, "%s is %s: %s, %s", watched.name, what, service.plan.name, change.reason,
                extra={"event": what, "service": service.plan.name, "server": server_name(watched.plan.spec)},
            )  # fmt: skip
            kind = {"gone": "down", "back": "up", "degraded": "degraded"}.get(what)
            if kind is not None:
                environment = watched.target.environment | {
                    "UVS_STATE": change.after.value,
                    "UVS_STATE_BEFORE": change.before.value,
                    "UVS_CHANGE": kind,
                    "UVS_REASON": change.reason[:REASON_MAX],
                }
                self._hook(service, kind, server_name(watched.plan.spec), environment)

    def _hook(self, service: Looked, kind: str, of: str, environment: dict[str, str]) -> None:
        for hooks in (service.plan.hooks, self.config.monitor.hooks):
            if (command := getattr(hooks, kind)) is not None:
                what = {"UVS_CHANGE": kind} | environment
                self.hooks.put(Hook(f"{kind} hook of {of}", command, what, hooks.timeout))


def about(watched: Watched, now: float, held: bool) -> dict[str, object]:
    """What is shown of a server; times are seconds since the epoch."""
    it, wall = watched.state, time.time() - now
    told: dict[str, object] = {
        "state": it.state.value,
        "reason": it.reason[:REASON_MAX],
        "since": round(it.since + wall, 3),
        "checks": list(_checks(watched, wall)),
        "history": [
            {"at": round(c.at + wall, 3), "before": c.before.value, "after": c.after.value,
             "reason": c.reason[:REASON_MAX]}
            for c in it.history
        ],
    }  # fmt: skip
    if held:
        told["held"] = True
    if watched.watcher is not None and watched.watcher.pid is not None:
        told["process"] = watched.watcher.pid
    return told


def _checks(watched: Watched, wall: float) -> Iterator[dict[str, object]]:
    for name, check in watched.state.checks.items():
        row: dict[str, object] = {"name": name, "up": check.up, "streak": check.streak}
        if check.last is not None:
            row |= {
                "at": round(check.at + wall, 3),
                "ok": check.last.ok,
                "detail": check.last.detail[:REASON_MAX],
                "duration": round(check.last.duration, 4),
            }
        yield row
