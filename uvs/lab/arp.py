"""`uvs lab arp`: who answers for the VIP in a lab of direct routing; its ARP problem, made and mended."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Mapping, Sequence
from json import loads

from uvs.lab import links
from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.processes import PYTHON
from uvs.lab.topology import SILENT_VIP, VIP, url
from uvs.lab.wires import Listener, macs, opened, owners

ETH_P_ARP = b"\x08\x06"
REQUEST, REPLY = b"\0\1", b"\0\2"  # RFC 826, ar$op
FIRST, QUIET = 20.0, 0.5  # seconds: for the first answer, and for each further one
_TALKATIVE = dict.fromkeys(SILENT_VIP, "0")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `uvs lab arp`."""
    which = parser.add_mutually_exclusive_group()
    add = which.add_argument
    add(
        "--break", dest="wanted", action="store_const", const="break", help="arp_ignore and arp_announce to 0"
    )
    add(
        "--mend", dest="wanted", action="store_const", const="mend", help="arp_ignore to 1, arp_announce to 2"
    )


def main(args: argparse.Namespace, lab: Lab) -> int:
    """Set what is asked for, ask as the client does, tell who answered; 0 if only the director did."""
    if lab.topology.mode != "dr":
        raise LabError(
            f"only mode dr has the ARP problem, this lab is of mode {lab.topology.mode}: uvs lab mode dr"
        )
    if args.wanted:
        set_knobs(lab, _TALKATIVE if args.wanted == "break" else SILENT_VIP)
    for name, values in knobs(lab).items():
        print(
            f"{name.rpartition('/')[2]:13} {', '.join(f'{host} {value}' for host, value in values.items())}"
        )
    answers = who_has(lab)
    print(f"\nclient asks all: who has {VIP[4]}?")
    for host, mac in answers:
        print(f"  {host:10} {mac}  says: I have")
    believed = _believed(lab)
    print(f"client sends its requests to {believed}")
    if [host for host, _ in answers] == ["director"]:
        print("\nOnly the director answers: every request comes to it.")
        return 0
    print(
        "\nThe real servers have the VIP on lo, and Linux answers ARP for any address of the host. Whoever is"
        "\nbelieved gets the requests: a server answers them itself, past the director. Mended by"
        "\narp_ignore=1 (answer only for addresses of the interface asked on) and arp_announce=2 (do not use"
        "\nthe VIP as the source of own ARP requests): uvs lab arp --mend"
    )
    return 1


def set_knobs(lab: Lab, knobs: Mapping[str, str]) -> None:
    """Set these sysctls on all real servers, and let the client forget what it knows of the VIP."""
    for host in lab.topology.servers:
        lab.call(host.name, links.write_sysctls, knobs)
    lab.check("client", ["ip", "neigh", "flush", "to", VIP[4]])


def knobs(lab: Lab) -> dict[str, dict[str, str]]:
    """The values of arp_ignore and arp_announce on each real server."""
    read = {host.name: lab.call(host.name, _read, list(SILENT_VIP)) for host in lab.topology.servers}
    return {name: {host: values[name] for host, values in read.items()} for name in SILENT_VIP}


def _read(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with open(f"/proc/sys/{name}") as file:
            found[name] = file.read().strip()
    return found


def who_has(lab: Lab) -> list[tuple[str, str]]:
    """Hosts that answer the client's ARP request for the VIP, as they answered, with their MAC addresses."""
    names = owners(lab)
    own = bytes.fromhex(macs(lab, "client")["eth0"].replace(":", ""))
    vip = socket.inet_aton(VIP[4])
    # struct arphdr: Ethernet (1), IPv4, lengths 6 and 4; then sender's and target's MAC and IP address
    head = b"\0\1\x08\0\6\4" + REQUEST
    asked = head + own + socket.inet_aton(lab.topology["client"].address(4)) + bytes(6) + vip
    found: list[tuple[str, str]] = []
    listener = Listener(lab, ["client"])
    try:
        with opened(lab, "client", socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.sendto(b"\xff" * 6 + own + ETH_P_ARP + asked, ("eth0", 0))
        last = time.monotonic() + FIRST
        while (left := last - time.monotonic()) > 0:
            for frame in listener.frames(left):
                reply = not frame.out and frame.data[12:14] == ETH_P_ARP and frame.data[20:22] == REPLY
                if reply and frame.data[28:32] == vip:
                    mac = frame.data[22:28].hex(":")
                    found.append((names.get(mac, "?"), mac))
                    last = time.monotonic() + QUIET
                    break  # from here on the wait is shorter
                if time.monotonic() > last:
                    break
    finally:
        listener.close()
    if not found:
        raise LabError(f"nobody answers for {VIP[4]}: is the director's cable pulled? uvs lab start director")
    return found


def _believed(lab: Lab) -> str:
    """Let the client ask by itself; whom it sends to then."""
    names = owners(lab)
    lab.check("client", ["ip", "neigh", "flush", "to", VIP[4]])
    lab.run("client", [*PYTHON, "uvs.lab.fetch", url(4)])
    rows = loads(lab.check("client", ["ip", "-j", "neigh", "show", "to", VIP[4]]) or "[]")
    mac = next((row["lladdr"] for row in rows if "lladdr" in row), "nobody")
    return f"{names.get(mac, '?')}, {mac}"
