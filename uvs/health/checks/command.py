"""command: an external program's exit status."""

from __future__ import annotations

from uvs.config.checks import External
from uvs.health import process
from uvs.health.checks.base import Failed, Result, Target, passed

FIRST_WEIGHT = 2  # exit status 2: weight 0 (keepalived's misc_dynamic)


async def check(target: Target, settings: External) -> Result:
    """0: well. With `weight` 2…255 is well too, and the weight plus 2; all else is a failure."""
    done = await process.run(settings.command, target.environment, settings.timeout)
    if done.status == 0:
        return passed("exit status 0")
    if settings.weight and done.status is not None and FIRST_WEIGHT <= done.status <= 255:
        weight = done.status - FIRST_WEIGHT
        return passed(f"weight {weight}", weight)
    raise Failed(done.why)
