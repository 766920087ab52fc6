"""Tests in network namespaces of their own, without root.

A test marked `@sandboxed` runs in a forked process that is alone in a new network namespace (and, for an
ordinary user, in a user namespace where it is root). Nothing that it does outlives it; any number run at once.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import functools
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
SIOCETHTOOL, ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO = 0x8946, 0x17, 0x1F, 0x24  # linux/ethtool.h
LIMIT_S = 180  # a test that hangs; on a busy machine one takes many times its seconds
PATIENCE_S = 15.0  # for what must come

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def sandboxed(test: Callable[..., None] | None = None, *, user: bool = False, limit: float = LIMIT_S) -> Any:
    """Decorator; `user`: in a user namespace even for root; `limit`: seconds that it may take."""
    if test is None:
        return functools.partial(sandboxed, user=user, limit=limit)

    @functools.wraps(test)
    def forked(*args: Any, **kwargs: Any) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            told: str | None = None
            try:
                os.close(reader)
                enter(user or None)
                test(*args, **kwargs)
            except BaseException:
                told = traceback.format_exc()
            with open(writer, "wb") as file:
                pickle.dump(told, file)
            os._exit(0)
        os.close(writer)
        try:
            if not select.select([reader], [], [], limit)[0]:
                os.kill(pid, signal.SIGKILL)
            data = b""
            while chunk := os.read(reader, 65536):
                data += chunk
        finally:
            os.close(reader)
            os.waitpid(pid, 0)
        told = pickle.loads(data) if data else f"the test died, or took more than {limit:g} s"
        if told is not None:
            pytest.fail(told, pytrace=False)

    return forked


def enter(user: bool | None = None) -> None:
    """Move this process into a new network namespace; `user`: in a user namespace (default: unless root)."""
    uid, gid = os.geteuid(), os.getegid()
    user = uid != 0 if user is None else user
    _call("unshare", CLONE_NEWNET | CLONE_NEWNS | (CLONE_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    ip("link set lo up")


class Host:
    """Another network namespace. `with host:` what is done (sockets opened, programs started) is done there."""

    def __init__(self) -> None:
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _call("unshare", CLONE_NEWNET)
        self._here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        ip("link set lo up")
        _call("setns", self._home, CLONE_NEWNET)

    def __enter__(self) -> Host:
        _call("setns", self._here, CLONE_NEWNET)
        return self

    def __exit__(self, *_: object) -> None:
        _call("setns", self._home, CLONE_NEWNET)

    def close(self) -> None:
        """Let go of it: it ends with the last descriptor, socket or program in it."""
        os.close(self._home)
        os.close(self._here)

    @property
    def netns(self) -> str:
        """Its name for `ip link add … netns`."""
        return f"/proc/{os.getpid()}/fd/{self._here}"


def ip(*commands: str) -> None:
    """Commands of ip(8), in one batch; the test fails with what it says."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True)
    assert done.returncode == 0, f"{commands}: {done.stderr}"


def addressed(dev: str, addresses: dict[int, str]) -> None:
    """Give a device of this host its IPv4 address (/24) and its IPv6 address (/64), and set it up."""
    ip(
        f"address add {addresses[4]}/24 dev {dev}",
        f"address add {addresses[6]}/64 dev {dev} nodad",
        f"link set {dev} up",
    )


def offloads_off(dev: str) -> None:
    """So that the kernel cuts and sums before the wire, as for a plain network card."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in (ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM):
            value = array.array("I", (command, 0))
            fcntl.ioctl(sock, SIOCETHTOOL, struct.pack("16sP16x", dev.encode(), value.buffer_info()[0]))


def sysctl(name: str, value: object) -> None:
    """Write /proc/sys/net/NAME of the present namespace."""
    Path("/proc/sys/net", name).write_text(str(value))


def link_up(here: str, there: str, peer: Host) -> None:
    """Wait until frames pass between the two ends of a link, device `there` being the peer's, both ways.

    A new link drops what is sent before the kernel has noticed that its other end is up. The frames are of no
    protocol that either end knows: neither routes nor neighbours come of them.
    """
    experimental = 0x88B5  # IEEE 802, local experimental Ethertype 1
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(experimental)) as ours:
        ours.bind((here, experimental))
        with peer:
            theirs = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(experimental))
            theirs.bind((there, experimental))
        with theirs:
            frame = bytes(12) + experimental.to_bytes(2) + bytes(46)
            for sender, receiver in ((ours, theirs), (theirs, ours)):

                def passes(sender: socket.socket = sender, receiver: socket.socket = receiver) -> bool:
                    sender.send(frame)
                    return bool(select.select([receiver], [], [], 0.05)[0])

                wait_for(passes, f"the link of {here} and {there} is up")


def address_up(address: str) -> None:
    """Wait until an IPv6 address of this host is one that it takes packets for: the kernel does that later."""

    def local() -> bool:
        told = subprocess.run(["ip", "-6", "route", "get", address], text=True, capture_output=True)
        return told.stdout.startswith("local ")

    wait_for(local, f"{address} is local")


def wait_for(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = PATIENCE_S) -> Any:
    """The first true value of `condition`; if there is none in time the test fails, and says `what`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        late = time.monotonic() >= end
        assert not late, f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)
    return value
