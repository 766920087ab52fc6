"""`uvs sysctl`, as sysctl(8) shows and sets."""

import pytest

from uvs import cli
from uvs.ipvs.knobs import KNOBS

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


@pytest.mark.parametrize("name", ["net.ipv4.vs", "net/ipv4/vs"])
def test_the_folder_is_all(sysctl, name):
    assert sysctl(name) == sysctl("-a")


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["-n", "pmtu_disc", "conn_reuse_mode"], "1\n1\n"),
        (["-N", "pmtu_disc", "net/ipv4/vs/sync_ports"], f"{PREFIX}pmtu_disc\n{PREFIX}sync_ports\n"),
        (["-q", "pmtu_disc=0"], ""),
        (["-qw", "pmtu_disc=0"], ""),
        (["-w", "pmtu_disc=0"], f"{PREFIX}pmtu_disc = 0\n"),
        (["pmtu_disc = 2"], f"{PREFIX}pmtu_disc = 2\n"),
        (["-n", "sync_threshold=4 60"], "4\t60\n"),
        (["-n", "drop_entry=2"], "1\n"),  # automatic, and memory is not low
        (["-e", "nosuch", "sync_ports"], f"{PREFIX}sync_ports = 1\n"),
    ],
)
def test_as_sysctl_8(sysctl, words, out):
    assert sysctl(*words) == (0, out, "")


def test_goes_on_after_what_is_refused(sysctl):
    status, out, err = sysctl("nosuch", "sync_ports=3", "pmtu_disc=0")
    assert (status, out, err.count("\n")) == (1, f"{PREFIX}pmtu_disc = 0\n", 2)


def test_verbose_tells_range_and_meaning(sysctl):
    assert sysctl("-v", "drop_entry", "backup_only")[1] == (
        f"{PREFIX}drop_entry = 0\n    0..3: defence: drop half-open and idle connections\n"
        f"{PREFIX}backup_only = 0\n"
        "    any integer: a sync backup lets all packets pass; no meaning here: no sync daemon yet\n"
    )


def test_help_tells_of_every_knob(capsys):
    with pytest.raises(SystemExit):
        cli.main(["sysctl", "--help"])
    words = capsys.readouterr().out.split()
    assert [name for name in KNOBS if name not in words] == []


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nosuch"], 1, "uvs sysctl: there is no net.ipv4.vs.nosuch: `uvs sysctl -a` lists them\n"),
        (["pmtu_disc=7x"], 1, "uvs sysctl: net.ipv4.vs.pmtu_disc does not take '7x': it takes any integer\n"),
        (["pmtu_disc="], 1, "uvs sysctl: net.ipv4.vs.pmtu_disc does not take '': it takes any integer\n"),
        (["secure_tcp=4"], 1, "uvs sysctl: net.ipv4.vs.secure_tcp does not take '4': it takes 0..3\n"),
        (
            ["est_cpulist=99999"],
            1,
            "uvs sysctl: net.ipv4.vs.est_cpulist does not take '99999': it takes a list of CPUs\n",
        ),
        (["-w", "pmtu_disc"], 1, "uvs sysctl: pmtu_disc: -w takes NAME=VALUE\n"),
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
