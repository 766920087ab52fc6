"""The FTP helper: data connections' entries, what the client is told, and sequence numbers behind it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import TCP
from scapy.packet import Raw
from support.packets import loaded
from support.world import CIP, CIP6, DROUTE, MASQ, RIP, RIP6, VIP, VIP6, World, ip, sums_right, tcp

from uvs.engine.core import ConnFlag, Why
from uvs.ipvs.skb import Hook, Verdict

LISTEN, ESTABLISHED, SYN_RECV = "LISTEN", "ESTABLISHED", "SYN_RECV"


class Talk:
    """A control connection: what each side says goes through the director, what arrives is returned."""

    def __init__(self, world, six=False, port=21, server=None, method=MASQ, cport=1024):
        self.world, self.six = world, six
        self.c, self.vip, self.rip = (CIP6, VIP6, RIP6[1]) if six else (CIP, VIP, server or RIP[1])
        self.port, self.cport = port, cport
        self.cs, self.ss, self.ack = 1000, 5000, 0
        key = ("six", six, self.rip, port)
        if not any(key == k for k in world.__dict__.setdefault("talks", [])):
            world.talks.append(key)
            self.svc = world.service(self.vip, 21)
            world.server(self.svc, self.rip, port, method)
        self.client("S"), self.server("SA"), self.client("A")

    def client(self, flags, data=b"", ack=None, options=(), **kw):
        seq = self.cs
        self.cs += len(data) + (flags.count("S") + flags.count("F"))
        packet = ip(self.c, self.vip) / TCP(
            sport=self.cport, dport=21, flags=flags, seq=seq, ack=self.ack if ack is None else ack, options=list(options)
        ) / Raw(data)  # fmt: skip
        self.got = self.world.local_in(packet, **kw)
        return self.got.sent[0][1] if self.got.sent else None

    def server(self, flags, data=b"", seq=None, **kw):
        at = self.ss if seq is None else seq
        if seq is None:
            self.ss += len(data) + (flags.count("S") + flags.count("F"))
        packet = (
            ip(self.rip, self.c)
            / TCP(sport=self.port, dport=self.cport, flags=flags, seq=at, ack=self.cs)
            / Raw(data)
        )
        self.got = self.world.forward(packet, **kw)
        out = self.got.content
        if out is not None and seq is None:
            self.ack = out[TCP].seq + len(bytes(out[TCP].payload)) + (flags.count("S") + flags.count("F"))
        return out

    def ask(self, command, reply):
        """A command and its reply as the client gets it."""
        self.client("PA", command)
        return bytes(self.server("PA", reply)[TCP].payload)

    def entries(self):
        """state, client, virtual, server of every connection but this one."""
        return sorted(
            (c.state_name, c.cport, c.vport, c.dport, bool(c.flags & ConnFlag.NO_CPORT))
            for c in self.world.table.conns()
            if c.vport != 21
        )


def test_passive(world):
    """227 tells the virtual address; the client's connection is the server's, whatever port it comes from."""
    talk = Talk(world)
    told = talk.ask(b"PASV\r\n", b"227 Entering Passive Mode (198,19,0,11,4,1).\r\n")
    assert told == b"227 Entering Passive Mode (198,18,0,100,4,1).\r\n"
    assert sums_right(talk.got.content)
    assert talk.entries() == [(LISTEN, 0, 1025, 1025, True)]
    (data,) = (c for c in world.table.conns() if c.vport == 1025)
    assert world.table.conn_at(data.control).vport == 21
    assert (data.timeout, data.remaining(world.now)) == (120_000, 120_000)
    (dest,) = talk.svc.dests
    assert (dest.rec.activeconns, dest.rec.inactconns) == (1, 1)
    assert (talk.svc.rec.stats[0], dest.rec.stats[0]) == (1, 1)  # it was not scheduled
    assert world.local_in(tcp(CIP, 3000, VIP, 1025)).to == RIP[1]
    assert talk.entries() == [(SYN_RECV, 3000, 1025, 1025, False)]
    assert world.forward(tcp(RIP[1], 1025, CIP, 3000, "SA")).content.src == VIP
    assert world.local_in(tcp(CIP, 3001, VIP, 1025)).why == Why.FTP_DATA
    assert world.local_in(tcp("10.9.0.2", 3000, VIP, 1025)).why == Why.FTP_DATA


def test_extended_passive(world):
    """229 has no address: it stays as it is, but the entry is made; an address is taken out."""
    talk = Talk(world)
    reply = b"229 Entering Extended Passive Mode (|||1027|)\r\n"
    assert talk.ask(b"EPSV\r\n", reply) == reply
    assert talk.ask(b"EPSV 1\r\n", b"229 (|1|198.19.0.12|1028|)\r\n") == b"229 (|||1028|)\r\n"
    assert talk.entries() == [(LISTEN, 0, 1027, 1027, True), (LISTEN, 0, 1028, 1028, True)]
    assert [c.daddr[3] for c in world.table.conns() if c.vport == 1028] == [12]


def test_passive_of_ipv6(world):
    talk = Talk(world, six=True)
    reply = b"229 (|||1027|)\r\n"
    assert talk.ask(b"EPSV\r\n", reply) == reply
    told = talk.ask(b"EPSV 2\r\n", b"229 (|2|2001:db8:19::11|1028|)\r\n")
    assert told == b"229 (|||1028|)\r\n"
    assert sums_right(talk.got.content)
    assert world.local_in(tcp(CIP6, 3000, VIP6, 1028)).to == RIP6[1]
    reply = b"227 (198,19,0,11,4,1)\r\n"
    assert talk.ask(b"PASV\r\n", reply) == reply


def test_not_asked_for(world):
    """A reply is only rewritten once, after a command; any later one of its kind will do."""
    talk = Talk(world)
    reply = b"227 (198,19,0,11,4,1)\r\n"
    assert bytes(talk.server("PA", reply)[TCP].payload) == reply
    talk.client("PA", b"PASV\r\n")
    talk.server("PA", b"500 no\r\n")
    assert bytes(talk.server("PA", reply)[TCP].payload) == b"227 (198,18,0,100,4,1)\r\n"
    assert bytes(talk.server("PA", reply)[TCP].payload) == reply


def test_only_while_established(world):
    talk = Talk(world)
    talk.client("FPA", b"PASV\r\n")
    reply = b"227 (198,19,0,11,4,1)\r\n"
    assert bytes(talk.server("PA", reply)[TCP].payload) == reply
    assert talk.entries() == []


def test_not_of_another_method(world):
    talk = Talk(world, method=DROUTE)
    assert bytes(talk.client("PA", b"PORT 10,9,0,1,4,1\r\n")[TCP].payload) == b"PORT 10,9,0,1,4,1\r\n"
    assert talk.entries() == []


def test_sequence_numbers(world):
    """Replies grow and shrink; both sides see gapless numbers, and each other's as they counted them."""
    talk = Talk(world, server="9.9.0.1")
    moved = 0
    for told, by in ((b"(9,9,0,1,4,1)", 5), (b"(109,109,100,101,104,201)", -3), (b"(1,1,1,1,4,1)", 5)):
        start, at = talk.ack, talk.ss
        out = talk.ask(b"PASV\r\n", b"227 " + told + b"\r\n")
        assert out.startswith(b"227 (198,18,0,100,")
        assert talk.got.content[TCP].seq == start == at + moved
        assert len(out) == len(told) + 6 + by
        moved += by
        assert talk.client("A")[TCP].ack == talk.ss
        assert talk.ack == talk.ss + moved
        assert talk.server("PA", b"150 more\r\n")[TCP].seq == talk.ss - 10 + moved
        assert sums_right(talk.got.content)
        sent = talk.client("A", options=[("NOP", None), ("SAck", (talk.ack - 3, talk.ack)), ("NOP", None)])
        assert (sent[TCP].ack, sent[TCP].options[1][1]) == (talk.ss, (talk.ss - 3, talk.ss))
        assert sums_right(sent)
    # what came before the last change keeps the old distance
    assert talk.server("PA", b"old", seq=at)[TCP].seq == at + moved - 5
    assert talk.client("A", ack=start)[TCP].ack == at


def test_sequence_numbers_wrap(world):
    talk = Talk(world, server="9.9.0.1")
    talk.ss = talk.ack = 0xFFFFFFF0
    talk.ask(b"PASV\r\n", b"227 (9,9,0,1,4,1)\r\n")
    talk.ss &= 0xFFFFFFFF
    assert talk.server("PA", b"150\r\n")[TCP].seq == talk.ss - 5 + 5
    assert talk.client("A")[TCP].ack == talk.ss


def test_options_that_lie(world):
    """Of a client whose numbers are moved they have to be read: dropped if they cannot."""
    talk = Talk(world, server="9.9.0.1")
    packet = tcp(CIP, 1024, VIP, 21, "A")
    packet[TCP].options = [("NOP", None)] * 4
    for length in (0, 1, 3, 200):
        lying = bytearray(bytes(packet))
        lying[42:44] = bytes([5, length])
        pkt = loaded(bytes(lying))
        pkt.csum_fill()
        assert world.local_in(pkt.data).why == Why.FORWARDED
    talk.ask(b"PASV\r\n", b"227 (9,9,0,1,4,1)\r\n")
    got = world.local_in(pkt.data)
    assert (got.verdict, got.why) == (Verdict.DROP, Why.MALFORMED)


def test_what_is_kept(world):
    """Mode and distances stand in the arena (tests/unit/engine/test_ext.py); the path only reads them there."""
    talk = Talk(world, server="9.9.0.1")
    talk.client("PA", b"PASV\r\n")
    (control,) = world.table.conns()
    app = world.table.app_data(control)
    assert (app.mode, app.delta) == (1, 0)
    talk.server("PA", b"227 (9,9,0,1,4,1)\r\n")
    assert (app.mode, app.delta, app.previous_delta, app.init_seq) == (0, 5, 0, 5001)
    assert control.flags & ConnFlag.OUT_SEQ


@pytest.mark.parametrize("six", [False, True])
def test_active(world, six):
    """PORT and EPRT: the server's connection from the port below its own is seen as the VIP's port 20."""
    talk = Talk(world, six, port=2121)
    c, vip, rip = talk.c, talk.vip, talk.rip
    text = f"EPRT |{2 if six else 1}|{c}|1040|\r\n".encode()
    assert bytes(talk.client("PA", text)[TCP].payload) == text
    talk.client("PA", b"PORT 10,9,0,1,4,17\r\n")
    assert talk.entries() == [(LISTEN, 1040, 20, 2120, False)] + [(LISTEN, 1041, 20, 2120, False)] * (not six)
    syn = world.forward(tcp(rip, 2120, c, 1040)).content
    assert (syn.src, syn[TCP].sport) == (vip, 20)
    assert talk.entries()[0][0] == LISTEN
    answer = world.local_in(tcp(c, 1040, vip, 20, "SA"))
    assert (answer.to, answer.sent[0][1][TCP].dport) == (rip, 2120)
    assert world.forward(tcp(rip, 2120, c, 1040, "A")).content.src == vip
    assert talk.entries()[0][:2] == (ESTABLISHED, 1040)


def test_active_to_a_third(world):
    """Whatever address the client tells."""
    talk = Talk(world)
    talk.client("PA", b"PORT 10,9,0,7,4,8\r\n")
    assert world.forward(tcp(RIP[1], 20, "10.9.0.7", 1032)).content.src == VIP


def test_the_same_port_again(world):
    """No second entry: the first listens anew."""
    talk = Talk(world)
    for _ in range(2):
        talk.client("PA", b"PORT 10,9,0,1,4,1\r\n")
        talk.ask(b"PASV\r\n", b"227 (198,19,0,11,4,1)\r\n")
        world.pass_time(100)
    assert [(e[0], e[2]) for e in talk.entries()] == [(LISTEN, 1025), (LISTEN, 20)]


def test_a_control_connection_waits_for_its_data(world):
    """It is re-armed for 60 s while a data connection lives, as a template is."""
    talk = Talk(world)
    talk.ask(b"PASV\r\n", b"227 (198,19,0,11,4,1)\r\n")
    talk.client("RA")
    assert world.entries == [("CLOSE", 10), (LISTEN, 120)]
    world.pass_time(11)
    assert world.entries == [("CLOSE", 60), (LISTEN, 109)]
    world.pass_time(60)
    assert world.entries == [("CLOSE", 60), (LISTEN, 49)]
    world.pass_time(61)
    assert world.entries == []


def test_reuse_of_a_controlling_connection(world):
    """A SYN on it is scheduled anew, and it stays: the new one is found first."""
    talk = Talk(world)
    talk.ask(b"PASV\r\n", b"227 (198,19,0,11,4,1)\r\n")
    talk.client("RA")
    world.local_in(tcp(CIP, 1024, VIP, 21))
    assert [e[0] for e in world.entries] == ["CLOSE", LISTEN, SYN_RECV]
    world.local_in(tcp(CIP, 1024, VIP, 21, "A"))
    assert [e[0] for e in world.entries] == ["CLOSE", ESTABLISHED, LISTEN]


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_bad_checksum(world, way):
    """A helper only reads what is whole."""
    talk = Talk(world)
    packet = (
        tcp(CIP, 1024, VIP, 21, "PA", b"PASV\r\n") if way == "in" else tcp(RIP[1], 21, CIP, 1024, "PA", b"x")
    )
    packet[TCP].chksum = 1
    got = world.local_in(packet) if way == "in" else world.forward(packet)
    assert (got.verdict, got.why) == (Verdict.DROP, Why.CHECKSUM)
    other = tcp(CIP, 1024, VIP, 22, "PA")
    other[TCP].chksum = 1
    svc = world.service(port=22)
    world.server(svc, RIP[1], 22)
    world.local_in(tcp(CIP, 1024, VIP, 22))
    assert world.local_in(other).why == Why.FORWARDED
    assert talk.entries()


def test_no_room(world):
    """Without an entry for its data connection the reply is not passed on, to be tried again."""
    talk = Talk(world)
    talk.client("PA", b"PASV\r\n")
    for i in range(world.table.info()["records"]):
        if (
            world.table.conn_new(2, 6, bytes(4), 1, bytes(4), i % 65536, 2, bytes(4), 1, 0, 0, 0, world.now)
            is None
        ):
            break
    assert talk.server("PA", b"227 (198,19,0,11,4,1)\r\n") is None
    assert (talk.got.verdict, talk.got.why) == (Verdict.DROP, Why.TABLE_FULL)
    assert talk.client("PA", b"PORT 10,9,0,1,4,1\r\n") is None
    assert talk.got.why == Why.TABLE_FULL


def test_a_packet_that_cannot_grow(world):
    talk = Talk(world, server="9.9.0.1")
    talk.client("PA", b"PASV\r\n")
    talk.server("PA", b"227 (9,9,0,1,4,1)" + bytes(65535 - 40 - 17))
    assert (talk.got.verdict, talk.got.why) == (Verdict.DROP, Why.TOO_BIG)


def test_a_walk_tells_of_it(world):
    talk = Talk(world)
    world.ipvs.recorder.want = 3
    talk.ask(b"PASV\r\n", b"227 (198,19,0,11,4,1)\r\n")
    talk.client("PA", b"PORT 10,9,0,1,4,8\r\n")
    told = [{s["function"]: s["decision"] for s in w.to_json()["steps"]} for w in world.ipvs.recorder.walks]
    assert told[0]["ip_vs_ftp_in"] == "passive mode asked for: pasv"
    assert told[1]["ip_vs_ftp_out"] == "the client is told 198,18,0,100,4,1"
    assert told[2]["ip_vs_ftp_in"] == "data connection awaited"


# ------------------------------------------------------------------ persistence and data ports


def test_a_persistent_service_by_direct_routing(world):
    """Control and data connections of a client go to one server: the template has port 0."""
    svc = world.service(port=21, flags=1, timeout=300)
    for i in (1, 2):
        world.server(svc, RIP[i], 21, DROUTE)
    first = world.local_in(tcp(CIP, 1024, VIP, 21)).to
    for packet in (tcp(CIP, 1025, VIP, 5000), tcp(CIP, 1026, VIP, 1024), tcp(CIP, 1027, VIP, 20, "SA")):
        assert world.local_in(packet).to == first
    for port in (22, 1023):
        assert world.local_in(tcp(CIP, 1028, VIP, port)).why == Why.NO_SERVICE
    assert world.local_in(tcp(CIP, 20, VIP, 5001)).why == Why.CLIENT_PORT
    assert [c.vport for c in world.table.conns() if c.flags & ConnFlag.TEMPLATE] == [0]
    # the data connection may come first
    other = world.local_in(tcp("10.9.0.2", 1024, VIP, 5000)).to
    assert other != first
    assert world.local_in(tcp("10.9.0.2", 1025, VIP, 21)).to == other


WORDS = [b"PORT ", b"EPRT ", b"PASV\r\n", b"EPSV\r\n", b"227 ", b"229 ", b"(", b"|", b"|1|", b"|2|", b",", b"1",
         b"10,9,0,1,4,1", b"10.9.0.1", b"198,19,0,11,4,1)\r\n", b"(|||1027|)", b"::1", b"\r\n", b"\0"]  # fmt: skip
said = st.lists(st.sampled_from(WORDS) | st.binary(max_size=12), max_size=12).map(b"".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(st.tuples(st.booleans(), said), max_size=8), st.booleans())
def test_whatever_they_say(six, talk_of, cut):
    """No crash; every checksum that leaves is right; the client's and the server's numbers stay in step."""
    world = World(conn_max=100)
    talk = Talk(world, six)
    for from_client, data in talk_of:
        out = talk.client("PA", data) if from_client else talk.server("PA", data)
        if out is not None:
            assert sums_right(out)
            if from_client:
                assert out[TCP].ack == talk.ss
    if cut:
        for n in (20, 25, 39, 41):
            packet = bytes(tcp(RIP[1], 21, CIP, 1024, "PA", b"227 (1,1,1,1,1,1)"))
            world.at(Hook.FORWARD, packet[:2] + n.to_bytes(2, "big") + packet[4:n])
    world.pass_time(2000)
    assert list(world.table.conns()) == []
    world.close()
