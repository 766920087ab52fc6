"""Generic netlink without a kernel: families, their commands, requests in and answers out.

Sans-io. The controller family (`nlctrl`) is answered as net/netlink/genetlink.c does, so that a
program that asks for "IPVS" by name finds it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from uvs.control import netlink
from uvs.control.netlink import NLM_F_ACK, NLM_F_MULTI, NLM_F_REQUEST, Attrs, Message

log = logging.getLogger("uvs.control")

GENL_ID_CTRL = 0x10
CTRL_VERSION = 2
CTRL_CMD_NEWFAMILY, CTRL_CMD_GETFAMILY = 1, 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_ATTR_VERSION = 1, 2, 3
CTRL_ATTR_HDRSIZE, CTRL_ATTR_MAXATTR, CTRL_ATTR_OPS = 4, 5, 6
CTRL_ATTR_OP_ID, CTRL_ATTR_OP_FLAGS = 1, 2
GENL_ADMIN_PERM, GENL_CMD_CAP_DO, GENL_CMD_CAP_DUMP, GENL_CMD_CAP_HASPOL = 1, 2, 4, 8
GENL_NAMSIZ = 16

# The kernel's families end at 1023 (GENL_MAX_ID): a message of these can never be taken for theirs.
IPVS_ID, UVS_ID = 1101, 1102

# One datagram of a dump: what libnl's and the kernel's own receive buffers hold.
DATAGRAM_SIZE = 16384

Reply = tuple[int, bytes]  # command, attributes
Steps = Iterator[None]  # a change that takes long: others may go first after each step
Answer = bytes | Iterator[bytes]  # a datagram, or the datagrams of a dump, made as they are sent


@dataclass(frozen=True, slots=True)
class Op:
    """A command: `do` for a request, `dump` for a listing; `admin`: for the privileged only."""

    do: Callable[[bytes, Attrs], Reply | Steps | None] | None = None
    dump: Callable[[bytes, Attrs], Iterator[Reply | None]] | None = None  # None: others may go first
    changes: bool = False
    admin: bool = True

    @property
    def flags(self) -> int:
        """As the controller tells them."""
        return (
            GENL_ADMIN_PERM * self.admin
            | GENL_CMD_CAP_DO * (self.do is not None)
            | GENL_CMD_CAP_DUMP * (self.dump is not None)
            | GENL_CMD_CAP_HASPOL
        )


@dataclass(frozen=True, slots=True)
class Family:
    """A generic netlink family."""

    id: int
    name: str
    version: int
    maxattr: int
    ops: dict[int, Op]


class Handled(NamedTuple):
    """What a datagram led to."""

    answers: list[Answer]
    changed: bool


_U16, _U32 = Struct("=H"), Struct("=I")


@dataclass(slots=True)
class Dispatcher:
    """Answers requests to its families and to the controller."""

    families: list[Family]
    asking: object = None  # whose request is at hand
    _by_id: dict[int, Family] = field(init=False)

    def __post_init__(self) -> None:
        control = Family(
            GENL_ID_CTRL,
            "nlctrl",
            CTRL_VERSION,
            10,
            {CTRL_CMD_GETFAMILY: Op(self._get_family, self._all_families, admin=False)},
        )
        self._by_id = {f.id: f for f in (control, *self.families)}

    def handle(self, datagram: bytes, admin: bool) -> Handled:
        """Answer every message of a datagram; `admin`: may the sender change things?"""
        answers: list[Answer] = []
        changed = list(self.answer(datagram, admin, answers))
        return Handled(answers, any(changed))

    def answer(
        self, datagram: bytes, admin: bool, answers: list[Answer], asking: object = None
    ) -> Iterator[bool]:
        """The same step by step: fills `answers`; says after each step whether it has changed something.

        `asking`: who sent it.
        """
        for request in netlink.messages(datagram):
            if not request.flags & NLM_F_REQUEST or request.type < netlink.NLMSG_MIN_TYPE:
                if request.flags & NLM_F_ACK:
                    answers.append(netlink.ack(request))
                continue
            changed = False
            self.asking = asking
            try:
                done = self._request(request, admin, answers)
                if not isinstance(done, bool):
                    for _ in done:
                        yield True
                    answers += [netlink.ack(request)] if request.flags & NLM_F_ACK else []
                changed = bool(done)
            except OSError as e:
                answers.append(netlink.error(request, e.errno or errno.EIO))
            except Exception:  # a fault of ours must not end the director
                log.exception(
                    "a control request failed (type %d, command %r)", request.type, request.body[:1]
                )
                answers.append(netlink.error(request, errno.EIO))
            yield changed

    def _request(self, request: Message, admin: bool, answers: list[Answer]) -> bool | Steps:
        """genl_rcv_msg: one request; has it changed something, or the steps that do. OSError: refused."""
        family = self._by_id.get(request.type)
        if family is None:
            raise OSError(errno.ENOENT, "no such family")
        if len(request.body) < netlink.GENL_SIZE:
            raise OSError(errno.EINVAL, "no generic netlink header")
        op = family.ops.get(request.body[0])
        if op is None or (op.dump if request.dump else op.do) is None:
            raise OSError(errno.EOPNOTSUPP, "no such command")
        if op.admin and not admin:
            raise OSError(errno.EPERM, "not privileged")
        payload = request.body[netlink.GENL_SIZE :]
        attrs = netlink.attributes(payload)
        if request.dump:
            assert op.dump is not None
            answers.append(_dump(family, request, op.dump(payload, attrs)))
            return False
        assert op.do is not None
        reply = op.do(payload, attrs)
        if isinstance(reply, Iterator):
            return reply
        if reply is not None:
            command, body = reply
            answers.append(
                netlink.message(family.id, 0, request.seq, request.pid, command, body, family.version)
            )
        if request.flags & NLM_F_ACK:
            answers.append(netlink.ack(request))
        return op.changes

    def _get_family(self, payload: bytes, attrs: Attrs) -> Reply:
        """CTRL_CMD_GETFAMILY by id or name; ENOENT."""
        if (number := attrs.get(CTRL_ATTR_FAMILY_ID)) is not None:
            if len(number) < 2:
                raise OSError(errno.EINVAL, "short family id")
            family = self._by_id.get(_U16.unpack_from(number)[0])
        elif (name := attrs.get(CTRL_ATTR_FAMILY_NAME)) is not None:
            wanted = name.split(b"\0", 1)[0]
            family = next((f for f in self._by_id.values() if f.name.encode() == wanted), None)
        else:
            raise OSError(errno.EINVAL, "neither family id nor name")
        if family is None:
            raise OSError(errno.ENOENT, "no such family")
        return CTRL_CMD_NEWFAMILY, _family(family)

    def _all_families(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        for family in self._by_id.values():
            yield CTRL_CMD_NEWFAMILY, _family(family)


def _family(family: Family) -> bytes:
    """ctrl_fill_info."""
    attribute = netlink.attribute
    ops = b"".join(
        attribute(
            i + 1,
            attribute(CTRL_ATTR_OP_ID, _U32.pack(cmd)) + attribute(CTRL_ATTR_OP_FLAGS, _U32.pack(op.flags)),
        )
        for i, (cmd, op) in enumerate(family.ops.items())
    )
    return (
        netlink.string(CTRL_ATTR_FAMILY_NAME, family.name)
        + attribute(CTRL_ATTR_FAMILY_ID, _U16.pack(family.id))
        + attribute(CTRL_ATTR_VERSION, _U32.pack(family.version))
        + attribute(CTRL_ATTR_HDRSIZE, _U32.pack(0))
        + attribute(CTRL_ATTR_MAXATTR, _U32.pack(family.maxattr))
        + attribute(CTRL_ATTR_OPS, ops)
    )


PAUSE = b""  # among a dump's datagrams: nothing to send yet, and others may go first


def _dump(family: Family, request: Message, replies: Iterator[Reply | None]) -> Iterator[bytes]:
    """The datagrams of a dump: as many messages as fit in each, DONE in the last, made on demand."""
    waiting: list[bytes] = []
    size = 0
    try:
        for reply in replies:
            if reply is None:
                yield PAUSE
                continue
            command, body = reply
            text = netlink.message(
                family.id, NLM_F_MULTI, request.seq, request.pid, command, body, family.version
            )
            if size + len(text) > DATAGRAM_SIZE and waiting:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(text)
            size += len(text)
    except Exception:
        log.exception("a listing failed (%s, command %d)", family.name, request.body[0])
    waiting.append(netlink.done(request.seq, request.pid))
    yield b"".join(waiting)
