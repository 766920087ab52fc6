"""The texts of /proc/net/ip_vs*, beside what a kernel (Debian 6.1) wrote about the same table."""

import shlex

import pytest
from support.world import CIP, RIP, VIP, World, packed

from uvs.adm import cli as uvsadm
from uvs.control import proctext

# As by: ipvsadm -A -t 10.0.0.1:80 -s wrr and so on; the kernel lists by hash bucket, uvs as they were made.
COMMANDS = """\
-A -t 10.0.0.1:80 -s wrr
-a -t 10.0.0.1:80 -r 10.0.0.2:8080 -m -w 5
-a -t 10.0.0.1:80 -r 10.0.0.3:80 -g -w 0
-A -f 7 -s rr -o
-a -f 7 -r 10.0.0.5 -g
-A -u 10.0.0.1:53 -s rr -o
-A -t [2001:db8::1]:80 -s sh -p 60 -M 64
-a -t [2001:db8::1]:80 -r [2001:db8::2]:80 -g
-a -t [2001:db8::1]:80 -r 10.0.0.9:80 -i
-A --sctp-service 10.0.0.1:9 -s lblcr
-A -t 10.0.0.1:443 -s wlc -p 300 -M 255.255.255.0
-a -t 10.0.0.1:443 -r 10.0.0.4:443 -i -w 12345
-A -f 9 -6 -s rr -p
"""

KERNEL = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A000001:0050 wrr \x20
  -> 0A000003:0050      Route   0      0          0        \x20
  -> 0A000002:1F90      Masq    5      0          0        \x20
UDP  0A000001:0035 rr ops \x20
TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0050 sh persistent 15000 40000000
  -> 0A000009:0050      Tunnel  1      0          0        \x20
  -> [2001:0db8:0000:0000:0000:0000:0000:0002]:0050      Route   1      0          0        \x20
SCTP  0A000001:0009 lblcr \x20
TCP  0A000001:01BB wlc  persistent 75000 FFFFFF00
  -> 0A000004:01BB      Tunnel  12345  0          0        \x20
FWM  00000007 rr ops\x20
  -> 0A000005:0000      Route   1      0          0        \x20
FWM  00000009 rr persistent 90000 80000000
"""


def text(world, name):
    return "".join(proctext.TEXTS[name](world.ipvs))


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


def test_ip_vs(director, client, monkeypatch):
    """And it reaches a client whole."""
    monkeypatch.setenv("UVS_SOCKET", director.path)
    for line in COMMANDS.splitlines():
        assert uvsadm.main(shlex.split(line)) == 0
    assert "".join(client.proc("ip_vs")) == KERNEL


def test_no_such_text(client):
    with pytest.raises(OSError, match="No such file"):
        list(client.proc("dev"))


def test_connections(world):
    world.ipvs.table.conn_new(
        2, 6, packed(CIP), 40000, packed(VIP), 80, 2, packed(RIP[1]), 8080, 0, 0, 0, world.ipvs.clock()
    )
    head = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       "
    row = "TCP 0A090001 9C40 C6120064 0050 C613000B 1F90 NONE        "
    assert text(world, "ip_vs_conn").startswith(head + "Expires PEName PEData\n" + row)
    assert text(world, "ip_vs_conn_sync").startswith(head + "Origin Expires\n" + row + "LOCAL  ")


KERNEL_STATS = """\
   Total Incoming Outgoing         Incoming         Outgoing
   Conns  Packets  Packets            Bytes            Bytes
       2        2        2               78               50

 Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s
       0        0        0                2                1
"""

KERNEL_PERCPU = """\
       Total Incoming Outgoing         Incoming         Outgoing
CPU    Conns  Packets  Packets            Bytes            Bytes
  0        0        0        0                0                0
  1        0        0        0                0                0
  ~        2        2        2               78               50

     Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s
           0        0        0                2                1
"""


def test_counters(world):
    """A kernel with two CPUs that had seen two connections wrote this (its rows by CPU had them too)."""
    total = world.ipvs.services.total
    total._snap = (2, 2, 2, 0x78, 0x50)
    total._avg = [0, 0, 0, 2 << 5, 1 << 5]
    world.ipvs.sysctl.cpus = frozenset({0, 1})
    assert text(world, "ip_vs_stats") == KERNEL_STATS
    assert text(world, "ip_vs_stats_percpu") == KERNEL_PERCPU


def test_helpers(world):
    assert text(world, "ip_vs_app") == "prot port    usecnt name\nTCP  21      0      ftp              \n"


def test_pieces():
    lines = [f"{i}\n" for i in range(1000)]
    pieces = list(proctext.chunks(lines, 100))
    assert "".join(pieces) == "".join(lines)
    assert all(100 <= len(piece) < 110 for piece in pieces[:-1])
    assert list(proctext.chunks([])) == []
