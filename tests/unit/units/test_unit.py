"""The units as they are written: paths filled in, known again, and no sandbox that would shut uvs out."""

from __future__ import annotations

import re

import pytest

from uvs.units import unit

PROGRAM = "/opt/uvs/bin/uvs"


def settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        found.setdefault(name, []).append(value)
    return found


def test_where_they_go() -> None:
    assert [str(file.path) for file in unit.files(PROGRAM)] == [
        "/etc/systemd/system/uvs.service",
        "/etc/systemd/system/uvs-monitor.service",
        "/etc/systemd/system/uvs-metrics.service",
        "/etc/sysusers.d/uvs.conf",
    ]
    assert [file.path for file in unit.files(PROGRAM) if re.search(r"@[A-Z]+@", file.text)] == []


def test_they_start_this_uvs_as_their_user() -> None:
    commands = ["run", "monitor", "metrics"]
    for command, file in zip(commands, unit.files(PROGRAM), strict=False):
        found = settings(file.text)
        assert found["ExecStart"][0].startswith(f"{PROGRAM} {command} ")
        assert found["User"] == ["uvs"]
        assert found["Type"] == ["notify"]
    assert unit.files(PROGRAM)[-1].text.splitlines()[-1].startswith("u uvs ")


def test_the_director_has_two_capabilities_and_a_watchdog() -> None:
    found = settings(unit.files(PROGRAM)[0].text)
    both = ["CAP_NET_ADMIN CAP_NET_RAW"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == both
    assert found["ExecReload"] == [f"{PROGRAM} reload"]  # which waits, and fails if the file is wrong
    assert int(found["WatchdogSec"][0]) >= 4  # a thread without packets goes round once a second
    # SIGTERM to all of the unit's processes would end iptables while it removes the rules.
    assert found["KillMode"] == ["mixed"]
    # The table outlives a crash; /run/uvs is what `uvs run` takes by UVS_SOCKET, /var/lib/uvs by XDG_STATE_HOME.
    assert found["RuntimeDirectoryPreserve"] == ["yes"]
    assert found["Environment"] == ["UVS_SOCKET=/run/uvs/control.sock XDG_STATE_HOME=/var/lib"]


def test_the_metrics_have_none() -> None:
    found = settings(unit.files(PROGRAM)[2].text)
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == [""]


@pytest.mark.parametrize(
    ("program", "home"),
    [
        ("/opt/uvs/bin/uvs", "yes"),
        ("/usr/bin/uvs", "yes"),
        ("/homes/bin/uvs", "yes"),
        *((f"{folder}/venv/bin/uvs", "read-only") for folder in unit.HOMES),
    ],
)
def test_a_home_is_seen_if_uvs_is_in_it(program: str, home: str) -> None:
    for file in unit.files(program)[:3]:
        assert settings(file.text)["ProtectHome"] == [home]
    for file in unit.files(PROGRAM, program)[:3]:  # as the Python of a venv elsewhere
        assert settings(file.text)["ProtectHome"] == [home]


@pytest.mark.parametrize(
    "program",
    [
        "uvs",
        "/opt/my uvs/bin/uvs",
        "/opt/50%/uvs",
        "/opt/$x/uvs",
        '/opt/"/uvs',
        "/opt/a\nb",
        "/tmp/v/bin/uvs",
        "/var/tmp/uvs",
    ],
)
def test_what_systemd_could_not_start(program: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        unit.files(program)


def test_ours_are_known_until_they_are_changed() -> None:
    for file in unit.files(PROGRAM):
        assert unit.is_ours(file.text)
        assert not unit.is_ours(file.text + "# mine\n")
        assert not unit.is_ours(file.text.replace("uvs", "UVS", 1))
        assert not unit.is_ours(file.text.partition("\n")[2])
    assert not unit.is_ours("")
