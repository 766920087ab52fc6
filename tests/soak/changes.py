"""What an operator changes in a soak, at random: services and servers of the changed addresses, connections, knobs."""

from __future__ import annotations

import dataclasses
import random
import socket
from collections import Counter
from collections.abc import Callable

from soak.place import CHANGED, DROUTE, FAMILIES, MASQ, PERSISTENT, SERVERS, TUNNEL, add, key, server
from uvs.control.client import Client
from uvs.control.connfilter import ConnFilter
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.lab.topology import ECHO_PORT, HTTP_PORT

SCHEDULERS = ("rr", "wrr", "lc", "wlc", "sh", "dh", "mh", "sed", "nq", "fo", "ovf", "lblc", "lblcr")
METHODS = (MASQ, DROUTE, TUNNEL)
# What may change while connections are under way to services that are left alone. Not those that drop what is
# wanted (drop_entry=3, drop_packet=3), have counters stand still (run_estimation) or no longer count a connection
# that comes again (conn_reuse_mode=0).
KNOBS = {
    "cache_bypass": "01",
    "drop_entry": "012",
    "drop_packet": "012",
    "expire_nodest_conn": "01",
    "expire_quiescent_template": "01",
    "ignore_tunneled": "01",
    "nat_icmp_send": "01",
    "schedule_icmp": "01",
    "secure_tcp": "01",
    "sloppy_sctp": "01",
    "sloppy_tcp": "01",
}


class Operator:
    """One who never rests."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.rnd = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.keys = [
            key(family, last, port)
            for family in FAMILIES
            for last in CHANGED
            for port in (HTTP_PORT, ECHO_PORT)
        ]
        self.table: dict[ServiceKey, tuple[ServiceSpec, list[DestSpec]]] = {}

    def change(self) -> None:
        """One change."""
        rnd = self.rnd
        if len(self.table) < len(self.keys) // 2:
            self._add_service()
            return
        acts: list[tuple[int, Callable[[], None]]] = [
            (3, self._add_service), (2, self._edit_service), (2, self._del_service), (6, self._add_dest),
            (10, self._edit_dest), (4, self._del_dest), (3, self._flush), (3, self._knob), (1, self._restore),
            (1, self._zero),
        ]  # fmt: skip
        (act,) = rnd.choices([a for _, a in acts], [w for w, _ in acts])
        act()
        self.done[act.__name__[1:]] += 1

    def clear(self) -> None:
        """No service of these any more, and every knob as it was."""
        for each in list(self.table):
            self.client.del_service(each)
        self.table.clear()
        for name in KNOBS:
            self.client.set_sysctl(name, "0")

    # ---- services

    def _spec(self, of: ServiceKey) -> ServiceSpec:
        spec = ServiceSpec(of, self.rnd.choice(SCHEDULERS))
        if of.af == socket.AF_INET6:
            spec.netmask = 128
        if self.rnd.random() < 0.5:
            spec.flags, spec.timeout = PERSISTENT, self.rnd.choice((20, 60, 120))
        return spec

    def _add_service(self) -> None:
        if left := [k for k in self.keys if k not in self.table]:
            of = self.rnd.choice(left)
            servers = [self._server(of, n) for n in range(1, SERVERS + 1) if self.rnd.random() < 0.8]
            spec = self._spec(of)
            add(self.client, spec, servers)
            self.table[of] = spec, servers

    def _edit_service(self) -> None:
        of = self.rnd.choice(list(self.table))
        spec = self._spec(of)
        self.client.edit_service(spec)
        self.table[of] = spec, self.table[of][1]

    def _del_service(self) -> None:
        of = self.rnd.choice(list(self.table))
        self.client.del_service(of)
        del self.table[of]

    def _restore(self) -> None:
        """All of them are taken away and come back, as by `uvsadm -R` of what was saved."""
        for of in self.table:
            self.client.del_service(of)
        for spec, servers in self.table.values():
            add(self.client, spec, servers)

    def _zero(self) -> None:
        self.client.zero(self.rnd.choice(list(self.table)))

    # ---- servers

    def _server(self, of: ServiceKey, number: int) -> DestSpec:
        rnd = self.rnd
        family = 4 if of.af == socket.AF_INET else 6
        spec = server(family, number, of.port, rnd.choice(METHODS), rnd.choice((0, 1, 1, 2, 5)))
        if rnd.random() < 0.3:
            spec.u_threshold = rnd.choice((3, 10, 50))
            spec.l_threshold = rnd.choice((0, 2))
        return spec

    def _add_dest(self) -> None:
        of = self.rnd.choice(list(self.table))
        _, servers = self.table[of]
        spec = self._server(of, self.rnd.randrange(1, SERVERS + 1))
        if spec.addr not in [s.addr for s in servers]:
            self.client.add_dest(of, spec)
            servers.append(spec)

    def _edit_dest(self) -> None:
        of = self.rnd.choice(list(self.table))
        _, servers = self.table[of]
        if servers:
            place = self.rnd.randrange(len(servers))
            new = self._server(of, 1)
            servers[place] = dataclasses.replace(new, addr=servers[place].addr)
            self.client.edit_dest(of, servers[place])

    def _del_dest(self) -> None:
        of = self.rnd.choice(list(self.table))
        _, servers = self.table[of]
        if servers:
            gone = servers.pop(self.rnd.randrange(len(servers)))
            self.client.del_dest(of, gone.af, gone.addr, gone.port)

    # ---- connections and knobs

    def _flush(self) -> None:
        self.client.flush_conns(ConnFilter(service=self.rnd.choice(self.keys)))

    def _knob(self) -> None:
        name = self.rnd.choice(list(KNOBS))
        self.client.set_sysctl(name, self.rnd.choice(KNOBS[name]))
