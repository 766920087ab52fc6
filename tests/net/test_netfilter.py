"""Diversion of real packets, for every back end that this kernel has. The hosts are those of support.netfilter.

test_netfilter_user.py runs this file as an ordinary user, and tests/kernel/test_nft.py with nftables on a kernel
that has its queue statement.
"""

from __future__ import annotations

import re
import select
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.backends import BACKENDS, TO_TEST, WORKS
from support.netfilter import (
    AF_INET,
    AF_INET6,
    CLIENT,
    DIRECTOR,
    FAMILIES,
    FORWARD,
    LOCAL_IN,
    LOCAL_OUT,
    MARK,
    PATIENCE_S,
    QUEUE,
    SERVER,
    VIP,
    Net,
    Tap,
    needs_net_admin,
    server,
    service,
)
from support.sandbox import wait_for

from uvs.netfilter import Diversion, Element, NetfilterError
from uvs.netfilter.netfilterqueue import NetfilterQueueDriver
from uvs.netfilter.plan import one_queue
from uvs.netfilter.tool import environment

pytestmark = needs_net_admin


def sh(command: str) -> str:
    # The environment of the product: legacy iptables needs a lock file that it may open.
    return subprocess.run(
        command, shell=True, check=True, text=True, capture_output=True, env=environment()
    ).stdout


@pytest.fixture(params=TO_TEST)
def diversion(request: pytest.FixtureRequest, net: Net) -> Iterator[Diversion]:
    made = Diversion(one_queue(QUEUE), MARK, MARK, request.param)
    made.start()
    assert made.warnings == []
    yield made
    made.stop()


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
        with net.socket("director", AF_INET) as sock:
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
    wait_for(lambda: counted.findall(sh("nft list table inet user")) == ["1"] * 3, "each is counted")


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
    assert tap.count("cut") == 0


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
    made = Diversion(one_queue(QUEUE), MARK, MARK, name)
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
    after = Diversion(one_queue(QUEUE + 1), MARK, MARK, diversion.name)
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
        Diversion(one_queue(QUEUE + 1), MARK, MARK).start()
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


def test_no_back_end(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what was tried, what each said, and what to install."""
    monkeypatch.setattr("uvs.netfilter.tool.which", lambda _: None)
    monkeypatch.setattr("uvs.netfilter.iptables.which", lambda _: None)
    monkeypatch.setattr("uvs.netfilter.nft.which", lambda _: None)
    monkeypatch.delenv("UVS_BACKEND", raising=False)
    with pytest.raises(NetfilterError, match=r"nft is not installed.*iptables.*apt install") as raised:
        Diversion(one_queue(QUEUE), MARK, MARK).start()
    assert "\n" not in str(raised.value)
