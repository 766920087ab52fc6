"""Packets as scapy expressions, read without running them: names of layers, literals, calls, `/` and `*`.

    IP(src="192.0.2.2", dst="192.0.2.100")/TCP(sport=1024, dport=80, flags="S")/(b"x" * 100)

An expression is parsed to a syntax tree, and only what stands above is built of it, so that a text from
anywhere can be taken.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from typing import Any, NamedTuple

from uvs.errors import UserError

BYTES_MAX = 65535  # an IP datagram
PACKETS_MAX = 10_000  # that one expression stands for
_MAX_TEXT = 200_000

_NAMES = {
    "scapy.layers.l2": ("Ether", "GRE"),
    "scapy.layers.inet": ("IP", "TCP", "UDP", "ICMP"),
    "scapy.layers.inet6": (
        "IPv6", "IPv6ExtHdrFragment", "IPv6ExtHdrHopByHop", "IPv6ExtHdrDestOpt", "IPv6ExtHdrRouting",
        "ICMPv6DestUnreach", "ICMPv6PacketTooBig", "ICMPv6TimeExceeded", "ICMPv6ParamProblem",
        "ICMPv6EchoRequest", "ICMPv6EchoReply", "PadN",
    ),
    "scapy.layers.sctp": (
        "SCTP", "SCTPChunkInit", "SCTPChunkInitAck", "SCTPChunkCookieEcho", "SCTPChunkCookieAck",
        "SCTPChunkData", "SCTPChunkSACK", "SCTPChunkShutdown", "SCTPChunkShutdownAck",
        "SCTPChunkShutdownComplete", "SCTPChunkAbort", "SCTPChunkHeartbeatReq", "SCTPChunkHeartbeatAck",
    ),
    "scapy.layers.ipsec": ("AH", "ESP"),
    "scapy.packet": ("Raw", "Padding"),
}  # fmt: skip
LAYERS = sorted(name for names in _NAMES.values() for name in names)


class Packet(NamedTuple):
    """An IP datagram, and the MAC addresses of its frame, if they were given."""

    data: bytes
    frame: dict[str, str] | None = None


def in_a_line(text: str, most: int = 120) -> str:
    """Somebody's text, to be named in a message: on one line, without what steers a terminal."""
    shown = "".join(c if c.isprintable() else " " for c in text).strip()
    return shown if len(shown) <= most else shown[: most - 3] + "..."


class Wrong(UserError):
    """What is wrong with an expression, and where."""

    def __init__(self, text: str, message: str, at: int | None = None) -> None:
        near = "" if at is None else f" at column {at + 1}"
        super().__init__(f"{message}{near}: {in_a_line(text)}", 2)


def scapy() -> dict[str, Any]:
    """The layers by name. UserError: scapy is not installed."""
    import logging
    from importlib import import_module

    logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
    try:
        return {
            name: getattr(import_module(module), name) for module, names in _NAMES.items() for name in names
        }
    except ImportError as e:
        raise UserError(f"expressions and pcaps are read by scapy: pip install 'uvs[lab]' ({e})") from None


def packets(text: str) -> list[Packet]:
    """What an expression stands for: a packet, or a list of them. Wrong: it cannot be read, in one line."""
    built = Expression(text).build()
    found = built if isinstance(built, (list, tuple)) else [built]
    made = [taken(one, text) for packet in found for one in _each(packet, text)]
    if not made:
        raise Wrong(text, "no packet")
    return made


def _each(packet: Any, text: str) -> list[Any]:
    """The packets of a set: scapy's `dport=[80, 443]` and `dport=(1, 10)` stand for several."""
    if not hasattr(packet, "fields_desc"):
        return [packet]  # `taken` says that it is none
    try:
        several = list(islice(packet, PACKETS_MAX + 1))
    except Exception as e:  # of a set that is none
        raise Wrong(text, f"scapy cannot build it ({_first_line(e)})") from None
    if len(several) > PACKETS_MAX:
        raise Wrong(text, f"more than {PACKETS_MAX} packets")
    return several


def taken(packet: Any, text: str = "") -> Packet:
    """A scapy packet as bytes: its IP datagram, and what frame it is in."""
    names = scapy()
    frame = None
    if isinstance(packet, names["Ether"]):
        given = packet.fields
        if "src" in given and "dst" in given:
            frame = {"src": str(packet.src), "dst": str(packet.dst)}
        packet = packet.payload
    if not isinstance(packet, (names["IP"], names["IPv6"])):
        raise Wrong(text, "a packet begins with IP(...) or IPv6(...), or Ether(...) before them")
    try:
        return Packet(bytes(packet), frame)
    except Exception as e:  # scapy raises what its fields' packing raises
        raise Wrong(text, f"scapy cannot build it ({_first_line(e)})") from None


def _first_line(e: Exception) -> str:
    return in_a_line(str(e)) or type(e).__name__


def _meant(typed: str, known: Iterable[str]) -> str:
    """The name that was probably meant."""
    close = get_close_matches(typed, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


class Expression:
    """One expression; `build` makes what it says."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MAX_TEXT:
            raise Wrong(text, f"an expression of more than {_MAX_TEXT} characters")
        try:
            with warnings.catch_warnings(action="ignore"):  # of "\s" and the like
                self.tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            at = (e.offset or 1) - 1 if isinstance(e, SyntaxError) else None
            what = e.msg if isinstance(e, SyntaxError) else _first_line(e)
            raise Wrong(text, f"not an expression ({what})", at) from None
        self.names = scapy()

    def build(self) -> Any:
        """The object that it stands for."""
        try:
            return self._value(self.tree)
        except RecursionError:
            raise Wrong(self.text, "too deep") from None

    def _wrong(self, node: ast.AST, message: str) -> Wrong:
        return Wrong(self.text, message, getattr(node, "col_offset", None))

    def _value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=str() | bytes() | int() | float() | None):  # bool is an int
                return node.value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.List(elts=elts):
                return [self._value(one) for one in elts]
            case ast.Tuple(elts=elts):
                return tuple(self._value(one) for one in elts)
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                return self._over(node, self._value(left), self._value(right))
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                return self._times(node, self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id=name)):
                return self._layer(node, name)
            case ast.Name(id=name) if name in self.names:
                raise self._wrong(node, f"{name} is written {name}(...)")
            case ast.Name(id=name):
                raise self._wrong(node, f"no layer '{name}'{_meant(name, LAYERS)}")
        raise self._wrong(node, "not allowed: only layers, literals, lists, '/' and '*'")

    def _over(self, node: ast.AST, left: Any, right: Any) -> Any:
        packet = self.names["IP"].__mro__[1]  # scapy.packet.Packet
        if not isinstance(left, packet) or not isinstance(right, (packet, bytes, str)):
            raise self._wrong(node, "'/' puts a layer, or bytes, behind a layer")
        return left / right

    def _times(self, node: ast.AST, left: Any, right: Any) -> Any:
        if isinstance(left, int):
            left, right = right, left
        if not isinstance(left, (bytes, str)) or not isinstance(right, int):
            raise self._wrong(node, "'*' repeats a text or bytes")
        if len(left) * right > BYTES_MAX:
            raise self._wrong(node, f"more than {BYTES_MAX} bytes")
        return left * right

    def _layer(self, node: ast.Call, name: str) -> Any:
        if name not in self.names:
            raise self._wrong(node, f"no layer '{name}'{_meant(name, LAYERS)}")
        layer = self.names[name]
        if name == "Raw" and len(node.args) == 1 and not node.keywords:
            return layer(self._value(node.args[0]))
        if node.args:
            raise self._wrong(node.args[0], f"{name} takes name=value only")
        fields = {field.name for field in layer.fields_desc}
        values: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in fields:
                raise self._wrong(
                    keyword.value,
                    f"{name} has no field '{keyword.arg or '**'}'{_meant(keyword.arg or '', fields)}",
                )
            values[keyword.arg] = self._value(keyword.value)
        self._ends(node, name, values)
        try:
            return layer(**values)
        except Exception as e:  # of a value that the field does not take
            raise self._wrong(node, f"{name} takes no such value ({_first_line(e)})") from None

    def _ends(self, node: ast.Call, name: str, values: dict[str, Any]) -> None:
        """Both ends are given, as addresses: scapy would ask routes, a resolver or ARP for them."""
        check = _ENDS.get(name)
        if check is None:
            return
        for end in ("src", "dst"):
            if end not in values:
                raise self._wrong(node, f"{name} needs src= and dst=")
            try:
                check(values[end])
            except ValueError:
                raise self._wrong(node, f"{name}: {end}={values[end]!r} is no address") from None


def _mac(value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", value):
        raise ValueError


_ENDS: dict[str, Callable[[Any], Any]] = {"IP": IPv4Address, "IPv6": IPv6Address, "Ether": _mac}
