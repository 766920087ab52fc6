"""`uvs lab capture`: what a host sends and gets, as lines and as a pcap."""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import IO, Any

from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.wires import Frame, Listener, owners
from uvs.walk.expressions import in_a_line, scapy

DLT_EN10MB = 1  # LINKTYPE_ETHERNET
_INSTRUCTION = 8  # bytes of a struct bpf_insn
_ETHER = 14


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `uvs lab capture`."""
    add = parser.add_argument
    add("host", metavar="HOST", help="client, director, rs1, ...")
    add("filter", nargs="*", metavar="FILTER", help="which packets, as pcap-filter(7) says it")
    add("--count", "-c", type=int, metavar="N", help="end after N packets (otherwise by Ctrl-C)")
    add("--write", metavar="F", help="the frames, as a pcap")


def main(args: argparse.Namespace, lab: Lab) -> int:
    """Write a line for each frame until Ctrl-C or --count."""
    if args.count is not None and args.count < 1:
        raise LabError("--count takes 1 or more", 2)
    program = compiled(" ".join(args.filter)) if args.filter else b""
    names = owners(lab)
    with ExitStack() as stack:
        writer = None
        if args.write:
            try:
                writer = _writer(stack.enter_context(open(args.write, "wb", buffering=0)))
            except OSError as e:
                raise LabError(f"{args.write}: {e.strerror or e}") from None
        listener = Listener(lab, [args.host], program)
        stack.callback(listener.close)
        print(f"capturing on {args.host}: Ctrl-C ends it", file=sys.stderr, flush=True)
        number = 0
        try:
            for number, frame in enumerate(listener.frames(None), 1):
                print(line(frame, names), flush=True)
                if writer:
                    writer.write_packet(frame.data, sec=int(frame.time), usec=int(frame.time % 1 * 10**6))
                if number == args.count:
                    break
        except KeyboardInterrupt:
            pass
        except BrokenPipeError:
            raise
        except OSError as e:  # the pcap's: the disk is full
            raise LabError(f"{args.write or args.host}: {e.strerror or e}") from None
        print(f"{number} packets", file=sys.stderr)
    return 0


def _writer(file: IO[bytes]) -> Any:
    scapy()
    from scapy.utils import RawPcapWriter

    writer: Any = RawPcapWriter(file, linktype=DLT_EN10MB, sync=True)
    writer.write_header(None)
    return writer


def compiled(text: str) -> bytes:
    """A filter's program (an array of struct bpf_insn), by libpcap. LabError: wrong, or no libpcap."""
    scapy()
    try:
        from scapy.arch.common import compile_filter

        program = compile_filter(text, linktype=DLT_EN10MB)
    except Exception as e:  # scapy's own, of a wrong filter; OSError or ImportError without libpcap
        if "libpcap" in str(e) and "Failed to compile" not in str(e):
            raise LabError("filters are read by libpcap: apt-get install libpcap0.8") from None
        raise LabError(f"no filter (pcap-filter(7)): {in_a_line(text)}", 2) from None
    return ctypes.string_at(program.bf_insns, program.bf_len * _INSTRUCTION)


def line(frame: Frame, names: Mapping[str, str]) -> str:
    """A frame in a line: time, interface, which way, MAC addresses as hosts' names, what is in it."""
    clock = time.strftime("%H:%M:%S", time.localtime(frame.time)) + f".{int(frame.time % 1 * 10**6):06}"
    way = "out" if frame.out else "in "
    ends = [frame.data[6:12].hex(":"), frame.data[:6].hex(":")]
    between = "no MAC" if frame.data[:12] == bytes(12) else " > ".join(_owner(mac, names) for mac in ends)
    return f"{clock} {frame.interface:5} {way} {between}  {_content(frame.data)}"


def _owner(mac: str, names: Mapping[str, str]) -> str:
    return names.get(mac) or ("all" if mac == "ff:ff:ff:ff:ff:ff" else mac)


def _content(data: bytes) -> str:
    from scapy.config import conf
    from scapy.layers.inet import TCP, UDP
    from scapy.layers.l2 import Ether

    conf.noenum.add(TCP.sport, TCP.dport, UDP.sport, UDP.dport)  # ports as numbers
    packet: Any = Ether(data)
    told = in_a_line(packet.payload.summary() if packet.payload else packet.summary(), 200)
    ttl = getattr(packet.payload, "ttl", None) or getattr(packet.payload, "hlim", None)
    return f"{told}  ttl {ttl}" if ttl else told
