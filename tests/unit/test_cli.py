"""`uvs`: wrong command lines are answered in one line, with exit status 2, before anything is done."""

from unittest.mock import Mock

import pytest

from uvs import cli

WRONG = [
    # what is typed, what the message names
    ("nosuch", "invalid choice: 'nosuch'"),
    ("-x", "-x"),
    ("run --queue-num x", "--queue-num"),
    ("run --driver netfilterqueue --queue-num 65536", "0..65535"),
    ("run --driver native --queue-num 65533", "0..65532"),  # it takes four
    ("run --queues 3 --queue-num 65530", "0..65524"),
    ("run --queues 0", "--queues takes 1..64"),
    ("run --busy-poll 1001", "--busy-poll takes 0..1000"),
    ("run --queue-num -1", "0..65532"),
    ("run --conn-max 0", "--conn-max takes 1..268435456, not 0"),
    ("run --conn-max 99999999999999999999", "--conn-max takes 1..268435456"),
    ("run --driver x", "--driver"),
    ("run --socket=", "--socket"),
    ("run --state-dir=", "--state-dir"),
    ("run --control-group no-such-group", "--control-group: there is no group 'no-such-group'"),
    ("run --control-user=", "--control-user: there is no user ''"),
    ("run --log-format xml", "--log-format"),
    ("run extra", "extra"),
    ("lab", "ACTION"),
    ("lab nosuch", "nosuch"),
    ("lab up --mode x", "--mode"),
    ("lab up --servers 0", "--servers"),
    ("lab up --servers x", "--servers"),
    ("lab up --name=", "no name for a lab"),
    ("lab up --name=../x", "no name for a lab"),
    ("lab down --name=", "no name for a lab"),
    ("lab down --all --name x", "--all and --name"),
    ("lab exec", "HOST"),
    ("lab demo -4 -6", "-6"),
    ("lab send client", "EXPR"),
    ("lab send client x --wait x", "--wait"),
    ("lab stop", "HOST"),
    ("lab mode x", "invalid choice: 'x'"),
    ("lab arp --break --mend", "--mend"),
    ("lab capture", "HOST"),
    ("lab capture rs1 -c x", "--count"),
    ("lab link rs1 --loss x", "--loss"),
    ("decap x", "unrecognized arguments: x"),
    ("doctor x", "unrecognized arguments: x"),
    ("sysctl", "name a knob"),
]


@pytest.mark.parametrize(("words", "named"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_use(capsys, words, named):
    try:
        status = cli.main(words.split())
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("uvs")
    assert named in err


@pytest.mark.parametrize(
    "words",
    ["trace tcp port 80 --rate 5", "trace tcp --rate 5 port 80", "trace --rate 5 tcp port 80"],
)
def test_options_stand_where_they_will(words):
    args = cli.command_parser("trace").parse_args(words.split())
    assert (args.filter, args.rate) == (["tcp", "port", "80"], 5)


def test_options_after_a_host():
    args = cli.command_parser("lab").parse_args(
        ["lab", "capture", "rs1", "--count", "3", "tcp", "port", "80"]
    )
    assert (args.host, args.count, args.filter) == ("rs1", 3, ["tcp", "port", "80"])


def test_a_program_that_is_not_there_is_named(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_run", Mock(side_effect=FileNotFoundError(2, "No such file", "bridge")))
    monkeypatch.setattr(cli, "let_go", Mock())  # of standard output, which is pytest's here
    assert cli.main(["lab", "up"]) == 1
    assert capsys.readouterr().err == "uvs lab: bridge: No such file\n"
