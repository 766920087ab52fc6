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

WAIT_S = 1.2  # for an answer; the SYN is repeated after a second


def knock(knocks: list[Knock]) -> dict[Knock, str]:
    """What went wrong with each, "" if it was answered. One that could not be sent is left out."""
    found = asyncio.run(_all(knocks))
    return {one: why for one, why in zip(knocks, found, strict=True) if why is not None}


async def _all(knocks: list[Knock]) -> list[str | None]:
    return await asyncio.gather(*(_one(each) for each in knocks))


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
        async with asyncio.timeout(WAIT_S):
            await forward.check(target, Forward(type="forward"))
    except TimeoutError:
        return "no answer"
    except Failed as error:
        return str(error)
    except (Unable, OSError):
        return None
    return ""


def _family(addr: bytes) -> int:
    return int(socket.AF_INET if len(addr) == 4 else socket.AF_INET6)
