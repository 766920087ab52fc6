"""FTP's commands and replies as ip_vs_ftp reads them."""

import socket

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uvs.ipvs.apps.ftp_text import Mode, passive_command, passive_reply, port_command

V4, V6 = 2, 10


@pytest.mark.parametrize(
    ("text", "four", "six"),
    [
        ("PASV\r\n", Mode.PASV, None),
        ("pasv\r\n", Mode.PASV, None),
        ("NOOP\r\nPASV\r\n", Mode.PASV, None),
        ("xPASV\r\n", Mode.PASV, None),
        ("PASV\n", None, None),
        ("PASV\r", None, None),
        ("PASV \r\n", None, None),
        ("EPSV\r\n", Mode.EPSV, Mode.EPSV),
        ("epsv\r\n", Mode.EPSV, Mode.EPSV),
        ("EPSV\r", None, None),  # six bytes at least
        ("EPSV\rx", Mode.EPSV, Mode.EPSV),
        ("EPSVx\r\n", None, None),
        ("EPSV 1\r\n", Mode.EPSV, Mode.ACTIVE),
        ("EPSV 2\r\n", Mode.ACTIVE, Mode.EPSV),
        ("EPSV 1\n\n", Mode.ACTIVE, Mode.ACTIVE),
        ("EPSV 1\r", Mode.EPSV, Mode.ACTIVE),
        ("EPSV 1", Mode.ACTIVE, Mode.ACTIVE),
        ("EPSV  1\r\n", Mode.ACTIVE, Mode.ACTIVE),
        ("EPSV ALL\r\n", Mode.ACTIVE, Mode.ACTIVE),
        ("EPSV ALL\r\nPASV\r\n", Mode.ACTIVE, Mode.ACTIVE),  # nothing behind it is looked at
        ("PASV\r\nEPSV\r\n", Mode.PASV, Mode.EPSV),
        ("LIST\r\n", None, None),
        ("", None, None),
    ],
)
def test_passive_command(text, four, six):
    assert (passive_command(text.encode(), V4), passive_command(text.encode(), V6)) == (four, six)


def placed(place):
    if place is None:
        return None
    addr = place.addr and socket.inet_ntop(V4 if len(place.addr) == 4 else V6, place.addr)
    return addr, place.port


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PORT 10,9,0,1,4,1\r\n", ("10.9.0.1", 1025)),
        ("port 10,9,0,1,4,1\r\n", ("10.9.0.1", 1025)),
        ("PORT10,9,0,1,4,1\r\n", ("10.9.0.1", 1025)),
        ("PORTxyz10,9,0,1,4,1\r\n", ("10.9.0.1", 1025)),
        ("PORT  10,9,0,1,4,1\r\n", ("10.9.0.1", 1025)),
        ("PORT  x10,9,0,1,4,1\r\n", None),  # what follows the blanks must be a number
        (" PORT 10,9,0,1,4,1\r\n", None),
        ("PORT 10,9,0,1,4,1", None),  # something must follow
        ("PORT 10,9,0,1,4,1,", ("10.9.0.1", 1025)),
        ("PORT 10,9,0,1,4\r\n", None),
        ("PORT 10,9,0,0001,4,00255\r\n", ("10.9.0.1", 1279)),
        ("PORT 10,9,0,1,4,256\r\n", None),
        ("PORT 266,9,0,1,4,1\r\n", None),
        ("PORT ,,,,,\r\n", ("0.0.0.0", 0)),
        ("PORT " + "9" * 5000 + ",9,0,1,4,1\r\n", None),
        ("PORT", None),
        ("POR", None),
        ("PORT ", None),
        ("PORT (10,9,0,1,4,1)\r\n", None),
        ("EPRT |1|10.9.0.1|1040|\r\n", ("10.9.0.1", 1040)),
        ("eprt |1|10.9.0.1|1040|", ("10.9.0.1", 1040)),
        ("EPRT  !1!10.9.0.1!1040!\r\n", ("10.9.0.1", 1040)),
        ("EPRTx |1|10.9.0.1|1040|\r\n", ("10.9.0.1", 1040)),
        ("EPRT|1|10.9.0.1|1040|\r\n", None),
        ("EPRT \x801\x8010.9.0.1\x801040\x80\r\n", None),
        ("EPRT |1|010.09.000.0001|1040|\r\n", ("10.9.0.1", 1040)),
        ("EPRT |1|10.9.0|1040|\r\n", None),
        ("EPRT |1|10.9.0.256|1040|\r\n", None),
        ("EPRT |1|10.9..1|1040|\r\n", None),
        ("EPRT |1||1040|\r\n", None),
        ("EPRT .1.10.9.0.1.1040.\r\n", None),
        ("EPRT |1|10.9.0.1|0|\r\n", None),
        ("EPRT |1|10.9.0.1|065535|\r\n", ("10.9.0.1", 65535)),
        ("EPRT |1|10.9.0.1|65536|\r\n", None),
        ("EPRT |1|10.9.0.1|" + "9" * 5000 + "|\r\n", None),
        ("EPRT |1|10.9.0.1|1040\r\n", None),
        ("EPRT |1|10.9.0.1|1040", None),
        ("EPRT |2|2001:db8::1|1040|\r\n", None),
        ("EPRT |||1040|\r\n", None),
        ("EPRT |", None),
        ("EPRT |1", None),
        ("EPRT ", None),
    ],
)
def test_port_command(text, found):
    assert placed(port_command(text.encode("latin-1"), V4)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("EPRT |2|2001:db8:9::1|1050|\r\n", ("2001:db8:9::1", 1050)),
        ("EPRT |2|2001:0DB8:9:0:0:0:0:1|1050|\r\n", ("2001:db8:9::1", 1050)),
        ("EPRT |2|2001:db8:9::00001|1050|\r\n", ("2001:db8:9::1", 1050)),
        ("EPRT |2|::ffff:10.9.0.1|1050|\r\n", ("::ffff:10.9.0.1", 1050)),
        ("EPRT |2|2001:db8:9::1%1|1050|\r\n", None),
        ("EPRT |2|:::|1050|\r\n", None),
        ("EPRT |2|1:2|1050|\r\n", None),
        ("EPRT |2|\xe9|1050|\r\n", None),
        ("EPRT |1|10.9.0.1|1050|\r\n", None),
        ("PORT 10,9,0,1,4,1\r\n", None),
    ],
)
def test_port_command_of_ipv6(text, found):
    assert placed(port_command(text.encode("latin-1"), V6)) == found


@pytest.mark.parametrize(
    ("text", "mode", "af", "found"),
    [
        ("227 Entering Passive Mode (198,19,0,11,4,1).\r\n", Mode.PASV, V4, ("198.19.0.11", 1025)),
        ("227 198,19,0,11,4,1\r\n", Mode.PASV, V4, ("198.19.0.11", 1025)),
        ("227 ((198,19,0,11,4,1)\r\n", Mode.PASV, V4, ("198.19.0.11", 1025)),
        ("227 mode 2 (198,19,0,11,4,1)\r\n", Mode.PASV, V4, None),
        ("227-(198,19,0,11,4,1)\r\n", Mode.PASV, V4, None),
        ("150 hi\r\n227 (198,19,0,11,4,1)\r\n", Mode.PASV, V4, None),
        ("227 (198,19,0,11,4,1", Mode.PASV, V4, None),
        ("227 (198,19,0,11,4,1)\r\n", Mode.EPSV, V4, None),
        ("227 (198,19,0,11,4,1)\r\n", Mode.ACTIVE, V4, None),
        ("229 Entering Extended Passive Mode (|||1027|)\r\n", Mode.EPSV, V4, (None, 1027)),
        ("229 (|||1027|)\r\n", Mode.EPSV, V6, (None, 1027)),
        ("229 (|1|198.19.0.11|1027|)\r\n", Mode.EPSV, V4, ("198.19.0.11", 1027)),
        ("229 (|2|2001:db8::1|1027|)\r\n", Mode.EPSV, V6, ("2001:db8::1", 1027)),
        ("229 (|1|198.19.0.11|1027|)\r\n", Mode.EPSV, V6, None),
        ("229 |||1027|\r\n", Mode.EPSV, V4, None),
        ("229 (||x|1027|)\r\n", Mode.EPSV, V4, None),
        ("229 (|||0|)\r\n", Mode.EPSV, V4, None),
        ("229 (|||1027|)\r\n", Mode.PASV, V4, None),
        ("229 (", Mode.EPSV, V4, None),
        ("227 (,,,,4,23)\r\n", Mode.PASV, V4, ("0.0.0.0", 1047)),
        ("227 (198,19,0,11,4,24,5)\r\n", Mode.PASV, V4, ("198.19.0.11", 1048)),
        ("227 =198,19,0,11,4,25\r\n", Mode.PASV, V4, ("198.19.0.11", 1049)),
        ("227 (198,19,0,267,4,1)\r\n", Mode.PASV, V4, None),
        ("227 (198,19,0,11,4,1)\r\n", Mode.PASV, V6, None),  # PASV has no place for an IPv6 address
        ("229 ((|||1061|)\r\n", Mode.EPSV, V4, (None, 1061)),
        ("229 ( |||1064|)\r\n", Mode.EPSV, V4, None),
        ("229 (!!!1065!)\r\n", Mode.EPSV, V4, (None, 1065)),
        ("229 (|||1067|", Mode.EPSV, V4, (None, 1067)),
        ("229 (|||1068", Mode.EPSV, V4, None),
        ("229 (|||65536|)\r\n", Mode.EPSV, V4, None),
    ],
)
def test_passive_reply(text, mode, af, found):
    place = passive_reply(text.encode(), mode, af)
    assert placed(place) == found
    if place:
        inside = text[place.start : place.end]
        assert inside in text
        assert inside.strip("0123456789,.|!:abcdef") == ""


WORDS = [b"PORT ", b"EPRT ", b"PASV\r\n", b"EPSV", b"227 ", b"229 ", b"(", b"|", b"|1|", b"|2|", b",", b"1",
         b"10,9,0,1,4,1", b"10.9.0.1", b"::1", b"\r\n", b" ", b"\0", b"\xff"]  # fmt: skip


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=30).map(b"".join),
    st.sampled_from([V4, V6]),
)
@example(b"227 0,,,,, ", V6)
def test_whatever_comes_is_read_or_left(text, af):
    passive_command(text, af)
    size = 4 if af == V4 else 16
    places = [port_command(text, af), *(passive_reply(text, mode, af) for mode in Mode)]
    for place in filter(None, places):
        assert 0 <= place.start < place.end <= len(text)
        assert 0 <= place.port < 65536
        assert place.addr is None or len(place.addr) == size
