"""A stage of virtual cables: the director is this process's network namespace, the other machines are MAC addresses.

Both ends of each cable lie in one namespace. Frames for a machine arrive at the far end with a MAC address that is
not that end's own, so the stack there leaves them alone, and a packet socket sees them.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from support.sandbox import ip, offloads_off, wait_for
from support.scenario.play import Arrival
from support.scenario.words import VIP, VIP6, servers
from uvs.control.client import Client

SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40
ETH_P_ALL = 3
START_S = 60.0
SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/icmp_ratelimit": "0",
    "net/ipv4/icmp_msgs_per_sec": "100000",  # one for the whole machine: not ours in a namespace
    "net/ipv4/icmp_msgs_burst": "100000",
    "net/ipv6/icmp/ratelimit": "0",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
}
ADDRESSES = {
    "eth0": ["198.18.0.1/24", "2001:db8:18::1/64 nodad", f"{VIP}/32", f"{VIP6}/128 nodad preferred_lft 0"],
    "eth1": ["198.19.0.1/24", "2001:db8:19::1/64 nodad"],
}


def asked(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command: its status, and all that it said, on whichever stream."""
    return subprocess.run(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def run(*words: str) -> None:
    """A command that must succeed."""
    done = asked(*words)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stdout.strip()}")


def _set(name: str, value: str) -> None:
    try:
        Path("/proc/sys", name).write_text(value)
    except OSError:
        if "icmp_msgs" not in name:
            raise


def _mac(number: int) -> bytes:
    return bytes((2, 0, 0, 0, 9, number))


class Wire:
    """The stage, with nothing that balances yet: `Kernel` and `Uvs` add it."""

    quiet = 0.25  # seconds without an arrival: no more will come

    def __init__(self, topology: str) -> None:
        self.nat = topology == "nat"
        self.rip, self.rip6 = servers(topology)
        self.cables = {"c": "eth0"} | {f"r{i}": "eth1" if self.nat else "eth0" for i in (1, 2, 3)}
        self.macs = {"c": _mac(2), **{f"r{i}": _mac(10 + i) for i in (1, 2, 3)}}
        self.names = {mac: name for name, mac in self.macs.items()}
        self.devices = ("eth0", "eth1") if self.nat else ("eth0",)
        self.own: dict[str, bytes] = {}
        self.taps: dict[str, socket.socket] = {}
        self._lay()

    def close(self) -> None:
        """The namespace goes with the process."""
        for tap in self.taps.values():
            tap.close()

    def _lay(self) -> None:
        ip("link set lo up", *(f"link add {dev} type veth peer name far-{dev}" for dev in self.devices))
        self._set_up_kernel()
        ip(
            *(f"link set {end} up" for dev in self.devices for end in (f"far-{dev}", dev)),
            *(f"addr add {address} dev {dev}" for dev in self.devices for address in ADDRESSES[dev]),
        )
        self.default(True)
        for name in self.macs:
            self.neighbour(name, True)
        for dev in self.devices:
            self._tap(dev)
        for dev in self.devices:
            wait_for(partial(_running, dev), f"{dev} is up", START_S)

    def _set_up_kernel(self) -> None:
        for name, value in SETTINGS.items():
            _set(name, value)
        for where in ("all", "default", *self.devices):
            _set(f"net/ipv4/conf/{where}/rp_filter", "0")
            _set(f"net/ipv4/conf/{where}/send_redirects", "0")
        for dev in self.devices:
            _set(f"net/ipv6/conf/far-{dev}/disable_ipv6", "1")
            offloads_off(dev)  # packets with whole checksums
            offloads_off(f"far-{dev}")

    def _tap(self, dev: str) -> None:
        """A socket at a cable's far end, for all machines there."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as near:
            near.bind((dev, 0))
            self.own[dev] = near.getsockname()[4]
        tap = self.taps[dev] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        tap.bind((f"far-{dev}", ETH_P_ALL))
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    def default(self, there: bool, mtu: str = "") -> None:
        """The routes to the clients."""
        what, size = "replace" if there else "del", ["mtu", mtu] if mtu else []
        run("ip", "route", what, "10.9.0.0/16", "via", "198.18.0.2", *size)
        run("ip", "route", what, "2001:db8:9::/48", "via", "2001:db8:18::2", *size)

    def addresses(self, name: str) -> tuple[str, str]:
        """Of a machine."""
        if name == "c":
            return "198.18.0.2", "2001:db8:18::2"
        return self.rip[int(name[1])], self.rip6[int(name[1])]

    def neighbour(self, name: str, there: bool) -> None:
        """Known for good, or unknown."""
        mac = ":".join(f"{b:02x}" for b in self.macs[name])
        for address in self.addresses(name):
            what = ["replace", address, "lladdr", mac, "nud", "permanent"] if there else ["del", address]
            run("ip", "neigh", *what, "dev", self.cables[name])

    # ---- packets

    def send(self, host: str, packet: bytes) -> None:
        """From a machine to the director, or from the director itself."""
        v4 = packet[0] >> 4 == 4
        if host == "d":
            daddr = str(ip_address(packet[16:20] if v4 else packet[24:40]))
            family = socket.AF_INET if v4 else socket.AF_INET6
            with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
                sock.sendto(packet, (daddr, 0))
            return
        dev = self.cables[host]
        kind = b"\x08\x00" if v4 else b"\x86\xdd"
        self.taps[dev].send(self.own[dev] + self.macs[host] + kind + packet)

    def arrivals(self, patience: float, count: int | None = None) -> list[Arrival]:
        """What arrives: see Stage."""
        out: list[Arrival] = []
        end = time.monotonic() + patience
        taps = {tap.fileno(): (dev, tap) for dev, tap in self.taps.items()}
        while (left := end - time.monotonic()) > 0:
            for fd in select.select(list(taps), [], [], left)[0]:
                dev, tap = taps[fd]
                frame, where = tap.recvfrom(70000)
                if where[2] == socket.PACKET_OUTGOING or not _wanted(frame):
                    continue
                sender = "d" if frame[6:12] == self.own[dev] else self.names.get(frame[6:12], "?")
                if sender != "d" or frame[:6] not in self.names:
                    continue
                out.append((sender, self.names[frame[:6]], frame[14:]))
                enough = count is not None and len(out) >= count
                end = time.monotonic() + (0 if enough else self.quiet)
        return out

    def helper(self, name: str) -> None:
        """Have the helper ftp, or the engine sip."""

    # ---- commands

    def command(self) -> list[str]:
        """The administrator's command."""
        raise NotImplementedError

    def ipvsadm(self, words: list[str]) -> tuple[list[str], int]:
        """Output, named as if it were ipvsadm's, and exit status."""
        done = asked(*self.command(), *words, env=self.environment())
        text = done.stdout.replace("uvsadm", "ipvsadm")
        return [line.rstrip() for line in text.splitlines()], done.returncode

    def environment(self) -> dict[str, str]:
        """Of commands."""
        return {**os.environ, "LC_ALL": "C"}

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def mark(self, number: int, protocol: str, address: str, port: int) -> None:
        """A rule in mangle PREROUTING."""
        match = "" if protocol == "-" else f"-p {protocol}"
        match += f" --dport {port}" if port else ""
        tool = "ip6tables" if ":" in address else "iptables"
        rule = f"-w -t mangle -A PREROUTING -d {address} {match} -j MARK --set-mark {number}"
        run(tool, *rule.split())

    def host(self, verb: str, words: list[str]) -> None:
        """Settings of the director's machine."""
        match verb, words:
            case "transparent", [number]:
                for family in ("-4", "-6"):
                    run("ip", family, "rule", "add", "fwmark", number, "lookup", "100")
                    run("ip", family, "route", "add", "local", "default", "dev", "lo", "table", "100")
            case "route", [name, "unreachable"]:
                for address in self.addresses(name):
                    run("ip", "route", "replace", "unreachable", address)
            case "route", [name, "normal"]:
                for address in self.addresses(name):
                    run("ip", "route", "del", address)
            case "route", [name, "mtu", size]:
                for address in self.addresses(name):
                    run("ip", "route", "replace", address, "dev", self.cables[name], "mtu", size)
            case "local", [name]:
                for address in self.addresses(name):
                    run("ip", "addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo")
            case "neighbour", [name, how]:
                self.neighbour(name, how == "back")
            case "default", ["mtu", size]:
                self.default(True, size)
            case "track", []:
                for tool in ("iptables", "ip6tables"):
                    run(tool, *["-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED"])
            case "policy", [name]:
                for family, vip, by in zip(("-4", "-6"), (VIP, VIP6), self.addresses(name), strict=True):
                    way = f"default via {by} dev {self.cables[name]} table 200"
                    run("ip", family, "rule", "add", "from", vip, "lookup", "200")
                    run("ip", family, "route", "add", *way.split())
            case "default", [how]:
                self.default(how == "back")
            case "helper", [name]:
                self.helper(name)
            case _:
                raise ValueError(f"no step {verb} {' '.join(words)}")
        self.heard()

    def heard(self) -> None:
        """Wait until the director knows of a setting. A kernel's own does at once."""


def _running(dev: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sH14x", dev.encode(), 0))
    return bool(int.from_bytes(answer[16:18], "little") & IFF_RUNNING)


def _wanted(frame: bytes) -> bool:
    """Is it of the scenario? Beside its packets there are ARP, IGMP, multicast and IPv6's neighbour discovery."""
    kind, data = frame[12:14], frame[14:]
    if kind == b"\x08\x00":
        return data[9] != 2 and data[16] < 224
    return kind == b"\x86\xdd" and data[24] != 255 and not (data[6] == 58 and 130 <= data[40] <= 143)


class Kernel(Wire):
    """The kernel's own IPVS. OSError: there is none."""

    def __init__(self, topology: str) -> None:
        if not Path("/proc/net/ip_vs").exists():
            run("modprobe", "ip_vs")
        super().__init__(topology)

    def helper(self, name: str) -> None:
        """Its module; FTP's needs conntrack, which a rule that looks at it turns on."""
        run("modprobe", {"ftp": "ip_vs_ftp", "sip": "ip_vs_pe_sip"}[name])
        if name != "ftp":
            return
        for tool in ("iptables", "ip6tables"):
            run(tool, *["-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT"])
        self.sysctl("conntrack", "1")

    def command(self) -> list[str]:
        """ipvsadm."""
        return ["ipvsadm"]

    def sysctl(self, name: str, value: str) -> bool:
        """Written as sysctl(8) does."""
        try:
            Path("/proc/sys/net/ipv4/vs", name).write_text(f"{value}\n")
        except OSError:
            return False
        return True

    def show_sysctl(self, name: str) -> str:
        """Its value."""
        return Path("/proc/sys/net/ipv4/vs", name).read_text().rstrip("\n")


UVS = (sys.executable, "-m", "uvs.cli")


class Uvs(Wire):
    """`uvs run`."""

    quiet = 1.0

    def __init__(self, topology: str) -> None:
        super().__init__(topology)
        self.directory = tempfile.TemporaryDirectory(prefix="uvs-scenario-")
        self.log = Path(self.directory.name, "log")
        with self.log.open("wb") as out:
            self.director = subprocess.Popen(
                [*UVS, "run"], env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            wait_for(self._ready, "the director is ready", START_S)
        except BaseException:
            self.close()
            raise

    def _ready(self) -> bool:
        said = self.log.read_text()
        if self.director.poll() is not None:
            raise RuntimeError(f"the director does not start: {said}")
        return " ready: " in said

    def heard(self) -> None:
        """By netlink: its loop has a turn for that and for every request. The second answer is of a later turn."""
        with Client(self.environment()["UVS_SOCKET"]) as client:
            client.info()
            client.info()

    def environment(self) -> dict[str, str]:
        """With the director's paths."""
        path = self.directory.name
        own = {"UVS_SOCKET": "control.sock", "UVS_STATE_DIR": "state", "XDG_STATE_HOME": "saved"}
        return super().environment() | {name: f"{path}/{file}" for name, file in own.items()}

    def command(self) -> list[str]:
        """uvsadm."""
        return [sys.executable, "-m", "uvs.adm.cli"]

    def sysctl(self, name: str, value: str) -> bool:
        """uvs sysctl."""
        return asked(*UVS, "sysctl", f"{name}={value}", env=self.environment()).returncode == 0

    def show_sysctl(self, name: str) -> str:
        """uvs sysctl."""
        return asked(*UVS, "sysctl", "-n", name, env=self.environment()).stdout.rstrip("\n")

    def close(self) -> None:
        """Stop the director."""
        self.director.send_signal(signal.SIGTERM)
        self.director.wait(30)
        self.directory.cleanup()
        super().close()
