"""IPVS's knobs, net.ipv4.vs.*: a write does what it does in the kernel (ip_vs_ctl.c, proc_do_*)."""

from __future__ import annotations

import errno
from collections.abc import Callable

from uvs.ipvs import proc_text
from uvs.ipvs.knobs import KNOBS

Value = int | tuple[int, int] | str


class SysctlError(OSError):
    """A name that does not exist (ENOENT) or a value that is refused (EINVAL; for CPUs ERANGE too)."""


class Sysctl:
    """The values of one director. Attributes are read on the packet path: `sysctl.pmtu_disc`.

    `cpus` that estimation could run on, and `pages` of memory: the host's, for two defaults.
    """

    am_droprate: int
    amemthresh: int
    backup_only: int
    cache_bypass: int
    conn_reuse_mode: int
    conntrack: int
    debug_level: int
    drop_entry: int
    drop_packet: int
    est_cpulist: str
    est_nice: int
    expire_nodest_conn: int
    expire_quiescent_template: int
    ignore_tunneled: int
    lblc_expiration: int
    lblcr_expiration: int
    nat_icmp_send: int
    pmtu_disc: int
    run_estimation: int
    schedule_icmp: int
    secure_tcp: int
    sloppy_sctp: int
    sloppy_tcp: int
    snat_reroute: int
    sync_persist_mode: int
    sync_ports: int
    sync_qlen_max: int
    sync_refresh_period: int
    sync_retries: int
    sync_sock_size: int
    sync_threshold: tuple[int, int]
    sync_version: int

    def __init__(self, cpus: frozenset[int] = frozenset({0}), pages: int = 0) -> None:
        self.observers: list[Callable[[str], None]] = []
        self.host(cpus, pages)

    def host(self, cpus: frozenset[int], pages: int) -> None:
        """What host this is; all values are the defaults there."""
        self.cpus = cpus
        self.defaults: dict[str, Value] = {name: knob.default for name, knob in KNOBS.items()}
        self.defaults |= {"est_cpulist": proc_text.cpulist(cpus), "sync_qlen_max": pages // 32}
        for name, value in self.defaults.items():
            setattr(self, name, value)

    @property
    def estimating(self) -> bool:
        """Do counters and rates move (ip_vs_est_stopped)?"""
        return bool(self.run_estimation and self.est_cpulist)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(KNOBS)

    def get(self, name: str) -> str:
        """A value as /proc has it. SysctlError ENOENT: no such name."""
        if name not in KNOBS:
            raise SysctlError(errno.ENOENT, f"no sysctl net.ipv4.vs.{name}")
        return _text(getattr(self, name))

    def changed(self) -> dict[str, str]:
        """What is not as it was in the beginning."""
        return {n: self.get(n) for n, default in self.defaults.items() if getattr(self, n) != default}

    def default_texts(self) -> dict[str, str]:
        """What all were in the beginning, as /proc has it."""
        return {name: _text(value) for name, value in self.defaults.items()}

    def set(self, name: str, value: int | str) -> None:
        """Write a value as to /proc: `0x10` and octal are numbers, what follows the last one is ignored.

        SysctlError: ENOENT: no such name; EINVAL (for CPUs also ERANGE, EOVERFLOW): refused.
        """
        before = self.get(name)
        try:
            self._write(name, str(value).encode(errors="surrogateescape"))
        except proc_text.TextError as e:
            told = f"net.ipv4.vs.{name} takes {KNOBS[name].range}, not {value!r}"
            raise SysctlError(e.errno, told) from None
        finally:
            if self.get(name) != before:
                for observer in self.observers:
                    observer(name)

    def _write(self, name: str, text: bytes) -> None:
        if name == "sync_threshold":
            self._write_threshold(text)
        elif name == "est_cpulist":
            self.est_cpulist = proc_text.cpulist(proc_text.take_cpulist(text, max(self.cpus) + 1) & self.cpus)
        else:
            knob = KNOBS[name]
            number, _ = proc_text.take_number(text, knob.low, knob.high)
            if name == "sync_ports" and number & (number - 1):
                raise proc_text.TextError(errno.EINVAL, "no power of two")
            setattr(self, name, number)

    def _write_threshold(self, text: bytes) -> None:
        """proc_do_sync_threshold: a pair that is good is taken even if the text behind it is not."""
        (threshold, period), whole = proc_text.take_numbers(text, self.sync_threshold)
        good = threshold >= 0 and period >= 0 and (threshold < period or not period)
        if good:
            self.sync_threshold = threshold, period
        if not (good and whole):
            raise proc_text.TextError(errno.EINVAL, "no threshold and period")


def _text(value: Value) -> str:
    return "\t".join(map(str, value)) if isinstance(value, tuple) else str(value)
