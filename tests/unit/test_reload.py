"""uvs reload and uvs diff: what they change, say and end with; and the configuration that rules behind them."""

from __future__ import annotations

import json

import pytest
from support.control import running
from support.ruled import GOOD, RIPS, VIP, ruled

from uvs import cli
from uvs.control.rows import server_id, service_key
from uvs.ipvs.spec import DestSpec
from uvs.layers import Health

KEY = service_key(f"tcp:{VIP}")


@pytest.fixture
def director(tmp_path, monkeypatch):
    with ruled(tmp_path) as it:
        monkeypatch.setenv("UVS_SOCKET", it.path)
        it.file = tmp_path / "uvs.toml"
        yield it


def weights(director):
    return {entry.spec.addr[-1]: entry.spec.weight for entry in director.client().dests(KEY)}


def uvs(capsys, *words):
    status = cli.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_the_start_makes_the_table_what_the_file_says(director):
    assert weights(director) == {11: 4, 12: 1}
    assert director.client().sysctl("expire_nodest_conn") == "1"


def test_what_was_changed_by_hand_is_shown_and_put_back(director, capsys):
    client = director.client()
    client.edit_dest(KEY, DestSpec(*server_id(RIPS[0]), weight=9))
    client.del_dest(KEY, *server_id(RIPS[1]))
    client.add_dest(KEY, DestSpec(*server_id("198.51.100.13:80")))
    client.set_sysctl("drop_entry", "3")
    told = [
        "~ net.ipv4.vs.drop_entry=0  # it was 3",
        f"~ -e -t {VIP} -r {RIPS[0]} -m -w 4  # weight was 9",
        f"+ -a -t {VIP} -r {RIPS[1]} -m -w 1",
        f"- -d -t {VIP} -r 198.51.100.13:80",
    ]
    assert uvs(capsys, "diff") == (1, "\n".join(told) + "\n", "")
    assert uvs(capsys, "reload") == (0, "\n".join(told) + "\n", "")
    assert weights(director) == {11: 4, 12: 1}
    assert uvs(capsys, "diff") == (0, "", "")
    assert uvs(capsys, "reload") == (0, "the table is as the configuration says\n", "")


def test_other_services(director, capsys):
    director.file.write_text(GOOD.replace('"rr"', '"wlc"') + '\n[[service]]\nfwmark = 3\nmethod = "dr"\n')
    director.client().flush_conns()
    status, out, _ = uvs(capsys, "diff", "--json")
    assert status == 1
    assert json.loads(out)["changes"] == [
        {"sign": "~", "line": f"-E -t {VIP} -s wlc", "was": "scheduler was rr", "service": f"tcp:{VIP}"},
        {"sign": "+", "line": "-A -f 3 -s wlc", "was": "", "service": "fwmark:3"},
    ]
    director.file.write_text("")
    status, out, _ = uvs(capsys, "reload")
    assert out.splitlines() == ["~ net.ipv4.vs.expire_nodest_conn=0  # it was 1", f"- -D -t {VIP}"]
    assert director.client().services() == []


def test_a_file_that_is_wrong_changes_nothing(director, capsys):
    director.file.write_text(GOOD.replace("weight = 4", "weight = -4"))
    fault = f"{director.file}:10: service[0].server[0].weight: -4: must be greater than or equal to 0\n"
    assert uvs(capsys, "diff") == (2, "", fault)
    assert uvs(capsys, "reload") == (1, "", fault + "uvs reload: the table stays as it is\n")
    assert weights(director) == {11: 4, 12: 1}
    director.file.unlink()
    status, _, err = uvs(capsys, "reload")
    assert (status, err.splitlines()[0]) == (
        1,
        f"{director.file}: it cannot be read: No such file or directory",
    )


def test_what_is_refused_changes_nothing(director, capsys):
    """That an address is not unicast here, the director alone knows."""
    director.world.routes.is_unicast = lambda af, addr: addr[-1] != 99
    director.file.write_text(
        GOOD.replace("weight = 4", "weight = 5") + '\n[[service.server]]\naddress = "198.51.100.99"\n'
    )
    status, _, err = uvs(capsys, "reload")
    assert (status, err.splitlines()[0]) == (
        1,
        f"{director.file}: server 198.51.100.99:80: not a unicast address",
    )
    assert weights(director) == {11: 4, 12: 1}


def test_a_reload_revives_no_dead_server(director, capsys):
    director.file.write_text(
        GOOD.replace("[[service.server]]", '[[service.check]]\ntype = "tcp"\n\n[[service.server]]', 1)
    )
    uvs(capsys, "reload")
    client = director.client()
    client.set_health(KEY, server_id(RIPS[0]), Health(up=False))
    client.set_health(KEY, server_id(RIPS[1]), Health(up=False, remove=True))
    client.edit_dest(KEY, DestSpec(*server_id(RIPS[0]), weight=8))
    assert uvs(capsys, "reload")[:2] == (0, f"~ -e -t {VIP} -r {RIPS[0]} -m -w 4  # weight was 8\n")
    assert weights(director) == {11: 0}
    client.flush()
    uvs(capsys, "reload")
    assert weights(director) == {11: 0}
    client.set_health(KEY, server_id(RIPS[0]), Health())
    client.set_health(KEY, server_id(RIPS[1]), Health())
    assert weights(director) == {11: 4, 12: 1}


def test_who_is_not_checked_any_more_is_not_kept_down(director, capsys):
    client = director.client()
    client.set_health(KEY, server_id(RIPS[0]), Health(up=False))
    assert uvs(capsys, "reload")[1] == f"- tcp:{VIP} {RIPS[0]}  # it is not checked any more\n"
    assert weights(director) == {11: 4, 12: 1}


def test_a_drain_outlives_reloads_until_the_entry_is_changed(director, capsys):
    client = director.client()
    client.drain(KEY, server_id(RIPS[0]))
    client.edit_dest(KEY, DestSpec(*server_id(RIPS[0]), weight=0))
    assert "# weight was 0" in uvs(capsys, "reload")[1]  # which puts the configured weight back, beneath
    assert weights(director) == {11: 0, 12: 1}
    assert [row["configured"] for row in client.get_health() if row["drain"]] == [4]
    director.do(director.layers.second)
    assert weights(director) == {12: 1}
    assert uvs(capsys, "diff") == (0, "", "")
    director.file.write_text(GOOD.replace("weight = 4", "weight = 3"))
    assert uvs(capsys, "reload")[1] == f"+ -a -t {VIP} -r {RIPS[0]} -m -w 3  # its drain ends\n"
    assert weights(director) == {11: 3, 12: 1}


def test_an_entry_that_is_removed_is_forgotten(director, capsys):
    director.client().drain(KEY, server_id(RIPS[0]))
    director.do(director.layers.second)
    whole = director.file.read_text()
    director.file.write_text(whole.replace(f'[[service.server]]\naddress = "{RIPS[0]}"\nweight = 4\n', ""))
    assert "it was drained" in uvs(capsys, "reload")[1]
    director.file.write_text(whole)
    uvs(capsys, "reload")
    assert weights(director) == {11: 4, 12: 1}


@pytest.mark.parametrize("command", ["reload", "diff"])
def test_without_a_configuration(tmp_path, monkeypatch, capsys, command):
    with running(tmp_path) as it:
        monkeypatch.setenv("UVS_SOCKET", it.path)
        status, _, err = uvs(capsys, command)
    assert (status, err) == (
        1,
        f"uvs {command}: the director has no configuration: start it with `uvs run --config FILE`\n",
    )
    assert uvs(capsys, command)[0] == 1  # no director
