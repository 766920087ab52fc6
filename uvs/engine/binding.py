"""What the typed objects of the engine share: the cffi module, and how its fields become Python's."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from uvs.engine import _core  # type: ignore[attr-defined]
from uvs.engine.names import AF_INET

ffi: Any = _core.ffi
lib: Any = _core.lib


def unpacked(union: Any, af: int) -> bytes:
    """A `union uvs_addr` as packed bytes (4 or 16)."""
    return bytes(ffi.buffer(union.b, 4 if af == AF_INET else 16))


def put_packed(union: Any, addr: bytes) -> None:
    """Packed bytes into a `union uvs_addr`, the rest zero."""
    ffi.buffer(union.b)[:] = addr.ljust(16, b"\0")


if TYPE_CHECKING:

    class number:
        def __init__(self, name: str, doc: str) -> None: ...
        def __get__(self, obj: object, owner: type | None = None) -> int: ...
        def __set__(self, obj: object, value: int) -> None: ...

    class address:
        def __init__(self, name: str, family: str, doc: str) -> None: ...
        def __get__(self, obj: object, owner: type | None = None) -> bytes: ...
        def __set__(self, obj: object, value: bytes) -> None: ...

else:

    def address(name: str, family: str, doc: str) -> property:
        """A `union uvs_addr` of the struct behind an object as packed bytes; `family` names its family."""
        read_addr, read_af = attrgetter("_c." + name), attrgetter("_c." + family)

        def put(self: Any, value: bytes) -> None:
            put_packed(read_addr(self), value)

        return property(lambda self: unpacked(read_addr(self), read_af(self)), put, doc=doc)

    def number(name: str, doc: str) -> property:
        """A number of the C struct behind an object (`_c`), as a property."""

        def put(self: Any, value: int) -> None:
            setattr(self._c, name, value)

        return property(attrgetter("_c." + name), put, doc=doc)
