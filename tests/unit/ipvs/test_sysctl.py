"""Writes to net.ipv4.vs.*: what is taken, what is refused, what stands afterwards.

The rows are what Linux 6.1 did with the same text written to the same file.
"""

import errno

import pytest

from uvs.ipvs.knobs import KNOBS
from uvs.ipvs.sysctl import Sysctl, SysctlError

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)

# (text, what a knob that takes any int holds afterwards; None: EINVAL)
ANY_INT = [
    ("0", 0), ("7", 7), ("-1", -1), ("-0", 0), ("2147483647", INT_MAX), ("-2147483648", INT_MIN),
    ("2147483648", None), ("-2147483649", None), ("4294967296", None), ("99999999999999999999", None),
    ("0x10", 16), ("0X10", 16), ("-0x10", -16), ("0x7fffffff", INT_MAX), ("0x80000000", None), ("0x", None),
    ("0xg", None), ("010", 8), ("-010", -8), ("00", 0), ("08", None), ("017777777777", INT_MAX),
    ("0b1", None), ("0o1", None), ("1_0", None), ("1.5", None), ("1x", None), ("x", None), ("1,2", None),
    ("+1", None), ("- 1", None), ("--1", None), ("-", None), ("0-1", None),
    ("", None), ("\n", None), (" ", None), ("  \n", None),
    (" 1", 1), ("\t2", 2), ("\v1", 1), ("\f1", 1), ("\r1", 1), ("\udca01", 1),
    ("1 ", 1), ("1 \n", 1), ("1\v", None), ("1\r", None), ("1;", None),
    ("1 2", 1), ("1\n2", 1), ("1 x", 1), ("1x 2", None), ("x 3", None),
    ("00000000000000000001", 1), ("000000000000000000001", None),
    ("-0000000000000000001", -1), ("-00000000000000000001", None),
    ("1" * 30, None), ("1" + " " * 200, 1), (" " * 200 + "1", 1),
]  # fmt: skip


def write(sysctl, name, text):
    """The errno's name, or "ok"."""
    try:
        sysctl.set(name, text)
    except SysctlError as e:
        return errno.errorcode[e.errno]
    return "ok"


@pytest.mark.parametrize(("text", "holds"), ANY_INT)
def test_numbers_are_read_as_the_kernel_reads_them(text, holds):
    sysctl = Sysctl()
    sysctl.set("cache_bypass", 12345)
    assert write(sysctl, "cache_bypass", text) == ("EINVAL" if holds is None else "ok")
    assert sysctl.cache_bypass == (12345 if holds is None else holds)


ANY = [
    "am_droprate", "amemthresh", "backup_only", "cache_bypass", "conn_reuse_mode", "conntrack", "debug_level",
    "expire_nodest_conn", "expire_quiescent_template", "ignore_tunneled", "nat_icmp_send", "pmtu_disc",
    "run_estimation", "schedule_icmp", "sloppy_sctp", "sloppy_tcp", "snat_reroute", "sync_persist_mode",
    "sync_sock_size",
]  # fmt: skip
LIMITS = {  # name: taken, refused
    **dict.fromkeys(ANY, (["2", "-1", "2147483647"], ["2147483648"])),
    **dict.fromkeys(("drop_entry", "drop_packet", "secure_tcp"), (["0", "1", "3"], ["4", "-1", "2147483647"])),
    **dict.fromkeys(
        ("lblc_expiration", "lblcr_expiration", "sync_refresh_period"),
        (["8589934", "-8589934", "0"], ["8589935", "-8589935"]),
    ),
    "est_nice": (["-20", "19"], ["-21", "20"]),
    "sync_ports": (["1", "2", "64", "128", "1073741824"], ["0", "-0", "3", "65", "-2", "-2147483648"]),
    "sync_qlen_max": (["0", "5", "18446744073709551615"], ["-1", "-0", "18446744073709551616"]),
    "sync_retries": (["0", "3", "-0"], ["4", "-1"]),
    "sync_version": (["0", "1"], ["2", "-1"]),
    "sync_threshold": (["4\t50", "0\t0", "7\t0", "0\t1"], ["20 20", "-1 5", "3 -1", "1 1"]),
    "est_cpulist": (["0", "0-1", ""], ["x", "1-0"]),
}  # fmt: skip


def test_every_name_has_its_limits_here():
    assert sorted(LIMITS) == sorted(KNOBS) == Sysctl().names()


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name):
    sysctl = Sysctl(frozenset({0, 1}))
    taken, refused = LIMITS[name]
    for text in taken:
        assert write(sysctl, name, text) == "ok", text
        assert sysctl.get(name).lstrip("-") == text.lstrip("-")
    last = sysctl.get(name)
    for text in refused:
        assert write(sysctl, name, text) == "EINVAL", text
        assert sysctl.get(name) == last


@pytest.mark.parametrize(
    ("text", "answer", "holds"),
    [
        ("4", "ok", "4\t50"), ("4 60", "ok", "4\t60"), ("4\n60\n", "ok", "4\t60"), (" 4  60 ", "ok", "4\t60"),
        ("9 10 11", "ok", "9\t10"), ("9 10 x", "ok", "9\t10"), ("0x10 0x20", "ok", "16\t32"),
        ("60", "EINVAL", "3\t50"), ("50", "EINVAL", "3\t50"), ("x 5", "EINVAL", "3\t50"),
        ("10,20", "EINVAL", "3\t50"), ("-5 x", "EINVAL", "3\t50"), ("", "EINVAL", "3\t50"),
        # what is refused behind a good first number leaves that first number
        ("5 x", "EINVAL", "5\t50"), ("6 70x", "EINVAL", "6\t50"), ("5 -x", "EINVAL", "5\t50"),
        ("4 2147483648", "EINVAL", "4\t50"), ("60 x", "EINVAL", "3\t50"),
    ],
)  # fmt: skip
def test_sync_threshold_is_a_pair(text, answer, holds):
    sysctl = Sysctl()
    assert (write(sysctl, "sync_threshold", text), sysctl.get("sync_threshold")) == (answer, holds)


@pytest.mark.parametrize(
    ("text", "answer", "holds"),
    [
        ("0", "ok", "0"), ("0-3", "ok", "0-3"), ("0,2-3\n", "ok", "0,2-3"), ("1 3", "ok", "1,3"),
        ("all", "ok", "0-3,6"), ("N", "ok", "6"), ("2-N", "ok", "2-3,6"), ("0-3:1/2", "ok", "0,2"),
        ("all:1/3", "ok", "0,3,6"), ("0-6:0/2", "ok", ""), ("4-5", "ok", ""), ("", "ok", ""), (",,", "ok", ""),
        ("7", "ERANGE", "0-3,6"), ("0-9", "ERANGE", "0-3,6"), ("9-8", "EINVAL", "0-3,6"),
        ("0-3:2/0", "EINVAL", "0-3,6"), ("0-3:3/2", "EINVAL", "0-3,6"), ("0:1/2", "EINVAL", "0-3,6"),
        ("1-", "EINVAL", "0-3,6"), ("-1", "EINVAL", "0-3,6"), ("0x1", "EINVAL", "0-3,6"),
        ("4294967296", "EOVERFLOW", "0-3,6"),
    ],
)  # fmt: skip
def test_est_cpulist_is_a_list_of_the_hosts_cpus(text, answer, holds):
    """lib/bitmap.c, bitmap_parselist; CPUs that are not ours (4, 5) fall out."""
    sysctl = Sysctl(frozenset({0, 1, 2, 3, 6}))
    assert (write(sysctl, "est_cpulist", text), sysctl.get("est_cpulist")) == (answer, holds)
    assert sysctl.estimating is (holds != "")


def test_no_such_name():
    with pytest.raises(SysctlError) as e:
        Sysctl().set("nosuch", 1)
    assert e.value.errno == errno.ENOENT


def test_observers_hear_of_changes_only():
    sysctl, heard = Sysctl(), []
    sysctl.observers.append(heard.append)
    sysctl.set("sloppy_tcp", 1)
    sysctl.set("sloppy_tcp", "0x1")
    assert write(sysctl, "sloppy_tcp", "x") == "EINVAL"
    assert write(sysctl, "sync_threshold", "5 x") == "EINVAL"
    assert heard == ["sloppy_tcp", "sync_threshold"]


def test_what_has_been_changed():
    sysctl = Sysctl(frozenset({0, 1}), 3200)
    assert (sysctl.changed(), sysctl.est_cpulist, sysctl.sync_qlen_max) == ({}, "0-1", 100)
    sysctl.set("sync_threshold", "5 9")
    sysctl.set("sloppy_tcp", 1)
    sysctl.set("pmtu_disc", 1)
    assert sysctl.changed() == {"sloppy_tcp": "1", "sync_threshold": "5\t9"}
