"""What the commands of the family IPVS do to a director (ip_vs_genl_set_cmd and around, ip_vs_ctl.c)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace

from uvs.control import messages, sync_daemon
from uvs.control.genetlink import IPVS_ID, Family, Op, Reply, Steps
from uvs.control.messages import Attr, Cmd, Stats
from uvs.control.netlink import Attrs
from uvs.engine.core import Table
from uvs.ipvs.estimator import Estimator
from uvs.ipvs.ipproto import IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.services import Dest, Service, Services
from uvs.ipvs.spec import IpvsError, ServiceKey

# Rows of the time-out tables (IP_VS_TCP_S_*, IP_VS_UDP_S_*).
TCP_ESTABLISHED, TCP_FIN_WAIT, UDP_NORMAL = 1, 4, 0
TIMEOUT_MAX = 0xFFFFFFFF // 1000  # seconds; the kernel's bound is INT_MAX / HZ, 8,589,934 at 250 Hz

Handler = Callable[[bytes, Attrs], Reply | Steps | None]


def timeouts(table: Table) -> tuple[int, int, int]:
    """The three time-outs of `ipvsadm --set`, seconds: TCP established, FIN_WAIT, UDP."""
    tcp, udp = table.timeouts(IPPROTO_TCP), table.timeouts(IPPROTO_UDP)
    return tcp[TCP_ESTABLISHED] // 1000, tcp[TCP_FIN_WAIT] // 1000, udp[UDP_NORMAL] // 1000


def set_timeouts(table: Table, tcp: int, tcp_fin: int, udp: int) -> None:
    """ip_vs_set_timeout: 0 keeps what is; EINVAL, with nothing changed, if one is out of range."""
    if not all(0 <= seconds <= TIMEOUT_MAX for seconds in (tcp, tcp_fin, udp)):
        raise IpvsError(errno.EINVAL, "time-out out of range")
    for protocol, state, seconds in (
        (IPPROTO_TCP, TCP_ESTABLISHED, tcp),
        (IPPROTO_TCP, TCP_FIN_WAIT, tcp_fin),
        (IPPROTO_UDP, UDP_NORMAL, udp),
    ):
        if seconds:
            table.set_timeout(protocol, state, seconds * 1000)


def stats(est: Estimator) -> Stats:
    """An object's counters and rates as they are shown."""
    return Stats(*est.counters, *est.rates)


class IpvsFamily:
    """The family IPVS over one director's services and table."""

    def __init__(self, services: Services, table: Table) -> None:
        self.services = services
        self.table = table

    def family(self) -> Family:
        """Its commands."""
        change: dict[Cmd, Handler] = {
            Cmd.NEW_SERVICE: self.new_service,
            Cmd.SET_SERVICE: self.set_service,
            Cmd.DEL_SERVICE: self.del_service,
            Cmd.NEW_DEST: self.new_dest,
            Cmd.SET_DEST: self.set_dest,
            Cmd.DEL_DEST: self.del_dest,
            Cmd.NEW_DAEMON: self.new_daemon,
            Cmd.DEL_DAEMON: self.del_daemon,
            Cmd.SET_CONFIG: self.set_config,
            Cmd.ZERO: self.zero,
            Cmd.FLUSH: self.flush,
        }
        ops = {int(cmd): Op(do, changes=True) for cmd, do in change.items()}
        ops[Cmd.GET_SERVICE] = Op(self.get_service, self.get_services)
        ops[Cmd.GET_DEST] = Op(dump=self.get_dests)
        ops[Cmd.GET_DAEMON] = Op(dump=self.get_daemons)
        ops[Cmd.GET_CONFIG] = Op(self.get_config)
        ops[Cmd.GET_INFO] = Op(self.get_info)
        return Family(IPVS_ID, messages.FAMILY_NAME, messages.VERSION, max(Attr), ops)

    # ---- services

    def new_service(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_NEW_SERVICE."""
        nest = messages.nest(attrs, Attr.SERVICE)
        key = messages.parse_key(nest)
        self.services.add_service(messages.parse_service(nest, key))

    def set_service(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_SET_SERVICE."""
        nest = messages.nest(attrs, Attr.SERVICE)
        key = messages.parse_key(nest)
        try:
            flags = self.services.get(key).spec.flags
        except IpvsError:
            messages.parse_service(nest, key)  # a malformed request is EINVAL before it is ESRCH
            raise
        self.services.edit_service(messages.parse_service(nest, key, flags))

    def _key(self, attrs: Attrs) -> ServiceKey:
        """The key of an existing service; EINVAL, EAFNOSUPPORT, ESRCH."""
        key = messages.key_in(messages.payload(attrs, Attr.SERVICE))
        return self.services.get(key).key

    def del_service(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_DEL_SERVICE."""
        self.services.del_service(self._key(attrs))

    def get_service(self, payload: bytes, attrs: Attrs) -> Reply:
        """IPVS_CMD_GET_SERVICE of one service."""
        svc = self.services.get(self._key(attrs))
        return Cmd.NEW_SERVICE, messages.service(svc.spec, stats(svc.est))

    def get_services(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """IPVS_CMD_GET_SERVICE, all: services by address, then by mark."""
        for svc in sorted(self.services, key=lambda svc: bool(svc.key.fwmark)):
            if self._listed(svc):
                yield Cmd.NEW_SERVICE, messages.service(svc.spec, stats(svc.est))

    def _listed(self, svc: Service) -> bool:
        """Is it still there? A listing is sent while the table changes."""
        try:
            return self.services.get(svc.key) is svc
        except IpvsError:
            return False

    def zero(self, payload: bytes, attrs: Attrs) -> Steps:
        """IPVS_CMD_ZERO: one service, or everything."""
        return self.services.zeroing(self._key(attrs) if Attr.SERVICE in attrs else None)

    def flush(self, payload: bytes, attrs: Attrs) -> Steps:
        """IPVS_CMD_FLUSH."""
        return self.services.flushing()

    # ---- destinations

    def new_dest(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_NEW_DEST."""
        key = self._key(attrs)
        self.services.add_dest(key, messages.dest_in(messages.payload(attrs, Attr.DEST), key.af))

    def set_dest(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_SET_DEST."""
        key = self._key(attrs)
        self.services.edit_dest(key, messages.dest_in(messages.payload(attrs, Attr.DEST), key.af))

    def del_dest(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_DEL_DEST."""
        key = self._key(attrs)
        spec = messages.parse_dest(messages.nest(attrs, Attr.DEST), key.af, full=False)
        self.services.del_dest(key, spec.af, spec.addr, spec.port)

    def get_dests(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """IPVS_CMD_GET_DEST, in list order; nothing for a service that is not there or badly named."""
        try:
            svc = self.services.get(self._key(attrs))
        except IpvsError:
            return
        for dest in svc.dests[:]:
            if self.services.dest_of(dest.rec.index) is dest and dest.available:
                yield Cmd.NEW_DEST, _dest(dest)

    # ---- the rest

    def new_daemon(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_NEW_DAEMON: there is no sync daemon yet."""
        sync_daemon.new_daemon(messages.nest(attrs, Attr.DAEMON), self.services)

    def del_daemon(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_DEL_DAEMON: none runs."""
        sync_daemon.stop(messages.number(messages.nest(attrs, Attr.DAEMON), messages.Daemon.STATE, 4))

    def get_daemons(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """IPVS_CMD_GET_DAEMON: none."""
        return iter(())

    def set_config(self, payload: bytes, attrs: Attrs) -> None:
        """IPVS_CMD_SET_CONFIG."""
        kinds = (Attr.TIMEOUT_TCP, Attr.TIMEOUT_TCP_FIN, Attr.TIMEOUT_UDP)
        tcp, tcp_fin, udp = (messages.parse_timeout(attrs, kind) for kind in kinds)
        set_timeouts(self.table, tcp, tcp_fin, udp)

    def get_config(self, payload: bytes, attrs: Attrs) -> Reply:
        """IPVS_CMD_GET_CONFIG."""
        return Cmd.SET_CONFIG, messages.config(*timeouts(self.table))

    def get_info(self, payload: bytes, attrs: Attrs) -> Reply:
        """IPVS_CMD_GET_INFO."""
        return Cmd.SET_INFO, messages.info()


def _dest(dest: Dest) -> bytes:
    """A destination of a listing. The weight is the effective one: health checks may have lowered it."""
    rec, spec = dest.rec, dest.spec
    if rec.weight != spec.weight:
        spec = replace(spec, weight=rec.weight)
    return messages.dest(spec, (rec.activeconns, rec.inactconns, rec.persistconns), stats(dest.est))
