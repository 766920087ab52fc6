"""A director with real programs above it (keepalived, ldirectord, shell scripts) and a client that never stops asking."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from support.clients import Progress, ask_twice, download
from support.running import Running
from support.sandbox import wait_for
from uvs.lab import processes, servers
from uvs.lab.enter import Daemon
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP

PATIENCE_S = 120.0  # for what a check must do: seconds at rest, many more on a busy machine
PROTOCOLS = {socket.IPPROTO_TCP: "", socket.IPPROTO_UDP: "udp "}
RESTARTS = [signal.SIGKILL, signal.SIGTERM]
HOW_TO = Path(__file__).parents[2] / "docs/how-to"

# What a director's table says, by "address:port" of services and of their servers: weights.
Table = dict[str, dict[str, int]]


def from_page(page: str, file: str) -> str:
    """The file of that name in a page of docs/how-to: a block whose first line is `# FILE`."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (HOW_TO / page).read_text(), re.M | re.S)
    found = [block for block in blocks if block.startswith(f"# {file}\n")]
    assert len(found) == 1, f"{page}: {len(found)} blocks begin with # {file}"
    return found[0]


def until(true: Callable[[], object], what: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """`wait_for`, with the patience that programs' checks need."""
    wait_for(true, what, patience_s)


class Site(Running):
    """A lab with a running director without services, for a program to fill."""

    def __init__(self, lab: Lab, program: Sequence[str] = ()) -> None:
        super().__init__(lab, program)
        self.web: dict[int, Daemon] = {int(d.host[2:]): d for d in self.servers if d.name == "server"}

    # ---- real servers

    def stop(self, *numbers: int) -> None:
        """Real servers' programs end: connections are refused."""
        for number in numbers:
            assert self.web.pop(number).kill()

    def start(self, *numbers: int) -> None:
        """They serve again."""
        for number in numbers:
            name = f"rs{number}"
            program = sys.executable, "-I", "-S", servers.__file__, name
            self.web[number] = self.lab.start(name, "server", program, notify=True)

    def start_all(self) -> None:
        self.start(*({int(d.host[2:]) for d in self.servers} - set(self.web)))

    # ---- the programs

    def write(self, path: str, text: str, mode: int = 0o644) -> str:
        """A file on the director, all at once; its path there.

        A file that is written again is younger by a whole second at least: ldirectord compares no more.
        """
        there = self.lab.path(path)
        fresh = there.with_name(f".{there.name}")
        fresh.write_text(text)
        fresh.chmod(mode)
        now = int(time.time())
        changed = max(now, int(there.stat().st_mtime) + 1) if there.exists() else now
        os.utime(fresh, (changed, changed))
        fresh.rename(there)
        return path

    def under(self, *words: str) -> str:
        """Run a program to its end under `uvs exec`; what it printed."""
        return self.lab.check("director", (*processes.UVS, "exec", "--", *words))

    def daemon(self, name: str, *words: str, notify: bool = False) -> Daemon:
        """Start one that stays."""
        return self.lab.start("director", name, (*processes.UVS, "exec", "--", *words), notify=notify)

    # ---- the table

    def table(self) -> Table:
        """The director's, TCP and UDP services."""
        with self.client() as client:
            return {
                PROTOCOLS[key.protocol] + _name(key.af, key.addr, key.port): {
                    _name(d.spec.af, d.spec.addr, d.spec.port): d.spec.weight for d in client.dests(key)
                }
                for key in (entry.spec.key for entry in client.services())
            }

    def shows(self, wanted: Table, log: str = "") -> None:
        """Wait until the table is so. `log`: whose log to show if it does not come."""
        until(
            lambda: self.table() == wanted,
            lambda: f"{self.table()}\nwanted: {wanted}\n{self.lab.log('director', log)[-3000:]}",
        )


def _name(af: int, addr: bytes, port: int) -> str:
    text = socket.inet_ntop(af, addr)
    return f"[{text}]:{port}" if af == socket.AF_INET6 else f"{text}:{port}"


# ---- the client


def _ask_on(fd: int, address: str, stop: Progress) -> None:
    """One request after the other, each on a connection of its own; a line for each to `fd`."""
    while not stop.value:
        begin = time.monotonic()
        connection = http.client.HTTPConnection(address, 80, timeout=20)
        try:
            connection.request("GET", "/", headers={"Connection": "close"})
            answer, why = connection.getresponse().read().decode().strip(), ""
        except (OSError, http.client.HTTPException) as e:
            answer, why = "", repr(e)
        finally:
            connection.close()
        os.write(fd, json.dumps([begin, time.monotonic(), answer, why]).encode() + b"\n")
        time.sleep(0.01)


class Asking:
    """What a client that asks all the time was told."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._faults: list[tuple[float, float]] = []

    def told(self) -> list[tuple[float, float, str, str]]:
        """Begin, end, who answered, or why nobody did."""
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode()
        return [tuple(json.loads(line)) for line in data.splitlines(keepends=True) if line.endswith("\n")]

    @contextlib.contextmanager
    def may_fail(self) -> Iterator[None]:
        """Requests that are under way at any time in this block may fail. It ends when the table is as wanted.

        There are two reasons. A server's program is stopped: until the check acts, its share of the requests is
        refused. And a server is *removed* from the table (by a check, a reload, or when a fallback or sorry
        server is no longer needed): IPVS drops what comes for connections to a server that is not there, until
        the client gives up, although the server lives; so does uvs. A server whose weight becomes 0 keeps its connections:
        no excuse there, nor for a server that is added.
        """
        begin = time.monotonic()
        yield
        self._faults.append((begin, time.monotonic()))

    def more(self, count: int = 12) -> set[str]:
        """Wait for so many further requests; who answered them."""
        now = time.monotonic()

        def further() -> list[str]:
            return [answer for begin, _, answer, _ in self.told() if begin >= now]

        until(lambda: len(further()) >= count, lambda: f"requests: {self.told()[-3:]}")
        return set(further())

    def failed(self) -> list[str]:
        """Requests that were not answered and ought to have been."""
        return [
            f"{begin:.2f} to {end:.2f}: {why}, outside of {self._faults}"
            for begin, end, answer, why in self.told()
            if not answer and not any(first <= end and begin <= last for first, last in self._faults)
        ]


def restart(site: Site, client: Asking, number: int) -> None:
    """The director ends by this signal and is started again; its table and its connections are what they were.

    SIGKILL leaves its rules: what comes in the gap is dropped and comes again, so no transfer is cut and no
    request fails. SIGTERM takes them away, as whoever stops a director wants: in the gap the host itself
    refuses; a connection that is quiet then lives on.
    """
    table = site.table()
    quiet, busy = Progress(limit=1), Progress(limit=1_000_000)
    with contextlib.ExitStack() as calls:
        asked = site.lab.begin("client", ask_twice, VIP[4], quiet, PATIENCE_S)
        calls.callback(asked.close)
        quiet.wait(1, PATIENCE_S)
        if number == signal.SIGKILL:
            transfer = site.lab.begin("client", download, VIP[4], 5_000_000, busy, PATIENCE_S)
            calls.callback(transfer.close)
            busy.wait(1_000_000, PATIENCE_S)
        with client.may_fail() if number != signal.SIGKILL else contextlib.nullcontext():
            assert site.director.kill(number)
            site.restart()
        assert site.table() == table
        if number == signal.SIGKILL:
            busy.release()
            _, there, here = transfer.result(PATIENCE_S)
            assert there == here
        quiet.release()
        first, second = asked.result(PATIENCE_S)
        assert first == second


@contextlib.contextmanager
def asking(site: Site, address: str = VIP[4]) -> Iterator[Asking]:
    """A client asks all the time; in the end no request may have failed but in `may_fail`."""
    stop = Progress()
    with tempfile.TemporaryFile() as file:
        client = Asking(file.fileno())
        call = site.lab.begin("client", _ask_on, file.fileno(), address, stop)
        try:
            yield client
        finally:
            stop.value = 1
            try:
                call.result(PATIENCE_S)
            finally:
                call.close()
        assert not client.failed(), client.failed()
        assert client.told(), "no request was made"
