"""Fuzz target: what uvsadm -R and uvsadm-restore read, through grammar, requests, director and listings.

Input: a byte of flags (FLAG_*), then standard input. What must hold: nothing raises; the exit status is one of
ipvsadm's; many lines at once do what they do one by one; --atomic that fails leaves the table as it was; and whatever
the table has become, it is the same again after uvsadm-save, -C and uvsadm-restore.
"""

from __future__ import annotations

import io
import os
import random
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from support import invariants
from support.paper_client import PaperClient, dispatcher
from support.world import World

from uvs.adm import cli
from uvs.adm.errors import Fail, Unreadable
from uvs.control.client import Client
from uvs.ipvs.spec import DestSpec, ServiceSpec

FLAG_RESTORE, FLAG_ATOMIC, FLAG_IPVSADM = 1, 2, 4  # uvsadm-restore instead of -R; --atomic; called as ipvsadm
TABLE = "-A -t 192.0.2.9:80 -s rr\n-a -t 192.0.2.9:80 -r 10.0.0.9:80 -m -w 1\n-A -f 7 -s wlc -p 60\n"

Content = dict[object, tuple[ServiceSpec, dict[object, DestSpec]]]


def _service(name: str, protocol: str = "tcp") -> int:
    """getservbyname without a file."""
    found = {"http": 80, "domain": 53}.get(name)
    if found is None or not protocol:
        raise OSError
    return found


def _host(name: str) -> str:
    """gethostbyname without a name server."""
    if name != "localhost":
        raise socket.gaierror
    return "127.0.0.1"


def _name(addr: str) -> tuple[str, list[str], list[str]]:
    """gethostbyaddr."""
    raise socket.herror


def _host6(name: str, *_: object) -> list[object]:
    """getaddrinfo for IPv6."""
    if name != "localhost":
        raise socket.gaierror
    return [(10, 1, 6, "", ("::1", 0, 0, 0))]


RESOLVER = {"getservbyname": _service, "gethostbyname": _host, "gethostbyaddr": _name, "getaddrinfo": _host6}


@contextmanager
def standard(text: bytes) -> Iterator[io.StringIO]:
    """`text` on standard input, as a file is; what is said on standard error."""
    fd = os.memfd_create("input")
    os.write(fd, text)
    os.lseek(fd, 0, os.SEEK_SET)
    out, err = io.StringIO(), io.StringIO()
    with (
        open(fd, encoding="utf-8", errors="surrogateescape") as file,
        mock.patch.multiple(sys, stdin=file, stdout=out, stderr=err),
        mock.patch.multiple(socket, **RESOLVER),
    ):
        yield err


def restored(client: Client, text: bytes, flags: int) -> tuple[int, str]:
    """Status and messages."""
    program = "ipvsadm" if flags & FLAG_IPVSADM else "uvsadm"
    atomic, clear = bool(flags & FLAG_ATOMIC), bool(flags & FLAG_RESTORE)
    with standard(text) as err:
        try:
            status = cli.restore(client, program, atomic, clear)
        except Fail as e:
            status = e.status
            print(e, file=sys.stderr)
    return status, err.getvalue()


def one_by_one(client: Client, text: bytes, flags: int) -> int:
    """The same without the speed: each line as a command of its own. The status."""
    program = "ipvsadm" if flags & FLAG_IPVSADM else "uvsadm"
    status = 0
    lines = ([b"-C"] if flags & FLAG_RESTORE else []) + text.split(b"\n")
    with (
        standard(b""),
        mock.patch.object(cli, "_client", return_value=client),
        mock.patch.object(client, "close"),
    ):
        for line in lines:
            if flags & FLAG_RESTORE and line.startswith(b"#"):
                continue
            words = [word for word in os.fsdecode(line).split() if word not in ("ipvsadm", "uvsadm")]
            if not words:
                continue
            try:
                status = cli.run(words, program)
            except Fail as e:
                status = e.status
                if not passed_over(words, program):
                    break
    return status


def passed_over(words: list[str], program: str) -> bool:
    """A line that was refused by the director, not by the grammar; ipvsadm goes on as well after some of these."""
    try:
        cli.parse(words, program)
    except Unreadable:
        return program == "ipvsadm"
    except Fail:
        return False
    return True


def content(client: Client) -> Content:
    services = client.services()
    return {
        entry.spec.key.lookup: (
            entry.spec,
            {(d.spec.af, d.spec.addr, d.spec.port): d.spec for d in client.dests(entry.spec.key)},
        )
        for entry in services
    }


def one(data: bytes) -> None:
    flags, text = (data[0] if data else 0), data[1:]
    world, other = World(conn_max=10), World(conn_max=10)
    try:
        client, second = PaperClient(dispatcher(world)), PaperClient(dispatcher(other))
        for each in (client, second):
            assert restored(each, TABLE.encode(), 0) == (0, "")
        before = content(client), client.timeouts()
        status, said = restored(client, text, flags)
        assert status in (0, 1, 2, 255)
        assert bool(said) or status == 0
        after = content(client)
        now = after, client.timeouts()
        nested = any(word in (b"-R", b"--restore") for word in text.split())
        if flags & FLAG_ATOMIC:
            assert status == 0 or now == before
        elif not nested:
            assert one_by_one(second, text, flags) == status
            assert (content(second), second.timeouts()) == now
        invariants.records_have_owners(world)
        with standard(b""):
            cli.execute(client, cli.parse(["-Ln"]))
            cli.execute(client, cli.parse(["-L", "--json"]))
            cli.execute(client, cli.parse(["-Sn"]))
            saved = sys.stdout.getvalue()  # type: ignore[attr-defined]
        saved = saved[saved.index("\n}\n") + 3 :]
        assert restored(client, saved.encode(), FLAG_RESTORE) == (0, "")
        assert {k: (_told(spec), dests) for k, (spec, dests) in content(client).items()} == {
            k: (_told(spec), dests) for k, (spec, dests) in after.items()
        }
    finally:
        world.close()
        other.close()


def _told(spec: ServiceSpec) -> tuple[object, ...]:
    """A service, but for what means nothing without persistence and is not saved."""
    kept = (spec.timeout, spec.netmask) if spec.flags & 1 else ()
    return spec.key, spec.sched_name, spec.flags, spec.pe_name, *kept


# ------------------------------------------------------------------- seeds, mutation

LINES = r"""
-A -t 192.0.2.1:80 -s wrr -p 60 -M 255.255.255.0
-a -t 192.0.2.1:80 -r 10.0.0.1:80 -m -w 3 -x 9 -y 3
-a -t 192.0.2.1:80 -r [2001:db8::5]:80 -i --tun-type gue --tun-port 6080 --tun-csum
-a -t 192.0.2.1:80 -r 10.0.0.2 -i --tun-type gre --tun-nocsum -w 0
-A -u [2001:db8::1]:53 -s rr -p 60 -M 64 -o --pe sip
-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -g
-A --sctp-service 192.0.2.1:80 -s mh -b mh-fallback,mh-port
-A -f 8 -6 -s sh -b sh-port -p
-a -f 8 -6 -r [2001:db8::3]:0 -m
-E -t 192.0.2.9:80 -s lblcr
-e -t 192.0.2.9:80 -r 10.0.0.9:80 -m -w 9
-d -t 192.0.2.9:80 -r 10.0.0.9:80
-D -f 7
-Z -t 192.0.2.9:80
-Z
-C
--set 900 120 300
-Ln --stats
-L -t 192.0.2.9:80 --rate -n
-L -c
-S
--start-daemon master --mcast-interface eth0 --syncid 5
--stop-daemon backup
ipvsadm -A -t localhost:http
# a comment
-h
""".strip().splitlines()
TOKENS = shlex.split("""
-A -E -D -C -L -Z -a -e -d -R -S -h -v -l --set --list --add-service --start-daemon --stop-daemon -t -u -f -6 -s -p -M -r -m -i -g -w
-x -y -o -b -n -c -X --sctp-service --pe --tun-type --tun-port --tun-csum --tun-nocsum --tun-remcsum --stats --rate --timeout
--daemon --json --atomic --thresholds --persistent-conn --nosort --sort --exact --syncid --mcast-interface --mcast-group --mcast-port
--mcast-ttl --sync-maxlen --tun-info ipvsadm uvsadm '#' -- - --= =
192.0.2.1:80 192.0.2.9:80 192.0.2.1 [2001:db8::1]:53 [2001:db8::1] 2001:db8::1 [::ffff:10.0.0.1]:80 localhost:http [localhost]:80 nowhere:80
:80 1.2:80 0x7f.1:80 127.1 10.0.0.1:0 10.0.0.1:65536 255.255.255.255:80 0.0.0.0:0 224.0.0.1:80 [ff02::1]:1 [fe80::1]:80
0 1 7 8 +1 -1 01 0x10 128 129 255.255.255.0 24 360 65535 65536 2147483647 2147483648 4294967295 4294967296 99999999999999999999 1e3
rr wlc sh mh none lblcr xyz sip flag-1 flag-1,flag-2,flag-3 mh-port sh-port,, master backup eth0 224.0.0.9 ff02::9 gue gre ipip
""")
BLANKS = [
    b" ",
    b" ",
    b" ",
    b"\t",
    b"  ",
    b"\r",
    b"\0",
    b"\x0b",
    b"\xc2\xa0",
    b"\xe2\x80\xa8",
    b"\xff",
    b"\x1c",
]

REFUSED_AT_LAST = """\
-E -t 192.0.2.9:80 -s lblcr
-e -t 192.0.2.9:80 -r 10.0.0.9:80 -m -w 9
-a -t 192.0.2.9:80 -r 10.0.0.8:80 -m
-d -f 7 -r 10.0.0.9
-A -t 192.0.2.1:80
-D -f 7
--set 1 2 3
-D -f 99
"""
LISTED = "-L --timeout\n-L --daemon\n-L --timeout --json\n-L --daemon --json\n-L -c --json\n-L -f 7 --json\n"
SEEDS = [
    bytes([flags]) + "\n".join(LINES[at : at + 9]).encode()
    for at in range(0, len(LINES), 3)
    for flags in (0, 3)
]
SEEDS += [
    bytes([flags]) + text.encode()
    for text in (REFUSED_AT_LAST, LISTED)
    for flags in (0, FLAG_ATOMIC, FLAG_IPVSADM)
]


def mutate(data: bytes, rnd: random.Random) -> bytes:
    """One step among lines or words."""
    flags, lines = (data[0] if data else 0), [line.split(b" ") for line in data[1:].split(b"\n")]
    at = rnd.randrange(len(lines))
    words = lines[at]
    word = rnd.randrange(len(words))
    what = rnd.random()
    if what < 0.06:
        flags ^= 1 << rnd.randrange(3)
    elif what < 0.16:
        lines.insert(at, rnd.choice(LINES).encode().split(b" "))
    elif what < 0.22:
        lines.insert(rnd.randrange(len(lines) + 1), list(words))
    elif what < 0.28:
        del lines[at]
    elif what < 0.38:
        del words[word]
    elif what < 0.68:
        words[word] = rnd.choice(TOKENS).encode()
    elif what < 0.88:
        words.insert(word, rnd.choice(TOKENS).encode())
    elif what < 0.93:
        words[word] = words[word] + rnd.choice(BLANKS) + rnd.choice(TOKENS).encode()
    else:
        letters = bytearray(words[word] or b"x")
        letters[rnd.randrange(len(letters))] = rnd.choice(b"-:[]=.,/0129 aAtp\xff\0%")
        words[word] = bytes(letters)
    return bytes([flags & 0xFF]) + b"\n".join(b" ".join(words) for words in lines)
