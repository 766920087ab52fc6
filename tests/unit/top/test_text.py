"""`uvs top --once` and `--json`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.top import TABLE, dest, service, snapshot

from uvs.adm import jsontext
from uvs.top import text
from uvs.top.model import Model

ROOT = Path(__file__).parents[3]
LONG = "2001:db8:1234:5678:9abc:def0:1234:5678"
QUEUE = {"queue": 0, "class": "all", "packets": 10, "fast": 0, "waiting": None, "dropped": None}


def test_plain_text_shows_everything_whole() -> None:
    model = Model()
    reasons = {"forwarded": 4, "no_dest": 2, "no_service": 3}
    model.take(
        snapshot((service(LONG, 80, cps=3), [dest(LONG, 8080, active=5)]), queues=[QUEUE], reasons=reasons)
    )
    name = f"  -> [{LONG}]:8080"
    assert list(text.lines(model)) == [
        "1 services, 1 servers, 0 connections, 0 templates, 0 of 1024 records",
        "0 connections/s; in 0 packets/s, 0 bytes/s; out 0 packets/s, 0 bytes/s",
        "",
        f"{'Service, scheduler':{len(name)}}  Forward Weight Active InAct Conn/s In p/s Out p/s In B/s Out B/s",
        f"{f'TCP [{LONG}]:80 rr':{len(name)}}               1      5     0      3      0       0      0       0",
        f"{name}     Masq      1      5     0      0      0       0      0       0",
        "",
        "queue 0 (all): 0% fast, waiting unknown, nothing lost",
        "dropped: no_dest 2",
        "not ours: no_service 3",
    ]


def test_plain_text_of_a_director_without_services() -> None:
    model = Model()
    model.take(snapshot())
    lines = list(text.lines(model))
    assert lines[3].startswith("Service, scheduler  ")
    assert lines[-2:] == ["dropped: nothing", "not ours: nothing"]


def test_json_has_what_the_reference_says() -> None:
    web = service("192.0.2.1", 80, conns=3)
    servers = [dest("198.51.100.1", 80)]
    line = text.json_line(
        snapshot(
            (web, servers), at=0.1234, total={"conns": 7, "cps": 2}, reasons={"no_dest": 2}, queues=[QUEUE]
        )
    )
    assert "\n" not in line
    assert json.loads(line) == {
        "time": 1_800_000_000.123,
        "services": [jsontext.service(web, servers)],
        "total": {
            "stats": dict.fromkeys(jsontext.COUNTERS, 0) | {"connections": 7},
            "rate": dict.fromkeys(jsontext.RATES, 0) | {"connections": 2},
        },
        "queues": [QUEUE],
        "reasons": {"no_dest": 2},
        "table": TABLE,
    }
    absent = json.loads(text.json_absence(1.23456, "it is gone"))
    assert absent == {"time": 1.235, "error": "it is gone"}
    documented = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/top.md").read_text(), re.M)
    assert documented == [*json.loads(line), "error"]
