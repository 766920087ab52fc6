"""What this host says of itself: sysctls that IPVS obeys, memory, the boot."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from uvs.errors import UserError
from uvs.ipvs.skb import NetnsIpvs

NET = Path("/proc/sys/net")
CLOCK_RATE_MAX = 100


def read_settings(ipvs: NetnsIpvs) -> None:
    """Bring the host's sysctls that IPVS obeys into `ipvs`; a kernel that lacks one has the default."""
    ipvs.icmp_limit[socket.AF_INET].interval_ms = _sysctl("ipv4/icmp_ratelimit", 1000)
    ipvs.icmp_limit[socket.AF_INET6].interval_ms = _sysctl("ipv6/icmp/ratelimit", 1000)
    ipvs.unprivileged_port_start = _sysctl("ipv4/ip_unprivileged_port_start", 1024)
    ipvs.local_port_range = _local_port_range()
    ipvs.auto_flowlabels = _sysctl("ipv6/auto_flowlabels", 1) in (1, 3)  # by default, always


def available_pages() -> int:
    """Free memory and buffers, in pages (si_meminfo: freeram + bufferram)."""
    sizes = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    kib = sum(int(sizes[name].split()[0]) for name in ("MemFree", "Buffers"))
    return kib * 1024 // os.sysconf("SC_PAGESIZE")


def _sysctl(name: str, default: int) -> int:
    try:
        return int((NET / name).read_text())
    except (OSError, ValueError):
        return default


def _local_port_range() -> tuple[int, int]:
    try:
        low, high = (NET / "ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def clock_rate() -> int:
    """How many times as fast the director's clock shall run: UVS_CLOCK_RATE, for tests. UserError."""
    text = os.environ.get("UVS_CLOCK_RATE") or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= CLOCK_RATE_MAX):
        raise UserError(f"UVS_CLOCK_RATE is 1..{CLOCK_RATE_MAX}, not {text}", 2)
    return int(text)


def boot_id() -> bytes:
    """The kernel's boot id, 16 bytes: another after each boot."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
