"""The arena on a tmpfs too small for it (in a mount namespace): a full table, never SIGBUS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from support.table import SECOND, World, verify
from uvs.engine.core import TableError

try:
    World("/mnt/small/connections")
except TableError as error:
    print(error)

with World("/mnt/big/connections", conn_max=100_000) as w:
    made, args = 0, (w.af, 6, w.client)
    for _ in range(3):
        while w.table.conn_new(*args, made % 60_000 + 1, w.vip, 80 + made // 60_000, w.af, w.rip, 80, 0, 0,
                               w.dest.index, w.now):
            made += 1
        w.now += SECOND
    info = w.table.info()
    print(made, info["conns"], info["full"], info["records"] - 2)
    w.now += 4 * SECOND
    while w.table.expire(w.now, 1000) == 1000:
        pass
    print(verify(w.table))
    for i in range(1000):
        w.new(cport=i + 1)
with World("/mnt/big/connections", conn_max=100_000) as w:
    print(w.table.message, verify(w.table))
"""


def test_full_tmpfs() -> None:
    """5 MiB hold two segments of 2 MiB, 1 MiB none; the table says so, and works on."""
    shell = """
    mount -t tmpfs none /mnt && mkdir /mnt/small /mnt/big &&
    mount -t tmpfs -o size=1m none /mnt/small && mount -t tmpfs -o size=5m none /mnt/big &&
    exec "$0" -c "$1"
    """
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell, sys.executable, SCRIPT]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "no space for arena /mnt/small/connections: No space left on device",
        "32734 32734 3 32734",
        "0",
        " 1000",
    ]
