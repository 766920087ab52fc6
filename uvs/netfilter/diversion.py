"""Which packets the kernel hands to us: sets and rules, kept as they should be.

Order for a director: bind the queue (that proves that no other director here uses its number), `start()`,
then `add`/`discard` and one `flush()` for each burst of changes, `check()` every second, `stop()`, and close
the queue last: without its owner a queue drops what is diverted.

`flush()` and `check()` wait for the programs that they run. `flushed()` and `checked()` do the same in a
thread, so that an event loop goes on; whichever is called while another runs takes its turn after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from uvs.netfilter import nfnetlink
from uvs.netfilter.backend import Backend
from uvs.netfilter.iptables import Iptables
from uvs.netfilter.nft import Nft
from uvs.netfilter.plan import Element, Entry, Plan, Queues
from uvs.netfilter.tool import NetfilterError, ToolError

_Result = TypeVar("_Result")

# In order of preference: nft has the kernel's own priorities for ip_vs and changes all in one transaction.
BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "nft": Nft,
    "iptables": Iptables,
    "iptables-nft": lambda: Iptables("-nft"),
    "iptables-legacy": lambda: Iptables("-legacy"),
}

NO_PRIVILEGE = (
    "diverting packets needs CAP_NET_ADMIN: run it as root (sudo), "
    "or in a user namespace of your own (uvs lab does that)"
)
INSTALL = "install nftables, or iptables and ipset (apt install nftables iptables ipset)"


def queue_taken(queue: int) -> str:
    """The message for a queue that another process owns."""
    return f"queue {queue} is taken{nfnetlink.queue_owner(queue)}: stop that one, or use another --queue-num"


class Diversion:
    """The rules and sets of one director in this network namespace.

    `queues` are the NFQUEUE numbers of each class of packets; `mark` under `mask` is on the packets that we
    sent ourselves; `backend` forces a back end by name (so does the environment variable UVS_BACKEND), else
    the first that works is used. `put_back` counts how often somebody had taken our rules or sets away.
    """

    def __init__(self, queues: Queues, mark: int, mask: int, backend: str | None = None) -> None:
        self.plan = Plan(queues, mark, mask)
        self.put_back = 0
        self._forced = backend or os.environ.get("UVS_BACKEND") or None
        if self._forced is not None and self._forced not in BACKENDS:
            raise NetfilterError(f"no back end {self._forced!r}: choose one of {', '.join(BACKENDS)}")
        self._backend: Backend | None = None
        self._rebuilt = False  # by flush(), not yet told by check()
        self._failed = False  # the kernel has not what the plan says
        self._references: dict[Entry, int] = {}
        self._touched: set[Entry] = set()
        self._busy = threading.Lock()  # whoever has it may use back end and plan
        self._thread = ThreadPoolExecutor(1, "diversion")
        self._under_way: Future[None] = Future()  # the last flush of the thread
        self._under_way.set_result(None)

    @property
    def name(self) -> str:
        """Name of the back end in use; "" before start()."""
        return self._backend.name if self._backend else ""

    @property
    def warnings(self) -> list[str]:
        """What this kernel lacks, one line each; complete after start()."""
        return list(self._backend.warnings) if self._backend else []

    def start(self) -> None:
        """Put sets and rules in place, over those that a crashed director left.

        Between the old rules and the new there is no moment without: a packet that passed then would be
        answered with RST by the local stack or the client.

        Raises NetfilterError, having put nothing in place and taken nothing away: no privilege, no working
        back end, or another director rules this namespace.
        """
        if not nfnetlink.has_net_admin():
            raise NetfilterError(NO_PRIVILEGE)
        left = self._leftovers()
        self._apply(self._taken())
        tried = []
        for name in [self._forced] if self._forced else BACKENDS:
            backend = BACKENDS[name]()
            try:
                backend.install(self.plan)
            except ToolError as error:
                tried.append(f"{name}: {error}")
                # What a crashed director left goes on dropping the packets of its services (fail closed).
                if not any(each.kind == backend.kind for each in left):
                    with contextlib.suppress(ToolError):
                        backend.remove()
                continue
            self._backend = backend
            for other in left:
                if other.kind != backend.kind:
                    with contextlib.suppress(ToolError):  # sets that both know are in use
                        other.remove()
            return
        raise NetfilterError(f"no way to divert packets ({'; '.join(tried)}); {INSTALL}")

    def add(self, element: Element) -> None:
        """Divert it from the next flush() on. Counted: as many discards take it out again."""
        for entry in element.entries():
            self._references[entry] = self._references.get(entry, 0) + 1
            self._touched.add(entry)

    def discard(self, element: Element) -> None:
        """Take back one add(). Raises KeyError if there is none left."""
        for entry in element.entries():
            if self._references[entry] == 1:
                del self._references[entry]
            else:
                self._references[entry] -= 1
            self._touched.add(entry)

    def flush(self) -> None:
        """Bring the kernel's sets to what was added and discarded: one batch, whatever its size.

        Raises NetfilterError if the kernel refuses even the whole rule set anew.
        """
        self._bring(self._taken())

    async def flushed(self) -> None:
        """flush() in a thread; changes that another call has taken already are waited for as well.

        Raises NetfilterError as flush() does, to all who wait.
        """
        touched = self._taken()
        if touched:
            self._under_way = self._thread.submit(self._bring, touched)
        if touched or not self._under_way.done():
            await asyncio.shield(asyncio.wrap_future(self._under_way))

    def check(self) -> bool:
        """Put our rules back if somebody flushed them. True if that was necessary since the last check.

        Cheap while nobody changes rules: a question to the kernel, and seldom a program. Raises
        NetfilterError if they cannot be put back; the next check tries again.
        """
        with self._busy:
            if self._backend is None:
                return False
            rebuilt, self._rebuilt = self._rebuilt, False
            if self._failed or not self._backend.intact():
                self._install()
                rebuilt = True
            return rebuilt

    async def checked(self) -> bool:
        """check() in a thread."""
        return await self._apart(self.check)

    def stop(self) -> None:
        """Remove our rules and sets, and nothing else. Raises NetfilterError if a program fails."""
        self._thread.shutdown(cancel_futures=True)
        with self._busy:
            backend, self._backend = self._backend, None
            if backend is None:
                return
            try:
                backend.remove()
            except ToolError as error:
                raise NetfilterError(f"rules of uvs may be left in place: {error}") from None

    async def _apart(self, work: Callable[..., _Result], *args: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _bring(self, touched: set[Entry]) -> None:
        if not touched:
            return
        with self._busy:
            added, removed = self._apply(touched)
            if self._backend is None or not (added or removed):
                return
            try:
                self._backend.change(self.plan, added, removed)
            except ToolError:
                # Somebody took our sets away: what we know is enough to make all of it again.
                self._install()
                self._rebuilt = True

    def _install(self) -> None:
        assert self._backend is not None
        self.put_back += 1
        self._failed = True
        try:
            self._backend.install(self.plan)
        except ToolError as error:
            raise NetfilterError(f"cannot divert packets any longer: {error}") from None
        self._failed = False

    def _taken(self) -> set[Entry]:
        touched, self._touched = self._touched, set()
        return touched

    def _apply(self, touched: set[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Bring the plan to what is wanted now; what is touched while this goes on is looked at once more."""
        wanted, present = self._references, self.plan.entries
        added, removed = [], []
        for entry in touched:
            if (entry in wanted) == (entry in present):
                continue
            if entry in present:
                self.plan.exclude(entry)
                removed.append(entry)
            else:
                self.plan.include(entry)
                added.append(entry)
        return added, removed

    def _leftovers(self) -> list[Backend]:
        """The back ends that find rules of ours in the kernel. NetfilterError: another director's."""
        found = []
        seen = set()
        for make in BACKENDS.values():
            backend = make()
            if backend.program in seen:
                continue  # "iptables" is one of the other two
            seen.add(backend.program)
            try:
                queues = backend.leftovers()
            except ToolError:
                continue  # what does not work here has left nothing either
            if queues is None:
                continue
            for queue in sorted(queues - self.plan.all_queues):
                if nfnetlink.queue_errno(queue) == errno.EPERM:
                    raise NetfilterError(
                        f"another director diverts packets here, queue {queue} is taken"
                        f"{nfnetlink.queue_owner(queue)}: stop it first (one in a network namespace)"
                    )
            found.append(backend)
        return found
