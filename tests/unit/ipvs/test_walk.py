"""Walks and counts of reasons."""

from support.world import (
    CIP,
    RIP,
    VIP,
    tcp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

STOLEN, ACCEPT, DROP = Verdict.STOLEN, Verdict.ACCEPT, Verdict.DROP


def test_a_walk_is_recorded_when_asked_for(world):
    world.server(world.service(), RIP[1], 8080)
    world.ipvs.recorder.want = 1
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.forward(tcp(RIP[1], 8080, CIP, 1024, "SA"))
    (walk,) = world.ipvs.recorder.walks
    told = walk.to_json()
    assert (told["hook"], told["verdict"], told["why"]) == ("LOCAL_IN", "STOLEN", "forwarded")
    functions = [s["function"] for s in told["steps"]]
    for name in (
        "ip_vs_in",
        "ip_vs_conn_in_get",
        "ip_vs_service_find",
        "ip_vs_rr_schedule",
        "ip_vs_conn_new",
    ):
        assert name in functions
    assert told["entry"]["before"] is None
    assert told["entry"]["after"]["state"] == "SYN_RECV"
    assert told["sent"][0]["packet"] == f"TCP {CIP}:1024 > {RIP[1]}:8080 S"


def test_every_verdict_is_counted_by_its_reason(world):
    world.server(world.service(), RIP[1])
    for packet in (tcp(CIP, 1024, VIP, 80), tcp(CIP, 1024, VIP, 81), tcp(CIP, 1025, VIP, 80, "A")):
        world.local_in(packet)
    counted = {Why(i): n for i, n in enumerate(world.ipvs.why) if n}
    assert counted == {Why.FORWARDED: 1, Why.NO_SERVICE: 1, Why.NOT_SYN: 1}


def test_a_walk_tells_of_the_template(world):
    world.server(world.service(flags=1, timeout=300), RIP[1])
    world.ipvs.recorder.want = 2
    for port in (1024, 1025):
        world.local_in(tcp(CIP, port, VIP, 80))
    told = [{s["function"]: s["decision"] for s in w.to_json()["steps"]} for w in world.ipvs.recorder.walks]
    assert [w["ip_vs_ct_in_get"] for w in told] == ["no template", "template found"]
    assert [w.get("ip_vs_rr_schedule") for w in told] == [f"{RIP[1]}:80", None]
