"""What `uvs top` shows of a director's answers: rows, their order, filter and folds; rates, queues, reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.top import dest, service, snapshot

from uvs.engine.core import Why
from uvs.ipvs.spec import ServiceKey
from uvs.top.model import HANDLED, NOT_OURS, Kind, Model, RowKey, Sort, short

ROOT = Path(__file__).parents[3]

NUMBERS = [
    (0, "0"), (7, "7"), (0.25, "0.2"), (9.96, "10.0"), (10.4, "10"), (99_999, "99999"), (99_999.4, "99999"),
    (99_999.6, "100k"), (100_000, "100k"), (999_499, "999k"), (999_500, "1.0M"), (1_234_567, "1.2M"),
    (9_949_999, "9.9M"), (12_345_678, "12M"), (2**32, "4.3G"), (2**64, "18E"), (10**15, "1.0P"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "text"), NUMBERS)
def test_numbers_fit_five_columns(number: float, text: str) -> None:
    assert short(number) == text
    assert len(text) <= 5


def model(*services, **changes) -> Model:
    made = Model()
    made.take(snapshot(*services, **changes))
    return made


WEB = service("192.0.2.1", 80, cps=5, inpps=50, inbps=9000)
DNS = service("192.0.2.1", 53, protocol=17, cps=9, inpps=20, inbps=1000)
MAIL = service("192.0.2.2", 25, cps=1, inpps=30, inbps=5_000_000)
TABLE = (
    (WEB, [dest("198.51.100.1", 80, active=3, cps=1), dest("198.51.100.2", 80, active=4, cps=4)]),
    (DNS, [dest("198.51.100.1", 53, weight=0, inactive=9)]),
    (MAIL, []),
)


def names(of: Model) -> list[str]:
    """The first words of each row: the name as it is shown, without the mark and without the scheduler."""
    return [
        re.sub(r"^[▸▾] ", "", of.line(row, 120)).split(" rr")[0].split("  Masq")[0].strip()
        for row in range(len(of))
    ]


def test_rows() -> None:
    """A service has its servers' sums; the method is the servers' alone."""
    it = model(*TABLE)
    assert it.line(0, 100).startswith("▾ TCP 192.0.2.1:80 rr    ")
    assert it.line(1, 100).startswith("  -> 198.51.100.1:80    ")
    assert [" ".join(it.line(row, 100)[35:].split()) for row in range(len(it))] == [
        "2 7 0 5 50 0 9000 0",
        "Masq 1 3 0 1 0 0 0 0",
        "Masq 1 4 0 4 0 0 0 0",
        "0 0 9 9 20 0 1000 0",
        "Masq 0 0 9 0 0 0 0 0",
        "0 0 0 1 30 0 5.0M 0",
    ]
    assert [it.kind(row) for row in range(len(it))] == [
        Kind.SERVICE, Kind.SERVER, Kind.SERVER, Kind.UNSERVED, Kind.QUIESCED, Kind.UNSERVED,
    ]  # fmt: skip


@pytest.mark.parametrize("width", [200, 100, 92, 91, 80, 60, 20])
def test_heading_and_rows_are_as_wide_as_the_terminal(width: int) -> None:
    """But for one that is too narrow; then the figures stay."""
    it = model(*TABLE, (service("2001:db8:1234:5678:9abc:def0:1234:5678", 65535), []))
    head = "".join(text for text, _ in it.head(width))
    least = max(width, 16 + 57)
    assert {len(head), *(len(it.line(row, width)) for row in range(len(it)))} == {least}
    assert head.endswith("Out B/s")
    assert ("Forward" in head) == (width >= 92)


def test_a_name_that_does_not_fit_is_cut_where_it_can_be_seen() -> None:
    it = model((service("2001:db8:1234:5678:9abc:def0:1234:5678", 80), []))
    assert it.line(0, 80).startswith("▾ TCP [2001:db8:1234:5…")
    assert it.line(0, it.longest(), marks=False).startswith(
        "TCP [2001:db8:1234:5678:9abc:def0:1234:5678]:80 rr "
    )


# the keys pressed, the services and servers from top to bottom
ORDERS = [
    ([], "80 .1:80 .2:80 53 .1:53 25"),
    ([Sort.NAME], "25 53 .1:53 80 .2:80 .1:80"),
    ([Sort.NAME, Sort.NAME], "80 .1:80 .2:80 53 .1:53 25"),
    ([Sort.ACTIVE], "80 .2:80 .1:80 53 .1:53 25"),
    ([Sort.CONNS], "53 .1:53 80 .2:80 .1:80 25"),
    ([Sort.CONNS, Sort.CONNS], "25 80 .1:80 .2:80 53 .1:53"),
    ([Sort.PACKETS], "80 .1:80 .2:80 25 53 .1:53"),
    ([Sort.BYTES], "25 80 .1:80 .2:80 53 .1:53"),
    ([Sort.BYTES, Sort.BYTES, Sort.BYTES], "25 80 .1:80 .2:80 53 .1:53"),
    ([Sort.BYTES, Sort.NAME], "80 .1:80 .2:80 53 .1:53 25"),
]


@pytest.mark.parametrize(("pressed", "order"), ORDERS)
def test_order(pressed: list[Sort], order: str) -> None:
    """The largest first; the same column again: the other way round. Servers stay with their service."""
    it = model(*TABLE)
    for sort in pressed:
        it.sort_by(sort)
    shown = [re.sub(r".* 192\.0\.2\.\d:|-> 198\.51\.100", "", name) for name in names(it)]
    assert " ".join(shown) == order
    assert [sorted_by for _, sorted_by in it.head(100)].count(True) in (1, 2)


# what is typed, what is to be seen
FILTERS = [
    ("", "all"),
    ("tcp", "80 .1:80 .2:80 25"),
    ("TCP 80", "80 .1:80 .2:80"),
    ("100.1", "80 .1:80 53 .1:53"),
    ("udp 100.1", "53 .1:53"),
    (":25", "25"),
    ("100.2:80 rr", "80 .2:80"),
    ("nothing", ""),
    ("   ", "all"),
]


@pytest.mark.parametrize(("typed", "seen"), FILTERS)
def test_filter(typed: str, seen: str) -> None:
    """All words are in the name; a service is seen with any of its servers; it stays so with the next answer."""
    it = model(*TABLE)
    it.filter(typed)
    for _ in range(2):
        shown = [re.sub(r".* 192\.0\.2\.\d:|-> 198\.51\.100", "", name) for name in names(it)]
        assert " ".join(shown) == (seen if seen != "all" else "80 .1:80 .2:80 53 .1:53 25")
        it.take(snapshot(*TABLE))


def test_folds() -> None:
    """A service's servers are hidden from any of their rows; all of them, those of later services too."""
    it = model(*TABLE)
    it.fold(1)
    assert [name.split(":")[-1] for name in names(it)] == ["80", "53", "53", "25"]
    assert it.line(0, 100).startswith("▸ ")
    it.fold(0, True)
    it.fold(0)
    assert len(it) == 6
    it.fold_all()
    it.take(snapshot(*TABLE, (service("192.0.2.9", 443), [dest("198.51.100.1", 443)])))
    assert len(it) == 4
    it.fold(3)
    it.take(snapshot(*TABLE, (service("192.0.2.9", 443), [dest("198.51.100.1", 443)])))
    assert len(it) == 5, "what was opened stays open"
    it.fold_all()
    assert len(it) == 8


def test_a_row_is_found_again() -> None:
    """Where others came and went; hidden or gone: its service's; None without that."""
    it = model(*TABLE)
    key = it.key(2)
    assert key == RowKey(ServiceKey(2, 6, bytes((192, 0, 2, 1)), 80), (2, bytes((198, 51, 100, 2)), 80))
    it.sort_by(Sort.CONNS)
    assert it.find(key) == 3
    it.fold(3)
    assert it.find(key) == 2
    it.take(snapshot(*TABLE[1:]))
    assert it.find(key) is None


def test_nothing_there() -> None:
    it = Model()
    assert (len(it), it.totals(), it.queues(), it.dropped(), it.ignored()) == (0, ["", ""], [], [], [])
    it.take(snapshot())
    assert it.totals()[0] == "0 services, 0 servers, 0 connections, 0 templates, 0 of 1024 records"


def test_totals() -> None:
    table = {
        "conns": 40,
        "templates": 2,
        "dests": 3,
        "services": 3,
        "conn_max": 1024,
        "full": 0,
        "waiting": 0,
    }
    it = model(
        *TABLE, table=table, total={"cps": 15, "inpps": 100, "outpps": 90, "inbps": 5_010_000, "outbps": 1}
    )
    assert it.totals() == [
        "3 services, 3 servers, 40 connections, 2 templates, 48 of 1024 records",
        "15 connections/s; in 100 packets/s, 5.0M bytes/s; out 90 packets/s, 1 bytes/s",
    ]
    worse = model(table=table | {"full": 7, "waiting": 5})
    assert "TABLE FULL 7 times" in worse.totals()[0]
    assert "5 packets wait for a neighbour" in worse.totals()[0]


def queue(number: int, name: str, packets: int, fast: int = 0, **others) -> dict[str, int | str | None]:
    losses = dict.fromkeys(("lost", "cut", "refused", "unsaid", "errors", "dropped", "waiting"), 0)
    return {
        "queue": number,
        "class": name,
        "packets": packets,
        "fast": fast,
        "slow": packets - fast,
        **losses,
        **others,
    }


# queues before, queues two seconds later, lines
QUEUES = [
    ("of its whole life at first", None, [queue(0, "tcp", 100, 90)], ["queue 0 (tcp): 90% fast, 0 waiting, nothing lost"]),
    ("of the last two seconds", [queue(0, "tcp", 100, 90)], [queue(0, "tcp", 200, 100)],
     ["queue 0 (tcp): 50 packets/s, 10% fast, 0 waiting, nothing lost"]),
    ("nothing came", [queue(0, "tcp", 100, 90)], [queue(0, "tcp", 100, 90)],
     ["queue 0 (tcp): 0 packets/s, 90% fast, 0 waiting, nothing lost"]),
    ("nothing ever came", None, [queue(0, "tcp", 0)], ["queue 0 (tcp): 0 waiting, nothing lost"]),
    ("the queues of a class together", [queue(0, "syn", 10), queue(1, "tcp", 0), queue(2, "syn", 20)],
     [queue(0, "syn", 20, lost=3, dropped=4), queue(1, "tcp", 0), queue(2, "syn", 30, waiting=7, lost=1)],
     ["queue 0,2 (syn): 10 packets/s, 0% fast, 7 waiting, 4 lost (2/s), 4 dropped (2/s)",
      "queue 1 (tcp): 0 packets/s, 0 waiting, nothing lost"]),
    ("losses of long ago have no rate", [queue(0, "all", 5, cut=2)], [queue(0, "all", 7, cut=2)],
     ["queue 0 (all): 1 packets/s, 0% fast, 0 waiting, 2 cut"]),
    ("a kernel that does not say", None, [queue(0, "all", 0, waiting=None, dropped=None)],
     ["queue 0 (all): waiting unknown, nothing lost"]),
    ("one more than before", [], [queue(5, "udp", 8, 4)], ["queue 5 (udp): 4 packets/s, 50% fast, 0 waiting, nothing lost"]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "lines"), [q[1:] for q in QUEUES], ids=[q[0] for q in QUEUES])
def test_health_of_queues(before, now, lines: list[str]) -> None:
    it = Model()
    if before is not None:
        it.take(snapshot(at=10.0, queues=before))
    it.take(snapshot(at=12.0, queues=now, first=before is None))
    assert it.queues() == lines


def test_reasons_with_what_comes_now_first() -> None:
    it = Model()
    it.take(
        snapshot(at=10.0, reasons={"forwarded": 5, "no_dest": 100, "too_big": 7, "no_service": 1, "send": 0})
    )
    assert it.dropped() == ["no_dest 100", "too_big 7"]
    it.take(
        snapshot(
            at=14.0,
            first=False,
            reasons={"forwarded": 9, "no_dest": 100, "too_big": 9, "no_service": 41, "send": 0},
        )
    )
    assert it.dropped() == ["too_big 9 (0.5/s)", "no_dest 100"]
    assert it.ignored() == ["no_service 41 (10/s)"]


def test_another_director_begins_anew() -> None:
    """Even if it has counted more than the one before: rates are of one director."""
    it = Model()
    it.take(snapshot(at=10.0, reasons={"no_dest": 100}, queues=[queue(0, "all", 100)]))
    it.take(snapshot(at=12.0, reasons={"no_dest": 300}, queues=[queue(0, "all", 900)]))
    assert it.dropped() == ["no_dest 300"]
    assert "packets/s" not in it.queues()[0]


def test_counts_that_fell_have_no_rate() -> None:
    it = Model()
    it.take(snapshot(at=10.0, reasons={"no_dest": 100}))
    it.take(snapshot(at=12.0, first=False, reasons={"no_dest": 50}))
    assert it.dropped() == ["no_dest 50"]


def test_the_kinds_of_reasons_are_those_of_the_reference() -> None:
    """A reason of a new heading, or of a new kind, is not taken for a drop unseen."""
    found: dict[str, set[str]] = {}
    for heading, text in re.findall(
        r"^## (.*)$\n((?:(?!^## ).*\n)*)", (ROOT / "docs/reference/reasons.md").read_text(), re.M
    ):
        found[heading.split(":")[0]] = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    dropped = {why.label for why in Why} - HANDLED - NOT_OURS
    assert found == {"Handled": HANDLED, "Not ours": NOT_OURS, "Dropped": dropped}
