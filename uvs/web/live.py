"""A running director, asked while somebody looks."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from uvs.adm import jsontext, listing
from uvs.control.client import Client, Unreachable
from uvs.ipvs.spec import IpvsError
from uvs.top.command import explain
from uvs.top.source import Snapshot, Source, rest
from uvs.walk.jsontext import complete

WALKS_S = 0.5  # between two looks for walks
STATE_S = 1.0  # and at services and connections
RATE = 20  # walks a second: the rest of the traffic is left alone
CONNS_MAX = 500  # a longer table is not listed: it would cost the director too much, and nobody reads it
KEPT = 200  # walks, for a page that is opened later
END_S = 5.0  # for a director that does not answer
BEHIND_MAX = 1000  # events that a page may be behind

Event = tuple[str, Any]


class Director:
    """What is asked of a director, on connections that last as long as it does."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._source = Source(path)
        self._client: Client | None = None
        self._traces = False
        self._number = 0  # of the last walk

    def state(self) -> dict[str, Any]:
        """Services, servers, rates, reasons and connections. Unreachable, IpvsError."""
        snapshot = self._source.take()
        return state(snapshot, self._conns(snapshot))

    def walks(self) -> list[dict[str, Any]]:
        """Those since the last call; a trace is begun if there is none. Unreachable, IpvsError."""
        client = self._connected()
        try:
            if not self._traces:
                client.trace("", RATE)
                self._traces = True
            found = client.walks()
        except OSError as error:
            if isinstance(error, IpvsError) and error.errno == errno.EBUSY:
                return []  # as many others trace as may: it is asked for again
            self.close()
            raise
        return [self._numbered(complete(json.loads(text))) for text in found]

    def _numbered(self, walk: dict[str, Any]) -> dict[str, Any]:
        """The director begins anew with each trace; the page goes on."""
        self._number += 1
        return dict(walk, number=self._number)

    def close(self) -> None:
        """Hang up: nobody looks any more, and the trace ends with the connection."""
        self._source.close()
        self._traces = False
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self._path)
        return self._client

    def _conns(self, snapshot: Snapshot) -> list[dict[str, Any]] | None:
        """None: too many."""
        if snapshot.table.get("conns", 0) + snapshot.table.get("templates", 0) > CONNS_MAX:
            return None
        try:
            return [dict(listing.conn_json(entry), ms=entry.expires) for entry in self._connected().conns()]
        except OSError:
            self.close()
            raise


def state(snapshot: Snapshot, conns: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The event `state`: services as `uvsadm -L --json` has them, connections as `-Lc --json`, `ms` left."""
    return {
        "time": snapshot.time,
        "took": snapshot.took,
        "services": [jsontext.service(entry, servers) for entry, servers in snapshot.services],
        "total": jsontext.stats(snapshot.total),
        "reasons": {reason: count for reason, count in snapshot.reasons.items() if count},
        "table": snapshot.table,
        "connections": conns,
    }


class Live:
    """A source of events: `walk`, `state`, and `absent` while no director answers.

    The director is asked only while there are readers, by one thread at a time, whoever looks.
    """

    live = True

    def __init__(self, director: Director) -> None:
        self._director = director
        self._readers: set[asyncio.Queue[Event | None]] = set()
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._state: Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """What is known, then what comes. Ends for a reader that is too far behind, and with `close`."""
        if self._closed:
            return
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        known = [*self._kept, *([self._state] if self._state else [])]
        self._readers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        try:
            for event in known:
                yield event
            while (event_ := await queue.get()) is not None:
                yield event_
        finally:
            self._readers.discard(queue)

    def close(self) -> None:
        """End every reader's events."""
        self._closed = True
        for queue in self._readers:
            queue.put_nowait(None)

    async def ended(self) -> None:
        """Until nothing is traced any more; not for long, if the director does not answer."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=END_S)

    def _tell(self, name: str, data: Any) -> None:
        event = (name, data)
        if name == "walk":
            self._kept.append(event)
        else:
            self._state = event
        for queue in list(self._readers):
            if queue.qsize() > BEHIND_MAX:
                self._readers.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)

    async def _ask(self) -> None:
        try:
            while self._readers and not self._closed:
                await self._ask_readers()
                await asyncio.to_thread(self._director.close)
        finally:  # also of what nobody expects: pages come again, and it is tried again
            for queue in self._readers:
                queue.put_nowait(None)
            self._readers.clear()

    async def _ask_readers(self) -> None:
        due = 0.0
        while self._readers and not self._closed:
            try:
                for walk in await asyncio.to_thread(self._director.walks):
                    self._tell("walk", walk)
                if time.monotonic() >= due:
                    found = await asyncio.to_thread(self._director.state)
                    self._tell("state", found)
                    due = time.monotonic() + rest(STATE_S, found["took"])
            except (Unreachable, IpvsError) as error:
                self._tell("absent", {"error": explain(error)})
                due = 0.0
            await asyncio.sleep(WALKS_S)
