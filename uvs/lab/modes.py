"""`uvs lab mode`: a lab moves between NAT, direct routing and tunnelling, and the difference is shown."""

from __future__ import annotations

import argparse
from contextlib import suppress

from uvs.lab import registry
from uvs.lab.crossing import Crossing, measure, table
from uvs.lab.enter import LabError
from uvs.lab.making import interruptible, make
from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, TUN_TYPES, topology


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `uvs lab mode`."""
    parser.add_argument(
        "mode", nargs="?", metavar="MODE", choices=MODES, help="nat, dr or tun (default: stay)"
    )
    parser.add_argument("--tun-type", choices=TUN_TYPES, help="kind of tunnel, in mode tun (default ipip)")


def main(args: argparse.Namespace) -> int:
    """Move the lab; a table of a request and its reply, before and now."""
    with registry.locked() as path:
        entry = registry.find(args.name)
        old = entry.lab()
        mode = args.mode or entry.mode
        tun_type = args.tun_type or (entry.tun_type if mode == entry.mode else TUN_TYPES[0])
        try:
            plan = topology(mode, entry.servers, tun_type)
        except ValueError as e:
            raise LabError(f"mode: {e}", 2) from None
        if (mode, tun_type) == (entry.mode, entry.tun_type):
            print(table([measure(old)]))
            return 0
        columns: list[Crossing] = []
        with suppress(LabError):  # somebody stopped its servers, or took its services away
            columns.append(measure(old))
        with interruptible(), Lab.create(plan) as new:
            make(new)
            registry.record(path, entry.name, new)
            new.keep()
        old.destroy()
    print(f"lab {entry.name} is made anew, in mode {plan.title}, with the services of `uvs lab up`\n")
    print(plan.draw())
    print()
    print(table([*columns, measure(new)]))
    return 0
