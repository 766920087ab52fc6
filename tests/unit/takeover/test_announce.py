"""Announcements, field by field."""

from __future__ import annotations

import pytest
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether

from uvs.takeover.announce import frames

MAC = bytes.fromhex("02000000aa01")


@pytest.mark.parametrize("router", [False, True])
def test_one_round(router: bool) -> None:
    request, reply, advertisement = map(Ether, frames(MAC, ["192.0.2.100", "2001:db8:a::100"], router))
    for frame, operation, target in ((request, 1, "00:00:00:00:00:00"), (reply, 2, "02:00:00:00:aa:01")):
        assert (frame.dst, frame.src, frame.type) == ("ff:ff:ff:ff:ff:ff", "02:00:00:00:aa:01", 0x0806)
        arp = frame[ARP]
        assert (arp.hwtype, arp.ptype, arp.hwlen, arp.plen, arp.op) == (1, 0x0800, 6, 4, operation)
        assert (arp.hwsrc, arp.psrc, arp.hwdst, arp.pdst) == (
            "02:00:00:00:aa:01",
            "192.0.2.100",
            target,
            "192.0.2.100",
        )
    assert (advertisement.dst, advertisement.src) == ("33:33:00:00:00:01", "02:00:00:00:aa:01")
    header, told = advertisement[IPv6], advertisement[ICMPv6ND_NA]
    assert (header.src, header.dst, header.hlim, header.plen) == ("2001:db8:a::100", "ff02::1", 255, 32)
    assert (told.tgt, told.R, told.S, told.O) == ("2001:db8:a::100", int(router), 0, 1)
    assert advertisement[ICMPv6NDOptDstLLAddr].lladdr == "02:00:00:00:aa:01"
    again = IPv6(bytes(header))
    del again[ICMPv6ND_NA].cksum
    assert IPv6(bytes(again))[ICMPv6ND_NA].cksum == told.cksum
