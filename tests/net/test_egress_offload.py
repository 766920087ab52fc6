"""What the virtio-net header does: one send, and the other side sees whole segments with right checksums."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from support.kernel_queue import CSUMNOTREADY, GSO, SKB_INFO, Kernel, Said
from support.packets import CLIENT, CPORT, DPORT, SERVER, VIP, VPORT, half, packed
from support.sandbox import Host, ip, link_up, offloads_off, sandboxed, wait_for
from support.world import sums_right

from uvs.engine.core import ConnFlag, NextHop, Packet
from uvs.engine.io import Gso, Injector
from uvs.netfilter.nfnetlink import attribute

MAC = ("02:00:00:00:00:01", "02:00:00:00:00:02")
MARK = 0x40000000
MSS = 1400
GSO_ECN = 0x80  # VIRTIO_NET_HDR_GSO_ECN
SOL_PACKET, PACKET_VNET_HDR = 263, 15
SEQ = 0xFFFFF000  # wraps within the packet


def unfinished(v: int, payload: bytes) -> tuple[bytes, int]:
    """A TCP packet whose checksum field holds the pseudo header's sum only, and where TCP starts."""
    at = 20 if v == 4 else 40
    net = (
        IP(src="10.0.0.1", dst="10.0.0.2", id=7, flags="DF") if v == 4 else IPv6(src="fd00::1", dst="fd00::2")
    )
    data = bytearray(bytes(net / TCP(sport=1000, dport=2000, seq=SEQ, flags="PA", chksum=0)) + payload)
    struct.pack_into("!H", data, 2 if v == 4 else 4, len(data) if v == 4 else len(data) - 40)
    if v == 4:
        data[10:12] = bytes(2)
        data[10:12] = struct.pack("!H", ones_complement(data[:20]) ^ 0xFFFF)
    addresses = bytes(data[12:20] if v == 4 else data[8:40])
    struct.pack_into("!H", data, at + 16, ones_complement(addresses + struct.pack("!II", len(data) - at, 6)))
    return bytes(data), at


def ones_complement(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def segments(capture: socket.socket, v: int) -> Iterator[bytes]:
    """IP packets of our TCP flow that have arrived."""
    for frame in frames(capture):
        if frame[12:14] == (b"\x08\0" if v == 4 else b"\x86\xdd") and frame[14 + (9 if v == 4 else 6)] == 6:
            yield frame[14:]


def frames(capture: socket.socket) -> Iterator[bytes]:
    """Frames that have arrived."""
    while True:
        try:
            yield capture.recv(1 << 17)
        except BlockingIOError:
            return


@pytest.fixture(name="v", params=[4, 6], ids=["IPv4", "IPv6"])
def _v(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Wire:
    def __init__(self, offload: bool = False) -> None:
        peer = Host()
        ip(
            f"link add v0 address {MAC[0]} type veth peer name v1 address {MAC[1]} netns {peer.netns}",
            "link set v0 up",
        )
        with peer:
            ip("link set v1 up")
            self.capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.capture.bind(("v1", 0))
            self.capture.setblocking(False)
        if not offload:
            offloads_off("v0")
        link_up("v0", "v1", peer)
        self.injector = Injector(MARK)

    def hop(self, v: int) -> NextHop:
        macs = b"".join(bytes.fromhex(m.replace(":", "")) for m in reversed(MAC))
        return NextHop(socket.if_nametoindex("v0"), 1500, macs + (b"\x08\0" if v == 4 else b"\x86\xdd"))


@sandboxed
def test_a_64_kib_tcp_packet_arrives_in_segments(v: int) -> None:
    wire = Wire()
    data, at = unfinished(v, os.urandom(64000))
    gso = Gso.TCPV4 if v == 4 else Gso.TCPV6
    assert wire.injector.offload(wire.hop(v), data, at, 16, gso, MSS, at + 20) == 0
    got: list[bytes] = []
    wait_for(lambda: got.extend(segments(wire.capture, v)) or len(got) >= -(-64000 // MSS), "segments")
    payload = b""
    packet = Packet()
    for i, segment in enumerate(got):
        layer = IP(segment) if v == 4 else IPv6(segment)
        assert layer[TCP].seq == (SEQ + len(payload)) & 0xFFFFFFFF
        assert packet.load(segment) == 0
        assert packet.l4_csum_ok(), f"checksum of segment {i}"
        if v == 4:
            assert (layer.id, ones_complement(segment[:20])) == (7 + i, 0xFFFF)
        body = segment[at + 20 :]
        assert len(body) == min(MSS, 64000 - len(payload))
        payload += body
    assert payload == data[at + 20 :]


@sandboxed
def test_a_request_of_many_segments_leaves_as_one() -> None:
    """By the fast path: how it is to be cut and summed is told with it, and that CWR is the first one's alone."""
    wire = Wire(offload=True)
    wire.capture.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    request = half(
        IP(src=CLIENT, dst=VIP, ttl=9) / TCP(sport=CPORT, dport=VPORT, flags="PAC") / os.urandom(5000)
    )
    with closing(Kernel(wire.injector, wire.hop(4))) as kernel:
        kernel.hand(1, request.data, more=attribute(SKB_INFO, struct.pack("!I", CSUMNOTREADY | GSO)))
        assert kernel.step() == 1
        assert kernel.queue.slow() is None
        assert kernel.said() == [Said(1, False)]
        assert kernel.queue.info["refused"] == 0
    frame = wait_for(lambda: next((f for f in frames(wire.capture) if f[22:24] == b"\x08\0"), None), "it")
    assert struct.unpack_from("=BBHHHH", frame) == (1, Gso.TCPV4 | GSO_ECN, 14 + 40, 536, 14 + 20, 16)
    packet = Packet()
    assert packet.load(frame[24:]) == 0
    packet.partial = 1
    packet.csum_finish()
    assert packet.l4_csum_ok()
    assert (packet.iph.daddr, packet.iph.dport, packet.iph.ttl) == (packed(SERVER), DPORT, 8)
    assert packet.data[40:] == request.data[40:]


def open_tun() -> int:
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"t0", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
    ip("link set t0 up")
    return tun


@sandboxed
def test_a_device_without_a_link_layer_takes_many_segments() -> None:
    tun = open_tun()
    os.set_blocking(tun, False)
    request = half(IP(src=CLIENT, dst=VIP) / TCP(sport=CPORT, dport=VPORT, flags="A") / os.urandom(5000))
    with closing(Kernel(Injector(MARK), NextHop(socket.if_nametoindex("t0"), 1500))) as kernel:
        kernel.hand(1, request.data, more=attribute(SKB_INFO, struct.pack("!I", CSUMNOTREADY | GSO)))
        assert kernel.step() == 1
        assert kernel.queue.slow() is None
        assert kernel.queue.info["refused"] == 0
    payload, packet = b"", Packet()

    def more() -> bool:
        nonlocal payload
        with suppress(BlockingIOError):
            if packet.load(os.read(tun, 1501)) == 0 and packet.iph.protocol == 6:
                assert packet.l4_csum_ok()
                assert packet.iph.segment <= 536
                payload += packet.data[40:]
        return len(payload) >= 5000

    wait_for(more, "all of it")
    assert payload == request.data[40:]


@sandboxed
@pytest.mark.parametrize("cooked", [False, True], ids=["bare", "cooked"])
def test_a_request_of_many_segments_leaves_in_its_tunnel(cooked: bool) -> None:
    """By the fast path: cut and summed before, into more packets than are sent by one call."""
    tun = open_tun()
    os.set_blocking(tun, False)
    request = half(
        IP(src=CLIENT, dst=VIP, ttl=9) / TCP(sport=CPORT, dport=VPORT, flags="A", seq=SEQ) / os.urandom(60000)
    )
    hop = NextHop(socket.if_nametoindex("t0"), 1500, cooked=cooked, saddr=packed("10.0.0.1"))
    with closing(Kernel(Injector(MARK), hop, ConnFlag.TUNNEL)) as kernel:
        kernel.hand(1, request.data, more=attribute(SKB_INFO, struct.pack("!I", CSUMNOTREADY | GSO)))
        assert kernel.step() == 1
        assert kernel.queue.slow() is None
        assert kernel.said() == [Said(1, False)]
        assert kernel.queue.info["refused"] == 0
    payload, packet = b"", Packet()

    def more() -> bool:
        nonlocal payload
        with suppress(BlockingIOError):
            outer = os.read(tun, 1501)
            if packet.load(outer) == 0 and packet.iph.protocol == 4:
                assert (packet.iph.saddr, packet.iph.daddr) == (packed("10.0.0.1"), packed(SERVER))
                assert sums_right(IP(outer))
                assert IP(outer)[TCP].seq == (SEQ + len(payload)) & 0xFFFFFFFF
                assert (packet.load(outer[20:]), packet.l4_csum_ok(), packet.iph.ttl) == (0, True, 8)
                payload += packet.data[40:]
        return len(payload) >= 60000

    wait_for(more, "all of it")
    assert payload == request.data[40:]


@sandboxed
def test_an_unfinished_checksum_is_finished(v: int) -> None:
    wire = Wire()
    data, at = unfinished(v, b"hello")
    packet = Packet()
    assert packet.load(data) == 0
    assert not packet.l4_csum_ok(), "unfinished as it is sent"
    assert wire.injector.offload(wire.hop(v), data, at, 16) == 0
    got: list[bytes] = wait_for(lambda: list(segments(wire.capture, v)), "the packet")
    assert packet.load(got[0]) == 0
    assert packet.l4_csum_ok()
    assert packet.data[at + 20 :] == b"hello"


@sandboxed
def test_packets_bear_the_mark() -> None:
    injector = Injector(MARK)
    for fd in (injector._c.raw, injector._c.cooked):
        with socket.socket(fileno=os.dup(fd)) as s:
            assert s.getsockopt(socket.SOL_SOCKET, 36) == MARK  # SO_MARK
    injector.close()


@sandboxed
def test_errors_of_sending(v: int) -> None:
    wire = Wire()
    data, at = unfinished(v, bytes(2000))
    hop = wire.hop(v)
    cooked = NextHop(hop.ifindex, 1500, cooked=True)
    assert wire.injector.send(hop, data) == errno.EMSGSIZE
    assert wire.injector.send(hop, b"") == errno.EINVAL
    assert wire.injector.offload(cooked, data, at, 16, Gso.TCPV4, MSS, at + 20) == errno.EOPNOTSUPP
    assert wire.injector.send(NextHop(9999, 1500, hop.eth), data) == errno.ENXIO
    ip("link set v0 down")
    assert wire.injector.send(hop, data[:100]) == errno.ENETDOWN
    wire.injector.close()
    assert wire.injector.send(hop, data[:100]) == errno.EBADF


@sandboxed
def test_the_kernel_builds_the_header_of_a_cooked_next_hop(v: int) -> None:
    tun = open_tun()
    data, _ = unfinished(v, b"x")
    hop = NextHop(socket.if_nametoindex("t0"), 1500, cooked=True)
    assert Injector(MARK).send(hop, data) == 0
    protocol = 9 if v == 4 else 6
    assert wait_for(lambda: (p := os.read(tun, 2000))[protocol] == 6 and p, "the packet") == data


def test_a_link_layer_header_has_14_bytes_or_none() -> None:
    with pytest.raises(ValueError, match="0 or 14 bytes, not 6"):
        NextHop(1, 1500, bytes(6))
    assert [NextHop(1, 1500, eth).eth for eth in (b"", bytes(range(14)))] == [b"", bytes(range(14))]
