"""uvs drain: whom it means, what it says, and that it ends."""

from __future__ import annotations

import json

import pytest
from support.ruled import RIPS, VIP, ruled

from uvs import cli
from uvs.control.rows import server_id, service_key
from uvs.ipvs.spec import DestSpec

KEY = service_key(f"tcp:{VIP}")
FIRST = RIPS[0].removesuffix(":80")


@pytest.fixture
def director(tmp_path, monkeypatch):
    with ruled(tmp_path) as it:
        monkeypatch.setenv("UVS_SOCKET", it.path)
        yield it


def uvs(capsys, *words):
    status = cli.main(["drain", *words])
    out, err = capsys.readouterr()
    return status, out, err


def weights(director):
    return {entry.spec.addr[-1]: entry.spec.weight for entry in director.client().dests(KEY)}


@pytest.mark.parametrize(
    "words",
    [
        [f"tcp:{VIP}", FIRST],
        [f"tcp:{VIP}", RIPS[0]],
        ["-t", VIP, FIRST],
        ["-t", VIP, "-r", RIPS[0]],
        [f"tcp:{VIP}", "--server", FIRST],
    ],
)
def test_a_server_is_named_as_elsewhere(director, capsys, words):
    where = f"{RIPS[0]} of tcp:{VIP}"
    status, out, _ = uvs(capsys, *words)
    assert (status, out) == (0, f"{where}: 0 active, 0 inactive connections, 0 templates\n")
    assert weights(director) == {11: 0, 12: 1}
    status, out, _ = uvs(capsys, *words, "--cancel")
    assert (status, out) == (0, f"{where} is drained no longer: weight 4\n")
    assert weights(director) == {11: 4, 12: 1}


def test_a_list_of_drains(director, capsys):
    assert uvs(capsys) == (0, "no server is being drained\n", "")
    assert uvs(capsys, f"tcp:{VIP}", FIRST, "--deadline", "600")[1].endswith(
        "removed in 600 s at the latest\n"
    )
    assert "600 s" in uvs(capsys)[1] or "599 s" in uvs(capsys)[1]
    (row,) = json.loads(uvs(capsys, "--json")[1])
    assert (row["server"], row["drain"]["done"]) == (RIPS[0], False)
    director.do(director.layers.second)
    assert "drained and removed; it stays out" in uvs(capsys)[1]
    assert uvs(capsys, f"tcp:{VIP}", FIRST, "--cancel")[0] == 0
    assert weights(director) == {11: 4, 12: 1}


def test_wait(director, capsys):
    """It returns when the server is removed, or says that it will not be."""
    director.do(lambda: director._loop.call_later(0.2, director.layers.second))
    assert uvs(capsys, f"tcp:{VIP}", FIRST, "--wait") == (0, f"{RIPS[0]} is removed\n", "")
    by_hand = DestSpec(*server_id(RIPS[1]), weight=7)
    director.do(lambda: director._loop.call_later(0.2, director.ipvs.services.edit_dest, KEY, by_hand))
    status, _, err = uvs(capsys, f"tcp:{VIP}", RIPS[1], "--wait")
    assert (status, err) == (1, f"uvs drain: the drain of {RIPS[1]} has ended otherwise: its weight is 7\n")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["tcp:192.0.2.100:81", FIRST], 1, "there is no service tcp:192.0.2.100:81"),
        ([f"tcp:{VIP}", "198.51.100.19"], 1, f"tcp:{VIP} has no server 198.51.100.19:80"),
        ([f"tcp:{VIP}", "[2001:db8::1]"], 1, f"tcp:{VIP} has no server [2001:db8::1]:80"),
        ([f"tcp:{VIP}", FIRST, "--cancel"], 1, f"{RIPS[0]} of tcp:{VIP} is not being drained"),
        ([f"tcp:{VIP}"], 2, "name a service and one server: tcp:192.0.2.100:80 198.51.100.11"),
        (["-r", FIRST], 2, "name a service and one server: tcp:192.0.2.100:80 198.51.100.11"),
        (
            ["192.0.2.100", FIRST],
            2,
            "no service: '192.0.2.100'; they are named like tcp:192.0.2.100:80 or fwmark:1",
        ),
        ([f"tcp:{VIP}", "x"], 2, "x: no real server's address[:port]"),
        ([f"tcp:{VIP}", FIRST, "--deadline=-1"], 2, "--deadline takes seconds, not -1"),
        ([f"tcp:{VIP}", FIRST, "--cancel", "--wait"], 2, "--cancel goes with neither --wait nor --deadline"),
        (["--wait"], 2, "name a service and a server"),
    ],
)
def test_what_it_refuses(director, capsys, words, status, told):
    assert uvs(capsys, *words) == (status, "", f"uvs drain: {told}\n")
    assert weights(director) == {11: 4, 12: 1}
