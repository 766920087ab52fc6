"""A process that keeps a table busy until it is killed: `python -m support.churn ARENA SEED`.

Makes connections with templates, sends packets, lets time pass and deletes. Client ports count up;
each that is made stays for a while, so that the last ones must be there afterwards. Prints a line for
every hundredth.
"""

from __future__ import annotations

import random
import sys

from support.table import MASQ, ROUTE, START, header
from uvs.engine.core import AF_INET, ConnFlag, DestFlag, Dir, Table

BOOT = bytes(range(16))
VIP = bytes([192, 0, 2, 1])
ALIVE = 200  # of the newest connections none is deleted or due


def client(n: int) -> bytes:
    """The client address of connection `n`; its port is 1."""
    return bytes([10, *n.to_bytes(3)])


def main(path: str, seed: int) -> None:
    """Run until killed, or for as many connections as have an address."""
    rnd = random.Random(seed)
    table = Table(path, 200_000, BOOT, START)
    dests = []
    for i in range(3):
        dest = table.dest_new()
        assert dest is not None
        dest.af = dest.vaf = AF_INET
        dest.addr, dest.flags = bytes([10, 0, 0, i]), DestFlag.AVAILABLE
        dest.conn_flags = ConnFlag.INACTIVE | (MASQ if i else ROUTE | ConnFlag.NOOUTPUT)
        dests.append(dest)
    now = START
    for n in range(1, 1 << 24):
        dest = rnd.choice(dests)
        conn = table.conn_new(
            AF_INET, 6, client(n), 1, VIP, 80, AF_INET, dest.addr, 80, 0, 0, dest.index, now
        )
        assert conn is not None
        flags = rnd.choice([2, 2, 16, 17])
        table.set_state(conn, Dir.INPUT, header(6, client(n), 1, VIP, 80, tcp_flags=flags))
        table.conn_put(conn, now)
        if rnd.random() < 0.3:
            key = client(n - n % 7)
            pe = b"sip " + b"x" * (n % 7 * 42) if n % 2 else b""
            template = table.ct_in_get(AF_INET, 6, key, VIP, 80, pe)
            if template is None:
                template = table.conn_new(
                    AF_INET,
                    6,
                    key,
                    0,
                    VIP,
                    80,
                    AF_INET,
                    dest.addr,
                    80,
                    0,
                    ConnFlag.TEMPLATE,
                    dest.index,
                    now,
                    pe,
                )
                assert template is not None
                template.timeout = 5000
                table.conn_put(template, now)
            table.control_add(conn, template)
        if n % 5 == 0:
            app = table.app_data(conn, make=True)
            assert app is not None
            app.resized(n, 1)
        if n > ALIVE and rnd.random() < 0.5:
            old = n - ALIVE - rnd.randrange(min(ALIVE, n - ALIVE))
            victim = table.conn_in_get(header(6, client(old), 1, VIP, 80))
            if victim:
                table.conn_del(victim)
        if n % 50 == 0:
            now += 1_000_000_000
            table.expire(now, 1000)
        if n % 100 == 0:
            print(n, now, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
