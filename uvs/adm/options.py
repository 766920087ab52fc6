"""ipvsadm's options, and which of them go with which command."""

from __future__ import annotations

from dataclasses import dataclass

from uvs.adm.popt import OPTIONAL, REQUIRED, Option


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Command letters; those without a letter of their own stand under their name.
COMMANDS = {
    "A": "add-service",
    "E": "edit-service",
    "D": "delete-service",
    "C": "flush",
    "L": "list",
    "Z": "zero",
    "a": "add-server",
    "e": "edit-server",
    "d": "delete-server",
    "R": "restore",
    "S": "save",
    "set": "set",
    "start-daemon": "start-daemon",
    "stop-daemon": "stop-daemon",
    "h": "help",
    "v": "version",
}

OPTIONS = (
    Option("A", "add-service", "A"),
    Option("E", "edit-service", "E"),
    Option("D", "delete-service", "D"),
    Option("C", "clear", "C"),
    Option("L", "list", "L"),
    Option("L", "list", "l"),
    Option("Z", "zero", "Z"),
    Option("a", "add-server", "a"),
    Option("e", "edit-server", "e"),
    Option("d", "delete-server", "d"),
    Option("R", "restore", "R"),
    Option("S", "save", "S"),
    Option("set", "set"),
    Option("start-daemon", "start-daemon", "", REQUIRED),
    Option("stop-daemon", "stop-daemon", "", REQUIRED),
    Option("h", "help", "h"),
    Option("v", "version", "v"),
    Option("t", "tcp-service", "t", REQUIRED),
    Option("u", "udp-service", "u", REQUIRED),
    Option("sctp", "sctp-service", "", REQUIRED),
    Option("f", "fwmark-service", "f", REQUIRED),
    Option("6", "ipv6", "6"),
    Option("scheduler", "scheduler", "s", REQUIRED),
    Option("persistent", "persistent", "p", OPTIONAL),
    Option("netmask", "netmask", "M", REQUIRED),
    Option("real-server", "real-server", "r", REQUIRED),
    Option("m", "masquerading", "m"),
    Option("i", "ipip", "i"),
    Option("g", "gatewaying", "g"),
    Option("weight", "weight", "w", REQUIRED),
    Option("u-threshold", "u-threshold", "x", REQUIRED),
    Option("l-threshold", "l-threshold", "y", REQUIRED),
    Option("numeric", "numeric", "n"),
    Option("connection", "connection", "c"),
    Option("mcast-interface", "mcast-interface", "", REQUIRED),
    Option("syncid", "syncid", "", REQUIRED),
    Option("timeout", "timeout"),
    Option("daemon", "daemon"),
    Option("stats", "stats"),
    Option("rate", "rate"),
    Option("thresholds", "thresholds"),
    Option("persistent-conn", "persistent-conn"),
    Option("nosort", "nosort"),
    Option("sort", "sort"),
    Option("exact", "exact", "X"),
    Option("ops", "ops", "o"),
    Option("pe", "pe", "", REQUIRED),
    Option("sched-flags", "sched-flags", "b", REQUIRED),
    Option("mcast-group", "mcast-group", "", REQUIRED),
    Option("mcast-port", "mcast-port", "", REQUIRED),
    Option("mcast-ttl", "mcast-ttl", "", REQUIRED),
    Option("sync-maxlen", "sync-maxlen", "", REQUIRED),
    Option("tun-info", "tun-info"),
    Option("tun-type", "tun-type", "", REQUIRED),
    Option("tun-port", "tun-port", "", REQUIRED),
    Option("tun-nocsum", "tun-nocsum"),
    Option("tun-csum", "tun-csum"),
    Option("tun-remcsum", "tun-remcsum"),
    Option("json", "json"),  # not ipvsadm's
    Option("atomic", "atomic"),  # not ipvsadm's
)

# What options are called in messages, in the order in which they are checked.
CHECKED = _names("""
    numeric connection service-address scheduler persistent netmask real-server forwarding-method weight
    u-threshold l-threshold mcast-interface timeout daemon stats rate thresholds persistent-conn nosort
    syncid exact ops pe sched-flags mcast-group mcast-port mcast-ttl sync-maxlen tun-info tun-type tun-port
    tun-nocsum tun-csum tun-remcsum json atomic
""")

_SERVICE = _names("scheduler persistent netmask ops pe sched-flags")
_SERVER = _names("""
    forwarding-method weight u-threshold l-threshold tun-type tun-port tun-nocsum tun-csum tun-remcsum
""")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a command, or a tunnel type, needs and takes; of `one` at most one."""

    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    one: tuple[str, ...] = ()


RULES: dict[str, Rule] = {
    "add-service": Rule(("service-address",), _SERVICE),
    "edit-service": Rule(("service-address",), _SERVICE),
    "delete-service": Rule(("service-address",)),
    "flush": Rule(),
    "list": Rule(
        (),
        _names("numeric stats rate thresholds persistent-conn nosort syncid exact tun-info json"),
        ("connection", "service-address", "timeout", "daemon"),
    ),
    "add-server": Rule(("service-address", "real-server"), _SERVER),
    "edit-server": Rule(("service-address", "real-server"), _SERVER),
    "delete-server": Rule(("service-address", "real-server")),
    "set": Rule(),
    "start-daemon": Rule(
        (), ("mcast-interface", "syncid", "mcast-group", "mcast-port", "mcast-ttl", "sync-maxlen")
    ),
    "stop-daemon": Rule((), ("syncid",)),
    "restore": Rule((), ("atomic",)),
    "save": Rule((), ("numeric",)),
    "zero": Rule((), ("service-address",)),
}

TUNNEL_RULES: dict[str, Rule] = {
    "ipip": Rule((), ("tun-type",)),
    "gue": Rule(("tun-port",), ("tun-type",), ("tun-nocsum", "tun-csum", "tun-remcsum")),
    "gre": Rule((), ("tun-type",), ("tun-nocsum", "tun-csum")),
}
TUNNEL_OPTIONS = _names("tun-type tun-port tun-nocsum tun-csum tun-remcsum")
