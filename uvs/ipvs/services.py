"""Virtual services and destinations (ip_vs_ctl.c).

The control side: what `ipvsadm` changes. Addresses are packed bytes, ports host order.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from uvs.engine.core import (
    ConnFlag,
    DestFlag,
    DestRecord,
    ServiceRecord,
    Table,
)
from uvs.ipvs import pe, plain, scheduling
from uvs.ipvs.allowed import check_dest, check_service
from uvs.ipvs.estimator import Estimator, Rows
from uvs.ipvs.ipproto import IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.route import Routes
from uvs.ipvs.rs_table import RsTable
from uvs.ipvs.spec import SVC_F_HASHED, SVC_F_ONEPACKET, SVC_F_PERSISTENT
from uvs.ipvs.spec import DestSpec as DestSpec
from uvs.ipvs.spec import IpvsError as IpvsError
from uvs.ipvs.spec import ServiceKey as ServiceKey
from uvs.ipvs.spec import ServiceSpec as ServiceSpec
from uvs.ipvs.sysctl import Sysctl
from uvs.ipvs.trash import Trash

FTPPORT = 21


@dataclass(slots=True, eq=False)
class Dest:
    """A destination (struct ip_vs_dest): a real server of one service."""

    svc: Service
    spec: DestSpec
    rec: DestRecord
    est: Estimator
    idle_since: int = 0  # in the trash: when it was found unused, ns
    nexthop: int = 0  # the row that its new connections go by, as the engine was told

    @property
    def weight(self) -> int:
        """Weight; 0 = quiesced."""
        return self.rec.weight

    @property
    def overloaded(self) -> bool:
        """Over its upper threshold (IP_VS_DEST_F_OVERLOAD)."""
        return bool(self.rec.flags & DestFlag.OVERLOAD)

    @property
    def available(self) -> bool:
        """Not deleted (IP_VS_DEST_F_AVAILABLE)."""
        return bool(self.rec.flags & DestFlag.AVAILABLE)

    @property
    def usable(self) -> bool:
        """May a scheduler choose it?"""
        return self.rec.weight > 0 and not self.rec.flags & DestFlag.OVERLOAD

    @property
    def fwd(self) -> int:
        """Forwarding method (connection flag bits)."""
        return self.spec.fwd

    @property
    def id(self) -> tuple[int, bytes, int]:
        """What names it within its service."""
        return self.spec.af, self.spec.addr, self.spec.port


@dataclass(slots=True, eq=False)
class Service:
    """A virtual service (struct ip_vs_service). `dests` in list order: newest first."""

    spec: ServiceSpec
    rec: ServiceRecord
    est: Estimator
    scheduler: scheduling.Scheduler | None = None
    pe: pe.PersistenceEngine | None = None
    dests: list[Dest] = field(default_factory=list)
    by_id: dict[tuple[int, bytes, int], Dest] = field(default_factory=dict)

    @property
    def key(self) -> ServiceKey:
        """What names it."""
        return self.spec.key

    @property
    def persistent(self) -> bool:
        """IP_VS_SVC_F_PERSISTENT."""
        return bool(self.spec.flags & SVC_F_PERSISTENT)

    @property
    def one_packet(self) -> bool:
        """IP_VS_SVC_F_ONEPACKET."""
        return bool(self.spec.flags & SVC_F_ONEPACKET)

    def conn_flags(self, protocol: int) -> int:
        """What a new connection of that protocol gets of the service: one packet is UDP's alone."""
        one = self.spec.flags & SVC_F_ONEPACKET and protocol == IPPROTO_UDP
        return ConnFlag.ONE_PACKET if one else 0

    def dest(self, af: int, addr: bytes, port: int) -> Dest | None:
        """The destination of that address (ip_vs_lookup_dest)."""
        return self.by_id.get((af, addr, port))


Observer = Callable[[str, Service, Dest | None], None]
Weigh = Callable[[ServiceKey, DestSpec], int]


class Services:
    """All services of one director and the trash of their deleted destinations.

    Observers are called after each change with an event, the service and the destination it is about:
    `add_service`, `edit_service`, `del_service`, `add_dest`, `edit_dest`, `del_dest` (deleted, its
    connections may live on), `gone_dest` (record freed: no connection points to it any more).
    """

    def __init__(self, table: Table, routes: Routes, clock: Callable[[], int], sysctl: Sysctl) -> None:
        self.table = table
        self.routes = routes
        self.clock = clock
        self.sysctl = sysctl
        self.observers: list[Observer] = []
        self.weigh: Weigh = lambda key, spec: spec.weight  # the effective weight of a server
        self.rows = Rows(clock())
        self.total = Estimator(table.total.stats)
        self.rows.add(self.total, table.total)
        self.rs_table = RsTable()
        self.trash = Trash()
        self.ftp_services = 0
        self.port0_services = 0
        self._services: dict[tuple[int, int, bytes, int, int], Service] = {}
        self.with_engine: set[ServiceKey] = set()  # services with a persistence engine
        self._dests: dict[int, Dest] = {}  # by record

    def __iter__(self) -> Iterator[Service]:
        return iter(self._services.values())

    def __len__(self) -> int:
        return len(self._services)

    def _tell(self, event: str, svc: Service, dest: Dest | None = None) -> None:
        for observer in self.observers:
            observer(event, svc, dest)

    # ---- lookups

    def get(self, key: ServiceKey) -> Service:
        """The service of that key; IpvsError ESRCH if there is none."""
        svc = self._services.get(key.lookup)
        if svc is None:
            raise IpvsError(errno.ESRCH, "no such service")
        return svc

    def dest_of(self, record: int) -> Dest | None:
        """The destination in record `record`, deleted ones too."""
        return self._dests.get(record)

    def find(
        self, af: int, fwmark: int, protocol: int, vaddr: bytes, vport: int, ftp_from: int
    ) -> Service | None:
        """ip_vs_service_find: by mark, exactly, FTP data, port 0.

        `ftp_from`: lowest unprivileged port of the host.
        """
        services = self._services
        if fwmark and (svc := services.get((af, 0, b"", 0, fwmark))) is not None:
            return svc
        if (
            svc := services.get((af, protocol, vaddr, vport, 0))
        ) is not None:  # its memory is not looked at yet
            return svc
        if (
            self.ftp_services
            and protocol == IPPROTO_TCP
            and (vport == FTPPORT - 1 or vport >= ftp_from)
            and (svc := services.get((af, protocol, vaddr, FTPPORT, 0))) is not None
        ):
            return svc
        return services.get((af, protocol, vaddr, 0, 0)) if self.port0_services else None

    # ---- services

    def add_service(self, spec: ServiceSpec) -> Service:
        """ip_vs_add_service. Errors: EEXIST, ENOENT (scheduler, engine), EINVAL (IPv6 prefix), ENOMEM."""
        if spec.key.lookup in self._services:
            raise IpvsError(errno.EEXIST, "service exists")
        check_service(spec)
        rec = self.table.service_new()
        if rec is None:
            raise IpvsError(errno.ENOMEM, "the table is full: raise conn_max")
        return self._link(spec, rec)

    def _link(self, spec: ServiceSpec, rec: ServiceRecord) -> Service:
        key = spec.key
        rec.protocol, rec.port, rec.fwmark, rec.addr = key.protocol, key.port, key.fwmark, key.addr
        rec.af = key.af  # last: after a crash a record without it was never finished
        svc = Service(replace(spec, flags=spec.flags | SVC_F_HASHED), rec, Estimator(rec.stats))
        rec.flags = svc.spec.flags
        svc.scheduler = self._scheduler(svc, spec.sched_name)
        self._set_engine(svc, spec.pe_name)
        self._services[key.lookup] = svc
        plain.publish(svc)
        self.rows.add(svc.est, rec)
        self._count(svc, 1)
        self._tell("add_service", svc)
        return svc

    def _count(self, svc: Service, by: int) -> None:
        if not svc.key.fwmark:
            self.ftp_services += by * (svc.key.port == FTPPORT)
            self.port0_services += by * (svc.key.port == 0)

    def _scheduler(self, svc: Service, name: str) -> scheduling.Scheduler | None:
        cls = scheduling.find(name)
        return cls(svc, self.clock, self.sysctl) if cls else None

    def _set_engine(self, svc: Service, name: str) -> None:
        svc.pe = pe.find(name)
        (self.with_engine.add if svc.pe else self.with_engine.discard)(svc.key)

    def edit_service(self, spec: ServiceSpec) -> Service:
        """ip_vs_edit_service: scheduler, flags, timeout, netmask. The same scheduler keeps its state."""
        svc = self.get(spec.key)
        check_service(spec)
        before = svc.scheduler  # what it keeps is the engine's until another is published
        if spec.sched_name != svc.spec.sched_name:
            svc.scheduler = self._scheduler(svc, spec.sched_name)
        self._set_engine(svc, spec.pe_name)
        svc.spec = replace(spec, key=svc.key, flags=spec.flags | SVC_F_HASHED)
        svc.rec.flags = svc.spec.flags
        plain.publish(svc)
        del before
        self._tell("edit_service", svc)
        return svc

    def del_service(self, key: ServiceKey) -> None:
        """ip_vs_del_service: gone at once, destinations to the trash, connections stay."""
        svc = self.get(key)
        del self._services[svc.key.lookup]
        self.with_engine.discard(svc.key)
        self._count(svc, -1)
        plain.withdraw(svc)
        svc.scheduler = None
        self.rows.remove(svc.est)
        dests, svc.dests = svc.dests, []
        svc.by_id.clear()
        for dest in dests:
            self._discard(dest)
        self._tell("del_service", svc)
        svc.rec.free()

    def flush(self) -> None:
        """ip_vs_flush: every service."""
        for _ in self.flushing():
            pass

    def flushing(self) -> Iterator[None]:
        """The same in steps, a service each; those that are made meanwhile stay."""
        for svc in list(self):
            if self._services.get(svc.key.lookup) is svc:
                self.del_service(svc.key)
            yield

    def zero(self, key: ServiceKey | None = None) -> None:
        """ip_vs_zero_service, or everything and the total: counters count from now."""
        for _ in self.zeroing(key):
            pass

    def zeroing(self, key: ServiceKey | None = None) -> Iterator[None]:
        """The same in steps, a service each; ESRCH comes before the first."""
        return self._zeroing(list(self) if key is None else [self.get(key)], key is None)

    def _zeroing(self, services: list[Service], everything: bool) -> Iterator[None]:
        if everything:
            self.table.total.discount(self.total.zero())
        for svc in services:
            if self._services.get(svc.key.lookup) is svc:  # else deleted meanwhile
                svc.rec.discount(svc.est.zero())
                for dest in svc.dests:
                    dest.rec.discount(dest.est.zero())
            yield

    def estimate(self) -> None:
        """Take the two-second snapshot of every counter (ip_vs_est.c), unless run_estimation says no."""
        if self.sysctl.estimating:
            for _ in self.rows.all():
                pass

    def estimating(self) -> Iterator[None]:
        """Of those whose turn it is, in steps; to be asked ten times a second."""
        return self.rows.due(self.clock()) if self.sysctl.estimating else iter(())

    # ---- destinations

    def add_dest(self, key: ServiceKey, spec: DestSpec) -> Dest:
        """ip_vs_add_dest; a deleted one of the same identity is revived with its connections."""
        svc = self.get(key)
        check_dest(svc.key, spec)
        if svc.dest(spec.af, spec.addr, spec.port):
            raise IpvsError(errno.EEXIST, "destination exists")
        dest = self._revive(svc, spec)
        if dest is None:
            if not self.routes.is_unicast(spec.af, spec.addr):
                raise IpvsError(errno.EINVAL, "not a unicast address")
            rec = self.table.dest_new()
            if rec is None:
                raise IpvsError(errno.ENOMEM, "the table is full: raise conn_max")
            dest = Dest(svc, spec, rec, Estimator())
        dest.rec.last_weight = spec.weight
        return self._link_dest(svc, dest, spec)

    def _link_dest(self, svc: Service, dest: Dest, spec: DestSpec) -> Dest:
        dest.svc = svc
        self._dests[dest.rec.index] = dest
        dest.rec.set_available(True)
        self._update_dest(dest, spec)
        self.rows.add(dest.est, dest.rec)
        svc.dests.insert(0, dest)
        svc.by_id[dest.id] = dest
        self.rs_table.add(dest)
        if svc.scheduler:
            svc.scheduler.add_dest(dest)
        self._tell("add_dest", svc, dest)
        return dest

    def edit_dest(self, key: ServiceKey, spec: DestSpec) -> Dest:
        """ip_vs_edit_dest: weight, method, tunnel, thresholds; running connections keep their method."""
        svc = self.get(key)
        check_dest(svc.key, spec)
        dest = self._dest(svc, spec)
        old = dest.spec
        if (spec.fwd, spec.tun_type, spec.tun_port) != (old.fwd, old.tun_type, old.tun_port):
            self.rs_table.add(dest)
        self._update_dest(dest, spec)
        if svc.scheduler:
            svc.scheduler.upd_dest(dest)
        self._tell("edit_dest", svc, dest)
        return dest

    def del_dest(self, key: ServiceKey, af: int, addr: bytes, port: int) -> None:
        """ip_vs_del_dest: to the trash; its connections stay."""
        svc = self.get(key)
        dest = svc.dest(af, addr, port)
        if dest is None:
            raise IpvsError(errno.ENOENT, "no such destination")
        index = svc.dests.index(dest)
        del svc.dests[index], svc.by_id[dest.id]
        if svc.scheduler:
            svc.scheduler.del_dest(dest, index)
        self._discard(dest)

    def _dest(self, svc: Service, spec: DestSpec) -> Dest:
        dest = svc.dest(spec.af, spec.addr, spec.port)
        if dest is None:
            raise IpvsError(errno.ENOENT, "no such destination")
        return dest

    def _update_dest(self, dest: Dest, spec: DestSpec) -> None:
        """__ip_vs_update_dest."""
        rec, key = dest.rec, dest.svc.key
        flags = (spec.fwd & ConnFlag.FWD_MASK) | ConnFlag.INACTIVE
        if flags & ConnFlag.FWD_MASK != ConnFlag.MASQ:
            flags |= ConnFlag.NOOUTPUT
        rec.conn_flags = flags
        rec.addr, rec.port = spec.addr, spec.port
        rec.vaf, rec.vaddr, rec.vport, rec.vfwmark = key.af, key.addr, key.port, key.fwmark
        rec.protocol, rec.service = key.protocol, dest.svc.rec.index
        rec.af = spec.af  # after the rest of what it is known by, as for a service
        rec.tun_type, rec.tun_port, rec.tun_flags = spec.tun_type, spec.tun_port, spec.tun_flags & 0xFF
        rec.u_threshold, rec.l_threshold = spec.u_threshold, spec.l_threshold
        rec.overload()
        rec.weight = self.weigh(key, spec)
        rec.last_weight = rec.weight or rec.last_weight or spec.weight
        rec.route = 0
        dest.spec = spec

    def reweigh(self, dest: Dest) -> None:
        """Its effective weight is what `weigh` makes of the configured one now: no change of the table."""
        weight = self.weigh(dest.svc.key, dest.spec)
        if weight != dest.rec.weight:
            dest.rec.weight = weight
            dest.rec.last_weight = weight or dest.rec.last_weight
            if dest.svc.scheduler:
                dest.svc.scheduler.upd_dest(dest)

    # ---- after a restart

    def attach(self, saved: list[tuple[ServiceSpec, list[DestSpec]]]) -> None:
        """Put a saved table back. `saved`: each service with its destinations in list order (newest first).

        Records of a re-attached arena are claimed by identity, so that connections keep their real servers;
        destinations that only the arena knows are deleted ones whose connections live on.
        """
        services = {_service_identity(r): r for r in self.table.services()}
        dests = {_dest_identity(r): r for r in self.table.dests()}
        for svc_spec, dest_specs in saved:
            rec = services.pop(svc_spec.key.lookup, None) or self.table.service_new()
            if rec is None:
                raise IpvsError(errno.ENOMEM, "the table is full: raise conn_max")
            svc = self._link(svc_spec, rec)
            for dest_spec in reversed(dest_specs):
                found = dests.pop((svc_spec.key.lookup, dest_spec.af, dest_spec.addr, dest_spec.port), None)
                dest_rec = found or self.table.dest_new()
                if dest_rec is None:
                    raise IpvsError(errno.ENOMEM, "the table is full: raise conn_max")
                est = Estimator(dest_rec.stats)
                self._link_dest(svc, Dest(svc, dest_spec, dest_rec, est), dest_spec)
        for (lookup, af, addr, port), orphan in dests.items():
            if not orphan.refcnt:
                orphan.free()
                continue
            alive = self._services.get(lookup)
            owner = alive.rec if alive else services.get(lookup) or self.table.service_new()
            if owner is None:
                continue
            if not alive:
                services[lookup] = owner
            key = ServiceKey(lookup[0], orphan.protocol, *lookup[2:])
            spec = DestSpec(af, addr, port, orphan.conn_flags & ConnFlag.FWD_MASK, orphan.weight)
            svc = alive or Service(ServiceSpec(key), owner, Estimator())
            dest = Dest(svc, spec, orphan, Estimator(orphan.stats))
            self._dests[orphan.index] = dest
            self._bury(dest)
        for unclaimed in services.values():
            unclaimed.free()

    def tick_schedulers(self, now: int) -> None:
        """About once a second: schedulers that remember may forget."""
        for svc in self:
            if svc.scheduler:
                svc.scheduler.tick(now)

    # ---- deleted destinations

    def _discard(self, dest: Dest) -> None:
        self.rs_table.remove(dest)
        self.rows.remove(dest.est)
        self._bury(dest)

    def _bury(self, dest: Dest) -> None:
        dest.rec.set_available(False)
        dest.rec.service = 0
        dest.idle_since = 0
        self.trash.add(dest)
        self._tell("del_dest", dest.svc, dest)

    def _revive(self, svc: Service, spec: DestSpec) -> Dest | None:
        """ip_vs_trash_get_dest."""
        dest = self.trash.take(svc.key, (spec.af, spec.addr, spec.port))
        if dest is not None and dest.svc is not svc:
            dest.rec.clear_stats()
            dest.est = Estimator()
        return dest

    def expire_trash(self, now: int) -> None:
        """ip_vs_dest_trash_expire: free what nobody has used for long; to be called about once a second."""
        for _ in self.expiring_trash(now):
            pass

    def expiring_trash(self, now: int) -> Iterator[None]:
        """The same in steps, a destination each."""
        for dest in self.trash.expired(now):
            if dest is not None:
                del self._dests[dest.rec.index]
                dest.rec.free()
                self._tell("gone_dest", dest.svc, dest)
            yield


def _service_identity(rec: ServiceRecord) -> tuple[int, int, bytes, int, int]:
    return ServiceKey(rec.af, rec.protocol, rec.addr, rec.port, rec.fwmark).lookup


def _dest_identity(rec: DestRecord) -> tuple[tuple[int, int, bytes, int, int], int, bytes, int]:
    key = ServiceKey(rec.vaf, rec.protocol, rec.vaddr, rec.vport, rec.vfwmark)
    return key.lookup, rec.af, rec.addr, rec.port
