"""SYNs made by hand, sent to servers as the director sends requests on; all at once."""

from __future__ import annotations

import asyncio
import socket

from uvs.config.checks import Forward
from uvs.doctor.host import Knock
from uvs.health.checks import forward
from uvs.health.checks.base import Failed, Target, Unable
from uvs.ipvs.ipproto import IPPROTO_TCP
from uvs.ipvs.spec import DestSpec, ServiceKey

WAIT_S = 1.2  # for answers, once all are sent; a SYN is repeated after a second
GRACE_S = 0.1  # for answers that have come, and were not read: a busy machine


def knock(knocks: list[Knock]) -> dict[Knock, str]:
    """What went wrong with each, "" if it was answered. One that could not be sent is left out."""
    found = asyncio.run(_all(knocks))
    return {one: why for one, why in zip(knocks, found, strict=True) if why is not None}


async def _all(knocks: list[Knock]) -> list[str | None]:
    tasks = [asyncio.ensure_future(_one(each)) for each in knocks]
    for _ in range(2):
        await asyncio.sleep(0)  # each goes as far as its SYN; what that takes is not waiting
    for seconds in (WAIT_S, GRACE_S):
        _, left = await asyncio.wait(tasks, timeout=seconds)
        if not left:
            break
    for task in left:
        task.cancel()
    await asyncio.wait(tasks)  # each ends what it began
    return ["no answer" if task.cancelled() else task.result() for task in tasks]


async def _one(knock: Knock) -> str | None:
    family, server_family = _family(knock.vip), _family(knock.server)
    target = Target(
        ServiceKey(family, IPPROTO_TCP, knock.vip, knock.port),
        DestSpec(
            server_family, knock.server, knock.server_port, knock.forward,
            tun_type=knock.tun_type, tun_port=knock.tun_port, tun_flags=knock.tun_flags,
        ),
    )  # fmt: skip
    try:
        await forward.check(target, Forward(type="forward"))
    except Failed as error:
        return str(error)
    except (Unable, OSError):
        return None
    return ""


def _family(addr: bytes) -> int:
    return int(socket.AF_INET if len(addr) == 4 else socket.AF_INET6)
