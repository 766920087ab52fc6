"""A line of the saved table: what is written is read, whatever else is refused with a reason."""

import json
from zlib import crc32

import pytest
from support.world import packed

from uvs.control import stateformat
from uvs.control.rows import DamagedError, dest_row
from uvs.control.stateformat import Header, Replay, Saved, VersionError
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)
SERVICE = ServiceSpec(KEY, "wlc", 1, 360, 0xFFFFFF00, "sip")
DEST = DestSpec(2, packed("10.0.1.1"), 8080, 2, 7, 20, 10, 1, 5555, 1)
SAVED = Saved(
    [
        (SERVICE, [DestSpec(10, packed("2001:db8::9"), 80, 2, 0), DEST]),
        (ServiceSpec(ServiceKey(10, 17, packed("2001:db8::1"), 53), "rr", 4, netmask=128), []),
        (ServiceSpec(ServiceKey(2, 6, bytes(4), 0, 7), "wrr"), [DEST]),
    ],
    (100, 50, 25),
    {"expire_nodest_conn": "1", "sync_threshold": "4\t0"},
)


def test_a_table_is_read_as_it_was_written():
    first, *rest = stateformat.lines(SAVED, 3, "b007")
    assert stateformat.read_header(first[:-1]) == Header(3, "b007", 8)
    assert len(rest) == 7
    assert stateformat.replay(text[:-1] for text in rest) == SAVED


def test_the_form_is_as_documented():
    """docs/reference/control-protocol.md: a checksum, a blank, JSON; what is 0 of a server is left out."""
    text = list(stateformat.lines(Saved([(SERVICE, [DestSpec(2, packed("10.0.1.1"), 80)])]), 1, "b"))[3]
    digits, _, body = text.partition(b" ")
    assert digits == b"%08x" % crc32(body[:-1])
    server = {"family": 2, "address": "10.0.1.1", "port": 80, "method": 0, "weight": 1}
    assert json.loads(body) == ["add_dest", [2, 6, "0a000001", 80, 0], server]


def test_every_flipped_bit_is_seen():
    text = stateformat.line(["add_service", [2, 6, "0a000001", 80, 0], {"port": 80}])[:-1]
    for at in range(len(text) * 8):
        flipped = bytearray(text)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedError, match="the checksum does not fit"):
            stateformat.read_line(bytes(flipped))


@pytest.mark.parametrize("text", [b"", b" ", b"00000000", b"00000000 ", b"\0" * 80, b"\xff" * 80, b"x" * 9])
def test_what_is_no_line(text):
    with pytest.raises(DamagedError):
        stateformat.read_line(text)


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b"nan,"])
def test_a_right_checksum_over_no_json(body):
    with pytest.raises(DamagedError, match="no JSON"):
        stateformat.read_line(b"%08x %s" % (crc32(body), body))


def test_a_header_of_another_version():
    with pytest.raises(VersionError, match=r"another version of uvs \(its format is 2, this one's 1\)"):
        stateformat.read_header(stateformat.line({"uvs": 2, "whatever": []})[:-1])


@pytest.mark.parametrize("row", [[], 7, {}, {"uvs": "1"}, {"uvs": 1}, {"uvs": 1, "journal": -1, "boot": ""}])
def test_what_is_no_header(row):
    with pytest.raises(DamagedError):
        stateformat.read_header(stateformat.line(row)[:-1])


ROW, SERVER = stateformat._service(SERVICE), dest_row(DEST)
NAME = [2, 6, "0a000001", 80, 0]
UNFIT = [
    ("nothing", []),
    ("a number", 7),
    ("a text", "add_dest"),
    ("an unknown change", ["frobnicate", NAME]),
    ("no name", ["add_service"]),
    ("a name of lists", ["add_service", [[]], {}]),
    ("a name that is no list", ["add_service", 7, ROW]),
    ("no service", ["add_service", NAME]),
    ("another service than it is named", ["add_service", [2, 6, "0a000001", 81, 0], ROW]),
    ("a change of a service that is not there", ["edit_service", [2, 6, "0a000001", 81, 0], ROW | {"port": 81}]),
    ("a service that is not there", ["del_service", [2, 6, "0a000001", 81, 0]]),
    ("a server of a service that is not there", ["add_dest", [2, 6, "0a000001", 81, 0], SERVER | {"port": 1}]),
    ("a server twice", ["add_dest", NAME, SERVER]),
    ("a change of a server that is not there", ["edit_dest", NAME, SERVER | {"port": 1}]),
    ("a server that is not there", ["del_dest", NAME, SERVER | {"port": 1}]),
    ("no server", ["add_dest", NAME, None]),
    ("a port out of range", ["add_service", NAME, ROW | {"port": 65536}]),
    ("a port that is true", ["add_service", NAME, ROW | {"port": True}]),
    ("an address of another family", ["add_service", NAME, ROW | {"family": 10}]),
    ("a family unknown", ["add_service", NAME, ROW | {"family": 1}]),
    ("a NUL in an address", ["add_service", NAME, ROW | {"address": "1\0"}]),
    ("a weight below 0", ["edit_dest", NAME, SERVER | {"weight": -1}]),
    ("a threshold that is a text", ["edit_dest", NAME, SERVER | {"u_threshold": "1"}]),
    ("two time-outs", {"timeouts": [1, 2], "sysctls": {}}),
    ("a time-out below 0", {"timeouts": [1, 2, -1], "sysctls": {}}),
    ("no sysctls", {"timeouts": [1, 2, 3]}),
    ("a sysctl of another kind", {"timeouts": [1, 2, 3], "sysctls": {"pmtu_disc": []}}),
]  # fmt: skip


@pytest.mark.parametrize(("shows", "row"), UNFIT, ids=[shows for shows, _ in UNFIT])
def test_what_does_not_fit_changes_nothing(shows, row):
    again = Replay()
    again.redo(["add_service", NAME, ROW])
    again.redo(["add_dest", NAME, SERVER])
    before = again.saved
    with pytest.raises(DamagedError):
        again.redo(row)
    assert again.saved == before == Saved([(SERVICE, [DEST])])
