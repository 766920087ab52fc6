"""Which back ends would work here, and why not the others: for `uvs doctor`."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from uvs.netfilter import nfnetlink, nft
from uvs.netfilter.diversion import BACKENDS, NO_PRIVILEGE
from uvs.netfilter.plan import AF_INET, Plan, queues_by_class
from uvs.netfilter.tool import ToolError, run

SCRATCH = "uvs-probe"
QUEUE = 65535


def probe() -> list[tuple[str, bool, str]]:
    """(name, works, detail) of the queue itself and of each back end, best first.

    Tries them with chains that no packet enters and removes these again. Needs CAP_NET_ADMIN; without it
    every answer is no.
    """
    names = ["nfqueue", *BACKENDS]
    if not nfnetlink.has_net_admin():
        return [(name, False, NO_PRIVILEGE) for name in names]
    found = []
    for name in names:
        try:
            detail = _queue() if name == "nfqueue" else _nft() if name == "nft" else _iptables(name)
            found.append((name, True, detail))
        except (ToolError, OSError) as error:
            found.append((name, False, str(error)))
    return found


def _queue() -> str:
    error = nfnetlink.queue_errno(QUEUE)
    if error in (0, errno.EPERM):
        return "packets can be queued"
    raise ToolError(f"no NFQUEUE in this kernel: {os.strerror(error)}")


def _nft() -> str:
    plan = Plan(queues_by_class(QUEUE - 7, 2), 0, 0)
    table = SCRATCH.replace("-", "_")
    lacks = ""
    try:
        try:
            # Unhooked chains, else the scratch table would divert; tproxy is valid in a hooked one only.
            run("nft", "-f", "-", batch=nft.ruleset(table, plan, ("notrack",), hooked=False))
        except ToolError as error:
            run("nft", "-f", "-", batch=nft.ruleset(table, plan, (), hooked=False))
            lacks = f", but not notrack ({error})"
    finally:
        with suppress(ToolError):
            run("nft", "delete", "table", "inet", table)
    return f"rules with queue and sets work{lacks}"


def _iptables(name: str) -> str:
    scratch_set = SCRATCH
    chain = SCRATCH.upper()
    run("ipset", "-exist", "restore", batch=f"create {scratch_set} hash:ip,port family inet\n")
    tried = []
    try:
        for table in ("security", "mangle"):
            rules = [
                f":{chain} - [0:0]",
                f"-A {chain} -m set --match-set {scratch_set} dst,dst -j NFQUEUE --queue-num {QUEUE}",
                f"-A {chain} -p tcp --syn -j NFQUEUE --queue-balance {QUEUE - 1}:{QUEUE}",
            ]
            try:
                _restore(name, table, rules)
                break
            except ToolError as error:
                tried.append(f"table {table}: {error}")
            finally:
                with suppress(ToolError):
                    _restore(name, table, [f"-F {chain}", f"-X {chain}"])
                nfnetlink.delete_empty_table(AF_INET, table)
        else:
            raise ToolError("; ".join(tried))
    finally:
        with suppress(ToolError):
            run("ipset", "destroy", scratch_set)
    return f"rules with NFQUEUE and sets work in table {table}"


def _restore(name: str, table: str, lines: list[str]) -> None:
    batch = "\n".join([f"*{table}", *lines, "COMMIT", ""])
    run(f"{name}-restore", "-w", "10", "--noflush", batch=batch)
