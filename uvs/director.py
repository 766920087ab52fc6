"""The director: puts the parts together and turns the loop. It decides nothing about packets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from uvs import __version__, host, successor
from uvs.chores import every, in_slices, spare_collector
from uvs.control import credentials, state
from uvs.control.keeper import Keeper
from uvs.control.layer_ops import LayerOps
from uvs.control.paths import private_directory
from uvs.control.server import Server
from uvs.diverted import Diverted
from uvs.egress import Egress, FragmentWatch
from uvs.egress.fragments import FORGET_S
from uvs.engine.core import Conn, Fast, FastPath, Table, Why, clock
from uvs.ipvs.estimator import ROW_NS
from uvs.ipvs.hooks import nf_hook, set_fast
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import Hook, NetnsIpvs, Skb, Verdict
from uvs.ipvs.spec import QueueRow
from uvs.ipvs.unreachable import no_neighbour
from uvs.layers import Layers
from uvs.netfilter.diversion import Diversion
from uvs.netfilter.driver import Marked, with_kernels
from uvs.netfilter.native import NativeDriver, QueueSpec
from uvs.netfilter.netfilterqueue import NetfilterQueueDriver
from uvs.netfilter.plan import Class, one_queue, queues_by_class
from uvs.netfilter.tool import NetfilterError
from uvs.systemd import Watchdog, notify, watchdog_s

if TYPE_CHECKING:
    from uvs.rule import Rule  # which needs what only a configuration does

log = logging.getLogger("uvs")

MARK = 0x4000_0000  # the bit that says "sent by uvs"
LOOPBACK = 1  # index of its device (LOOPBACK_IFINDEX, include/net/flow.h)
FLUSHES = 32  # of the rules a second, for single connections
DRIVERS = ("native", "netfilterqueue")
URGENCY = (Class.REPLY, Class.REQUEST, Class.OTHER, Class.SYN)  # what is served first
TICK_S, SECOND_S = 0.1, 1.0
LATE_TURNS = 3  # of the loop, until it has called what a signal calls
SWITCH_S = 0.0005  # for so long the thread that changes rules may keep the interpreter from packets


class Director:
    """The parts of one director and their life."""

    def __init__(
        self,
        *,
        queue: int,
        socket_path: str,
        state_dir: Path,
        conn_max: int,
        access: credentials.Access,
        saved_dir: Path | None = None,
        restore_at_boot: bool = False,
        driver: str = DRIVERS[0],
        workers: int = 1,
        busy_poll: int = 0,
        clock_rate: int = 1,
        rule: Rule | None = None,
    ) -> None:
        """`rule`: the configuration, if one rules the table."""
        self.rule = rule
        self.driver_name = driver
        self.queue, self.workers, self.busy_poll = queue, workers, busy_poll
        self.queues = queues_by_class(queue, workers) if driver == "native" else one_queue(queue)
        self.socket_path = socket_path
        self.state_dir = state_dir
        self.saved_dir = saved_dir or state_dir
        self.conn_max = conn_max
        self.access = access
        self.restore_at_boot = restore_at_boot
        self.clock_rate = clock_rate
        self.clock = clock(clock_rate)
        self.skb = Skb()
        self.fastpath: FastPath | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._successor = asyncio.Event()
        self._flushes = 0
        self._rules: asyncio.Task[None] | None = None
        self._undo = contextlib.ExitStack()

    async def run(self) -> None:
        """Start, say READY, serve until a signal, undo everything."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, done.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.add_signal_handler(signal.SIGUSR2, self._ask_for_successor)
        successor.release_signals()
        try:
            self._start(loop)
            sys.setswitchinterval(SWITCH_S)
            spare_collector()
            log.info(
                "%s ready: queue %d, %s, %d services, %d connections, control at %s",
                __version__, self.queue, self.diversion.name, len(self.ipvs.services),
                self.ipvs.table.info()["conns"], self.socket_path,
                extra={"event": "ready", "version": __version__, "queue": self.queue},
            )  # fmt: skip
            notify("READY=1")
            await self._serve(done)
            notify("STOPPING=1")
        finally:
            try:
                if self.rule is not None:
                    await self.rule.close()
            finally:
                self._undo.close()  # all of it, even if a part fails

    async def _serve(self, done: asyncio.Event) -> None:
        """Until a signal; SIGUSR2 is no end, unless the kernel does not let the successor come into being."""
        while not done.is_set():
            waits = [asyncio.ensure_future(each.wait()) for each in (done, self._successor)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            if self._successor.is_set() and not done.is_set():
                self._successor.clear()
                await self._hand_over(done)

    def _hang_up(self) -> None:
        """SIGHUP."""
        if self.rule is None:
            log.info("SIGHUP: there is no configuration file to read again")
            return
        self.rule.hang_up()

    def _ask_for_successor(self) -> None:
        self._successor.set()

    async def _hand_over(self, done: asyncio.Event) -> None:
        """Become the installed version (SIGUSR2), if it starts: packets wait in the kernel until it is up."""
        if why := await successor.refusal():
            log.error("SIGUSR2: the installed version does not start, this one goes on: %s", why)
            return
        if self.rule is not None and (why := await asyncio.to_thread(self.rule.refusal)):
            log.error("SIGUSR2: the configuration is wrong, this director goes on: %s", why)
            return
        if done.is_set():
            return
        log.info("SIGUSR2: going over to the installed version", extra={"event": "handing over"})
        notify("RELOADING=1")
        held = successor.hold_signals()
        if self.rule is not None:
            await self.rule.close()
        control = await self.server.hand_over()
        with _logged():
            await self.diversion.flushed()
        for _ in range(LATE_TURNS):
            await asyncio.sleep(0)
        if done.is_set():
            held.append(signal.SIGTERM)
        # What is handed over, and the rules, must outlive this process's part in them.
        estate = successor.Estate(self.driver.hand_over(), control)
        self._settle()
        self.keeper.close()
        self._undo.pop_all()
        successor.become(estate, held)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything that can refuse comes before the first rule; rules come last, so that nothing waits."""
        estate = successor.inherited()
        self._undo.callback(estate.close)
        private_directory(str(self.state_dir), "--state-dir")
        table = Table(str(self.state_dir / "connections"), self.conn_max, host.boot_id(), self.clock())
        self._undo.callback(table.close)
        if table.message:
            log.warning("%s", table.message)
        egress = Egress(MARK, self._no_neighbour, self._count)
        self._undo.callback(egress.close)
        self.egress = egress
        self.ipvs = NetnsIpvs(table, egress, self.clock)
        self.fragments = FragmentWatch()
        self._undo.callback(self.fragments.close)
        self.ipvs.largest_fragment = self._largest_fragment
        _ = self.ipvs.reassembler  # its memory is taken now
        self.ipvs.services.observers.append(self._services_changed)
        self.ipvs.sysctl.host(frozenset(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES"))
        host.read_settings(self.ipvs)
        # Once: source ports of gue tunnels and flow labels follow from it, a flow's must not change.
        self.ipvs.flow_seed = random.getrandbits(32)
        self.layers = Layers(self.ipvs.services)
        saved = state.SavedTable(
            self.saved_dir / "table",
            host.boot_id().hex(),
            restore_at_boot=self.restore_at_boot,
            layers=self.layers,
        )
        self.keeper = Keeper(saved, self.ipvs)
        self._undo.callback(self.keeper.close)
        for message in self.keeper.restore():
            log.warning("%s", message)
        if self.rule is not None:
            self.rule.begin(self.ipvs, self.layers)
        elif down := self.layers.down():
            log.warning("%d servers are kept out of service by what checks found before: `uvs monitor`", down)

        self._open_driver(estate)
        self.ipvs.queues = self._queues
        self.ipvs.unresolved = egress.unresolved
        more = LayerOps(self.layers, self.rule).ops()
        self.server = Server(self.ipvs, self.socket_path, self._commit, self.access, self._handled, more)
        self.server.start(loop, estate.take_control())
        self.layers.commit = self.server.commits.start
        self._undo.callback(self.server.close)
        estate.close()
        self.diversion = Diversion(self.queues, MARK, MARK, os.environ.get("UVS_BACKEND"))
        self.diverted = Diverted(self.ipvs.services, self.diversion)
        self.diverted.adopt()
        self.ipvs.answers_from = self._answers_from
        self._undo.callback(self.diversion.stop)
        self.diversion.start()
        for warning in self.diversion.warnings:
            log.warning("%s", warning)
        self.keeper.begin(loop)

        for fd, ready in ((self.driver.fileno(), self.driver.run), (egress.fileno(), self._egress_events)):
            loop.add_reader(fd, ready)
            self._undo.callback(loop.remove_reader, fd)
        if self.fastpath is not None:
            self._watch_fragments(loop)
        self._refresh()
        self.driver.start()
        for period, work in (
            (TICK_S, self._tick),
            (SECOND_S, self._second),
            (ROW_NS / 1e9, self._estimate),
            (FORGET_S, self.fragments.sizes.forget),
        ):
            self._undo.callback(every(loop, period, work))
        if limit := watchdog_s():
            watchdog = Watchdog(limit, self.driver.turns)
            self._undo.callback(every(loop, watchdog.period, watchdog.feed))
        if self.rule is not None:
            self.rule.committed = self.server.commits.ended
            self.rule.watch()

    def _open_driver(self, estate: successor.Estate) -> None:
        if self.driver_name != "native":
            self.driver: NetfilterQueueDriver | NativeDriver = NetfilterQueueDriver(self.queue, self._packet)
            self._undo.callback(self.driver.close)
            return
        self.fastpath = FastPath(
            self.ipvs.table, self.egress.nexthops, self.clock_rate, self.ipvs.tracers.trace
        )
        self._undo.callback(self.fastpath.close)
        self.fragments.sizes.count = self.fastpath.fragmented
        workers = [
            [
                QueueSpec(self.queues[each][i], each.name.lower(), each != Class.OTHER, each == Class.SYN)
                for each in URGENCY
            ]
            for i in range(self.workers)
        ]
        self.driver = NativeDriver(
            workers, self._packet, self.fastpath, MARK, self.egress.refused, estate.take_queue, self.busy_poll
        )
        self._undo.callback(self.driver.close)
        self.ipvs.settle = self._settle

    def _queues(self) -> list[QueueRow]:
        return with_kernels(self.driver.counters())

    # ---- packets

    def _refresh(self) -> None:
        """What the fast path has to leave to the hook path now; after whatever may have changed that."""
        if self.fastpath is None:
            return
        try:
            set_fast(self.ipvs, self.fastpath, self.egress.smallest_mtu)
        except OSError as error:  # the kernel does not tell its rules of routing
            if self.fastpath.flags != Fast.OFF:
                log.error("the fast path is off: %s", error)
            self.fastpath.flags = Fast.OFF

    def _settle(self) -> None:
        """Counts of the fast path become those of everything."""
        if self.fastpath is not None:
            self.fastpath.take_counts(self.ipvs.why)

    def _packet(
        self, hook: int, data: bytes, mark: int, indev: int, gso: bool, traced: int
    ) -> bool | bytes | Marked:
        skb = self.skb
        verdict = nf_hook(self.ipvs, skb, _HOOKS[hook], data, mark, indev, gso, traced)
        largest = 0 if skb.made else skb.frag_max
        for index, packet in skb.sends:
            # inside a tunnel of the other family it is not looked at
            same = packet[0] >> 4 == data[0] >> 4
            self.egress.send(index, packet, largest if same else 0)
        if verdict != Verdict.ACCEPT:
            return False
        payload = skb.pkt.data if skb.modified else None
        if skb.ipvs_property and skb.hook == Hook.LOCAL_OUT and self._is_ours_again(skb):
            return Marked(payload, mark | MARK)
        return True if payload is None else payload

    def _is_ours_again(self, skb: Skb) -> bool:
        """Will it come to LOCAL_IN, where it must be known as handled (ipvs_property)?

        Others keep their mark: rules of routing may depend on it.
        """
        return self.egress.is_local(skb.iph.af, skb.iph.daddr)

    def _largest_fragment(self, head: bytes, indev: int) -> int:
        return self.fragments.largest(head, self.egress.link_mtu(indev) if indev > LOOPBACK else 0)

    def _services_changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        if event != "add_service" or svc.key.af in self.fragments.filenos:
            return
        try:
            self.fragments.watch(svc.key.af)
        except OSError as error:
            log.warning("fragments are not watched, large IPv6 datagrams may be refused: %s", error)
            return
        if self._loop is not None:
            self._watch_fragments(self._loop)

    def _watch_fragments(self, loop: asyncio.AbstractEventLoop) -> None:
        """Heads of fragments are looked at as they come: until then the fast path takes no datagram."""
        assert self.fastpath is not None
        self._loop, filenos = loop, self.fragments.filenos
        self.fastpath.watch(filenos.get(socket.AF_INET, -1), filenos.get(socket.AF_INET6, -1))
        for af, fd in filenos.items():
            loop.add_reader(fd, self.fragments.drain, af)
            self._undo.callback(loop.remove_reader, fd)

    def _answers_from(self, cp: Conn) -> None:
        """Before the request leaves, so that the first reply is seen; unless that comes too often."""
        if self.diverted.answers_from(cp) and self._flushes < FLUSHES:
            self._flushes += 1
            with _logged():
                self.diversion.flush()

    def _no_neighbour(self, data: bytes) -> None:
        for index, packet in no_neighbour(self.ipvs, data):
            self.egress.send(index, packet)

    def _count(self, why: Why) -> None:
        self.ipvs.why[why] += 1

    # ---- control and time

    def _handled(self) -> None:
        self.layers.settle()
        self._refresh()

    async def _commit(self) -> None:
        with _logged():
            await self.diversion.flushed()
        self.keeper.commit()
        spare_collector()

    def _tick(self) -> None:
        self.ipvs.expire_nodest_conns()
        self.ipvs.table.expire(self.clock())
        self.egress.tick(time.monotonic_ns())  # it waits for the kernel and for neighbours: their time
        self.driver.tick()
        self._settle()
        self._refresh()

    def _egress_events(self) -> None:
        self.egress.events()
        self._refresh()

    def _second(self) -> None:
        now = self.clock()
        self.ipvs.why[Why.CUT] = sum(int(row["cut"] or 0) for row in self.driver.counters())  # dropped by it
        in_slices(self.ipvs.services.expiring_trash(now))
        self.ipvs.services.tick_schedulers(now)
        self.ipvs.defence.run(now, host.available_pages())
        host.read_settings(self.ipvs)
        in_slices(self.diverted.releasing())
        self._flushes = 0
        self.layers.second()
        self.keeper.second()
        if self._rules is None or self._rules.done():
            self._rules = asyncio.get_running_loop().create_task(self._look_after_rules())

    async def _look_after_rules(self) -> None:
        with _logged():
            await self.diversion.flushed()
        with _logged():
            if await self.diversion.checked():
                log.warning("the diversion rules were gone: put back")

    def _estimate(self) -> None:
        in_slices(self.ipvs.services.estimating())


_HOOKS = {int(hook): hook for hook in Hook}


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except NetfilterError as error:
        log.error("%s: tried again every second", error)
