"""Unmodified programs under `uvs exec`: what they ask of IPVS is answered by the director."""

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from uvs.control import genetlink, sockopt
from uvs.control.client import Client

KNOB = "/proc/sys/net/ipv4/vs/expire_nodest_conn"
TABLE = """\
-A -t 10.0.0.1:80 -s rr
-a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 5
-A -u [2001:db8::1]:53 -s wlc -p 60 -M 64
-A -f 7 -s rr -o
"""


def lines(text):
    return [line.rstrip() for line in text.splitlines()]


def test_ipvsadm(under):
    """It changes and lists the director's table."""
    ran = under("ipvsadm", "-R", input=TABLE)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert under("ipvsadm", "-Sn").stdout == (
        "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 5\n"
        "-A -u [2001:db8::1]:53 -s wlc -p 60 -M 64\n-A -f 7 -s rr -o\n"
    )
    assert under("ipvsadm", "-A", "-t", "10.0.0.1:80").stderr == "Service already exists\n"
    assert under("ipvsadm", "-L", "--daemon").stdout == ""
    assert under("ipvsadm", "-C").returncode == 0
    assert lines(under("ipvsadm", "-Ln").stdout)[3:] == []


def test_connections_by_ipvsadm(under):
    """It reads them from /proc/net/ip_vs_conn."""
    assert lines(under("ipvsadm", "-Lnc").stdout) == [
        "IPVS connection entries",
        "pro expire state       source             virtual            destination",
    ]


# A program that opens a file in this way, and reads it.
OPENERS = {
    "open": ["cat", "{}"],
    "a shell's redirection": ["sh", "-c", "cat < {}"],
    "bash": ["bash", "-c", 'while IFS= read -r x; do printf "%s\\n" "$x"; done < {}'],
    "fopen": ["awk", "{{print}}", "{}"],
    "perl": ["perl", "-ne", "print", "{}"],
    "python": [sys.executable, "-c", "print(open('{}').read(), end='')"],
    "an empty environment": ["env", "-i", "/bin/cat", "{}"],
}


@pytest.mark.parametrize("how", OPENERS)
@pytest.mark.parametrize("path", ["/proc/net/ip_vs", "/proc/self/net/ip_vs"])
def test_texts(how, path, under):
    under("ipvsadm", "-R", input=TABLE)
    ran = under(*(word.format(path) for word in OPENERS[how]))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[3:5] == ["TCP  0A000001:0050 rr  ", "  -> 0A000002:0050      Masq    5      0          0         "]  # fmt: skip


def test_texts_are_there(under):
    names = ["", "_app", "_conn", "_conn_sync", "_stats", "_stats_percpu"]
    ran = under("stat", "-c", "%F %a", *(f"/proc/net/ip_vs{name}" for name in names))
    assert (ran.stdout.splitlines(), ran.stderr) == (["regular empty file 444"] * len(names), "")
    assert under("test", "-r", "/proc/net/ip_vs").returncode == 0
    assert under("test", "-e", "/proc/net/ip_vs_nothing").returncode == 1
    assert under("cat", "/proc/net/dev").stdout.startswith("Inter-|")


WRITERS = {
    "a shell's echo": ["sh", "-c", "echo {} > " + KNOB],
    "bash's echo": ["bash", "-c", "echo {} > " + KNOB],
    "a program that a shell starts": ["sh", "-c", "/bin/echo {} > " + KNOB],
    "tee": ["sh", "-c", "echo {} | tee " + KNOB],
    "sysctl": ["sysctl", "-q", "-w", "net.ipv4.vs.expire_nodest_conn={}"],
    "perl": ["perl", "-e", "open(F, '>', '" + KNOB + "') && print(F '{}') && close(F) || exit 1"],
    "python": [sys.executable, "-c", "with open('" + KNOB + "', 'w') as f: f.write('{}')"],
}


@pytest.mark.parametrize("how", WRITERS)
def test_sysctls_are_written(how, under, director):
    ran = under(*(word.format(1) for word in WRITERS[how]))
    assert (ran.returncode, ran.stderr) == (0, "")
    with Client(str(director.socket)) as client:
        assert client.sysctl("expire_nodest_conn") == "1"
    assert under("cat", KNOB).stdout == "1\n"
    assert under("sysctl", "-n", "net.ipv4.vs.expire_nodest_conn").stdout == "1\n"


@pytest.mark.parametrize("how", WRITERS)
def test_sysctls_refuse(how, under):
    """The program is told; where libc writes by itself, the user is."""
    ran = under(*(word.format("x") for word in WRITERS[how]))
    assert ran.stderr or ran.returncode
    assert under("cat", KNOB).stdout == "0\n"


def test_no_such_sysctl(under):
    assert "No such file" in under("cat", "/proc/sys/net/ipv4/vs/nosuch").stderr


SOCKOPT = """
import json, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
def refused(call, *args):
    try: call(*args)
    except OSError as e: return e.errno
B = 1152
told = [s.getsockopt(0, B, 64)[:-1].decode(), struct.unpack("3I", s.getsockopt(0, B + 1, 12))]
svc = lambda name=b"rr", protocol=6: struct.pack("=H2x4sH2xI16sII4s", protocol, bytes([10, 0, 0, 1]), socket.htons(80), 0, name, 0, 0, b"\\xff" * 4)
dest = lambda weight: struct.pack("=4sH2xIiII", bytes([10, 0, 0, 2]), socket.htons(80), 0, weight, 0, 0)
s.setsockopt(0, B + 2, svc())
s.setsockopt(0, B + 7, svc() + dest(5))
told += [refused(s.setsockopt, 0, B + 2, svc()), refused(s.setsockopt, 0, B + 2, svc(b"nosuch", 17)), refused(s.setsockopt, 0, B + 2, svc()[:40])]
told += [refused(s.setsockopt, 0, B + 4, svc(protocol=17)), refused(s.setsockopt, 0, B + 4, svc(protocol=1)), refused(s.getsockopt, 0, B + 6, 4)]
told += [s.getsockopt(0, B + 1, 12)[8], s.getsockopt(0, 1, 4).hex()]
print(json.dumps(told))
"""


def test_the_interface_before_netlink(under, json_of):
    """get- and setsockopt IP_VS_SO_*; other options of the level are the kernel's."""
    told = json_of(SOCKOPT)
    errnos = [errno.EEXIST, errno.ENOENT, errno.EINVAL, errno.ESRCH, errno.EFAULT, errno.EINVAL]
    assert told == ["IP Virtual Server version 1.2.1 (size=4096)", [0x10201, 4096, 0], *errnos, 1, "00000000"]
    assert (
        under("ipvsadm", "-Sn").stdout
        == "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 5\n"
    )
    assert sockopt.BASE == 1152


NETLINK = """
import json, os, select, socket, struct, threading
def genl(cmd, name=None, type=16, flags=5, seq=7, more=b""):
    attr = b"" if name is None else struct.pack("HH", 5 + len(name), 2) + name + bytes(4 - len(name) % 4)
    body = struct.pack("BBH", cmd, 1, 0) + attr + more
    return struct.pack("IHHII", 16 + len(body), type, flags, seq, 0) + body
def kind(data):
    length, type = struct.unpack_from("IH", data)
    return struct.unpack_from("i", data, 16)[0] if type == 2 else type
"""

# Who asks for another family than the director's stays with the kernel.
OTHERS = (
    NETLINK
    + """
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
s.bind((0, 0))
s.send(genl(3, b"nlctrl"))
told = [kind(s.recv(65536)), kind(s.recv(65536)), s.getsockopt(socket.SOL_SOCKET, 39) == socket.AF_NETLINK]
r = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
r.bind((0, 0))
r.send(struct.pack("IHHIIB3x", 20, 18, 0x305, 1, 0, 0))  # RTM_GETLINK
told.append(kind(r.recv(65536)))
t = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
t.send(genl(3, b"IPVS"))
told += [kind(t.recv(65536)), kind(t.recv(65536)), t.getsockname()[1:], t.recvfrom.__name__]
s.send(genl(3, b"nlctrl"))
told += [kind(s.recv(65536)), os.readlink(f"/proc/self/fd/{s.fileno()}").split(":")[0]]
print(json.dumps(told))
"""
)


def test_other_netlink_goes_on(json_of):
    told = json_of(OTHERS)
    assert told == [16, 0, True, 16, 16, 0, [0], "recvfrom", 16, "socket"]


# A socket that waits in epoll, has been duplicated and is used by threads and by a child.
WAITS = (
    NETLINK
    + """
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
s.bind((0, 0))
other = s.dup()
e = select.epoll()
e.register(s.fileno(), select.EPOLLIN)
s.send(genl(3, b"IPVS"))
told = [e.poll(10) == [(s.fileno(), select.EPOLLIN)], kind(other.recv(65536)), kind(s.recv(65536))]
pid = os.fork()
if not pid:
    other.send(genl(15, type=1101, seq=8))
    os._exit(0 if [kind(other.recv(65536)), kind(other.recv(65536))] == [1101, 0] else 1)
told.append(os.waitpid(pid, 0)[1])
def many(n):
    for _ in range(50):
        t = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        t.send(genl(3, b"IPVS"))
        answers[n] += [kind(t.recv(65536)), kind(t.recv(65536))] == [16, 0]
        t.close()
answers = [0] * 4
threads = [threading.Thread(target=many, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
told += answers
s.setblocking(False)
s.send(genl(15, type=1101, seq=9))
told += [select.select([s], [], [], 10)[0] == [s], kind(s.recv(65536))]
p = select.poll()
p.register(s, select.POLLIN)
told += [len(p.poll(10000)), kind(s.recv(65536)), p.poll(10)]
print(json.dumps(told))
"""
)


def test_sockets_wait_are_duplicated_and_shared(json_of):
    assert json_of(WAITS) == [True, 16, 0, 0, 50, 50, 50, 50, True, 1101, 1, 0, []]


@pytest.mark.parametrize("wait", ["recv", "poll", "select", "epoll"])
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_director_that_does_not_answer(fault, wait, json_of, director):
    """The request ends with an error, in time; so do later ones. When the director is back, they go on."""
    flag = director.directory / "flag"
    code = (
        NETLINK
        + f"""
import sys, time
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
s.send(genl(3, b"IPVS")); s.recv(65536); s.recv(65536)
e = select.epoll(); e.register(s.fileno(), select.EPOLLIN)
p = select.poll(); p.register(s, select.POLLIN)
waits = dict(recv=lambda: 0, poll=p.poll, select=lambda: select.select([s], [], []), epoll=e.poll)
def turn(name):
    open({str(flag)!r}, "w").write(name)
    while os.path.exists({str(flag)!r}): time.sleep(0.01)
def ask(seq):
    s.send(genl(15, type=1101, seq=seq))
    waits[{wait!r}]()
    return kind(s.recv(65536))
turn("break")
told = [ask(8), ask(9)]
turn("mend")
told += [ask(10), kind(s.recv(65536))]
print(json.dumps(told))
"""
    )

    def turns():
        for name, work in (
            ("break", director.kill if fault == "killed" else director.freeze),
            ("mend", director.start if fault == "killed" else director.thaw),
        ):
            end = time.monotonic() + 60
            while not (flag.exists() and flag.read_text() == name):
                assert time.monotonic() < end
                time.sleep(0.01)
            work()
            flag.unlink()

    thread = threading.Thread(target=turns)
    thread.start()
    told = json_of(code, timeout_s="2", restart_s="0.1")
    thread.join()
    code = errno.ENODEV if fault == "killed" else errno.EBUSY
    assert told == [-code, -code, 1101, 0]


@pytest.mark.parametrize("fault", ["killed", "frozen"])
@pytest.mark.parametrize("words", ["ipvsadm -Ln", "cat /proc/net/ip_vs", "cat " + KNOB])
def test_programs_end_when_the_director_does_not_answer(fault, words, under, director):
    gone = f"kill -{'KILL' if fault == 'killed' else 'STOP'} {director.process.pid}; sleep 0.1; exec {words}"
    ran = under("sh", "-c", gone, timeout_s="1", restart_s="0.1")
    assert ran.returncode not in (0, -9)
    assert ran.stderr.strip()
    if fault == "frozen":
        director.thaw()


def test_what_is_started_keeps_the_shim(under):
    """Even by programs that hand on an environment of their own."""
    code = "import os; os.execve('/bin/cat', ['cat', '/proc/net/ip_vs'], {'LD_PRELOAD': ''})"
    for words in (
        [sys.executable, "-c", code],
        ["perl", "-e", "%ENV = (); exec '/bin/cat', '/proc/net/ip_vs'"],
    ):
        assert under(*words).stdout.startswith("IP Virtual Server version"), words


def test_numbers_are_the_directors(under):
    assert (genetlink.IPVS_ID, genetlink.UVS_ID) == (1101, 1102)


@pytest.fixture(scope="module")
def sanitized_shim(tmp_path_factory):
    """LD_PRELOAD with the shim under ASan and UBSan."""
    shim = tmp_path_factory.mktemp("shim") / "preload.so"
    sources = sorted((Path(__file__).parents[2] / "csrc").glob("preload*.c"))
    flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fno-sanitize-recover=all",
    ]
    build = ["gcc", *flags, "-fsanitize=address,undefined", "-o", shim, *sources, "-ldl", "-pthread"]
    subprocess.run(build, check=True)
    libasan = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return f"{Path(libasan).resolve()}:{shim}"


CODES = {"netlink": OTHERS, "waits": WAITS, "sockopt": SOCKOPT}
PROGRAMS = {
    "ipvsadm": ["ipvsadm", "-Ln"],
    "text": ["cat", "/proc/net/ip_vs"],
    "sysctl read": ["cat", KNOB],
    "sysctl written": ["sh", "-c", "echo 1 > " + KNOB],
    "stat": ["stat", "/proc/net/ip_vs_conn"],
    "listing": ["ls", "/proc/sys/net/ipv4/vs", "/proc/net"],
    "relative": ["sh", "-c", "cd /proc/net && cat ip_vs && ls -l ip_vs"],
}


@pytest.mark.parametrize(
    ("what", "gone"),
    [*((what, False) for what in [*CODES, *PROGRAMS]), *((what, True) for what in ["sockopt", *PROGRAMS])],
)
def test_under_sanitizers(what, gone, sanitized_shim, director):
    """No finding; what the programs do is tested above."""
    if gone:
        director.kill()
    environment = {
        "LD_PRELOAD": sanitized_shim,
        "UVS_SOCKET": str(director.socket),
        "UVS_TIMEOUT": "20",
        "UVS_RESTART": "0.1",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "UBSAN_OPTIONS": "exitcode=99",
    }
    words = PROGRAMS.get(what) or [sys.executable, "-c", CODES[what]]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode not in (99, -6, -11), ran.stderr
    assert "Sanitizer" not in ran.stderr
    assert "runtime error" not in ran.stderr
    assert gone or (ran.returncode, ran.stderr) == (0, "")
