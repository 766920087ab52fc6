"""The older way to IPVS: get- and setsockopt(IPPROTO_IP, IP_VS_SO_*) (do_ip_vs_set_ctl, do_ip_vs_get_ctl).

IPv4 only, no tunnel attributes, no persistence engine. Structures are laid out as on x86-64; addresses,
ports and netmasks are in network order.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from socket import AF_INET, htons, ntohs
from struct import Struct

from uvs.control import sync_daemon
from uvs.control.genetlink import Steps
from uvs.control.ipvs_family import set_timeouts, stats, timeouts
from uvs.control.messages import CONN_TAB_SIZE, FWD_MASK, IPVS_VERSION_CODE
from uvs.engine.core import Table
from uvs.ipvs.estimator import Estimator
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.services import Dest, Service, Services
from uvs.ipvs.spec import SVC_F_HASHED, DestSpec, IpvsError, ServiceKey, ServiceSpec

BASE = 1024 + 64 + 64  # IP_VS_BASE_CTL
SET_ADD, SET_EDIT, SET_DEL, SET_FLUSH = BASE + 2, BASE + 3, BASE + 4, BASE + 5
SET_ADDDEST, SET_DELDEST, SET_EDITDEST, SET_TIMEOUT = BASE + 7, BASE + 8, BASE + 9, BASE + 10
SET_STARTDAEMON, SET_STOPDAEMON, SET_ZERO, SET_MAX = BASE + 11, BASE + 12, BASE + 15, BASE + 15
GET_VERSION, GET_INFO, GET_SERVICES, GET_SERVICE = BASE, BASE + 1, BASE + 2, BASE + 3
GET_DESTS, GET_TIMEOUT, GET_DAEMON, GET_MAX = BASE + 4, BASE + 6, BASE + 7, BASE + 7

_SERVICE = Struct("=H2x4sH2xI16sII4s")  # ip_vs_service_user
_DEST = Struct("=4sH2xIiII")  # ip_vs_dest_user
_STATS = Struct("=3I4x2Q5I4x")  # ip_vs_stats_user
_DEST_ENTRY = Struct("=4sH2xIi5I4x")  # ip_vs_dest_entry up to its statistics
_GET_DESTS = Struct("=H2x4sH2xII4x")  # ip_vs_get_dests
_DAEMON = Struct("=i16si")  # ip_vs_daemon_user
_TIMEOUTS = Struct("=3i")
_INFO = Struct("=3I")
_NUMBER = Struct("=I")
SERVICE_SIZE, SERVICE_ENTRY_SIZE, DEST_ENTRY_SIZE = _SERVICE.size, 104, 96
_SET_SIZES = {
    SET_FLUSH: 0,
    SET_TIMEOUT: _TIMEOUTS.size,
    SET_STARTDAEMON: _DAEMON.size,
    SET_STOPDAEMON: _DAEMON.size,
    SET_ADDDEST: _SERVICE.size + _DEST.size,
    SET_DELDEST: _SERVICE.size + _DEST.size,
    SET_EDITDEST: _SERVICE.size + _DEST.size,
} | dict.fromkeys((SET_ADD, SET_EDIT, SET_DEL, SET_ZERO), _SERVICE.size)
_GET_SIZES = {
    GET_VERSION: 64,
    GET_INFO: _INFO.size,
    GET_SERVICES: 8,
    GET_SERVICE: SERVICE_ENTRY_SIZE,
    GET_DESTS: _GET_DESTS.size,
    GET_TIMEOUT: _TIMEOUTS.size,
    GET_DAEMON: 2 * _DAEMON.size,
}
HEAD = max(_GET_SIZES.values())  # so much of a getsockopt's buffer says what is asked for
_PROTOCOLS = (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP)
_U32 = 0xFFFFFFFF


def _refused(code: int) -> IpvsError:
    return IpvsError(code, "refused")


def _names_nothing(data: bytes) -> bool:
    addr, port, mark = _SERVICE.unpack_from(data)[1:4]
    return not (mark or port or any(addr))


def _entry_stats(est: Estimator) -> bytes:
    conns, inpkts, outpkts, inbytes, outbytes, *rates = stats(est)
    low = [v & _U32 for v in (conns, inpkts, outpkts)]
    return _STATS.pack(*low, inbytes, outbytes, *(r & _U32 for r in rates))


class Sockopt:
    """The two calls over one director's services. IpvsError with the errno that the call ends with."""

    def __init__(self, services: Services, table: Table) -> None:
        self.services = services
        self.table = table

    # ---- setsockopt

    def set(self, option: int, data: bytes) -> Steps | None:
        """setsockopt, or the steps that are left of it.

        EINVAL for a wrong length or number, ENOPROTOOPT beyond the range, ESRCH, EFAULT...
        """
        if not BASE <= option <= SET_MAX:
            raise _refused(errno.ENOPROTOOPT)
        if _SET_SIZES.get(option) != len(data):
            raise _refused(errno.EINVAL)
        if option == SET_FLUSH:
            return self.services.flushing()
        if option == SET_ZERO and _names_nothing(data):
            return self.services.zeroing()
        if option == SET_TIMEOUT:
            set_timeouts(self.table, *_TIMEOUTS.unpack(data))
        elif option in (SET_STARTDAEMON, SET_STOPDAEMON):
            self._daemon(option, data)
        else:
            self._set_service(option, data)
        return None

    def _daemon(self, option: int, data: bytes) -> None:
        """There is no sync daemon yet."""
        state, interface, _ = _DAEMON.unpack(data)
        if option == SET_STOPDAEMON:
            sync_daemon.stop(state)
        elif b"\0" not in interface or interface[0] == 0:
            raise _refused(errno.EINVAL)
        else:
            sync_daemon.start(state, interface.split(b"\0", 1)[0].decode(errors="surrogateescape"))

    def _set_service(self, option: int, data: bytes) -> None:
        protocol, addr, port, mark, name, flags, timeout, netmask = _SERVICE.unpack_from(data)
        if option in (SET_ADD, SET_EDIT) and b"\0" not in name:
            raise _refused(errno.EINVAL)
        if protocol not in _PROTOCOLS:
            raise _refused(errno.EFAULT)
        key = self._key(protocol, addr, port, mark)
        spec = ServiceSpec(
            key,
            name.split(b"\0", 1)[0].decode(errors="surrogateescape"),
            flags & ~SVC_F_HASHED,
            timeout,
            int.from_bytes(netmask),
        )
        if option == SET_ADD:
            self.services.add_service(spec)
            return
        if (svc := self.services.get(key)).key.protocol != protocol:
            raise _refused(errno.ESRCH)
        if option == SET_EDIT:
            self.services.edit_service(spec)
        elif option == SET_DEL:
            self.services.del_service(svc.key)
        elif option == SET_ZERO:
            self.services.zero(svc.key)
        else:
            self._set_dest(option, svc.key, data)

    def _set_dest(self, option: int, key: ServiceKey, data: bytes) -> None:
        addr, port, flags, weight, upper, lower = _DEST.unpack_from(data, _SERVICE.size)
        spec = DestSpec(AF_INET, addr, ntohs(port), flags & FWD_MASK, weight, upper, lower)
        if option == SET_ADDDEST:
            self.services.add_dest(key, spec)
        elif option == SET_EDITDEST:
            self.services.edit_dest(key, spec)
        else:
            self.services.del_dest(key, AF_INET, addr, spec.port)

    @staticmethod
    def _key(protocol: int, addr: bytes, port: int, mark: int) -> ServiceKey:
        if mark:
            return ServiceKey(AF_INET, protocol, bytes(4), 0, mark)
        return ServiceKey(AF_INET, protocol, addr, ntohs(port))

    # ---- getsockopt

    def get(self, option: int, size: int, head: bytes) -> bytes:
        """getsockopt into a buffer of `size` bytes that begins with `head`: what its beginning becomes."""
        if not BASE <= option <= GET_MAX:
            raise _refused(errno.ENOPROTOOPT)
        least = _GET_SIZES.get(option)
        if least is None or size < least or len(head) < min(size, HEAD):
            raise _refused(errno.EINVAL)
        answers: dict[int, Callable[[int, bytes], bytes]] = {
            GET_VERSION: self._version,
            GET_INFO: self._info,
            GET_SERVICES: self._services,
            GET_SERVICE: self._one_service,
            GET_DESTS: self._dests,
            GET_TIMEOUT: lambda size, head: _TIMEOUTS.pack(*timeouts(self.table)),
            GET_DAEMON: lambda size, head: bytes(2 * _DAEMON.size),
        }
        return answers[option](size, head)

    def _ipv4(self) -> list[Service]:
        found = [svc for svc in self.services if svc.key.af == AF_INET]
        return sorted(found, key=lambda svc: svc.key.fwmark != 0)

    def _version(self, size: int, head: bytes) -> bytes:
        return b"IP Virtual Server version 1.2.1 (size=%d)\0" % CONN_TAB_SIZE

    def _info(self, size: int, head: bytes) -> bytes:
        return _INFO.pack(IPVS_VERSION_CODE, CONN_TAB_SIZE, len(self._ipv4()))

    def _services(self, size: int, head: bytes) -> bytes:
        (count,) = _NUMBER.unpack_from(head)
        if size != 8 + SERVICE_ENTRY_SIZE * count:
            raise _refused(errno.EINVAL)
        return _joined(head[:8], map(_service_entry, self._ipv4()[:count]))

    def _one_service(self, size: int, head: bytes) -> bytes:
        protocol, addr, port, mark = _SERVICE.unpack_from(head)[:4]
        return _service_entry(self.services.get(self._key(protocol, addr, port, mark)))

    def _dests(self, size: int, head: bytes) -> bytes:
        protocol, addr, port, mark, count = _GET_DESTS.unpack_from(head)
        if size != _GET_DESTS.size + DEST_ENTRY_SIZE * count:
            raise _refused(errno.EINVAL)
        dests = self.services.get(self._key(protocol, addr, port, mark)).dests
        ipv4 = [dest for dest in dests if dest.spec.af == AF_INET]
        return _joined(head[: _GET_DESTS.size], map(_dest_entry, ipv4[:count]))


def _joined(head: bytes, entries: Iterable[bytes]) -> bytes:
    return head + b"".join(entries)


def _service_entry(svc: Service) -> bytes:
    key, spec = svc.key, svc.spec
    user = _SERVICE.pack(
        key.protocol,
        key.addr,
        htons(key.port),
        key.fwmark,
        spec.sched_name.encode(),
        spec.flags,
        spec.timeout,
        spec.netmask.to_bytes(4),
    )
    return user + _NUMBER.pack(len(svc.dests)) + _entry_stats(svc.est)


def _dest_entry(dest: Dest) -> bytes:
    rec, spec = dest.rec, dest.spec
    entry = _DEST_ENTRY.pack(
        spec.addr,
        htons(spec.port),
        rec.conn_flags,
        rec.weight,
        spec.u_threshold,
        spec.l_threshold,
        rec.activeconns,
        rec.inactconns,
        rec.persistconns,
    )
    return entry + _entry_stats(dest.est)
