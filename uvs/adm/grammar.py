"""The command line: options, what goes with what, what it asks for."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from uvs.adm.address import Endpoint, host_address, leading_number, number, parse_endpoint
from uvs.adm.errors import Fail, NoCommand, Unreadable
from uvs.adm.options import CHECKED, COMMANDS, OPTIONS, RULES, TUNNEL_OPTIONS, TUNNEL_RULES, Rule
from uvs.adm.popt import BadOption, Known, Popt
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, DestSpec, ServiceKey, ServiceSpec

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
MASQ, TUNNEL, DROUTE = 0, 2, 3  # IP_VS_CONN_F_*
DEFAULT_SCHEDULER = "wlc"
DEFAULT_PERSISTENCE = 360  # seconds
TIMEOUT_MAX = 86400 * 31
INT_MAX = 2**31 - 1
SCHED_NAME_MAX, PE_NAME_MAX, IFNAME_MAX = 15, 16, 15
TUN_TYPES = {"ipip": 0, "gue": 1, "gre": 2}
TUN_CSUMS = {"tun-nocsum": 0, "tun-csum": 1, "tun-remcsum": 2}
# SCHED1..3 by name, and the scheduler that alone knows the name.
SCHED_FLAGS = {
    "flag-1": (8, None),
    "flag-2": (0x10, None),
    "flag-3": (0x20, None),
    "sh-fallback": (8, "sh"),
    "sh-port": (0x10, "sh"),
    "mh-fallback": (8, "mh"),
    "mh-port": (0x10, "mh"),
}

_KNOWN = Known(OPTIONS)
_BAD_STATE = {
    "start-daemon": "illegal start-daemon parameter specified",
    "stop-daemon": "illegal start_daemon specified",
}


@dataclass(slots=True)
class DaemonSpec:
    """What --start-daemon and --stop-daemon ask for."""

    state: str = "master"
    interface: str = "eth0"
    syncid: int = 0
    maxlen: int = 0
    group: bytes = b""
    port: int = 0
    ttl: int = 0


@dataclass(slots=True)
class Command:
    """A command line, understood. `given`: the options by the names of messages."""

    name: str
    service: ServiceSpec
    server: DestSpec
    given: set[str] = field(default_factory=set)
    timeouts: tuple[int, int, int] = (0, 0, 0)
    daemon: DaemonSpec = field(default_factory=DaemonSpec)


def parse(words: list[str], program: str = "ipvsadm") -> Command:
    """Understand a command line (without the program's name). Fail: message and status."""
    return _Parser(words, program).parse()


class _Parser:
    def __init__(self, words: list[str], program: str) -> None:
        self.popt = Popt(_KNOWN, words)
        self.program = program
        self.given: set[str] = set()
        self.af: int = AF_INET
        self.protocol = 0  # without one no port has a name
        self.addr = b"\0" * 4
        self.port = 0
        self.fwmark = 0
        self.scheduler = ""
        self.flags = 0
        self.timeout = 0
        self.netmask = 0xFFFFFFFF
        self.pe = ""
        self.sched_flags: str | None = None
        self.server = Endpoint(AF_INET, b"\0" * 4, 0)
        self.fwd = DROUTE
        self.weight = 1
        self.u_threshold = self.l_threshold = 0
        self.tun_type = "ipip"
        self.tun_port = self.tun_flags = 0
        self.daemon = DaemonSpec()

    def parse(self) -> Command:
        name = self._command()
        command = Command(name, ServiceSpec(ServiceKey(0, 0, b"", 0)), DestSpec(0, b"", 0), self.given)
        if name in ("help", "version"):  # whatever follows
            return command
        try:
            while (found := self.popt.next()) is not None:
                self._option(found[0].name, found[1] or "", given=found[1] is not None)
        except BadOption as e:
            raise Unreadable(str(e)) from None
        timeouts = self._timeouts() if name == "set" else (0, 0, 0)
        if self.popt.rest:
            raise Fail(f"unexpected argument {self.popt.rest[0]}")
        self._sched_flags(self.scheduler or DEFAULT_SCHEDULER)
        _check(RULES[name], CHECKED, self.given, f"command|{name}")
        command.timeouts, command.daemon = timeouts, self.daemon
        self._finish(command)
        return command

    def _command(self) -> str:
        """The first option must be the command."""
        try:
            found = self.popt.next()
        except BadOption:
            found = None
        if found is None or found[0].name not in COMMANDS:
            raise NoCommand(
                f"Try `{self.program} -h' or '{self.program} --help' for more information.", 255
            ) from None
        option, value = found
        if option.name in ("start-daemon", "stop-daemon"):
            if value not in ("master", "backup"):
                raise Fail(_BAD_STATE[option.name])
            self.daemon.state = value
        return COMMANDS[option.name]

    def _set(self, name: str) -> None:
        if name in self.given:
            raise Fail(f"multiple '{name}' options specified")
        self.given.add(name)

    def _number(self, text: str, low: int, high: int, message: str) -> int:
        value = number(text, low, high)
        if value is None:
            raise Fail(message)
        return value

    def _option(self, name: str, value: str, *, given: bool) -> None:
        match name:
            case "t" | "u" | "sctp":
                self._set("service-address")
                self._service({"t": IPPROTO_TCP, "u": IPPROTO_UDP, "sctp": IPPROTO_SCTP}[name], value)
            case "f":
                self._set("service-address")
                self.fwmark = self._number(value, 1, 0xFFFFFFFF, f"invalid fwmark value `{value}' specified")
                self.af, self.protocol = AF_INET, IPPROTO_TCP
            case "6":
                if not self.fwmark:
                    raise Fail("-6 used before -f\n")
                self.af, self.netmask, self.addr = AF_INET6, 128, b"\0" * 16
            case "scheduler":
                self._set(name)
                self.scheduler = value[:SCHED_NAME_MAX]
            case "persistent":
                self._set(name)
                self.flags |= SVC_F_PERSISTENT
                self.timeout = DEFAULT_PERSISTENCE
                if given:
                    self.timeout = self._timeout(value, 1)
            case "netmask":
                self._set(name)
                self._netmask(value)
            case "real-server":
                self._set(name)
                server = parse_endpoint(value, self.protocol)
                if server is None:
                    raise Fail("illegal real server address[:port] specified")
                self.server = server if server.port is not None else server._replace(port=self.port)
            case "m" | "i" | "g":
                self._set("forwarding-method")
                self.fwd = {"m": MASQ, "i": TUNNEL, "g": DROUTE}[name]
            case "weight":
                self._set(name)
                self.weight = self._number(value, 0, INT_MAX, "illegal weight specified")
            case "u-threshold":
                self._set(name)
                self.u_threshold = self._number(value, 0, INT_MAX, "illegal u_threshold specified")
            case "l-threshold":
                self._set(name)
                self.l_threshold = self._number(value, 0, INT_MAX, "illegal l_threshold specified")
            case "ops":
                self._set(name)
                self.flags |= SVC_F_ONEPACKET
            case "pe":
                self._set(name)
                self.pe = value[:PE_NAME_MAX]
            case "sched-flags":
                self._set(name)
                self.sched_flags = value
            case "sort":
                pass
            case "tun-type":
                self._set(name)
                if value not in TUN_TYPES:
                    raise Fail("illegal tunnel type specified")
                self.tun_type = value
            case "tun-port":
                self._set(name)
                self.tun_port = self._number(value, 1, 65535, "illegal tunnel port specified")
            case "tun-nocsum" | "tun-csum" | "tun-remcsum":
                self._set(name)
                self.tun_flags |= TUN_CSUMS[name]
            case _ if name in COMMANDS:
                raise Fail(f"invalid option `{self.popt.last}'")
            case _:
                self._set(name)
                self._daemon_option(name, value)

    def _daemon_option(self, name: str, value: str) -> None:
        daemon = self.daemon
        match name:
            case "mcast-interface":
                daemon.interface = value[:IFNAME_MAX]
            case "syncid":
                daemon.syncid = self._number(value, 0, 255, "illegal syncid specified")
            case "sync-maxlen":
                daemon.maxlen = self._number(value, 1, 65507, "illegal sync-maxlen specified")
            case "mcast-port":
                daemon.port = self._number(value, 1, 65535, "illegal mcast-port specified")
            case "mcast-ttl":
                daemon.ttl = self._number(value, 1, 255, "illegal mcast-ttl specified")
            case "mcast-group":
                daemon.group = _group(value)

    def _service(self, protocol: int, text: str) -> None:
        self.protocol = protocol
        found = parse_endpoint(text, protocol)
        if found is None:
            raise Fail("illegal virtual server address[:port] specified")
        self.af, self.addr, self.port = found.af, found.addr, found.port or 0
        if self.af == AF_INET6:
            self.netmask = 128

    def _netmask(self, text: str) -> None:
        if self.af == AF_INET6:
            self.netmask = leading_number(text)
            if not 1 <= self.netmask <= 128:
                raise Fail("illegal ipv6 netmask specified")
            return
        mask = host_address(text)
        if mask is None:
            raise Fail("illegal virtual server persistent mask specified")
        self.netmask = int.from_bytes(mask, "big")

    def _timeout(self, text: str, low: int) -> int:
        return self._number(text, low, TIMEOUT_MAX, f"invalid timeout value `{text}' specified")

    def _timeouts(self) -> tuple[int, int, int]:
        words, self.popt.rest = self.popt.rest[:3], self.popt.rest[3:]
        if len(words) < 3:
            raise Fail("--set option requires 3 timeout values")
        tcp, tcp_fin, udp = (self._timeout(word, 0) for word in words)
        return tcp, tcp_fin, udp

    def _finish(self, command: Command) -> None:
        """Defaults, and the checks that look at several options at once."""
        key = ServiceKey(self.af, self.protocol, self.addr, self.port, self.fwmark)
        if self.fwmark:
            key = ServiceKey(self.af, IPPROTO_TCP, bytes(4 if self.af == AF_INET else 16), 0, self.fwmark)
        scheduler = self.scheduler or DEFAULT_SCHEDULER
        server = self.server
        port = server.port or 0
        if command.name in ("add-service", "edit-service"):
            if not self.fwmark and not self.port and not self.flags & SVC_F_PERSISTENT:
                raise Fail("Zero port specified for non-persistent service")
            if self.flags & SVC_F_ONEPACKET and not self.fwmark and self.protocol != IPPROTO_UDP:
                raise Fail("One-Packet Scheduling is only for UDP virtual services")
        elif command.name in ("add-server", "edit-server"):
            if self.fwd != MASQ and not self.fwmark:
                port = self.port  # direct routing and tunnelling leave the packet's port alone
            if server.af != self.af and self.fwd != TUNNEL:
                raise Fail("Different address family is allowed only for tunneling servers")
            if self.given & set(TUNNEL_OPTIONS):
                if self.fwd != TUNNEL:
                    raise Fail("Tunnel options conflict with forward method")
                _check(
                    TUNNEL_RULES[self.tun_type], TUNNEL_OPTIONS, self.given, f"tunnel type|{self.tun_type}"
                )
        elif command.name == "list" and self._list_conflict():
            raise Fail("options conflicts in the list command")
        command.service = ServiceSpec(key, scheduler, self.flags, self.timeout, self.netmask, self.pe)
        command.server = DestSpec(
            server.af,
            server.addr,
            port,
            self.fwd,
            self.weight,
            self.u_threshold,
            self.l_threshold,
            TUN_TYPES[self.tun_type],
            self.tun_port,
            self.tun_flags,
        )

    def _list_conflict(self) -> bool:
        """Tables of one kind with columns of another; checked after all that `RULES` says."""
        given = self.given
        if given & {"connection", "timeout", "daemon"} and given & {"stats", "rate", "thresholds"}:
            return True
        return bool(given & {"timeout", "daemon"}) and "persistent-conn" in given

    def _sched_flags(self, scheduler: str) -> None:
        for name in filter(None, (self.sched_flags or "").split(",")):
            if name not in SCHED_FLAGS:
                raise Fail(f"invalid scheduler flag `{name}'")
            flag, only = SCHED_FLAGS[name]
            if only not in (None, scheduler):
                raise Fail(f"incompatible scheduler flag `{name}'")
            self.flags |= flag


def _check(rule: Rule, names: tuple[str, ...], given: set[str], what: str) -> None:
    """Needed, forbidden and conflicting options; `what`: kind and name for the message."""
    kind, _, name = what.partition("|")
    seen = ""
    for option in names:
        if option not in given:
            if option in rule.needs:
                raise Fail(f"You need to supply the '{option}' option for the '{name}' {kind}")
        elif option in rule.one:
            if seen:
                raise Fail(f"The option '{option}' conflicts with the '{seen}' option in the '{name}' {kind}")
            seen = option
        elif option not in rule.needs and option not in rule.takes:
            raise Fail(f"Illegal '{option}' option with the '{name}' {kind}")


def _group(text: str) -> bytes:
    if ":" in text:
        try:
            group = socket.inet_pton(AF_INET6, text)
        except (OSError, ValueError):
            group = b""
        if group[:1] != b"\xff":
            raise Fail(f"invalid IPv6 mcast-group `{text}'")
        return group
    found = host_address(text)
    if found is None or found[0] >> 4 != 0xE:
        raise Fail(f"invalid IPv4 mcast-group `{text}'")
    return found
