"""What ipvsadm says when a change is refused."""

from __future__ import annotations

import errno
import os

from uvs.ipvs.spec import IpvsError

# What an errno means; where a command is named, for that command alone (ipvsadm's ipvs_strerror).
_ADD, _EDIT = "add-service", "edit-service"
_SERVER = ("add-server", "edit-server", "delete-server")
MESSAGES: dict[tuple[int, str], str] = {
    (errno.EEXIST, _ADD): "Service already exists",
    (errno.ENOENT, _ADD): "Scheduler or persistence engine not found",
    (errno.ENOENT, _EDIT): "Scheduler or persistence engine not found",
    **{(errno.ESRCH, name): "No such service" for name in (_EDIT, "delete-service", "zero", "list", "save")},
    **{(errno.ESRCH, name): "Service not defined" for name in _SERVER},
    (errno.EEXIST, "add-server"): "Destination already exists",
    (errno.ENOENT, "edit-server"): "No such destination",
    (errno.ENOENT, "delete-server"): "No such destination",
    (errno.EEXIST, "start-daemon"): "Daemon has already run",
    (errno.ESRCH, "stop-daemon"): "No daemon is running",
    (errno.EPERM, ""): "Permission denied (you must be root)",
    (errno.EINVAL, ""): "Invalid operation.  Possibly wrong module version, address not unicast, ...",
    (errno.ENOPROTOOPT, ""): "Protocol not available",
    (errno.ENOMEM, ""): "Memory allocation problem",
    (errno.EOPNOTSUPP, ""): "Operation not supported with IPv6",
    (errno.EAFNOSUPPORT, ""): "Operation not supported with specified address family",
    (errno.EMSGSIZE, ""): "Module is wrong version",
    # What this director does not do yet; a kernel's IPVS does not refuse these.
    (errno.EOPNOTSUPP, "start-daemon"): "Operation not supported: this director has no sync daemon yet",
}


def explain(e: IpvsError, name: str) -> str:
    """ipvsadm's words for an errno."""
    number = e.errno or 0
    return MESSAGES.get((number, name)) or MESSAGES.get((number, "")) or os.strerror(number)
