"""What `uvs.toml` says of health: checks, fault monitor, hooks, `[monitor]` (docs/reference/health.md).

Models only: `uvs.health` does what they say. Durations are seconds. A command line is a text for `sh -c`, or
a list of words that is run as it is.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

TIMEOUT_S = 3.0


class Model(BaseModel):
    """No value of another type, no key that is not known, nothing changed afterwards."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


def _name(text: str) -> str:
    labels = text.removesuffix(".").split(".")
    if (text != "." and not all(0 < len(label.encode()) < 64 for label in labels)) or len(
        text.encode()
    ) > 253:
        raise ValueError(f"{text!r} is not a domain name")
    return text


def _line(text: str) -> str:
    """It goes into a line of a protocol: nothing in it may end the line."""
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError(f"{text!r} has control characters")
    return text


def _path(text: str) -> str:
    if not text.startswith("/") or any(not 32 < ord(c) < 127 for c in text):
        raise ValueError(f"{text!r} is not a path: it begins with / and has ASCII without blanks")
    return text


def _hex(text: str) -> str:
    try:
        bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text!r} is not hexadecimal") from None
    return text


def _codes(codes: list[int | str]) -> list[int | str]:
    for code in codes:
        status_range(code)
    return codes


def status_range(code: int | str) -> tuple[int, int]:
    """First and last HTTP status of `200` or `"200-299"`. ValueError: neither."""
    match = re.fullmatch(r"(\d{3})(?:-(\d{3}))?", str(code))
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 100 <= low <= high <= 599:
        raise ValueError(f'{code!r} is no HTTP status: 200, or "200-299"')
    return low, high


def _words(command: str | list[str]) -> str | list[str]:
    if not command or not (command.strip() if isinstance(command, str) else command[0]):
        raise ValueError("a command line has at least a program")
    if "\0" in "".join(command):
        raise ValueError("a command line has no NUL")
    return command


Address = Annotated[str, AfterValidator(_address)]
Command = Annotated[str | list[str], AfterValidator(_words)]
Hex = Annotated[str, AfterValidator(_hex)]
Line = Annotated[str, AfterValidator(_line)]
Name = Annotated[str, AfterValidator(_name)]
Path = Annotated[str, AfterValidator(_path)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0.05, le=86400, allow_inf_nan=False)]
Times = Annotated[int, Field(ge=1, le=1000)]


class Common(Model):
    """What every check has.

    `interval` from the start of a run to that of the next; a server goes down with `fall` failures in a row,
    and comes back with `rise` successes. A run ends within `timeout`, which is no longer than `interval`:
    so a server that is dead is out within `fall × interval + timeout`.
    """

    interval: Seconds = 5.0
    timeout: Seconds = TIMEOUT_S
    rise: Times = 2
    fall: Times = 3
    address: Address | None = None  # instead of the server's own
    port: Port | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_interval(cls, data: Any) -> Any:
        if isinstance(data, dict) and "timeout" not in data:
            interval = data.get("interval")
            if isinstance(interval, int | float) and 0 < interval < TIMEOUT_S:
                return data | {"timeout": float(interval)}
        return data

    @model_validator(mode="after")
    def _within_interval(self) -> Common:
        if self.timeout > self.interval:
            raise ValueError(f"timeout ({self.timeout:g}) is longer than interval ({self.interval:g})")
        return self


class Tcp(Common):
    """A connection can be opened."""

    type: Literal["tcp"]


class Http(Common):
    """A request is answered with one of the statuses, and with what `header` and `body` say."""

    type: Literal["http"]
    method: Literal["GET", "HEAD", "OPTIONS"] = "GET"
    path: Path = "/"
    host: Line | None = None
    headers: dict[Line, Line] = {}
    status: Annotated[list[int | str], Field(min_length=1), AfterValidator(_codes)] = ["200-399"]
    header: dict[Line, Pattern] = {}
    body: Pattern | None = None
    body_max: Annotated[int, Field(ge=1, le=1 << 24)] = 65536

    @model_validator(mode="after")
    def _has_a_body(self) -> Http:
        if self.body is not None and self.method == "HEAD":
            raise ValueError("body: the answer to HEAD has none")
        for name in (*self.headers, *self.header):
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{name!r} is no name of a header")
        return self


class Https(Http):
    """As http, through TLS."""

    type: Literal["https"]  # type: ignore[assignment]
    verify: bool = True
    ca_file: str | None = None
    sni: Line | None = None


class Dns(Common):
    """A query is answered with the response code, and with a record that is `answer`."""

    type: Literal["dns"]
    query: Name
    record: Literal["A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"] = "A"
    rcode: Literal["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"] = "NOERROR"
    answer: Line | None = None
    transport: Literal["udp", "tcp"] = "udp"


class Smtp(Common):
    """A mail server greets, and answers EHLO and QUIT."""

    type: Literal["smtp"]
    helo: Annotated[Line, Field(pattern=r"^\S+$")] = "localhost"


class Ping(Common):
    """An ICMP or ICMPv6 echo request is answered."""

    type: Literal["ping"]


class Udp(Common):
    """A datagram is answered as expected, or at least not with "port unreachable"."""

    type: Literal["udp"]
    payload: str = ""
    payload_hex: Hex | None = None
    expect: Pattern | None = None
    require_answer: bool = False

    @model_validator(mode="after")
    def _one_payload(self) -> Udp:
        if self.payload and self.payload_hex is not None:
            raise ValueError("payload and payload_hex: one of them")
        return self


class External(Common):
    """A command's exit status; with `weight`, 2…255 is the server's new weight plus 2."""

    type: Literal["command"]
    command: Command
    weight: bool = False


class Forward(Common):
    """A SYN that goes the way of a client's request, by the service's forwarding method, is answered."""

    type: Literal["forward"]
    source: Address | None = None


Check = Annotated[
    Tcp | Http | Https | Dns | Smtp | Ping | Udp | External | Forward, Field(discriminator="type")
]


class Fault(Model):
    """The fault monitor of a service's servers.

    Failed runs within the last `retry_interval`: below `retry_count` the server is DEGRADED, stays, and
    `restart` is run; at it the server is FAULTED and taken out. `pid_file` or `process` (a program's name)
    tells a local server's process, which is otherwise found by the port at which it listens.
    """

    retry_count: Times = 3
    retry_interval: Seconds = 60.0
    restart: Command | None = None
    restart_timeout: Seconds = 30.0
    watch_process: bool = True
    pid_file: str | None = None
    process: str | None = None


class Hooks(Model):
    """Commands that are run once per change, in order; what they are told is in their environment."""

    up: Command | None = None
    down: Command | None = None
    degraded: Command | None = None
    quorum_up: Command | None = None
    quorum_down: Command | None = None
    timeout: Seconds = 30.0


class Monitor(Model):
    """`[monitor]`: the monitor as a whole. Its hooks are run for every service, after the service's own."""

    process: Literal["director", "own"] = "director"
    history: Annotated[int, Field(ge=1, le=100)] = 20
    concurrency: Annotated[int, Field(ge=1, le=10000)] = 100
    hooks: Hooks = Hooks()
