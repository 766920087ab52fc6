"""The little of nfnetlink that no library offers: queue settings, who owns a queue, the ruleset's generation.

Layouts: include/uapi/linux/netfilter/nfnetlink.h, nfnetlink_queue.h and nf_tables.h. Headers are in host
byte order, attributes of nfnetlink in network order.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

NETLINK_NETFILTER = 12
SOL_NETLINK = 270
NETLINK_NO_ENOBUFS = 5

NLM_F_REQUEST, NLM_F_ACK, NLM_F_NONREC = 0x1, 0x4, 0x100
NLMSG_ERROR = 2

NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 16, 17
NFNL_SUBSYS_QUEUE, NFNL_SUBSYS_NFTABLES = 3, 10
NFQNL_MSG_CONFIG = 2
NFQA_CFG_CMD, NFQA_CFG_PARAMS, NFQA_CFG_QUEUE_MAXLEN, NFQA_CFG_MASK, NFQA_CFG_FLAGS = 1, 2, 3, 4, 5
NFQNL_CFG_CMD_BIND, NFQNL_CFG_CMD_UNBIND = 1, 2
NFQNL_COPY_PACKET = 2
NFQA_CFG_F_FAIL_OPEN, NFQA_CFG_F_GSO = 1, 4
NFT_MSG_DELTABLE, NFT_MSG_GETGEN = 2, 16
NFTA_GEN_ID, NFTA_TABLE_NAME = 1, 1


def attribute(kind: int, value: bytes) -> bytes:
    """One netlink attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, flags: int, family: int, res_id: int, body: bytes = b"", seq: int = 0) -> bytes:
    """A netlink message with the nfgenmsg header; `kind` holds the subsystem in its upper byte."""
    return (
        struct.pack("=IHHIIBBH", 20 + len(body), kind, flags, seq, 0, family, 0, socket.htons(res_id)) + body
    )


def connect() -> socket.socket:
    """A netlink socket of the netfilter family; answers are waited for two seconds at most."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    sock.settimeout(2)
    return sock


def acknowledged(sock: socket.socket, request: bytes) -> int:
    """Send a request with NLM_F_ACK; 0 or the errno that the kernel answered."""
    sock.send(request)
    while True:
        answer = sock.recv(65536)
        if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
            return -int(struct.unpack_from("=i", answer, 16)[0])


def queue_parameters(queue: int, copy_range: int, gso: bool = False) -> bytes:
    """Copy packets up to `copy_range` bytes and drop what does not fit (F_FAIL_OPEN off), without an answer.

    F_GSO: a driver that takes no packet of many segments needs the kernel to cut them for it.
    """
    body = attribute(NFQA_CFG_PARAMS, struct.pack("!IB", copy_range, NFQNL_COPY_PACKET))
    body += attribute(NFQA_CFG_MASK, struct.pack("!I", NFQA_CFG_F_FAIL_OPEN | NFQA_CFG_F_GSO))
    body += attribute(NFQA_CFG_FLAGS, struct.pack("!I", NFQA_CFG_F_GSO if gso else 0))
    return message(NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_CONFIG, NLM_F_REQUEST, socket.AF_UNSPEC, queue, body)


def bind_queue(sock: socket.socket, queue: int, max_len: int) -> int:
    """Own a queue with this socket, `max_len` packets long: 0, or errno; EPERM: somebody else's."""
    kind = NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_CONFIG
    for body in (
        attribute(NFQA_CFG_CMD, struct.pack("!BBH", NFQNL_CFG_CMD_BIND, 0, 0)),
        attribute(NFQA_CFG_QUEUE_MAXLEN, struct.pack("!I", max_len)),
    ):
        request = message(kind, NLM_F_REQUEST | NLM_F_ACK, socket.AF_UNSPEC, queue, body)
        if error := acknowledged(sock, request):
            return error
    return 0


def queue_errno(queue: int) -> int:
    """Why we could not own a queue: 0 (free), EPERM (owned by another socket, or no privilege), other errno.

    Asks to unbind it, which the kernel refuses with EPERM for another's queue and ENODEV for a free one, so
    that nothing changes (net/netfilter/nfnetlink_queue.c, nfqnl_recv_config()).
    """
    body = attribute(NFQA_CFG_CMD, struct.pack("!BBH", NFQNL_CFG_CMD_UNBIND, 0, 0))
    kind = NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_CONFIG
    with connect() as sock:
        error = acknowledged(sock, message(kind, NLM_F_REQUEST | NLM_F_ACK, socket.AF_UNSPEC, queue, body))
    return 0 if error == errno.ENODEV else error


ROWS = Path("/proc/net/netfilter/nfnetlink_queue")


def queue_row(queue: int) -> list[int] | None:
    """A queue's line of `queue_rows`; None if unreadable or without owner."""
    return queue_rows().get(queue)


def queue_rows() -> dict[int, list[int]]:
    """The lines of /proc/net/netfilter/nfnetlink_queue by queue number; none if it cannot be read.

    Columns: queue number, port id of its owner, packets waiting, copy mode, copy range, dropped because the
    queue was full, dropped because the socket was full, packets so far.
    """
    try:
        lines = ROWS.read_text().splitlines()
    except OSError:
        return {}
    rows = ([int(word) for word in line.split()] for line in lines)
    return {row[0]: row for row in rows if row}


def queue_owner(queue: int) -> str:
    """The owner of a queue for a message: " by process 17 (uvs)", or "" where the kernel does not say.

    A socket's port id is the process id of its owner, unless that process had a netlink socket before.
    """
    row = queue_row(queue)
    if row is None or row[1] <= 1:
        return ""
    try:
        name = Path(f"/proc/{row[1]}/comm").read_text().strip()
    except OSError:
        return ""
    return f" by process {row[1]} ({name})"


def ruleset_generation() -> int | None:
    """The number that grows by one with every change of the nf_tables ruleset (iptables-nft's included).

    None: this kernel has no nf_tables.
    """
    request = message(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN, NLM_F_REQUEST, socket.AF_UNSPEC, 0)
    try:
        with connect() as sock:
            sock.send(request)
            answer = sock.recv(65536)
    except OSError:
        return None
    if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
        return None
    offset = 20
    while offset + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, offset)
        if kind == NFTA_GEN_ID:
            return int(struct.unpack_from("!I", answer, offset + 4)[0])
        offset += max(4, length + 3 & ~3)
    return None


def delete_empty_table(family: int, name: str) -> None:
    """Delete an nf_tables table if nothing is in it: the kernel refuses otherwise (NLM_F_NONREC)."""
    body = attribute(NFTA_TABLE_NAME, name.encode() + b"\0")
    batch = message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, 0, NFNL_SUBSYS_NFTABLES, seq=1)
    batch += message(
        NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE,
        NLM_F_REQUEST | NLM_F_ACK | NLM_F_NONREC,
        family,
        0,
        body,
        seq=2,
    )
    batch += message(NFNL_MSG_BATCH_END, NLM_F_REQUEST, 0, NFNL_SUBSYS_NFTABLES, seq=3)
    try:
        with connect() as sock:
            acknowledged(sock, batch)
    except OSError:
        return


def has_net_admin() -> bool:
    """CAP_NET_ADMIN in the effective set (bit 12, include/uapi/linux/capability.h)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return os.geteuid() == 0
    caps = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(caps, 16) >> 12 & 1)
