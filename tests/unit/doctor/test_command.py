"""`uvs doctor`: text, JSON, exit status."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.machine import Machine
from support.schema import wrong

from uvs.doctor import command
from uvs.doctor.finding import HERE, Finding, Name
from uvs.doctor.host import Attempt

SCHEMA = Path(__file__).parents[3] / "docs/reference/doctor.schema.json"


def test_the_report_shows_the_mending_below_its_finding() -> None:
    findings = [
        Finding(Name.VIP, "ok", "fine", "not shown"),
        Finding(Name.TABLE, "fail", "broken", "mend b", HERE),
        Finding(Name.QUEUE, "warn", "odd", "some advice"),
        Finding(Name.SILENT, "fail", "silent", "mend c", "192.0.2.11"),
    ]
    assert command.report(findings, colour=False).splitlines() == [
        "ok    VIP: fine",
        "fail  table full: broken",
        "      -> mend b",
        "warn  queue dropping: odd",
        "      -> some advice",
        "fail  silent server: silent",
        "      -> on 192.0.2.11: mend c",
    ]
    assert command.report(findings[:1], colour=True).startswith("\x1b[32mok  \x1b[0m")


@pytest.mark.parametrize(("fault", "status"), [(None, 0), ((False, "no"), 1)])
def test_exit_status_and_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Attempt | None,
    status: int,
) -> None:
    machine = Machine() if fault is None else replace(Machine(), queue=fault)
    monkeypatch.setattr(command, "System", lambda: machine)
    assert command.main(argparse.Namespace(json=True)) == status
    found = json.loads(capsys.readouterr().out)
    assert list(wrong(json.loads(SCHEMA.read_text()), found)) == []
    assert [f["state"] for f in found if f["name"] == "NFQUEUE"] == ["ok" if status == 0 else "fail"]
    assert command.main(argparse.Namespace(json=False)) == status
    assert "NFQUEUE: " in capsys.readouterr().out
