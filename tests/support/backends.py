"""The back ends of diversion that this kernel has: tried once, when this is imported."""

from __future__ import annotations

import json
import os
import tempfile

from support.sandbox import enter
from uvs.netfilter.nfnetlink import has_net_admin
from uvs.netfilter.probe import probe


def backends() -> dict[str, tuple[bool, str]]:
    """What works, tried in a namespace of its own.

    With a lock of its own: xdist's workers must all find the same, and one that waits for another's may not.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XTABLES_LOCKFILE"] = f"{folder}/lock"
                enter()
                os.write(writer, json.dumps({name: (ok, detail) for name, ok, detail in probe()}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        found = json.loads(answer.read())
    os.waitpid(pid, 0)
    return found


WORKS = backends() if has_net_admin() else {}
FORCED = os.environ.get("UVS_BACKEND")
BACKENDS = [name for name in ("nft", "iptables-nft", "iptables-legacy") if not WORKS or WORKS[name][0]]
# With one that is forced: it works, or its tests fail.
TO_TEST = [FORCED] if FORCED else BACKENDS
