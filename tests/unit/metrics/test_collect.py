"""What is exported of a director: node_exporter's names and labels for what ip_vs has, and uvs's own."""

from __future__ import annotations

import re
import time
from pathlib import Path
from socket import AF_INET, AF_INET6

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.control import Running, running
from support.world import CIP, MASQ, RIP, RIP6, VIP, VIP6, packed, tcp

from uvs import __version__
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.layers import Health
from uvs.metrics.ask import Answers, ask
from uvs.metrics.collect import Samples, samples
from uvs.metrics.families import FAMILIES, SERVER
from uvs.metrics.serve import encoded

QUEUES = [
    {"queue": 0, "class": "other", "packets": 9, "fast": 7, "slow": 2, "lost": 4, "cut": 1, "refused": 0,
     "unsaid": 0, "errors": 0, "dropped": 5, "waiting": 6},
    {"queue": 1, "class": "syn", "packets": 3, "fast": 0, "slow": 3, "lost": 4, "cut": 0, "refused": 2,
     "unsaid": 1, "errors": 1, "dropped": None, "waiting": None},
]  # fmt: skip


def traffic(director: Running) -> None:
    """TCP and a mark, IPv4 and IPv6; one connection through."""
    w = director.world
    web = w.service(VIP)
    for rip in (RIP[1], RIP[2]):
        w.server(web, rip, 80, MASQ)
    six = w.service(VIP6)
    w.server(six, RIP6[1], 8080, MASQ, weight=7)
    w.local_in(tcp(CIP, 1024, VIP, 80))
    w.pass_time(2)
    list(w.ipvs.services.estimating())  # counters are told as they were then
    director.ipvs.queues = lambda: QUEUES
    check = {
        "name": "tcp",
        "up": False,
        "streak": 0,
        "at": 1.5,
        "ok": False,
        "detail": "refused",
        "duration": 0.25,
    }
    odd = [{"name": 1}, "x", {"name": "ping", "up": None}]
    down = Health(up=False, about={"state": "FAULTED", "checks": [check, *odd]})
    director.layers.set_health(web.key, (AF_INET, packed(RIP[2]), 80), down)
    director.layers.set_health(six.key, (AF_INET6, packed(RIP6[1]), 8080), Health(about={"state": "OK"}))
    director.layers.drain(web.key, (AF_INET, packed(RIP[1]), 80))
    director.layers.set_fallback(six.key, DestSpec(AF_INET6, packed(RIP6[2]), 80))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    with running(tmp_path_factory.mktemp("director")) as director:
        director.do(lambda: traffic(director))
        return ask(director.path)


@pytest.fixture(scope="module")
def found(answers: Answers) -> Samples:
    return samples(answers)


def text(answers: Answers | None, accept: str = "") -> str:
    return encoded(answers, accept)[0].decode()


def test_servers_have_node_exporters_labels(answers: Answers) -> None:
    lines = text(answers).splitlines()
    assert (
        f'node_ipvs_backend_weight{{local_address="{VIP}",local_mark="",local_port="80",proto="TCP",'
        f'remote_address="{RIP[1]}",remote_port="80"}} 0.0' in lines  # it is being drained
    )
    assert (
        f'node_ipvs_backend_weight{{local_address="{VIP6}",local_mark="",local_port="80",proto="TCP",'
        f'remote_address="{RIP6[1]}",remote_port="8080"}} 7.0' in lines
    )
    assert "# TYPE node_ipvs_backend_connections_inactive gauge" in lines
    assert "# TYPE node_ipvs_incoming_bytes_total counter" in lines


def test_connections_and_packets(found: Samples) -> None:
    assert sum(found["node_ipvs_backend_connections_active"].values()) == 1  # SYN_RECV is active
    assert sum(found["node_ipvs_backend_connections_inactive"].values()) == 0
    assert found["node_ipvs_connections_total"] == {(): 1}
    assert found["node_ipvs_incoming_packets_total"] == {(): 1}
    assert found["uvs_service_connections_total"][VIP, "80", "", "TCP"] == 1
    assert sum(found["uvs_server_incoming_bytes_total"].values()) == 40
    assert found["uvs_packets_total"]["forwarded",] == 1
    assert found["uvs_packets_total"]["no_service",] == 0  # what was not yet is told too: a rate needs it
    assert (found["uvs_services"], found["uvs_servers"]) == ({(): 2}, {(): 4})
    assert (found["uvs_connections"], found["uvs_connection_templates"]) == ({(): 1}, {(): 0})


def test_queues(found: Samples) -> None:
    assert found["uvs_queue_packets_total"]["0", "other", "fast"] == 7
    assert found["uvs_queue_packets_total"]["1", "syn", "slow"] == 3
    assert found["uvs_queue_waiting_packets"] == {("0", "other"): 6}  # the kernel does not say of the other
    dropped = found["uvs_queue_dropped_total"]
    assert {k[2]: v for k, v in dropped.items() if k[0] == "0"} == {
        "full": 5, "cut": 1, "refused": 0, "unsaid": 0, "errors": 0
    }  # fmt: skip
    assert {k[2]: v for k, v in dropped.items() if k[0] == "1"} == {
        "full": 4, "cut": 0, "refused": 2, "unsaid": 1, "errors": 1
    }  # fmt: skip


def test_health(found: Samples) -> None:
    """Checks say what is up; the table's weight follows, the configured one stays."""
    one, two = ((VIP, "80", RIP[i], "80", "TCP", "") for i in (1, 2))
    six, sorry = (VIP6, "80", RIP6[1], "8080", "TCP", ""), (VIP6, "80", RIP6[2], "80", "TCP", "")
    assert found["uvs_health_up"] == {two: 0, six: 1}
    assert {k for k, v in found["uvs_health_state"].items() if v} == {(*two, "FAULTED"), (*six, "OK")}
    assert len(found["uvs_health_state"]) == 6
    assert found["uvs_server_configured_weight"] == {one: 1, two: 1, six: 7, sorry: 1}
    assert found["node_ipvs_backend_weight"] == {one: 0, two: 0, six: 7, sorry: 1}
    assert found["uvs_server_draining"] == {one: 1}
    assert found["uvs_health_check_up"] == {(*two, "tcp"): 0}
    assert found["uvs_health_check_duration_seconds"] == {(*two, "tcp"): 0.25}
    assert found["uvs_service_fallback"] == {(VIP6, "80", "", "TCP"): 1}


def test_who_tells_it(found: Samples) -> None:
    assert found["uvs_build_info"] == {(__version__,): 1}
    assert abs(found["uvs_start_time_seconds"][()] - time.time()) < 3600
    assert 0 < found["uvs_scrape_duration_seconds"][()] < 60


def test_no_director() -> None:
    assert samples(None) == {"uvs_up": {(): 0}}
    assert text(None).splitlines()[-1] == "uvs_up 0.0"


def test_an_older_director_says_no_version(answers: Answers) -> None:
    old = answers._replace(about=type(answers.about)("", 0), queues=[])
    assert {"uvs_build_info", "uvs_start_time_seconds"} & set(samples(old)) == set()


def test_services_by_mark(tmp_path: Path) -> None:
    """As /proc/net/ip_vs has them: no address, port 0; one mark for both families is summed up."""
    with running(tmp_path) as director:

        def marked() -> None:
            services = director.ipvs.services
            for af, size in ((2, 4), (10, 16)):
                key = ServiceKey(af, 0, bytes(size), 0, 0x10001000)
                services.add_service(ServiceSpec(key, netmask=0xFFFFFFFF if af == 2 else 128))
                services.add_dest(key, DestSpec(2 if af == 2 else 10, b"\1" * size, 0, 3, weight=4))

        director.do(marked)
        found = samples(ask(director.path))
    assert found["node_ipvs_backend_weight"] == {
        ("", "0", "1.1.1.1", "0", "FWM", "10001000"): 4,
        ("", "0", "101:101:101:101:101:101:101:101", "0", "FWM", "10001000"): 4,
    }
    assert list(found["uvs_service_connections_total"]) == [("", "0", "10001000", "FWM")]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_every_metric_is_one_of_the_list_and_bears_its_labels(answers: Answers, accept: str) -> None:
    if accept:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
    else:
        parse = text_string_to_metric_families
    labels = {family.name: set(family.labels) for family in FAMILIES}
    seen = {}
    for family in parse(text(answers, accept)):
        for sample in family.samples:
            seen.setdefault(sample.name, set(sample.labels))
            assert seen[sample.name] == set(sample.labels) == labels[sample.name], sample
            assert family.type == ("counter" if sample.name.endswith("_total") else "gauge")
    assert list(seen) == [name for name in labels if name in seen]
    assert not labels.keys() - seen.keys()


def test_names_are_as_prometheus_wants_them() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"(node_ipvs|uvs)_[a-z0-9_]+", family.name)
        assert family.text.endswith(".")
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert set(SERVER) == {
        "local_address",
        "local_port",
        "local_mark",
        "proto",
        "remote_address",
        "remote_port",
    }


def test_ten_thousand_servers(tmp_path: Path) -> None:
    """All of them, in one scrape that ends."""
    with running(tmp_path) as director:

        def fill() -> None:
            w = director.world
            for i in range(100):
                service = w.service(f"198.18.1.{i}")
                for j in range(100):
                    w.server(service, f"198.19.{i}.{j}", 80, MASQ)

        director.do(fill)
        start = time.monotonic()
        body = encoded(ask(director.path))[0]
        took = time.monotonic() - start
    assert body.count(b"\nnode_ipvs_backend_weight{") == 10_000
    assert took < 30, took  # under 2 s on an idle machine
