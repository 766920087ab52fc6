"""Names in listings: a name server that never answers does not hold one up for ever."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from support.control import running
from support.sandbox import ip, sandboxed

from uvs.ipvs.spec import ServiceKey, ServiceSpec

SERVER = "192.0.2.53"
SERVICES = 40  # a look-up that nobody answers takes the resolver ten seconds
TIMEOUT_S = 120  # far less than 40 look-ups, far more than the five seconds that all may take together


@sandboxed
def test_a_listing_comes_without_the_name_server() -> None:
    ip(f"address add {SERVER} dev lo")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as director:
        for name, text in {
            "resolv.conf": f"nameserver {SERVER}\n",
            "nsswitch.conf": "hosts: files dns\nservices: files\n",
            "hosts": "10.0.0.1 first.example\n",
        }.items():
            (Path(folder) / name).write_text(text)
            subprocess.run(["mount", "--bind", f"{folder}/{name}", f"/etc/{name}"], check=True)
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent.bind((SERVER, 53))
        for last in range(1, SERVICES + 1):
            spec = ServiceSpec(ServiceKey(2, 6, bytes([10, 0, 0, last]), 80))
            director.do(lambda spec=spec: director.ipvs.services.add_service(spec))
        done = subprocess.run(
            [sys.executable, "-m", "uvs.adm.cli", "-L"],
            env=os.environ | {"UVS_SOCKET": director.path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        shown = [line.split()[1] for line in done.stdout.splitlines()[3:]]
        assert shown == ["first.example:http", *(f"10.0.0.{n}:http" for n in range(2, SERVICES + 1))]
        silent.setblocking(False)
        assert b"\x07in-addr\x04arpa" in silent.recv(512)  # it was asked
