"""uvsadm -R, uvsadm-save and uvsadm-restore, --atomic and --json."""

import io
import json
import sys

import pytest
from support.control import Ran

from uvs.adm import cli
from uvs.engine.core import Why

TABLE = """\
-A -t 192.0.2.1:80 -s wrr
-a -t 192.0.2.1:80 -r 198.51.100.1:80 -m -w 3
-a -t 192.0.2.1:80 -r 198.51.100.2:8080 -m -w 0
-A -u [2001:db8::1]:53 -s rr -p 60 -M 64 -o
-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum
-A -f 7 -s mh -b mh-fallback,mh-port
"""


@pytest.fixture
def run(director, monkeypatch, capsys):
    """Runs one of the programs under its own name."""
    monkeypatch.setenv("UVS_SOCKET", director.path)

    def run(program, *words, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setattr(sys, "argv", [program])
        capsys.readouterr()
        main = {"save": cli.save_main, "restore": cli.restore_main}.get(program.rpartition("-")[2], cli.main)
        status = main(list(words))
        return Ran(status, *capsys.readouterr())

    return run


def test_save_and_restore(run):
    assert run("uvsadm-restore", stdin="# made by hand\n" + TABLE) == Ran(0, "", "")
    saved = run("uvsadm-save", "-n")
    assert saved == run("uvsadm", "-S", "-n")
    assert sorted(saved.out.splitlines()) == sorted(TABLE.splitlines())
    run("uvsadm", "-A", "-t", "192.0.2.9:9")
    assert run("uvsadm-restore", stdin=saved.out) == Ran(0, "", "")
    assert run("uvsadm-save", "-n") == saved


def test_options_of_save_and_restore(run):
    assert run("uvsadm-save", "-x").status == 1
    assert "-n" in run("uvsadm-save", "--help").err
    assert "--atomic" in run("uvsadm-restore", "--help").out
    assert run("uvsadm-restore", "--bogus").status == 1


@pytest.mark.parametrize(
    ("text", "status", "err"),
    [
        ("-A -t 192.0.2.1:80\n\n-A -t 192.0.2.1:80\n-Z\n", 0, "line 3: Service already exists\n"),
        ("-A -t 192.0.2.1:80\n-A -t 192.0.2.1:80\n", 255, "line 2: Service already exists\n"),
        ("-Z\n-A -t 192.0.2.1:80 -w 5\n", 2, "line 2: Illegal 'weight' option with the 'add-service' command\n"),
        ("-Ln\n-Z\n-D -f 9\n", 255, "line 3: No such service\n"),
        ("-L -t 192.0.2.1:80\n", 1, "No such service\n"),
        ("-Z\n-A -t\n-Z\n", 255, "line 2: -t: missing argument\n"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(run, text, status, err):
    ran = run("uvsadm", "-R", stdin=text)
    assert (ran.status, ran.err) == (status, err)


def test_what_comes_before_a_wrong_line_is_done(run):
    run("uvsadm", "-R", stdin="-A -t 192.0.2.1:80\n-A -t 192.0.2.2:80 -w 5\n-A -t 192.0.2.3:80\n")
    assert run("uvsadm", "-Sn").out == "-A -t 192.0.2.1:80 -s wlc\n"


@pytest.mark.parametrize(
    ("text", "err"),
    [
        ("-C\n-A -t 192.0.2.1:80\n-A -t 192.0.2.1:80\n", "line 3: Service already exists\nnothing was changed\n"),
        ("-C\n-A -t 192.0.2.1:80 -s nosuch\n", "line 2: Scheduler or persistence engine not found\nnothing was changed\n"),
        ("-D -f 7\n-e -t 192.0.2.1:80 -r 198.51.100.1 -w 9\n-a -t 192.0.2.1:80 -r 198.51.100.3\n--set 1 2 3\n-D -f 8\n",
         "line 5: No such service\nnothing was changed\n"),
        ("-E -t 192.0.2.1:80 -s rr\n-d -t 192.0.2.1:80 -r 198.51.100.1\n-A -t 192.0.2.2:80\n-D -f 8\n",
         "line 4: No such service\nnothing was changed\n"),
    ],
)  # fmt: skip
def test_all_or_nothing(run, text, err):
    run("uvsadm", "-R", stdin=TABLE)
    before = run("uvsadm", "-Ln", "--nosort").out.splitlines(), run("uvsadm", "-L", "--timeout")
    ran = run("uvsadm", "-R", "--atomic", stdin=text)
    assert (ran.status, ran.err) == (255, err)
    after = run("uvsadm", "-Ln", "--nosort").out.splitlines(), run("uvsadm", "-L", "--timeout")
    assert (sorted(after[0]), after[1]) == (sorted(before[0]), before[1])


def test_all_or_nothing_reads_everything_first(run):
    ran = run("uvsadm-restore", "--atomic", stdin=TABLE + "# fine\n-A -t 192.0.2.5:80 -w 1\n")
    assert ran == Ran(2, "", "line 8: Illegal 'weight' option with the 'add-service' command\n")
    assert run("uvsadm", "-Sn").out == ""
    assert run("uvsadm", "-R", "--atomic", stdin="-Ln\n").err == "line 1: 'list' does not go with --atomic\n"
    assert run("uvsadm-restore", "--atomic", stdin=TABLE) == Ran(0, "", "")


def test_where_the_new_options_go(run):
    assert run("uvsadm", "-C", "--atomic").err == "Illegal 'atomic' option with the 'flush' command\n"
    assert run("uvsadm", "-S", "--json").err == "Illegal 'json' option with the 'save' command\n"


def test_json(run):
    run("uvsadm", "-R", stdin=TABLE)
    services = json.loads(run("uvsadm", "-L", "--json").out)["services"]
    assert [s.get("fwmark", s.get("address")) for s in services] == ["192.0.2.1", "2001:db8::1", 7]
    four, six, mark = services
    assert [(d["address"], d["port"], d["method"], d["weight"]) for d in four["servers"]] == [
        ("198.51.100.1", 80, "masq", 3),
        ("198.51.100.2", 8080, "masq", 0),
    ]
    assert six["persistence"] == {"timeout": 60, "netmask": "64", "engine": None}
    assert six["servers"][0]["tunnel"] == {"type": "gue", "port": 6080, "checksum": "full"}
    assert mark["scheduler_flags"] == ["mh-fallback", "mh-port"]
    assert four["stats"] == four["rate"] == dict.fromkeys(four["stats"], 0)
    one = json.loads(run("uvsadm", "-L", "-f", "7", "--json").out)["services"]
    assert one == [mark]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--timeout", {"timeouts": {"tcp": 900, "tcpfin": 120, "udp": 300}}),
        ("--daemon", {"daemons": []}),
        ("-c", {"connections": []}),
        ("--rate", {"services": []}),
    ],
)
def test_json_of_other_listings(run, words, found):
    assert json.loads(run("uvsadm", "-L", words, "--json").out) == found


@pytest.mark.parametrize("name", ["uvsadm", "ipvsadm"])
def test_messages_name_the_program_as_it_was_called(run, name):
    assert f"usage: {name} COMMAND" in run(f"/usr/sbin/{name}", "-h").out
    assert run(f"/usr/sbin/{name}-save", "--help").err.startswith(f"{name}-save [-n]")
    assert run(f"/usr/sbin/{name}-restore", "-h").out.startswith(f"{name}-restore [--atomic]")
    assert (
        run(f"{name}-restore", "-x").err == f"{name}-restore: no such option: -x: see {name}-restore --help\n"
    )


@pytest.mark.parametrize(("name", "limits"), [("uvsadm", " -x 9 -y 7"), ("ipvsadm", "")])
def test_thresholds_are_saved_unless_it_is_called_as_ipvsadm(run, name, limits):
    """ipvsadm 1.31 leaves them out, but reads them."""
    line = "-a -t 192.0.2.1:80 -r 198.51.100.1:80 -m -w 1"
    run("uvsadm", "-R", stdin=f"-A -t 192.0.2.1:80 -s rr\n{line} -x 9 -y 7\n")
    for words in ([name, "-Sn"], [f"{name}-save", "-n"]):
        assert run(*words).out == f"-A -t 192.0.2.1:80 -s rr\n{line}{limits}\n"


def test_called_as_ipvsadm(run):
    assert run("/usr/sbin/ipvsadm", "-v").out.startswith("ipvsadm v1.31 ")  # scripts look at it
    assert run("/usr/sbin/ipvsadm", "x").err.startswith("Try `ipvsadm -h'")
    assert run("ipvsadm", "-R", stdin="-D -f 9\n").err == "No such service\n"


def test_json_of_statistics_has_what_was_lost_on_the_way(run, director):
    """Beside the services; not where one service is asked for, nor among other columns."""
    director.ipvs.queues = lambda: [{"queue": 0, "class": "all", "packets": 7, "dropped": None}]
    director.ipvs.why[Why.NO_DEST] = 3
    run("uvsadm", "-R", stdin=TABLE)
    found = json.loads(run("uvsadm", "-L", "--stats", "--json").out)
    assert list(found) == ["services", "queues", "reasons", "table"]
    assert found["queues"] == director.ipvs.queues()
    assert list(found["reasons"]) == [why.label for why in Why]
    assert found["reasons"]["no_dest"] == 3
    assert (found["table"]["services"], found["table"]["full"]) == (3, 0)
    one = json.loads(run("uvsadm", "-L", "-f", "7", "--stats", "--json").out)
    assert list(one) == ["services"]
