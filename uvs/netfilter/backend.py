"""What a rule back end offers to `Diversion`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from uvs.netfilter.plan import Entry, Plan


class Backend(Protocol):
    """One way to put rules into the kernel. All methods raise `tool.ToolError` when a program fails."""

    name: str
    warnings: list[str]

    @property
    def kind(self) -> str:
        """Back ends of one kind see and replace each other's rules."""

    @property
    def program(self) -> str:
        """The file that is run in the end: one program may bear several names."""

    def leftovers(self) -> set[int] | None:
        """Queue numbers named by rules of ours that are in the kernel now; None: nothing of ours is there."""

    def install(self, plan: Plan) -> None:
        """Put sets and rules in place of whatever of ours is there already, which holds until then."""

    def change(self, plan: Plan, added: Collection[Entry], removed: Collection[Entry]) -> None:
        """Bring an installed rule set to the plan, which already has these changes."""

    def intact(self) -> bool:
        """Are our rules as we put them? Cheap: asked every second."""

    def remove(self) -> None:
        """Take away everything of ours, and nothing else; harmless if nothing is there."""


def ipv6_enabled() -> bool:
    """Does this host (or network namespace) speak IPv6 at all?"""
    try:
        open("/proc/net/if_inet6").close()
    except OSError:
        return False
    return True
