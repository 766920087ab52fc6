"""`uvs sysctl`, as sysctl(8) shows and sets."""

import pytest

from uvs import cli

PREFIX = "net.ipv4.vs."


@pytest.fixture
def sysctl(director, monkeypatch, capsys):
    monkeypatch.setenv("UVS_SOCKET", director.path)

    def run(*words):
        status = cli.main(["sysctl", *words])
        return (status, *capsys.readouterr())

    return run


def test_one(sysctl):
    assert sysctl("conn_reuse_mode") == (0, "net.ipv4.vs.conn_reuse_mode = 1\n", "")


@pytest.mark.parametrize("name", ["pmtu_disc", PREFIX + "pmtu_disc", "net/ipv4/vs/pmtu_disc"])
def test_set(sysctl, director, name):
    assert sysctl(f"{name}=0") == (0, "net.ipv4.vs.pmtu_disc = 0\n", "")
    assert director.ipvs.sysctl.pmtu_disc == 0


def test_all(sysctl, director):
    status, out, _ = sysctl("-a")
    assert status == 0
    expected = [f"{PREFIX}{name} = {director.ipvs.sysctl.get(name)}" for name in director.ipvs.sysctl.names()]
    assert out.splitlines() == expected


def test_bare_values(sysctl):
    assert sysctl("-n", "pmtu_disc", "conn_reuse_mode")[1] == "1\n1\n"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nosuch"], 1, "uvs sysctl: there is no net.ipv4.vs.nosuch: `uvs sysctl -a` lists them\n"),
        (["pmtu_disc=7"], 1, "uvs sysctl: net.ipv4.vs.pmtu_disc does not take '7'\n"),
        ([], 2, "uvs sysctl: name a knob, or -a for all of them\n"),
    ],
)
def test_refused(sysctl, words, status, message):
    assert sysctl(*words) == (status, "", message)


def test_no_director(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none"))
    assert cli.main(["sysctl", "-a"]) == 1
    assert "start one with `uvs run`" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["pmtu_disc=" + 70000 * "1", 70000 * "x"], ids=["value", "name"])
def test_too_long(sysctl, setting):
    status, out, err = sysctl(setting)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert len(err) < 120
