"""What clients may cost: a budget of time for all of them in a turn of the loop, dealt out in rotation.

A client that floods is not refused anything: it waits, as do the others, until its turn comes round; packets
and timers have theirs in between.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from uvs.control.genetlink import log

BUDGET_S = 0.005  # of a turn of the loop, for all clients together
SHARE_S = 0.001  # of it for one, while others wait
CLIENTS_MAX = 1000
PER_USER_MAX = 200  # of one user; root and the director's own may have all
KEPT = 200  # of all places, for those two: however many others there are, they get in
SPARE = (
    100  # descriptors that are not for clients, besides those open: files, pipes of the firewall's programs
)
SAY_AGAIN_S = 10.0


class Work(Protocol):
    """One that has its turn."""

    def turn(self, end: float) -> None:
        """Work until `end` (monotonic seconds), and a little at any rate."""


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call it in the next turn."""


class Turns:
    """Who is next. At least one is served in a turn of the loop, and none twice while another waits."""

    def __init__(self, loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop, self._clock = loop, clock
        self._waiting: dict[Work, None] = {}  # in order
        self._end: float | None = None  # of the budget of this turn of the loop; None: nobody has asked yet

    def ask(self, client: Work) -> None:
        """`client` has something to do: at once, if nobody waits and there is time left; else in its turn."""
        if client in self._waiting:
            return
        if self._end is None:
            self._end = self._clock() + BUDGET_S
            self._loop.call_soon(self._next_turn)
        if self._waiting or self._clock() >= self._end:
            self._waiting[client] = None
        else:
            client.turn(self._end)

    def wait(self, client: Work) -> None:
        """`client` has had its share, and has more to do."""
        if self._end is None:
            self._end = self._clock()
            self._loop.call_soon(self._next_turn)
        self._waiting[client] = None

    def forget(self, client: Work) -> None:
        """It is gone."""
        self._waiting.pop(client, None)

    def _next_turn(self) -> None:
        if not self._waiting:
            self._end = None
            return
        self._loop.call_soon(self._next_turn)
        now = self._clock()
        self._end = now + BUDGET_S
        for client in list(self._waiting):
            if client not in self._waiting:  # an earlier one's turn has ended it
                continue
            del self._waiting[client]
            client.turn(min(now + SHARE_S, self._end) if self._waiting else self._end)
            now = self._clock()
            if now >= self._end:
                return


class Places:
    """How many clients there are, by user."""

    def __init__(self, room: int = CLIENTS_MAX) -> None:
        """`room`: how many there are descriptors for."""
        self._room = room
        self._held: Counter[int] = Counter()
        self._others = 0  # neither root's nor the own user's

    def take(self, uid: int, favoured: bool) -> bool:
        """A place for a client of `uid`, if there is one left; `favoured`: root and the own user."""
        most = min(CLIENTS_MAX, self._room)
        if self._held.total() >= most:
            return False
        if not favoured and (self._held[uid] >= PER_USER_MAX or self._others >= most - min(KEPT, most // 2)):
            return False
        self._held[uid] += 1
        self._others += not favoured
        return True

    def leave(self, uid: int, favoured: bool) -> None:
        """A client of `uid` has gone; `favoured` as it was when it came."""
        self._held[uid] -= 1
        self._others -= not favoured
        if not self._held[uid]:
            del self._held[uid]


def room() -> int:
    """How many clients there are descriptors for, when this process has all that it may (RLIMIT_NOFILE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = SPARE + len(os.listdir("/dev/fd"))  # of many queues these are hundreds
    wanted = CLIENTS_MAX + spare
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(soft - spare, 1)


class Seldom:
    """A warning that others cause, at most every ten seconds; the next tells how many were held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._again = float("-inf")
        self._held_back = 0

    def warn(self, text: str) -> None:
        """Log it, or count it."""
        now = self._clock()
        if now < self._again:
            self._held_back += 1
            return
        more = f" (and {self._held_back} more such)" if self._held_back else ""
        self._again, self._held_back = now + SAY_AGAIN_S, 0
        log.warning("%s%s", text, more)
