"""Diversion and queue driver on real packets, in network namespaces, for every back end this kernel has.

        client ---- director ---- server
     10.71.1.2   .1        .1   10.71.2.2      VIP 10.71.9.9, on the director's lo
     fd71:1::2   ::1       ::1  fd71:2::2      VIP fd71:9::9

Needs CAP_NET_ADMIN and CAP_SYS_ADMIN; test_netfilter_user.py runs this file as an ordinary user, and
test_netfilter_vm.py with nftables on a kernel that has its queue statement.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sandbox import wait_for

from uvs.netfilter import Diversion, Element, NetfilterError, netfilterqueue, nfnetlink
from uvs.netfilter.netfilterqueue import BATCH, NetfilterQueueDriver
from uvs.netfilter.nfnetlink import has_net_admin
from uvs.netfilter.probe import probe
from uvs.netfilter.tool import environment

AF_INET, AF_INET6 = int(socket.AF_INET), int(socket.AF_INET6)
LOCAL_IN, FORWARD, LOCAL_OUT = 1, 2, 3
UDP = 17
QUEUE, MARK = 71, 0x4000
VIP = {AF_INET: "10.71.9.9", AF_INET6: "fd71:9::9"}
CLIENT = {AF_INET: "10.71.1.2", AF_INET6: "fd71:1::2"}
GATEWAY = {AF_INET: "10.71.1.1", AF_INET6: "fd71:1::1"}
DIRECTOR = {AF_INET: "10.71.2.1", AF_INET6: "fd71:2::1"}
SERVER = {AF_INET: "10.71.2.2", AF_INET6: "fd71:2::2"}
FAMILIES = pytest.mark.parametrize("af", [AF_INET, AF_INET6], ids=["ipv4", "ipv6"])
SO_MARK = 36
CLONE_NEWNET = 0x40000000
TOKEN = b"an ICMP message of this test"
PATIENCE_S = 15  # for what must arrive; what must not is waited for much shorter
libc = ctypes.CDLL(None, use_errno=True)

pytestmark = pytest.mark.skipif(
    not has_net_admin(), reason="no CAP_NET_ADMIN here: test_netfilter_user.py runs it in a user namespace"
)


def sh(command: str) -> str:
    # The environment of the product: legacy iptables needs a lock file that it may open.
    return subprocess.run(
        command, shell=True, check=True, text=True, capture_output=True, env=environment()
    ).stdout


def backends() -> dict[str, tuple[bool, str]]:
    """What works, tried in a namespace of its own.

    With a lock of its own: xdist's workers must all find the same, and one that waits for another's may not.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XTABLES_LOCKFILE"] = f"{folder}/lock"
                libc.unshare(CLONE_NEWNET)
                os.write(writer, json.dumps({name: (ok, detail) for name, ok, detail in probe()}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        found = json.loads(answer.read())
    os.waitpid(pid, 0)
    return found


class Net:
    """Three namespaces without names: they end with their descriptors."""

    def __init__(self) -> None:
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.fds = {}
        for host in ("client", "director", "server"):
            if libc.unshare(CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            self.fds[host] = os.open("/proc/self/ns/net", os.O_RDONLY)
        path = {host: f"/proc/{os.getpid()}/fd/{fd}" for host, fd in self.fds.items()}
        self.set_up(
            "director",
            f"link add c type veth peer name eth0 netns {path['client']}",
            f"link add s type veth peer name eth0 netns {path['server']}",
            *("link set lo up", "link set c up", "link set s up"),
            *("addr add 10.71.1.1/24 dev c", "addr add fd71:1::1/64 dev c nodad"),
            *("addr add 10.71.2.1/24 dev s", "addr add fd71:2::1/64 dev s nodad"),
            *("addr add 10.71.9.9/32 dev lo", "addr add fd71:9::9/128 dev lo nodad"),
        )
        with self.on("director"):
            for knob in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                Path("/proc/sys/net", knob).write_text("1")
        for host, n in (("client", 1), ("server", 2)):
            self.set_up(
                host,
                *("link set lo up", "link set eth0 up"),
                *(f"addr add 10.71.{n}.2/24 dev eth0", f"addr add fd71:{n}::2/64 dev eth0 nodad"),
                *(f"route add default via 10.71.{n}.1", f"route add default via fd71:{n}::1"),
            )
        self.enter("director")
        self._wait_for_links()

    def _wait_for_links(self) -> None:
        """A new link drops what is sent before the kernel has noticed that its other end is up."""
        for host, af in ((host, af) for host in ("client", "server") for af in (AF_INET, AF_INET6)):
            near = DIRECTOR if host == "server" else GATEWAY
            there = {"client": CLIENT, "server": SERVER}[host][af]
            with self.socket("director", af, socket.SOCK_DGRAM) as here:
                here.bind((near[af], 9))
                with self.socket(host, af, socket.SOCK_DGRAM) as peer:
                    peer.bind((there, 9))
                    for a, b, to in ((peer, here, near[af]), (here, peer, there)):

                        def passes(a: socket.socket = a, b: socket.socket = b, to: str = to) -> bool:
                            a.sendto(b"up?", (to, 9))
                            return bool(select.select([b], [], [], 0.05)[0])

                        wait_for(passes, f"the link of the {host} is up", PATIENCE_S)

    def set_up(self, host: str, *commands: str) -> None:
        with self.on(host):
            subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)

    def enter(self, host: str) -> None:
        if libc.setns(self.fds.get(host, self.home), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        self.enter(host)
        try:
            yield
        finally:
            self.enter("director")

    def socket(self, host: str, af: int, kind: int, protocol: int = 0) -> socket.socket:
        with self.on(host):
            return socket.socket(af, kind, protocol)

    def udp(
        self, host: str, af: int, to: tuple[str, int], sport: int = 0, mark: int = 0, size: int = 4
    ) -> None:
        with self.socket(host, af, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            if sport:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                source = {"client": CLIENT, "server": SERVER, "director": VIP}[host][af]
                sock.bind((source, sport))
            sock.sendto(b"x" * size, to)

    def icmp(self, host: str, af: int, to: str, kind: int) -> None:
        protocol = socket.IPPROTO_ICMP if af == AF_INET else socket.IPPROTO_ICMPV6
        with self.socket(host, af, socket.SOCK_RAW, protocol) as sock:
            body = bytes([kind, 0, 0, 0]) + TOKEN
            total = sum(int.from_bytes(body[i : i + 2]) for i in range(0, len(body), 2))
            check = 0xFFFF - (total % 0xFFFF) if af == AF_INET else 0
            sock.sendto(body[:2] + check.to_bytes(2) + body[4:], (to, 0))

    def close(self) -> None:
        self.enter("home")
        for fd in (self.home, *self.fds.values()):
            os.close(fd)


class Tap:
    """A queue whose packets are written down and accepted."""

    def __init__(self, queue: int = QUEUE) -> None:
        self.seen: list[tuple[int, int, int, bytes]] = []
        self.answer: object = True  # bytes: that payload instead of a datagram's own
        self.driver = NetfilterQueueDriver(queue, self._handle)

    def _handle(self, hook: int, data: bytes, mark: int, indev: int) -> bool | bytes:
        self.seen.append((hook, mark, indev, data))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer and isinstance(self.answer, bytes):
            return data[:26] + b"\0\0" + self.answer  # of IPv4 and UDP, without a checksum
        return self.answer  # type: ignore[return-value]

    @staticmethod
    def is_udp(data: bytes) -> bool:
        return data[9 if data[0] >> 4 == 4 else 6] == UDP

    def hooks(self, expected: int = 0) -> list[int]:
        """Hooks of the packets that were sent by the test, in their order; forgets them.

        Waits until as many came as are expected, and a moment more for those that should not. What the stack
        answers where nobody listens (an ICMP error with a quote) is diverted and not counted.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            late = expected <= sum(map(self._sent_by_test, self.seen)) or time.monotonic() > deadline
            if select.select([self.driver.fileno()], [], [], 0.03 if late else 0.2)[0]:
                self.driver.run()
            elif late:
                break
        hooks = [seen[0] for seen in self.seen if self._sent_by_test(seen)]
        self.seen.clear()
        return hooks

    def _sent_by_test(self, seen: tuple[int, int, int, bytes]) -> bool:
        return self.is_udp(seen[3]) or TOKEN in seen[3]


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def tap(net: Net) -> Iterator[Tap]:
    made = Tap()
    yield made
    made.driver.close()


WORKS = backends() if has_net_admin() else {}
FORCED = os.environ.get("UVS_BACKEND")


BACKENDS = [name for name in ("nft", "iptables-nft", "iptables-legacy") if not WORKS or WORKS[name][0]]


@pytest.fixture(params=[FORCED] if FORCED else BACKENDS)
def diversion(request: pytest.FixtureRequest, net: Net) -> Iterator[Diversion]:
    made = Diversion(QUEUE, MARK, MARK, request.param)
    made.start()
    assert made.warnings == []
    yield made
    made.stop()


def service(af: int, port: int = 80, addr: str | None = None, protocol: int = UDP) -> Element:
    return Element("service", af, protocol, socket.inet_pton(af, addr or VIP[af]), port)


def server(af: int, port: int = 8080, addr: str | None = None) -> Element:
    return Element("server", af, UDP, socket.inet_pton(af, addr or SERVER[af]), port)


def test_a_back_end_works_here() -> None:
    """The tests run for each back end that this kernel has: there must be one."""
    assert WORKS["nfqueue"][0], WORKS
    assert BACKENDS, WORKS


@FAMILIES
def test_what_is_diverted_where(net: Net, diversion: Diversion, tap: Tap, af: int) -> None:
    for element in (service(af), server(af), server(af, 8090, VIP[af]), Element("mark", af, mark=5)):
        diversion.add(element)
    diversion.flush()
    assert not diversion.check(), "our own change taken for somebody else's"
    error = 3 if af == AF_INET else 1
    echo = 8 if af == AF_INET else 128
    vip, client, rip, dip = VIP[af], CLIENT[af], SERVER[af], DIRECTOR[af]
    for shows, send, hooks in [
        ("request", lambda: net.udp("client", af, (vip, 80)), [LOCAL_IN]),
        ("another port", lambda: net.udp("client", af, (vip, 81)), []),
        ("another address", lambda: net.udp("client", af, (dip, 80)), []),
        ("forwarded, not ours", lambda: net.udp("client", af, (rip, 80)), []),
        ("to a server, forwarded", lambda: net.udp("client", af, (rip, 8080)), []),
        ("reply", lambda: net.udp("server", af, (client, 9), 8080), [FORWARD]),
        ("reply to the director", lambda: net.udp("server", af, (dip, 9), 8080), [LOCAL_IN]),
        ("another port of the server", lambda: net.udp("server", af, (client, 9), 8081), []),
        ("request of a local client", lambda: net.udp("director", af, (vip, 80)), [LOCAL_OUT, LOCAL_IN]),
        ("reply of a local server", lambda: net.udp("director", af, (client, 9), 8090), [LOCAL_OUT]),
        ("marked request", lambda: net.udp("director", af, (client, 9), mark=5), [LOCAL_OUT]),
        ("another mark", lambda: net.udp("director", af, (client, 9), mark=6), []),
        ("sent by us", lambda: net.udp("director", af, (client, 9), 8090, mark=MARK | 1), []),
        ("ICMP error for us", lambda: net.icmp("client", af, vip, error), [LOCAL_IN]),
        ("ICMP error forwarded", lambda: net.icmp("server", af, client, error), [FORWARD]),
        ("ICMP error sent", lambda: net.icmp("director", af, client, error), [LOCAL_OUT]),
        ("echo", lambda: net.icmp("client", af, vip, echo), []),
        ("echo forwarded", lambda: net.icmp("server", af, client, echo), []),
    ]:
        tap.seen.clear()
        send()
        assert tap.hooks(len(hooks)) == hooks, shows


def test_icmp_only_while_its_family_has_a_service(net: Net, diversion: Diversion, tap: Tap) -> None:
    def diverted(four: bool, six: bool) -> None:
        net.icmp("client", AF_INET, VIP[AF_INET], 11)
        assert tap.hooks(four) == [LOCAL_IN] * four
        net.icmp("client", AF_INET6, VIP[AF_INET6], 3)
        assert tap.hooks(six) == [LOCAL_IN] * six

    diverted(False, False)
    diversion.add(service(AF_INET))
    diversion.flush()
    diverted(True, False)
    diversion.add(Element("mark", AF_INET6, mark=9))
    diversion.discard(service(AF_INET))
    diversion.flush()
    diverted(False, True)
    assert not diversion.check()


@FAMILIES
def test_whole_addresses(net: Net, diversion: Diversion, tap: Tap, af: int) -> None:
    """Port 0 and FTP divert every port of the address, but not ping."""
    diversion.add(service(af, 0))
    diversion.add(server(af, 0))
    diversion.flush()
    net.udp("client", af, (VIP[af], 4711))
    assert tap.hooks(1) == [LOCAL_IN]
    net.udp("server", af, (CLIENT[af], 9), 4711)
    assert tap.hooks(1) == [FORWARD]
    net.icmp("client", af, VIP[af], 8 if af == AF_INET else 128)
    net.icmp("server", af, CLIENT[af], 8 if af == AF_INET else 128)
    assert tap.hooks() == []
    ftp = Element("service", af, 6, socket.inet_pton(af, VIP[af]), 21)
    diversion.add(ftp)
    diversion.discard(service(af, 0))
    diversion.flush()
    net.udp("client", af, (VIP[af], 4712))
    assert tap.hooks(1) == [LOCAL_IN], "the FTP service needs the address still"
    diversion.discard(ftp)
    diversion.flush()
    net.udp("client", af, (VIP[af], 4713))
    assert tap.hooks() == []


def test_fails_closed(net: Net, diversion: Diversion) -> None:
    """With nobody at the queue a request does not reach the local stack; other traffic does."""
    diversion.add(service(AF_INET))
    diversion.flush()
    for port, arrives in ((80, False), (81, True)):
        with net.socket("director", AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((VIP[AF_INET], port))
            net.udp("client", AF_INET, (VIP[AF_INET], port))
            seconds = PATIENCE_S if arrives else 0.3
            assert bool(select.select([sock], [], [], seconds)[0]) is arrives


@FAMILIES
def test_servers_are_not_tracked(net: Net, diversion: Diversion, tap: Tap, af: int) -> None:
    """Both directions of a server's traffic are UNTRACKED for the user's rules, requests are NEW."""
    ip = "ip" if af == AF_INET else "ip6"
    user = f"""table inet user {{
        chain f {{ type filter hook forward priority 0;
            {ip} saddr {SERVER[af]} udp sport 8080 ct state untracked counter
            {ip} daddr {SERVER[af]} udp dport 8080 ct state untracked counter
        }}
        chain i {{ type filter hook input priority 0;
            {ip} daddr {VIP[af]} udp dport 80 ct state new counter
        }}
    }}"""
    sh(f"nft '{user}'")
    diversion.add(service(af))
    diversion.add(server(af))
    diversion.flush()
    net.udp("client", af, (VIP[af], 80))
    net.udp("server", af, (CLIENT[af], 9), 8080)
    net.udp("client", af, (SERVER[af], 8080))
    assert sorted(tap.hooks(2)) == [LOCAL_IN, FORWARD]
    counted = re.compile(r"counter packets (\d+)")
    wait_for(
        lambda: counted.findall(sh("nft list table inet user")) == ["1"] * 3, "each is counted", PATIENCE_S
    )


@FAMILIES
def test_fragments_are_put_together(net: Net, diversion: Diversion, tap: Tap, af: int) -> None:
    diversion.add(service(af))
    diversion.add(server(af))
    diversion.flush()
    header = 28 if af == AF_INET else 48
    for send, hook in (
        (lambda: net.udp("client", af, (VIP[af], 80), size=9000), LOCAL_IN),
        (lambda: net.udp("server", af, (CLIENT[af], 9), 8080, size=60000), FORWARD),
    ):
        send()
        while not any(tap.is_udp(data) for *_, data in tap.seen):
            assert select.select([tap.driver.fileno()], [], [], PATIENCE_S)[0], "nothing came"
            tap.driver.run()
        sizes = [(seen, len(data)) for seen, _, _, data in tap.seen if tap.is_udp(data)]
        assert sizes == [(hook, (9000 if hook == LOCAL_IN else 60000) + header)]
        tap.seen.clear()
    assert tap.driver.cut == 0


def user_rules() -> None:
    """Rules of a user beside and among ours, by every program that works here."""
    if WORKS["iptables-nft"][0]:
        sh("iptables -A INPUT -p tcp --dport 22 -j ACCEPT; ip6tables -A FORWARD -p tcp --dport 22 -j ACCEPT")
        sh("iptables -t raw -A PREROUTING -p tcp --dport 7 -j ACCEPT; iptables -t security -N UVSLIKE")
        sh("iptables -t security -A INPUT -p tcp --dport 7 -j ACCEPT; ipset create user hash:ip")
    sh("nft 'table inet user { set uvs { type mark; }; chain uvs { type filter hook input priority 99; }; }'")


def rules() -> str:
    """Every rule that is in the kernel, without counters, comments and members of sets."""
    text = sh("nft -s -t list ruleset")
    # iptables-nft leaves empty base chains in a table that has other rules.
    text = re.sub(r"\tchain [A-Z]+ {\n\t\ttype .*; policy accept;\n\t}\n", "", text)
    if WORKS["iptables-nft"][0]:
        saves = "iptables-nft-save; ip6tables-nft-save; iptables-legacy-save; ip6tables-legacy-save"
        text += sh(f"ipset list -n; {saves}")
    # Legacy tables come to be when looked at, and stay.
    return "\n".join(x for x in text.splitlines() if x.strip() and x[0] not in "#*:" and x != "COMMIT")


@pytest.mark.parametrize("users", [False, True], ids=["bare", "user's rules"])
def test_stop_leaves_what_was_there(net: Net, diversion: Diversion, users: bool) -> None:
    diversion.stop()
    if users:
        user_rules()
    before = rules()
    diversion.start()
    diversion.add(service(AF_INET))
    diversion.add(Element("mark", AF_INET6, mark=9))
    diversion.flush()
    during = rules()
    assert during != before
    assert set(before.splitlines()) <= set(during.splitlines())
    assert not diversion.check()
    diversion.stop()
    assert rules() == before


def test_put_back(net: Net, diversion: Diversion, tap: Tap) -> None:
    """Rules that somebody flushed are there again after check(), with the sets of now."""
    diversion.add(service(AF_INET))
    diversion.flush()
    if diversion.name == "nft":
        attacks = ["nft flush ruleset", "nft delete table inet uvs", "nft flush chain inet uvs input"]
    else:
        program = f"{diversion.name} -w 10"  # the lock of legacy iptables is the whole machine's
        attacks = [
            f"{program} -t security -F; {program} -t security -X",
            f"{program} -t security -D INPUT -j UVS-INPUT",
            f"{program} -t raw -F",
            f"{program.replace('ip', 'ip6', 1)} -t security -F",
        ]
        if diversion.name == "iptables-nft":
            attacks += [
                "nft flush ruleset",
                "nft flush ruleset; for s in $(ipset list -n); do ipset destroy $s; done",
            ]
    wanted = rules()
    for port, attack in enumerate(attacks, 1000):
        sh(attack)
        assert rules() != wanted, attack
        # A service that comes between the flush and the check must not be lost.
        diversion.add(service(AF_INET, port))
        diversion.flush()
        assert diversion.check(), attack
        assert not diversion.check(), attack
        assert sorted(rules().splitlines()) == sorted(wanted.splitlines()), attack
        for each in (80, port):
            net.udp("client", AF_INET, (VIP[AF_INET], each))
            assert tap.hooks(1) == [LOCAL_IN], attack
    sh("nft 'table inet other { chain c { }; }'")
    assert not diversion.check(), "a change that is not about us"
    assert diversion.put_back == len(attacks)


@pytest.mark.parametrize("name", BACKENDS)
def test_flushed_sets_are_filled_again(net: Net, tap: Tap, name: str) -> None:
    """The rules are whole all the while."""
    made = Diversion(QUEUE, MARK, MARK, name)
    made.add(service(AF_INET))
    made.start()
    try:
        assert not made.check()
        if name == "nft":
            sh("nft flush set inet uvs services4")
        else:
            subprocess.run(["ipset", "flush"], check=True)
            made._backend._sets_due = 0  # type: ignore[union-attr]  # ten seconds later
        assert (made.check(), made.check()) == (True, False)
        net.udp("client", AF_INET, (VIP[AF_INET], 80))
        assert tap.hooks(1) == [LOCAL_IN]
    finally:
        made.stop()


def test_check_runs_no_program(net: Net, diversion: Diversion, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked every second by the loop that handles packets. (Legacy tables are looked at now and then.)"""
    started: list[object] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **kw: (started.append(a), run(*a, **kw))[1])
    for _ in range(200):
        assert not diversion.check()
    assert len(started) <= 20


def test_crash_leftovers_are_replaced(net: Net, diversion: Diversion) -> None:
    """A director that was killed leaves its rules; the next one, by whatever back end, replaces them."""
    diversion.add(service(AF_INET))
    diversion.flush()
    before = rules()
    after = Diversion(QUEUE + 1, MARK, MARK, diversion.name)
    after.start()
    assert rules().replace(str(QUEUE + 1), str(QUEUE)) != before, "the dead one's ICMP rules are gone"
    after.add(service(AF_INET))
    after.flush()
    assert rules().replace(str(QUEUE + 1), str(QUEUE)) == before
    after.stop()
    assert "uvs" not in rules().lower()


def test_second_director(net: Net, diversion: Diversion, tap: Tap) -> None:
    """Two directors in one namespace: the second is refused whatever its queue, and the first goes on."""
    before = rules()
    with pytest.raises(NetfilterError, match=rf"queue {QUEUE} is taken.*--queue-num"):
        NetfilterQueueDriver(QUEUE, lambda *_: True)
    with pytest.raises(NetfilterError, match=rf"another director .* queue {QUEUE}"):
        Diversion(QUEUE + 1, MARK, MARK).start()
    assert rules() == before


def test_twenty_thousand_elements(net: Net, diversion: Diversion, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flush for all, and one element more costs no more than one."""
    given: list[int] = []
    run = subprocess.run

    def watched(*args: Any, **options: Any) -> Any:
        given.append(len(options.get("input") or ""))
        return run(*args, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    for number in range(20_000):
        diversion.add(service(AF_INET, 80, f"10.9.{number >> 8}.{number & 255}"))
    diversion.flush()
    assert sum(given) > 20_000 * len("10.9.0.0")
    assert len(given) < 20
    given.clear()
    diversion.add(service(AF_INET, 81))
    diversion.flush()
    assert len(given) == 1
    assert 0 < sum(given) < 1000
    assert not diversion.check()


def test_handler_that_fails(
    net: Net, diversion: Diversion, tap: Tap, caplog: pytest.LogCaptureFixture
) -> None:
    """Each packet gets a verdict, the fault is counted, and told once."""
    diversion.add(service(AF_INET))
    diversion.flush()
    tap.answer = RuntimeError("broken")
    for _ in range(3):
        net.udp("client", AF_INET, (VIP[AF_INET], 80))
    assert tap.hooks(3) == [LOCAL_IN] * 3
    assert (tap.driver.errors, tap.driver.packets, tap.driver.lost) == (3, 3, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    row = nfnetlink.queue_row(QUEUE)  # unreadable in a user namespace
    assert row is None or row[2] == 0, "a packet without verdict"


def test_verdicts(net: Net, diversion: Diversion, tap: Tap) -> None:
    """Accept, drop, and accept with another payload; what arrives is what was said."""
    diversion.add(service(AF_INET))
    diversion.flush()
    with net.socket("director", AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((VIP[AF_INET], 80))
        for answer, arrives in ((True, b"xxxx"), (False, None), (b"", None), (b"XXXX", b"XXXX")):
            tap.answer = answer
            net.udp("client", AF_INET, (VIP[AF_INET], 80))
            assert tap.hooks(1) == [LOCAL_IN]
            seconds = PATIENCE_S if arrives else 0.1
            got = sock.recv(99) if select.select([sock], [], [], seconds)[0] else None
            assert got == arrives, answer


def test_cut_packets(net: Net, diversion: Diversion, tap: Tap) -> None:
    """What the queue cut is dropped and counted, never handed on."""
    diversion.add(service(AF_INET))
    diversion.flush()
    tap.driver._socket.send(nfnetlink.queue_parameters(QUEUE, 100))
    tap.answer = False
    net.udp("client", AF_INET, (VIP[AF_INET], 80), size=200)
    net.udp("client", AF_INET, (VIP[AF_INET], 80), size=20)
    wait_for(lambda: tap.driver.run() or tap.driver.packets == 2, "both", PATIENCE_S)
    assert tap.hooks() == [LOCAL_IN]
    assert (tap.driver.cut, tap.driver.packets) == (1, 2)


def test_flood_leaves_the_loop_its_turn(net: Net, diversion: Diversion, tap: Tap) -> None:
    """One run() handles a bounded batch, and the rest waits."""
    diversion.add(service(AF_INET))
    diversion.flush()
    for _ in range(600):
        net.udp("client", AF_INET, (VIP[AF_INET], 80))
    assert select.select([tap.driver.fileno()], [], [], PATIENCE_S)[0]
    tap.driver.run()
    batch = len(tap.seen)
    assert 0 < batch <= BATCH
    # The kernel's own queue in front of ours is every namespace's: a busy machine may lose some there.
    assert len(tap.hooks(BATCH + 100)) > batch
    assert tap.driver.lost == 0


def test_queue_of_a_killed_director(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is ours as soon as it is dead."""
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            driver = NetfilterQueueDriver(QUEUE, lambda *_: True)
            os.write(writer, b"bound")
            time.sleep(60)
            driver.close()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 5) == b"bound"
        with pytest.raises(NetfilterError, match=f"queue {QUEUE} is taken"):
            NetfilterQueueDriver(QUEUE, lambda *_: True)
        # A process needs its turn to die: on a busy machine that may take longer than the patience for it.
        monkeypatch.setattr(netfilterqueue, "BIND_PATIENCE", PATIENCE_S)
        os.kill(first, signal.SIGKILL)
        NetfilterQueueDriver(QUEUE, lambda *_: True).close()
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        os.close(reader)


def test_no_back_end(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what was tried, what each said, and what to install."""
    monkeypatch.setattr("uvs.netfilter.tool.which", lambda _: None)
    monkeypatch.setattr("uvs.netfilter.iptables.which", lambda _: None)
    monkeypatch.setattr("uvs.netfilter.nft.which", lambda _: None)
    monkeypatch.delenv("UVS_BACKEND", raising=False)
    with pytest.raises(NetfilterError, match=r"nft is not installed.*iptables.*apt install") as raised:
        Diversion(QUEUE, MARK, MARK).start()
    assert "\n" not in str(raised.value)
