"""What the host says of itself."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest

from uvs import host
from uvs.errors import UserError

FILES = {
    "ipv4/icmp_ratelimit": "20",
    "ipv6/icmp/ratelimit": "30",
    "ipv4/ip_unprivileged_port_start": "80",
    "ipv4/ip_local_port_range": "1000\t2000",
    "ipv6/auto_flowlabels": "2",
}


def settings():
    limits = {af: SimpleNamespace(interval_ms=None) for af in (socket.AF_INET, socket.AF_INET6)}
    ipvs = SimpleNamespace(icmp_limit=limits)
    host.read_settings(ipvs)
    return (
        [limit.interval_ms for limit in limits.values()],
        ipvs.unprivileged_port_start,
        ipvs.local_port_range,
        ipvs.auto_flowlabels,
    )


@pytest.mark.parametrize(
    ("shows", "changed", "read"),
    [
        ("what the files say", {}, ([20, 30], 80, (1000, 2000), False)),
        ("labels where they are not optional", {"ipv6/auto_flowlabels": "3"}, ([20, 30], 80, (1000, 2000), True)),
        ("a file that is no number", {"ipv4/icmp_ratelimit": "x"}, ([1000, 30], 80, (1000, 2000), False)),
        ("half a range", {"ipv4/ip_local_port_range": "7"}, ([20, 30], 80, (32768, 60999), False)),
    ],
)  # fmt: skip
def test_settings(shows, changed, read, tmp_path, monkeypatch):
    for name, text in (FILES | changed).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(host, "NET", tmp_path)
    assert settings() == read


def test_a_kernel_without_them_has_the_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "NET", tmp_path)
    assert settings() == ([1000, 1000], 1024, (32768, 60999), True)


@pytest.mark.parametrize(("said", "rate"), [(None, 1), ("", 1), ("20", 20)])
def test_clock_rate(said, rate, monkeypatch):
    monkeypatch.delenv("UVS_CLOCK_RATE", raising=False)
    if said is not None:
        monkeypatch.setenv("UVS_CLOCK_RATE", said)
    assert host.clock_rate() == rate


@pytest.mark.parametrize("said", ["0", "101", "-1", "1.5", "fast", "\u0661"])
def test_no_clock_rate(said, monkeypatch):
    monkeypatch.setenv("UVS_CLOCK_RATE", said)
    with pytest.raises(UserError, match=r"UVS_CLOCK_RATE is 1\.\.100") as refused:
        host.clock_rate()
    assert refused.value.status == 2


def test_memory_and_boot():
    assert 0 < host.available_pages() <= os.sysconf("SC_PHYS_PAGES")
    assert len(host.boot_id()) == 16
    assert host.boot_id() == host.boot_id()
