"""Power of two choices (ip_vs_twos.c)."""

from __future__ import annotations

import secrets

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler, overhead
from uvs.ipvs.services import Dest

_INT = 1 << 32


def _int(value: int) -> int:
    """A product as a C int holds it."""
    value %= _INT
    return value - _INT if value >= _INT >> 1 else value


class TwoChoices(Scheduler):
    """Two destinations at random by weight; the less loaded of them."""

    name = "twos"

    def pick(self, total: int) -> int:
        """A number of 0..total, both included (get_random_u32_inclusive); tests put their own here."""
        return secrets.randbelow(total + 1)

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_twos_schedule: walk down the weights; 0 belongs to the first too, a small bonus."""
        usable = [d for d in self.svc.dests if d.usable]
        total = sum(d.weight for d in usable)
        one, two = self._at(usable, self.pick(total)), self._at(usable, self.pick(total))
        if one is None or two is None:
            return None
        if _int(two.weight * overhead(one)) > _int(one.weight * overhead(two)):
            return two
        return one

    @staticmethod
    def _at(dests: list[Dest], number: int) -> Dest | None:
        for dest in dests:
            number -= dest.weight
            if number <= 0:
                return dest
        return None


SCHEDULER = TwoChoices
