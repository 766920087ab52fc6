"""What follows from checks' results: state machines without I/O, the clock passed in (seconds, monotonic).

    OK        in service, and nothing is wrong
    DEGRADED  in service; runs have failed, fewer than it takes
    FAULTED   out of service

A server is in service while all its checks are up.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from uvs.config.checks import Common, Fault
from uvs.health.checks.base import Result

BEGINNINGS = ("not checked yet", "out of service already")  # reasons, until a run gives a better one


class State(enum.StrEnum):
    """What is shown of a server."""

    OK = "OK"
    DEGRADED = "DEGRADED"
    FAULTED = "FAULTED"


class Change(NamedTuple):
    """A server's state has changed: when, from what, to what, and why."""

    at: float
    before: State
    after: State
    reason: str


@dataclass(slots=True)
class CheckState:
    """One check of a server: up or down, and the runs in a row that say otherwise (`streak`).

    One that is new believes its server, but the first run that fails is enough: a server that is dead when we
    begin must not serve for `fall` intervals.
    """

    rise: int
    fall: int
    up: bool = True
    streak: int = 0
    new: bool = True
    last: Result | None = None
    at: float = 0.0

    def take(self, now: float, result: Result) -> None:
        """A run has ended."""
        self.last, self.at = result, now
        if not result.counts:
            return
        self.streak = 0 if result.ok == self.up else self.streak + 1
        needed = self.rise if not self.up else 1 if self.new else self.fall
        if self.streak >= needed:
            self.up, self.streak = not self.up, 0
        self.new = False

    def force(self, up: bool) -> None:
        """It is so from now on, whatever was counted."""
        self.up, self.streak, self.new = up, 0, False


@dataclass(slots=True)
class Server:
    """A real server of a service, as its checks have it. `kept`: changes that are remembered."""

    checks: dict[str, CheckState]
    fault: Fault | None = None
    kept: int = 20
    since: float = 0.0
    reason: str = BEGINNINGS[0]
    state: State = State.OK
    weight: int | None = None  # a command's dynamic weight
    up_since: float | None = None  # it came back then; None: it was never away
    restarting: bool = False
    no_restart_before: float = float("-inf")
    failures: deque[float] = field(default_factory=deque)  # the fault monitor's window
    history: deque[Change] = field(default_factory=deque)

    @property
    def up(self) -> bool:
        """Is it in service?"""
        return all(check.up for check in self.checks.values())

    def take(self, now: float, name: str, result: Result) -> bool:
        """A run of a check has ended; True: the restart command is to be run."""
        was_up = self.up
        self.checks[name].take(now, result)
        if not result.counts:
            return False
        if not result.ok:
            return self._failed(now, f"{name} check: {result.detail}", was_up)
        if result.weight is not None:
            self.weight = result.weight
        self._follow(now, f"{name} check: {result.detail}")
        return False

    def process_ended(self, now: float, reason: str) -> bool:
        """The server's own process is gone: no run is waited for. True: the restart command is to be run."""
        was_up = self.up
        self._force(False)
        return self._failed(now, reason, was_up)

    def _failed(self, now: float, reason: str, was_up: bool) -> bool:
        """A failure counts in the fault monitor's window, unless the server is out, or being restarted."""
        restart = False
        if self.fault is not None and was_up and not self.restarting:
            self._forget(now)
            self.failures.append(now)
            count = len(self.failures)
            if count >= self.fault.retry_count:
                reason = f"{reason}, {count} failures within {self.fault.retry_interval:g} s"
                self._force(False)
                self.failures.clear()  # when it is back the count begins anew
            elif self.fault.restart is not None and now >= self.no_restart_before:
                restart = self.restarting = True
        self._follow(now, reason)
        return restart

    def restarted(self, now: float, refused: str | None) -> None:
        """The restart command has ended. `refused`: how it failed.

        Then the count begins anew, and it is not run again before the window is over.
        """
        self.restarting = False
        if refused is not None and self.fault is not None:
            self.no_restart_before = now + self.fault.retry_interval
            self.failures.clear()
            self._record(now, self._found(now), f"restart: {refused}")

    def not_applied(self, now: float, in_service: bool, reason: str) -> None:
        """The director refused to take the server out or in: it is what it was, and all counts begin anew."""
        self._force(in_service)
        self.failures.clear()
        self._record(now, self._found(now), reason)

    def _force(self, up: bool) -> None:
        for check in self.checks.values():
            check.force(up)

    def _forget(self, now: float) -> None:
        assert self.fault is not None
        while self.failures and self.failures[0] <= now - self.fault.retry_interval:
            self.failures.popleft()

    def _found(self, now: float) -> State:
        if not self.up:
            return State.FAULTED
        if self.fault is not None:
            self._forget(now)
        failing = self.failures or any(check.streak for check in self.checks.values())
        return State.DEGRADED if failing else State.OK

    def _follow(self, now: float, reason: str) -> None:
        if (after := self._found(now)) != self.state:
            self._record(now, after, reason)
        elif self.reason in BEGINNINGS:
            self.reason = reason

    def _record(self, now: float, after: State, reason: str) -> None:
        self.history.append(Change(now, self.state, after, reason))
        while len(self.history) > self.kept:
            self.history.popleft()
        if after != self.state:
            self.since = now
            if self.state == State.FAULTED:
                self.up_since = now
        self.state, self.reason = after, reason

    def share(self, now: float, slow_start: float) -> float:
        """Of its weight, while it takes up its work again: from a tenth on, rising within `slow_start` s."""
        if self.up_since is None or now >= self.up_since + slow_start:
            return 1.0
        return max(0.1, (now - self.up_since) / slow_start)


def begin(
    now: float,
    checks: Mapping[str, Common],
    fault: Fault | None = None,
    kept: int = 20,
    old: Server | None = None,
    same: Collection[str] = (),
    up: bool | None = None,
    weight: int | None = None,
    up_since: float | None = None,
) -> Server:
    """A server's state from now on. `old`: as it was under the settings before.

    Else `up`, `weight`, `up_since`: as it is said to be.

    The checks that are the `same` go on as they were; others begin as the server is, so that no change of
    settings brings a dead server back.
    """
    server = old or Server({}, since=now, weight=weight, up_since=up_since)
    if server.checks:
        up = server.up
    before, server.checks = server.checks, {}
    for name, settings in checks.items():
        if name in same:
            server.checks[name] = before[name]
            continue
        server.checks[name] = CheckState(settings.rise, settings.fall)
        if up is not None:
            server.checks[name].force(up)
    server.fault, server.kept = fault, kept
    if not server.up and server.state != State.FAULTED:
        server.state, server.reason = State.FAULTED, BEGINNINGS[1]
    if fault is None:
        server.failures.clear()
    if not any(getattr(settings, "weight", False) for settings in checks.values()):
        server.weight = None
    return server


@dataclass(slots=True)
class Quorum:
    """Is there enough to serve with? Weights, as keepalived counts them."""

    quorum: int = 1
    hysteresis: int = 0
    up: bool = True

    def take(self, weight: int, most: int | None = None) -> bool:
        """The weight of the servers in service, in all; True: it has changed.

        `most`: with every server in service. More is not waited for, or what was lost would never be back.
        """
        before = self.up
        if self.up:
            self.up = weight >= self.quorum - self.hysteresis
        else:
            needed = self.quorum + self.hysteresis
            self.up = weight >= (needed if most is None else min(needed, max(self.quorum, most)))
        return self.up != before
