"""What services and servers cost: UDP packets of known connections, and packets that each make a new one (wlc)."""

from __future__ import annotations

from bench.results import Figure
from bench.stand import SERVER, Stand
from bench.work import Pace
from uvs.lab import processes
from uvs.lab.topology import VIP

FIRST = 20_000  # ports of services; of servers too
FLOWS = 1_000
# Known connections stay; new ones end soon, lest one measurement fills the table for the next.
STAY_S, END_S, CONN_MAX = 300, 2, 1 << 22
FIRST_PACKETS = 5_000  # a second

FIGURES = [
    Figure("known", "1000 packets/s of known connections", 0),
    Figure("new", "1000 new connections/s", 1),
]


def lines(server: str, services: int, servers: int) -> list[list[str]]:
    """uvsadm's commands: services on ports from FIRST on, each with servers on ports from FIRST on."""
    made = []
    for port in range(FIRST, FIRST + services):
        virtual = f"{VIP[4]}:{port}"
        made.append(["-A", "-u", virtual, "-s", "wlc"])
        made += [["-a", "-u", virtual, "-r", f"{server}:{FIRST + i}", "-m"] for i in range(servers)]
    return made


def set_up(stand: Stand, services: int, servers: int) -> None:
    """Tell its director of them, and send each server a packet: its first one finds the way there, and is slower."""
    processes.restore(stand.lab, lines(stand.lab.topology[SERVER].address(4), services, servers))
    processes.uvsadm(stand.lab, "--set", "0", "0", str(END_S))
    stand.packets(services * servers / FIRST_PACKETS + 0.1, flows=0, port=FIRST, ports=services)


def measure(stand: Stand, services: int, pace: Pace) -> dict[str, float]:
    """Thousands a second."""
    many = {"warm_up": pace.size_warm_up, "port": FIRST, "ports": services}
    processes.uvsadm(stand.lab, "--set", "0", "0", str(STAY_S))
    known, _ = stand.packets(pace.size_packets, flows=FLOWS, **many)
    processes.uvsadm(stand.lab, "--set", "0", "0", str(END_S))
    new, _ = stand.packets(pace.size_packets, flows=0, **many)
    return {"known": known / 1e3, "new": new / 1e3}
