"""A change waits for the firewall's programs; packets and other clients do not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from support.director import ADM, Director, directors
from support.sandbox import ip, sandboxed, wait_for

VIP, RIP = "192.0.2.100", "192.0.2.2"
PATIENCE_S = 30.0
PROGRAMS = ("ipset", "nft")  # what a change of the sets runs
HELD = """#!/bin/sh
if [ -e {hold} ]; then read line < {gate}; fi
exec {program} "$@"
"""


def held_programs(where: Path) -> None:
    """Programs in front of the real ones in PATH that wait at `where`/gate while there is `where`/hold."""
    (where / "bin").mkdir()
    os.mkfifo(where / "gate")
    for name in PROGRAMS:
        if program := shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            wrapper = where / "bin" / name
            wrapper.write_text(HELD.format(hold=where / "hold", gate=where / "gate", program=program))
            wrapper.chmod(0o755)
    os.environ["PATH"] = f"{where / 'bin'}:{os.environ['PATH']}"


def echo() -> None:
    """A UDP server at RIP that answers what it gets."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((RIP, 7))

    def serve() -> None:
        while True:
            data, peer = server.recvfrom(100)
            server.sendto(data, peer)

    threading.Thread(target=serve, daemon=True).start()


def waits_at(gate: Path) -> int | None:
    """A descriptor that opens the gate, once somebody waits there."""
    try:
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@sandboxed
def test_packets_and_clients_go_on_while_the_firewall_s_program_runs():
    ip(f"address add {VIP}/32 dev lo", f"address add {RIP}/32 dev lo")
    echo()
    with directors() as where, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        held_programs(where)
        director = Director(where).ready()
        try:
            director.adm("-A", "-u", f"{VIP}:7", "-s", "rr")
            director.adm("-a", "-u", f"{VIP}:7", "-r", f"{RIP}:7", "-m")
            client.settimeout(PATIENCE_S)
            client.connect((VIP, 7))
            (where / "hold").touch()
            command = [*ADM, "-A", "-t", f"{VIP}:81", "-s", "rr"]
            changing = subprocess.Popen(command, env={**os.environ, "UVS_SOCKET": str(director.socket)})
            gate = wait_for(lambda: waits_at(where / "gate"), "the program is run", PATIENCE_S)
            for n in range(100):
                client.send(b"%d" % n)
                assert client.recv(100) == b"%d" % n
            assert f"{VIP}:81" in director.adm("-Ln")
            assert changing.poll() is None, "not acknowledged before the sets have it"
            (where / "hold").unlink()
            os.write(gate, b"\n")
            assert changing.wait(PATIENCE_S) == 0
        finally:
            director.stop()
