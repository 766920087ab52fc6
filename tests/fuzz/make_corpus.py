"""Write the fuzz target's seeds: `python tests/fuzz/make_corpus.py`; findings are added by hand.

Each seed is a short story of packets in the form that fuzz_path.c reads, named after what it shows.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from scapy.layers.inet import (
    ICMP,
    IP,
    TCP,
    UDP,
    IPOption_EOL,
    IPOption_LSRR,
    IPOption_NOP,
    IPOption_Router_Alert,
    IPOption_RR,
)
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.ipsec import AH, ESP
from scapy.layers.l2 import GRE
from scapy.layers.sctp import (
    SCTP,
    SCTPChunkAbort,
    SCTPChunkCookieAck,
    SCTPChunkCookieEcho,
    SCTPChunkData,
    SCTPChunkInit,
    SCTPChunkInitAck,
    SCTPChunkShutdown,
)

CORPUS = Path(__file__).parent / "corpus"

FILL, REPLY, NEW, TUNNEL, FRAGMENT, TEMPLATE, ONE_PACKET, DELETE = (1 << n for n in range(8))
NAT4, NAT6, TUN4, TUN6, DR4, DR6 = range(6)  # the target's destinations
CSUM = 4  # of a tunnel

C4, V4, S4 = "198.51.100.7", "192.0.2.1", "10.0.0.2"
C6, V6, S6 = "2001:db8:c::7", "2001:db8::1", "fd00::2"
REQ4, REP4 = IP(src=C4, dst=V4, ttl=9), IP(src=S4, dst=C4, ttl=9)
REQ6, REP6 = IPv6(src=C6, dst=V6, hlim=9), IPv6(src=S6, dst=C6, hlim=9)
PORTS, BACK = {"sport": 54321, "dport": 80}, {"sport": 8080, "dport": 54321}

Step = tuple[int, int, int, int, Any]


def step(op: int, packet: Any, dest: int = NAT4, seconds: int = 0, at: int = 0) -> Step:
    return op, dest, seconds, at, packet


DELETED, NODEST, DROP_ENTRY, EDITED, SECURE_TCP, CHOOSE, SET_ASIDE, TIMEOUT = range(8)  # commands


def command(which: int, arg: int = 0, seconds: int = 0) -> Step:
    return 0, arg, seconds, which, b""


def tcp(flags: str, back: bool = False, data: bytes = b"") -> Any:
    return TCP(flags=flags, **(BACK if back else PORTS)) / data


def session(req: Any, rep: Any, dest: int) -> list[Step]:
    """A whole TCP connection by NAT, the client closing first."""
    there, back = [("S", b""), ("A", b""), ("PA", b"GET /"), ("FA", b""), ("A", b"")], ["SA", "PA", "FA"]
    steps = [step(FILL | NEW, req / tcp(f, data=d), dest, 1) for f, d in there[:1]]
    steps.append(step(FILL | REPLY, rep / tcp(back[0], True), dest))
    steps += [step(FILL, req / tcp(f, data=d), dest) for f, d in there[1:3]]
    steps.append(step(FILL | REPLY, rep / tcp(back[1], True, b"200"), dest))
    steps += [step(FILL, req / tcp(f, data=d), dest) for f, d in there[3:4]]
    steps.append(step(FILL | REPLY, rep / tcp(back[2], True), dest))
    return [*steps, step(FILL, req / tcp("A"), dest), step(0, req / tcp("S"), dest, 121)]


def sctp(*chunks: Any, back: bool = False) -> Any:
    packet = SCTP(**(BACK if back else PORTS))
    for chunk in chunks:
        packet = packet / chunk
    return packet


def part4(at: int, more: int, size: int) -> Any:
    return IP(src=C4, dst=V4, id=7, frag=at, flags="MF" if more else 0, proto=17) / bytes(range(size))


def part6(at: int, more: int, size: int) -> Any:
    return REQ6 / IPv6ExtHdrFragment(offset=at, m=more, id=7, nh=17) / bytes(range(size))


def stories() -> dict[str, list[Step]]:
    udp, back = UDP(**PORTS), UDP(**BACK)
    quote4 = bytes(IP(src=V4, dst=C4) / TCP(sport=80, dport=54321) / b"data")
    asked4 = bytes(IP(src=C4, dst=S4) / UDP(sport=54321, dport=8080) / b"data")
    quote6 = bytes(IPv6(src=V6, dst=C6) / TCP(sport=80, dport=54321) / b"data")
    asked6 = bytes(IPv6(src=C6, dst=S6) / UDP(sport=54321, dport=8080) / b"data")
    options = [
        IPOption_RR(routers=[S4]),
        IPOption_LSRR(routers=[S4]),
        IPOption_NOP(),
        IPOption_Router_Alert(),
        IPOption_EOL(),
    ]
    headers = (
        IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / IPv6ExtHdrRouting(addresses=[S6]) / IPv6ExtHdrDestOpt()
    )
    out: dict[str, list[Step]] = {
        "tcp-nat-v4": session(REQ4, REP4, NAT4),
        "tcp-nat-v6": session(REQ6, REP6, NAT6),
        "tcp-reset": [step(FILL | NEW, REQ4 / tcp("S")), step(FILL | REPLY, REP4 / tcp("R", True))],
        "tcp-dr-v4": [step(FILL | NEW, REQ4 / tcp(f), DR4) for f in ("S", "A", "F")],
        "tcp-dr-v6": [step(FILL | NEW, REQ6 / tcp(f), DR6) for f in ("S", "A", "F")],
        "tcp-template": [step(FILL | NEW | TEMPLATE, REQ4 / TCP(sport=n, dport=80), NAT4, 100) for n in (1, 2, 3, 4)],
        "tcp-deleted": [step(FILL | NEW | TEMPLATE | DELETE, REQ4 / tcp("S"), n) for n in (NAT4, TUN4)],
        "tcp-reply-to-port-0": [  # its answer to client port 0 finds the template, which has no helper
            step(FILL | NEW | TEMPLATE, REQ4 / tcp("S")),
            step(FILL | REPLY, REP4 / TCP(sport=8080, dport=0, flags="A")),
        ],
        "tcp-options": [step(FILL | NEW, REQ4 / TCP(options=[("MSS", 1460), ("SAckOK", b"")], **PORTS))],
        "tcp-helper": [
            step(FILL | NEW, REQ4 / tcp("A")),
            step(FILL | REPLY, REP4 / TCP(flags="PA", **BACK) / b"227 (10,0,0,2,4,1)\r\n", 40),
            step(FILL, REQ4 / TCP(flags="A", ack=7, options=[("NOP", None), ("SAck", (1, 5, 7, 9))], **PORTS), 8),
        ],
        "tcp-engine": [step(FILL | NEW | TEMPLATE, REQ4 / TCP(sport=n, dport=80), 6 * n) for n in (1, 2, 3)],
        "no-cport": [step(FILL | NEW, REQ4 / tcp("S"), 128 + 4 + n) for n in (0, 2)],
        "overload": [step(FILL | NEW, REQ4 / TCP(sport=n, dport=80)) for n in range(1, 6)],
        "udp-v4": [step(NEW, REQ4 / udp / b"ask"), step(REPLY, REP4 / back / b"answer"), step(0, REQ4 / udp, 0, 200)],
        "udp-v6": [step(NEW, REQ6 / udp / b"ask", NAT6), step(REPLY, REP6 / back / b"answer", NAT6)],
        "udp-no-checksum": [step(NEW, REQ4 / UDP(chksum=0, **PORTS) / b"ask"), step(NEW, REQ6 / UDP(chksum=0, **PORTS), NAT6)],
        "udp-one-packet": [step(FILL | NEW | ONE_PACKET, REQ4 / udp / b"x")] * 2,
        "udp-short-length": [step(FILL | NEW, REQ4 / UDP(len=9, **PORTS) / b"abcd")],
        "sctp": [
            step(FILL | NEW, REQ4 / sctp(SCTPChunkInit())),
            step(FILL | REPLY, REP4 / sctp(SCTPChunkInitAck(), back=True)),
            step(FILL, REQ4 / sctp(SCTPChunkCookieEcho(cookie=b"12345"), SCTPChunkData(data=b"x"))),
            step(FILL | REPLY, REP4 / sctp(SCTPChunkCookieAck(), back=True)),
            step(FILL, REQ4 / sctp(SCTPChunkShutdown())),
        ],
        "sctp-abort": [step(FILL | NEW, REQ6 / sctp(SCTPChunkCookieAck(), SCTPChunkAbort()), NAT6)],
        "esp-follows-isakmp": [
            step(FILL | NEW, REQ4 / UDP(sport=500, dport=500) / b"ike"),
            step(0, REQ4 / ESP(data=bytes(16))),
            step(0, REQ4 / AH(nh=6, icv=bytes(12)) / tcp("S")),
        ],
        "ip-options": [step(FILL | NEW | FRAGMENT, IP(src=C4, dst=V4, options=options) / udp / bytes(200), 30)],
        "v6-headers": [step(FILL | NEW, REQ6 / headers / tcp("S"), NAT6)],
        "v6-ah": [step(FILL | NEW, REQ6 / AH(nh=6, payloadlen=4, icv=bytes(12)) / tcp("S"), NAT6)],
        "v4-first-fragment": [step(FILL | NEW, IP(src=C4, dst=V4, flags="MF") / udp / bytes(64))],
        "v4-fragments": [step(0, part4(*p)) for p in ((9, 0, 8), (0, 1, 40), (0, 1, 40), (5, 1, 32))],
        "v4-overlap": [step(0, part4(*p)) for p in ((0, 1, 40), (4, 1, 40), (9, 0, 8))],
        "v6-fragments": [step(0, part6(*p)) for p in ((9, 0, 7), (5, 1, 32), (0, 1, 40))],
        "v6-overlap": [step(0, part6(*p)) for p in ((5, 1, 32), (0, 1, 48), (9, 0, 7))],
        "cut-small": [step(FILL | FRAGMENT, REQ4 / udp / bytes(900), 6), step(FILL | FRAGMENT, REQ6 / udp / bytes(900), 22)],
        "v4-later-fragment": [step(FILL | NEW | FRAGMENT, IP(src=C4, dst=V4, flags="MF", frag=9, proto=17) / bytes(128), 12)],
        "v6-first-fragment": [step(FILL | NEW | FRAGMENT, REQ6 / IPv6ExtHdrFragment(m=1) / udp / bytes(64), NAT6)],
        "v6-later-fragment": [step(FILL | NEW, REQ6 / IPv6ExtHdrFragment(offset=9, nh=17) / bytes(64), NAT6)],
        "v6-atomic-fragment": [step(FILL | NEW, REQ6 / IPv6ExtHdrFragment() / udp / bytes(64), NAT6)],
        "cut-v4": [step(FILL | FRAGMENT, REQ4 / udp / bytes(600), n) for n in (13, 20, 40)],
        "cut-v6": [step(FILL | FRAGMENT, REQ6 / headers / udp / bytes(600), n) for n in (37, 64, 100)],
        "ping": [step(FILL, REQ4 / ICMP() / b"abc"), step(FILL, REQ6 / ICMPv6EchoRequest(data=b"abc"))],
        "commands": [
            *(step(FILL | NEW | TEMPLATE, REQ4 / TCP(sport=n, dport=80)) for n in (1, 2)),
            *(command(which, arg) for which in range(8) for arg in (0, 13)),
            step(FILL, REQ4 / TCP(sport=1, dport=80, flags="A"), 0, 61),
            command(DELETED, 0), command(NODEST),
        ],
        "flood": [
            *(step(FILL | NEW, REQ4 / TCP(sport=n, dport=80)) for n in range(1, 9)),
            *(command(DROP_ENTRY, n, 61) for n in range(9)),
        ],
        "quiesced": [
            step(FILL | NEW | TEMPLATE, REQ4 / udp), command(EDITED, 0), command(SET_ASIDE), command(CHOOSE),
            step(FILL | NEW | TEMPLATE, REQ4 / UDP(sport=7, dport=80)), command(SECURE_TCP, 1),
            step(FILL | NEW, REQ4 / tcp("S"), DR4), step(FILL, REQ4 / tcp("A"), DR4),
        ],
        "nothing": [step(0, b"\x45"), step(0, b"\x60" + bytes(39))],
        "lengths": [step(FILL | NEW, bytes(REQ4 / tcp("S"))[:n]) for n in (20, 24, 39)]
        + [step(FILL | NEW, IP(src=C4, dst=V4, proto=6) / bytes(tcp("S"))[:n]) for n in (3, 4, 19)],
    }  # fmt: skip
    for name, cut in ("whole", 60), ("8", 28), ("4", 24), ("header", 19):
        out[f"icmp-client-v4-{name}"] = [
            step(FILL | NEW, REQ4 / tcp("S")),
            step(FILL, IP(src=C4, dst=V4) / ICMP(type=3, code=4, nexthopmtu=1400) / quote4[:cut], at=28),
        ]
        out[f"icmp-server-v4-{name}"] = [
            step(FILL | NEW, REQ4 / udp),
            step(FILL | REPLY, IP(src=S4, dst=C4) / ICMP(type=3, code=3) / asked4[:cut], at=28),
        ]
        out[f"icmp-client-v6-{name}"] = [
            step(FILL | NEW, REQ6 / tcp("S"), NAT6),
            step(FILL, IPv6(src=C6, dst=V6) / ICMPv6PacketTooBig(mtu=1400) / quote6[: cut + 20], at=49),
        ]
        out[f"icmp-server-v6-{name}"] = [
            step(FILL | NEW, REQ6 / udp, NAT6),
            step(FILL | REPLY, IPv6(src=S6, dst=C6) / ICMPv6DestUnreach(code=4) / asked6[: cut + 20], at=49),
        ]
    for name, outer, inner in (
        ("4-in-4", 0, REQ4),
        ("6-in-4", 0, REQ6),
        ("4-in-6", 2, REQ4),
        ("6-in-6", 2, REQ6),
    ):
        for kind, how in (("ipip", 0), ("gue", 1 | CSUM), ("gre", 2 | CSUM)):
            out[f"{kind}-{name}"] = [
                step(FILL | NEW | TUNNEL | FRAGMENT, inner / udp / bytes(300), TUN6 + 24, at=outer | how << 3)
            ]
    # Errors about tunnels quote what fuzz_path.c's parser may be led to: gue and gre in front of an IPv4 header.
    gue = UDP(sport=40000, dport=6080, chksum=0) / (b"\0\4\0\0" + bytes(REQ4 / udp))
    gre = GRE(proto=0x0800) / REQ4 / udp
    for name, at, tunnel in (("gue", 60, gue), ("gre", 52, gre)):
        outer4 = IP(src=V4, dst=S4, proto=17 if name == "gue" else 47) / tunnel
        out[f"icmp-about-{name}"] = [
            step(FILL | NEW, REQ4 / udp),
            step(FILL, IP(src=S4, dst=V4) / ICMP(type=3, code=4, nexthopmtu=1400) / bytes(outer4), at=at),
        ]
    return out


def seed(steps: list[Step]) -> bytes:
    """Bytes as fuzz_path.c reads them."""
    parts = []
    for op, dest, seconds, at, packet in steps:
        data = bytes(packet)
        parts.append(struct.pack("!BBBBH", op, dest, seconds, at, len(data)) + data)
    return b"".join(parts)


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for name, steps in stories().items():
        (CORPUS / name).write_bytes(seed(steps))


if __name__ == "__main__":
    main()
