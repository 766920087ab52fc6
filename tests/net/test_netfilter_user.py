"""The namespace tests of netfilter without privilege, in a user namespace.

An ordinary user runs them as itself; root as `nobody`, or where `nobody` cannot read this tree or its Python, as
a root that has lost every right outside the namespace. /run is read-only: iptables' lock file is elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys

from support.elsewhere import ROOT, passes

NOBODY = 65534


def test_without_privilege() -> None:
    drop: list[str] = []
    if os.geteuid() == 0:
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        # By way of a shell: setpriv itself may still start what `nobody` may not.
        check = ["sh", "-c", 'exec "$0" -c "import uvs.netfilter, pytest"', sys.executable]
        reads = subprocess.run([*drop, *check], cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
        drop = drop if reads.returncode == 0 else []
    enter = [
        *drop,
        *("unshare", "--user", "--map-root-user", "--net", "--mount"),
        *("sh", "-c", 'mount -t tmpfs -o ro none /run && exec "$@"', "sh"),
    ]
    names = ("netfilter", "netfilter_classes", "queue_drivers")
    passes(enter, *(f"tests/net/test_{name}.py" for name in names))
