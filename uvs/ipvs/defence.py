"""Defence against floods: drop_entry, drop_packet, secure_tcp (ip_vs_ctl.c, update_defense_level)."""

from __future__ import annotations

import secrets

from uvs.engine.core import Table
from uvs.ipvs.sysctl import Sysctl

# Each of the three knobs: off; automatic and off for now; automatic and on for now; always on.
OFF, AUTO_OFF, AUTO_ON, ALWAYS = 0, 1, 2, 3
_KNOBS = ("drop_entry", "drop_packet", "secure_tcp")


class Defence:
    """What the knobs amount to under the memory there is. `available`: free pages, as the host last said."""

    def __init__(self, table: Table, sysctl: Sysctl) -> None:
        self._table, self._sysctl = table, sysctl
        self.available = 1 << 40
        self.drop_entry = False
        self.drop_rate = 0  # one in so many schedulable packets is dropped; 0: none
        self._drop_counter = 0
        sysctl.observers.append(self._changed)

    def _changed(self, name: str) -> None:
        if name in _KNOBS:
            self.update()

    def update(self) -> None:
        """Look at the memory; automatic knobs turn themselves between 1 and 2."""
        sysctl = self._sysctl
        low = self.available < sysctl.amemthresh
        self.drop_entry = self._turn("drop_entry", low)
        if not self._turn("drop_packet", low):
            self.drop_rate = 0
        elif sysctl.drop_packet == ALWAYS:
            self.drop_rate = sysctl.am_droprate
        else:
            self.drop_rate = self._drop_counter = sysctl.amemthresh // (sysctl.amemthresh - self.available)
        self._table.secure_tcp(self._turn("secure_tcp", low))

    def _turn(self, name: str, low: bool) -> bool:
        value: int = getattr(self._sysctl, name)
        if value in (AUTO_OFF, AUTO_ON):
            value = AUTO_ON if low else AUTO_OFF
            setattr(self._sysctl, name, value)
        return value >= AUTO_ON

    def todrop(self) -> bool:
        """ip_vs_todrop: must this packet, which has a service and no connection, go?"""
        if not self.drop_rate:
            return False
        self._drop_counter -= 1
        if self._drop_counter > 0:
            return False
        self._drop_counter = self.drop_rate
        return True

    def run(self, now: int, available: int) -> None:
        """defense_work_handler: once a second. `available`: pages that are free, or buffers."""
        self.available = available
        self.update()
        if self.drop_entry:
            self._table.drop_entry(now, secrets.randbits(32))
