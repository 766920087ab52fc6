"""uvsadm beside the real ipvsadm 1.31 on the same director: same status, output, messages, requests."""

import random
import socket

import pytest

from uvs.adm import listing
from uvs.control import genetlink, netlink, proctext
from uvs.control.extension import ConnEntry
from uvs.control.messages import Attr, Cmd, Dst, Svc
from uvs.ipvs.ipproto import PROTO_NAMES
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

# What random command lines are made of.
STARTS = """
-A|-E|-D|-C|-L|-Z|-a|-e|-d|-S|-At|-Ln|-ar|--set|--list|--start-daemon|--stop-daemon|--set 1 2 3|-L -n
-A -t 10.0.0.1:80|-A -u 10.0.0.1:53|-A -f 7|-A -t [2001:db8::1]:80|-a -t 10.0.0.1:80 -r 10.0.0.2
-a -f 7 -r 10.0.0.9|-a -t [2001:db8::1]:80 -r [2001:db8::2]:80|-e -t 10.0.0.1:80 -r 10.0.0.2
-d -t 10.0.0.1:80|--start-daemon master
"""
TOKENS = """
-n|--stats|--rate|--thresholds|--persistent-conn|--tun-info|--timeout|--daemon|--nosort|--sort|-X|--exact
-t|-u|--sctp-service|-f|-6|-s|-p|-M|-r|-m|-i|-g|-w|-x|-y|-o|-b|--pe|--tun-type|--tun-port|--tun-csum
--tun-nocsum|--tun-remcsum|--syncid|--mcast-ttl|--mcast-group|--mcast-port|--sync-maxlen|--mcast-interface
-l|-D|-tA|-up|-p5|-s=rr|-w3|-np|-nX|-o=1|-Q|--|-|--bogus|10.0.0.1:80|10.0.0.2:81|10.0.0.3
[2001:db8::1]:80|2001:db8::2|[10.0.0.1]:80|:80|1.2:http|7|80|0|1|010|+3|-3|255.255.255.0|64|rr|wlc|sh|mh
flag-1|sh-port|mh-port,mh-fallback|zz|gue|gre|ipip|sip|eth0|master|backup|224.0.0.9|ff02::9|2147483648
70000|99999999999999999999|foo|-t 10.0.0.1:80|-u 10.0.0.1:53|-f 7 -6|-r 10.0.0.2:80
-i --tun-type gue --tun-port 6080|--tun-type=gre|
"""


def choices(text):
    return [part for row in text.strip("\n").splitlines() for part in row.split("|")]


STARTS = choices(STARTS)
TOKENS = choices(TOKENS) + STARTS


def line(rnd):
    parts = [rnd.choice(STARTS), *(rnd.choice(TOKENS) for _ in range(rnd.randint(0, 4)))]
    return [word for part in parts for word in (part.split() or [""])]


def meant(requests):
    """Requests by what the director reads of them; ipvsadm fills in more than it must."""
    found = []
    for command, payload in requests:
        attrs = netlink.attributes(payload)
        row = {}
        for kind in attrs:
            nest = netlink.attributes(attrs[kind]) if kind in (1, 2, 3) else attrs[kind]
            if kind == Attr.SERVICE and command not in (Cmd.NEW_SERVICE, Cmd.SET_SERVICE):
                nest = {k: v for k, v in nest.items() if k <= Svc.FWMARK}
            if kind == Attr.DEST and command == Cmd.DEL_DEST:
                nest = {k: v for k, v in nest.items() if k in (Dst.ADDR, Dst.PORT, Dst.ADDR_FAMILY)}
            if kind == Attr.DAEMON and command == Cmd.DEL_DAEMON:
                nest.pop(2, None)
            row[kind] = nest
        if command != Cmd.GET_INFO:
            found.append((Cmd(command), row))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_random_command_lines(seed, director, uvsadm, ipvsadm, monkeypatch):
    requests = []
    handle = genetlink.Dispatcher._request

    def spy(self, request, admin, answers):
        if request.type != genetlink.GENL_ID_CTRL:
            requests.append((request.body[0], request.body[netlink.GENL_SIZE :]))
        return handle(self, request, admin, answers)

    monkeypatch.setattr(genetlink.Dispatcher, "_request", spy)
    rnd = random.Random(seed)
    statuses = set()
    for _ in range(60):
        words = line(rnd)
        requests.clear()
        theirs = (ipvsadm(director.path, *words), meant(requests))
        director.do(director.ipvs.services.flush)
        requests.clear()
        ours = (uvsadm(*words), meant(requests))
        director.do(director.ipvs.services.flush)
        if "daemon" in words[0] and theirs[0].err.startswith("Operation not supported"):
            assert (ours[0].status, ours[1]) == (theirs[0].status, theirs[1])  # ours says more
        else:
            assert ours == theirs, words
        statuses.add(theirs[0].status)
    assert statuses == {0, 2, 255}


# ------------------------------------------------------------------ listings


def big(rnd):
    """Counters of all sizes, many of them at a change of unit."""
    return rnd.choice([0, rnd.randrange(1000), 10 ** rnd.randrange(18), 10 ** rnd.randrange(1, 18) - 1])


def address(rnd, af, local=False):
    if local and af == socket.AF_INET:
        return b"\x7f\0\0\1"
    if af == socket.AF_INET6:
        return socket.inet_pton(af, f"2001:db8::{rnd.randrange(1, 9):x}:{rnd.randrange(1 << 16):x}")
    return bytes([rnd.choice([10, 127, 172, 192, 203, 223]), 0, 0, rnd.randrange(1, 255)])


def fill(rnd, ipvs):
    """A random table with counters as if it had worked."""
    for _ in range(rnd.randint(1, 8)):
        af = rnd.choice([socket.AF_INET, socket.AF_INET, socket.AF_INET6])
        mark = rnd.choice([0, 0, 0, rnd.randrange(1, 1 << 31)])
        protocol = 6 if mark else rnd.choice([6, 17, 132])
        port = 0 if mark else rnd.choice([53, 80, rnd.randrange(1, 65536)])
        addr = bytes(4 if af == 2 else 16) if mark else address(rnd, af)
        full = 0xFFFFFFFF if af == 2 else 128
        spec = ServiceSpec(
            ServiceKey(af, protocol, addr, port, mark),
            rnd.choice(["rr", "wrr", "lc", "wlc"]),
            rnd.choice([0, 0, 1, 4, 8, 0x10, 0x38, 0x3D]),
            rnd.choice([360, 1, 86400]),
            rnd.choice([full, full, 0xFFFFFF00 if af == 2 else 64]),
            rnd.choice(["", "sip"]),
        )
        try:
            svc = ipvs.services.add_service(spec)
        except OSError:
            continue
        count(rnd, svc.est)
        for _ in range(rnd.randint(0, 6)):
            daf = rnd.choice([af, af, 2, 10])
            fwd = 2 if daf != af else rnd.choice([0, 1, 2, 3])
            u = rnd.choice([0, rnd.randrange(1 << 31)])
            try:
                dest = ipvs.services.add_dest(
                    svc.key,
                    DestSpec(
                        daf,
                        address(rnd, daf),
                        rnd.choice([80, port, rnd.randrange(65536)]),
                        fwd,
                        rnd.choice([0, 1, rnd.randrange(1 << 31)]),
                        u,
                        rnd.randrange(u + 1),
                    ),
                )
            except OSError:
                continue
            count(rnd, dest.est)
            dest.rec.activeconns, dest.rec.inactconns = rnd.randrange(10**6), rnd.randrange(10)
            dest.rec.persistconns = rnd.randrange(1000)


def count(rnd, est):
    # ipvsadm 1.31 reads a server's 64-bit counters with the reader of 32 bits (its fault): conns and packets small
    est._snap = (*(rnd.randrange(1 << 32) for _ in range(3)), big(rnd), big(rnd))
    est._avg = [n << 10 for n in (rnd.randrange(10**9), rnd.randrange(10**6), rnd.randrange(10))] + [
        rnd.randrange(1 << 32) << 5 for _ in range(2)
    ]


LISTINGS = [
    "-Ln",
    "-ln",
    "-Ln --stats",
    "-Ln --stats --exact",
    "-Ln --rate",
    "-Ln --rate --exact",
    "-Ln --thresholds",
    "-Ln --persistent-conn",
    "-Ln --tun-info",
    "-Ln --nosort",
    "-Ln --tun-info --rate --stats",
    "-L --timeout",
    "-L --daemon",
    "-Sn",
]


@pytest.mark.parametrize("seed", range(4))
def test_listings_of_random_tables(seed, director, uvsadm, ipvsadm):
    rnd = random.Random(seed)
    director.do(lambda: fill(rnd, director.ipvs))
    for words in LISTINGS:
        assert uvsadm(*words.split()) == ipvsadm(director.path, *words.split()), words
    for svc in list(director.ipvs.services):
        key = svc.key
        flag = {6: "-t", 17: "-u", 132: "--sctp-service"}[key.protocol]
        endpoint = listing.Names(plain=True).endpoint(key.af, key.addr, key.port, key.protocol)
        which = (
            [flag, endpoint] if not key.fwmark else ["-f", str(key.fwmark), *(["-6"] if key.af == 10 else [])]
        )
        assert uvsadm("-Ln", *which) == ipvsadm(director.path, "-Ln", *which)


@pytest.mark.parametrize("words", ["", "-L", "-L --stats", "-L -t 127.0.0.1:80", "-L -f 7", "-S"])
def test_names(words, director, uvsadm, ipvsadm):
    """Ports by their service's name in their protocol, 127.0.0.1 from /etc/hosts (no name server is asked)."""
    local = b"\x7f\0\0\1"
    for key in (
        ServiceKey(2, 6, local, 80),
        ServiceKey(2, 17, local, 53),
        ServiceKey(2, 132, local, 80),
        ServiceKey(2, 6, local, 65431),
        ServiceKey(2, 6, bytes(4), 0, 7),
    ):
        director.do(lambda key=key: director.ipvs.services.add_service(ServiceSpec(key)))
        director.do(lambda key=key: director.ipvs.services.add_dest(key, DestSpec(2, local, 80, 3)))
    found = uvsadm(*words.split())
    assert found == ipvsadm(director.path, *words.split())
    assert "localhost" in found.out


def test_order_that_wraps_at_2_31(director, uvsadm, ipvsadm):
    """More addresses than a transitive order could place: the way of sorting must be the same."""
    rnd = random.Random(1)
    for _ in range(60):
        addr = bytes([rnd.randrange(1, 224), rnd.randrange(256), 0, 1])
        key = ServiceKey(2, 6, addr, 80)
        if key.lookup not in director.ipvs.services._services:
            director.do(lambda key=key: director.ipvs.services.add_service(ServiceSpec(key)))
    found = uvsadm("-Ln")
    assert found == ipvsadm(director.path, "-Ln")
    assert found.out != uvsadm("-Ln", "--nosort").out


def proc_row(c):
    def text(af, addr):
        return addr.hex().upper() if af == 2 else ":".join(addr.hex()[i : i + 4] for i in range(0, 32, 4))

    name = PROTO_NAMES.get(c.protocol, f"IP_{c.protocol}")
    return (
        f"{name:3} {text(c.af, c.caddr)} {c.cport:04X} {text(c.af, c.vaddr)} {c.vport:04X} "
        f"{text(c.daf, c.daddr)} {c.dport:04X} {c.state:11} {c.expires // 1000:7}"
        + (f" {c.pe.decode()}\n" if c.pe else "\n")
    )


@pytest.mark.parametrize("pe", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_connections(plain, pe, director, ipvsadm, monkeypatch):
    """The real one reads /proc/net/ip_vs_conn; ours asks the director. Same rows, same text."""
    rnd = random.Random(2)
    rows = []
    for protocol, state in (
        (6, "ESTABLISHED"),
        (6, "SYN_RECV"),
        (17, "UDP"),
        (132, "INIT"),
        (0, "NONE"),
        (6, "NONE"),
    ):
        for af, daf in ((2, 2), (2, 10), (10, 10), (10, 2)) if plain else [(2, 2)]:
            ports = (rnd.choice([53, 80, rnd.randrange(65536)]) for _ in range(3))
            rows.append(
                ConnEntry(
                    af, daf, protocol, *ports, 0, rnd.choice([0, 59_999, 60_000, 900_000, 86_400_000]), 0, state,
                    address(rnd, af, not plain), address(rnd, af, not plain), address(rnd, daf, not plain),
                )
            )  # fmt: skip
    if plain:  # a template of a fwmark service shows its mark as an address
        rows.append(
            ConnEntry(
                2, 2, 0, 0, 0, 80, 0x1000, 300_000, 7, "ASSURED", b"\x0a\0\0\0", b"\0\0\0\7", b"\x0a\0\0\2"
            )
        )
        for data in ("a", "a@b", "x" * 16, "(1:2)/[3]?{4}<5>", "y" * 170):
            row = (2, 2, 17, 0, 5060, 5060, 0x1000, 300_000, 0, "ASSURED")
            rows.append(ConnEntry(*row, bytes(4), b"\x0a\0\0\1", b"\x0a\0\0\2", f"sip {data}".encode()))
    text = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n" + "".join(
        proc_row(c) for c in rows
    )
    monkeypatch.setitem(proctext.TEXTS, "ip_vs_conn", lambda ipvs: iter([text]))
    words = ["-Lc", *(["-n"] if plain else []), *(["--persistent-conn"] if pe else [])]
    theirs = ipvsadm(director.path, *words)
    names = listing.Names(plain)
    assert "\n".join(listing.connections(rows, pe, names)) + "\n" == theirs.out
    assert theirs.status == 0


RESTORE = """\
-A -t 10.0.0.1:80 -s rr
ipvsadm -a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 5

-A -t 10.0.0.1:80
-a -t 10.0.0.9:80 -r 10.0.0.2
-A -u [2001:db8::1]:53 -s wlc -p 60 -M 64
-Ln
"""


@pytest.mark.parametrize(
    "text",
    [
        RESTORE,
        "",
        "-A -t 10.0.0.1:80 -s nosuch\n",
        "-A -t 10.0.0.1:80\n-A -t 10.0.0.1\n-C\n",
        "# a comment\n",
        "-A -t 10.0.0.1:80\n-D -t 10.0.0.2:80",
        "-D -t 10.0.0.2:80\n-A -t 10.0.0.1:80\n",
        "-A -Q\n-A --ops=1\n-A -f 7\n",
        "-A -f 7\n-A -s\n-Q\n-A -f 8\n",
        "-A -f 7\n-D -f\n",
    ],
)
def test_restore(text, director, uvsadm, ipvsadm):
    theirs = ipvsadm(director.path, "-R", stdin=text)
    table = ipvsadm(director.path, "-Ln")
    director.do(director.ipvs.services.flush)
    assert uvsadm("-R", stdin=text) == theirs
    assert uvsadm("-Ln") == table


CHOSEN = """
--set|--set foo|--set 1 foo|--set 1 2|--set 1 2 foo|--set foo bar baz|--set 1 -t 10.0.0.1:80 2 3|--set -1 2 3|--set 1 2 3 4
-A -t [2001:db8::1]:80 -p -M 127.1|-A -t [2001:db8::1]:80 -p -M 64x|-A -t [2001:db8::1]:80 -p -M x64|-A -t [2001:db8::1]:80 -p -M 129
-a -r 10.0.0.2:http -t 10.0.0.1:80|-a -t 10.0.0.1:80 -r 10.0.0.2:http|-a -r 10.0.0.2:http -f 7|-a -f 7 -r 10.0.0.2:http|-L -r 10.0.0.2:http
-a -t 10.0.0.1:80 -r [2001:db8::5]:80 --tun-type gue|-a -t 10.0.0.1:80 -r 10.0.0.2 -m --tun-type gue|-a -t 10.0.0.1:80 -r 10.0.0.2 -i --tun-type gue
"""


@pytest.mark.parametrize("words", choices(CHOSEN))
def test_chosen_command_lines(words, director, uvsadm, ipvsadm):
    """Found by random ones, or by reading ipvsadm's options one by one: the same message and status."""
    ours = uvsadm(*words.split())
    director.do(director.ipvs.services.flush)
    assert ours == ipvsadm(director.path, *words.split())


REFUSED = [
    ("-A -t 10.0.0.1:80", "Service already exists", 255),
    ("-A -t 10.0.0.9:80 -s nosuch", "Scheduler or persistence engine not found", 255),
    ("-E -t 10.0.0.1:80 -s nosuch", "Scheduler or persistence engine not found", 255),
    ("-A -t 10.0.0.9:80 --pe nosuch -p", "Scheduler or persistence engine not found", 255),
    ("-E -t 10.0.0.9:80", "No such service", 255),
    ("-D -t 10.0.0.9:80", "No such service", 255),
    ("-Z -t 10.0.0.9:80", "No such service", 255),
    ("-L -t 10.0.0.9:80", "No such service", 1),
    ("-a -t 10.0.0.9:80 -r 10.0.0.2", "Service not defined", 255),
    ("-e -t 10.0.0.9:80 -r 10.0.0.2", "Service not defined", 255),
    ("-d -t 10.0.0.9:80 -r 10.0.0.2", "Service not defined", 255),
    ("-a -t 10.0.0.1:80 -r 10.0.0.2", "Destination already exists", 255),
    ("-e -t 10.0.0.1:80 -r 10.0.0.9", "No such destination", 255),
    ("-d -t 10.0.0.1:80 -r 10.0.0.9", "No such destination", 255),
    ("-a -t 10.0.0.1:80 -r 10.0.0.9 -x 1 -y 2", "Numerical result out of range", 255),
    (
        "-a -t 10.0.0.1:80 -r 224.0.0.1",
        "Invalid operation.  Possibly wrong module version, address not unicast, ...",
        255,
    ),
    ("--stop-daemon master", "No daemon is running", 255),
]


@pytest.mark.parametrize(("words", "message", "status"), REFUSED)
def test_refusals(words, message, status, director, uvsadm, ipvsadm):
    uvsadm("-A", "-t", "10.0.0.1:80", "-s", "rr")
    uvsadm("-a", "-t", "10.0.0.1:80", "-r", "10.0.0.2")
    theirs = ipvsadm(director.path, *words.split())
    assert (theirs.status, theirs.out, theirs.err) == (status, "", message + "\n")
    assert uvsadm(*words.split()) == theirs
