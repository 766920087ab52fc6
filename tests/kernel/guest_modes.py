"""Inside the virtual machine: a lab whose director diverts by nft, in every mode and family.

Not collected by itself (no `test_` in the file's name): test_nft.py runs it there.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from support import clients

from uvs.lab import processes
from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, VIP, topology

PATIENCE_S = 150  # an emulated machine may share its host

assert Lab.start.__kwdefaults__ is not None
Lab.start.__kwdefaults__["timeout"] = PATIENCE_S


# The native driver takes each class of packets by a queue of its own; how it sends them is not nft's.
@pytest.mark.parametrize(
    ("driver", "mode"), [*(("netfilterqueue", mode) for mode in MODES), ("native", "nat")]
)
def test_requests_by_nft(driver: str, mode: str) -> None:
    """HTTP and UDP through the VIP, spread evenly, and nothing of ours left when the director has ended."""
    with Lab.create(topology(mode, 2)) as lab:
        processes.start_servers(lab)
        director = processes.start_director(lab, ("--driver", driver))
        processes.add_services(lab)
        for family in (4, 6):
            names = lab.call("client", clients.parallel, VIP[family], 6, PATIENCE_S, timeout=PATIENCE_S)
            assert sorted(Counter(names).values()) == [3, 3], family
            echoed = lab.call("client", clients.echo, VIP[family], [1, 1400], PATIENCE_S, timeout=PATIENCE_S)
            assert echoed == [True, True], family
        assert "table inet uvs" in lab.check("director", ["nft", "-t", "list", "ruleset"])
        director.kill(signal.SIGTERM, PATIENCE_S)
        assert lab.check("director", ["nft", "list", "ruleset"]) == ""
