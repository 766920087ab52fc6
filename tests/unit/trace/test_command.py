"""The command line of `uvs trace`: what it refuses, in one line, and a trace from its beginning to its end."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control import Running, running
from support.world import CIP, RIP, VIP, tcp

from uvs.cli import main
from uvs.control import extension
from uvs.engine.trace import TRACERS
from uvs.ipvs.spec import IpvsError
from uvs.trace import command

PATIENCE_S = 60.0


@pytest.fixture
def director(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """One with a service; a packet is traced as soon as somebody traces."""
    with running(tmp_path) as made:
        monkeypatch.setenv("UVS_SOCKET", made.path)
        made.do(lambda: made.world.server(made.world.service(), RIP[1]))
        yield made


def packets(director: Running, count: int, *ports: int) -> threading.Thread:
    """So many to each port, once somebody traces."""

    def send() -> None:
        while not director.ipvs.tracers:
            time.sleep(0.001)
        for n in range(count):
            for port in ports:
                director.do(lambda n=n, port=port: director.world.local_in(tcp(CIP, 1024 + n, VIP, port)))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


WRONG = [
    ("clent 1.2.3.4", "column 1 of the filter, `clent`: did you mean `client`?"),
    ("tcp and port 80 udp", "column 17 of the filter, `udp`: `and` or `or` is missing before it"),
    ("--rate 0", "--rate takes 1..1000 walks a second, not 0"),
    ("--rate 1001", "--rate takes 1..1000"),
    ("--count 0", "--count takes 1..1000000000 walks, not 0"),
    ("--seconds 0", "--seconds takes more than 0, not 0"),
    ("--seconds nan", "--seconds takes more than 0, not nan"),
    ("--json --pcap x", "--pcap"),
    ("--summary tcp", "--summary tells of all packets: it takes no filter"),
    ("--rate x", "--rate"),
]


@pytest.mark.parametrize(("words", "named"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_use(capsys: pytest.CaptureFixture[str], words: str, named: str) -> None:
    try:
        status = main(["trace", *words.split()])
    except SystemExit as end:
        status = int(str(end.code))
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert named in err


@pytest.mark.parametrize("how", [[], ["--json"], ["--summary"], ["--pcap", "kept"]])
def test_no_director(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    """A file that was there is not touched."""
    monkeypatch.chdir(tmp_path)
    Path("kept").write_text("kept")
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none"))
    assert main(["trace", *how]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("uvs trace: no director listens on ")
    assert Path("kept").read_text() == "kept"


def test_a_capture_is_kept_if_the_director_refuses(
    tmp_path: Path, director: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    tracers = director.ipvs.tracers
    others = [director.do(lambda: tracers.add("udp", 1)) for _ in range(TRACERS)]
    assert main(["trace", "--pcap", str(kept)]) == 1
    assert "traces run already" in capsys.readouterr().err
    assert kept.read_text() == "kept"
    director.do(lambda: tracers.remove(others[0]))
    assert main(["trace", "--pcap", str(kept), "--seconds", "0.1"]) == 0
    assert kept.read_bytes()[:4] == bytes.fromhex("0a0d0d0a")


def test_a_file_that_cannot_be_written(director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--pcap", "/nonexistent/x"]) == 1
    assert capsys.readouterr() == ("", "uvs trace: /nonexistent/x: No such file or directory\n")
    assert main(["trace", "--pcap", "/dev/full", "--seconds", "0.1"]) == 1
    assert capsys.readouterr().err.endswith("uvs trace: /dev/full: No space left on device\n")


def test_as_text(director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    """The reasons since the start, the walks, what was not shown, and the reasons during it."""
    director.do(lambda: director.world.local_in(tcp(CIP, 1, VIP, 9)))
    sent = packets(director, 3, 80, 9)
    assert main(["trace", "service", f"{VIP}:80", "--rate", "2", "--count", "2"]) == 0
    sent.join(PATIENCE_S)
    out, err = capsys.readouterr()
    assert err == ""
    begin, _, rest = out.partition(f"tracing service {VIP}:80, at most 2 walks a second; Ctrl-C ends it\n")
    assert "since the director's start: 0 packets handled, 0 dropped, 1 let pass\n" in begin
    assert "1  no_service" in begin
    heads = [line for line in rest.splitlines() if "LOCAL_IN" in line]
    assert heads == [
        f"{n}  LOCAL_IN  TCP {CIP}:{1023 + n} > {VIP}:80 S  (40 bytes, at 0.000 s)" for n in (1, 2)
    ]
    assert "during the trace: " in rest


def test_as_json(director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    """Objects alone on standard output."""
    packets(director, 1, 80, 9)
    assert main(["trace", "--json", "--count", "2"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["why"] for line in out.splitlines()] == ["forwarded", "no_service"]
    assert "tracing every packet, at most 20 walks a second" in err
    assert "2 packets matched, 2 walks shown" in err


def test_a_capture_on_standard_output(director: Running, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    packets(director, 1, 80)
    assert main(["trace", "--pcap", "-", "--count", "1"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"\x0a\x0d\x0d\x0a")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(director: Running, capsys: pytest.CaptureFixture[str], number: int) -> None:
    before = signal.getsignal(number)

    def end() -> None:
        sent.join(PATIENCE_S)
        os.kill(os.getpid(), number)

    sent = packets(director, 1, 80)
    threading.Thread(target=end, daemon=True).start()
    assert main(["trace", "tcp"]) == 0
    assert "1 packet matched, 1 walk shown" in capsys.readouterr().out
    assert signal.getsignal(number) == before
    director.do(lambda: None)
    assert not director.ipvs.tracers


def test_what_is_not_shown_is_told(director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    packets(director, 10, 80)
    assert main(["trace", "--rate", "3", "--seconds", "0.7"]) == 0
    out = capsys.readouterr().out
    assert "… 7 more matched, not shown (--rate)\n10 packets matched, 3 walks shown\n" in out


def test_a_director_that_goes(tmp_path: Path, director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    def go() -> None:
        while not director.ipvs.tracers:
            time.sleep(0.001)
        director.do(director.server.close)

    threading.Thread(target=go, daemon=True).start()
    assert main(["trace"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"uvs trace: the director at {director.path} has gone away")
    assert err.count("\n") == 1


def test_an_older_director(director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (family,) = [f for f in director.server.dispatcher.families if f.name == extension.FAMILY_NAME]
    del family.ops[extension.Cmd.TRACE]
    assert main(["trace"]) == 1
    assert capsys.readouterr().err == (
        "uvs trace: the director is of another version, and cannot trace this: restart it\n"
    )


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EBUSY, "4 traces run already"), (errno.EPERM, "may look")]
)
def test_refusals(number: int, said: str) -> None:
    assert said in command.refusal(IpvsError(number, "?"))


def test_the_summary_alone(director: Running, capsys: pytest.CaptureFixture[str]) -> None:
    director.do(lambda: director.world.local_in(tcp(CIP, 1, VIP, 9)))
    assert main(["trace", "--summary"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "since the director's start: 0 packets handled, 0 dropped, 1 let pass"
    assert any("→ uvsadm -Ln" in line for line in rest)
