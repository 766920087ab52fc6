"""A configuration and a table of whatever state: the table becomes what the file says, all of it or nothing."""

from __future__ import annotations

import errno
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.world import World

from uvs.config import apply as applying
from uvs.config.apply import apply, standing
from uvs.config.converge import converge
from uvs.config.difference import line, row
from uvs.config.load import ConfigError, Fault, parse
from uvs.config.specs import dest_spec, service_spec, wanted
from uvs.control.ipvs_family import set_timeouts, timeouts
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey
from uvs.layers import Health, Layers, ServerId, id_of
from uvs.rule import Rule

VIPS = ["192.0.2.1:80", "192.0.2.2:443", "[2001:db8::1]:80"]
RIPS = ["198.51.100.1", "198.51.100.2", "198.51.100.3", "2001:db8:1::1"]


@st.composite
def servers(draw: st.DrawFn, six: bool) -> list[dict[str, Any]]:
    found = []
    for rip in draw(st.lists(st.sampled_from(RIPS), unique=True, max_size=4)):
        server: dict[str, Any] = {"address": rip, "weight": draw(st.integers(0, 5))}
        if six != (":" in rip):
            server["method"] = "tun"
        elif draw(st.booleans()):
            server["method"] = draw(st.sampled_from(["nat", "dr", "tun"]))
        if server.get("method") == "tun" and draw(st.booleans()):
            server["tunnel"] = {"type": "gue", "port": draw(st.integers(1, 9))}
        if draw(st.booleans()):
            server["u_threshold"] = draw(st.integers(1, 9))
        if draw(st.booleans()):
            server["check"] = [{"type": "ping"}]
        found.append(server)
    return found


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration that is right."""
    services = []
    for vip in draw(st.lists(st.sampled_from([*VIPS, 1, 2]), unique=True, max_size=4)):
        service: dict[str, Any] = {"fwmark": vip} if isinstance(vip, int) else {"address": vip}
        service["scheduler"] = draw(st.sampled_from(["rr", "wlc", "sh"]))
        if draw(st.booleans()):
            service["persistent"] = draw(st.integers(1, 500))
        if draw(st.booleans()):
            service["fallback"] = "[2001:db8:1::9]:80" if str(vip).startswith("[") else "198.51.100.9:80"
        service["server"] = draw(servers(str(vip).startswith("[")))
        services.append(service)
    sysctls = st.fixed_dictionaries(
        {},
        optional={
            "drop_entry": st.sampled_from([0, 1, 3]),
            "expire_nodest_conn": st.integers(0, 1),
            "sync_threshold": st.just("4 60"),
        },
    )
    times = st.fixed_dictionaries({}, optional={"tcp": st.integers(1, 99), "udp": st.integers(1, 99)})
    return {"service": services, "sysctl": draw(sysctls), "timeouts": draw(times)}


def toml(value: Any) -> str:
    """A value within a line; documents here have nothing that TOML would not take so."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {toml(each)}' for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def text(document: dict[str, Any]) -> bytes:
    """A document as a file that has a line for each thing."""
    known = ("service", "sysctl", "timeouts")
    lines = [f"{name} = {toml(value)}" for name, value in document.items() if name not in known]
    for name in ("sysctl", "timeouts"):
        lines += [f"[{name}]", *(f"{key} = {toml(value)}" for key, value in document.get(name, {}).items())]
    for service in document.get("service", []):
        lines += [
            "[[service]]",
            *(f"{key} = {toml(value)}" for key, value in service.items() if key != "server"),
        ]
        for server in service.get("server", []):
            lines += ["[[service.server]]", *(f"{key} = {toml(value)}" for key, value in server.items())]
    return "\n".join(lines).encode()


def table(world: World) -> Any:
    """Everything that is configured, and every weight."""
    services = {
        svc.key.lookup: (svc.spec, {dest.id: (dest.spec, dest.weight) for dest in svc.dests})
        for svc in world.ipvs.services
    }
    return services, timeouts(world.table), world.ipvs.sysctl.changed()


class Hands:
    """What others do to a table: uvsadm, checks, drains."""

    def __init__(self, data: st.DataObject, world: World, layers: Layers) -> None:
        self.draw, self.world, self.layers = data.draw, world, layers

    def furnish(self, document: dict[str, Any]) -> None:
        config = parse(text(document), "by hand")
        for service in config.service:
            spec = service_spec(service)
            self.world.ipvs.services.add_service(spec)
            for server in service.server:
                self.world.ipvs.services.add_dest(spec.key, dest_spec(service, server))
        for name, value in config.sysctl.items():
            self.world.ipvs.sysctl.set(name, value)
        set_timeouts(self.world.table, config.timeouts.tcp, config.timeouts.tcp_fin, config.timeouts.udp)

    def sorry(self, key: ServiceKey) -> ServerId | None:
        """The fallback server that serves, which nobody can drain."""
        spec = self.layers.fallback(key)
        return None if spec is None else id_of(spec)

    def lay(self) -> None:
        """Health, drains and fallback servers over some of it."""
        for svc in list(self.world.ipvs.services):
            for dest in list(svc.dests):
                if dest.id not in svc.by_id:  # removed by a drain that ended meanwhile
                    continue
                match self.draw(st.integers(0, 5)):
                    case 0:
                        self.layers.set_health(svc.key, dest.id, Health(up=False))
                    case 1:
                        self.layers.set_health(svc.key, dest.id, Health(up=False, remove=True))
                    case 2:
                        self.layers.set_health(svc.key, dest.id, Health(share=0.5))
                    case 3 if dest.id != self.sorry(svc.key):
                        self.layers.drain(svc.key, dest.id)
                        if self.draw(st.booleans()):
                            self.layers.second()
            for rip in (9, 3):
                sorry = DestSpec(2, bytes([198, 51, 100, rip]), 80)
                free = svc.key.af == 2 and id_of(sorry) not in self.layers.configured(svc)
                if free and self.draw(st.integers(0, 3)) == 0:
                    self.layers.set_fallback(svc.key, sorry)


@pytest.fixture
def place():
    world = World()
    yield world, Layers(world.ipvs.services, lambda: 1000.0)
    world.close()


def is_as_asked(world: World, layers: Layers, document: dict[str, Any]) -> None:
    asked = wanted(parse(text(document), "uvs.toml"))
    stands = standing(world.ipvs, layers)
    gone = {name for name, drain in stands.drains.items() if drain.done}
    for lookup, servers_ in asked.servers.items():
        there = {id: spec for id, spec in servers_.items() if (lookup, id) not in gone}
        assert stands.servers[lookup] == there
    assert stands.servers.keys() == asked.services.keys()
    assert stands.timeouts == asked.timeouts
    assert {name: stands.sysctls.get(name, asked.sysctls[name]) for name in asked.sysctls} == asked.sysctls
    for svc in world.ipvs.services:
        for dest in svc.dests:
            health = layers.of(svc.key, dest.id).health
            assert dest.weight == 0 or health is None or health.up


@given(st.data(), documents(), documents(), documents())
@settings(max_examples=60)
def test_a_table_becomes_what_the_file_says(data, by_hand, before, after):
    """Whatever was there, with whatever layers, and by whatever way: and then nothing is left to do."""
    world = World()
    try:
        layers = Layers(world.ipvs.services, lambda: 1000.0)
        hands = Hands(data, world, layers)
        hands.furnish(by_hand)
        hands.lay()
        for document in (before, after):
            asked = wanted(parse(text(document), "uvs.toml"))
            changes = converge(asked, standing(world.ipvs, layers))
            down = {
                (key.lookup, server)
                for key, server, layer in layers.every()
                if layer.health and not layer.health.up and (key.lookup, server) in asked.checked
            }
            untouched = {
                (svc.key.lookup, dest.id): dest
                for svc in world.ipvs.services
                for dest in svc.dests
                if asked.servers.get(svc.key.lookup, {}).get(dest.id) == dest.spec
            }
            apply(world.ipvs, layers, changes)
            layers.adopt(asked.entries)
            assert [line(row(change)) for change in changes if not line(row(change))] == []
            is_as_asked(world, layers, document)
            assert converge(asked, standing(world.ipvs, layers)) == []
            for svc in world.ipvs.services:
                for dest in svc.dests:
                    name = svc.key.lookup, dest.id
                    assert name not in down or dest.weight == 0
                    assert untouched.get(name, dest) is dest  # its counters and its scheduler's state stay
            hands.lay()
    finally:
        world.close()


@given(st.data(), documents(), documents(), st.integers(0, 12))
@settings(max_examples=60)
def test_what_is_refused_half_way_is_undone(data, before, after, at):
    world = World()
    try:
        layers = Layers(world.ipvs.services, lambda: 1000.0)
        hands = Hands(data, world, layers)
        hands.furnish(before)
        hands.lay()
        asked = wanted(parse(text(after), "uvs.toml"))
        changes = converge(asked, standing(world.ipvs, layers))
        kept = (
            table(world),
            {(k.lookup, s): layer for k, s, layer in layers.every()},
            dict(layers.fallbacks()),
        )
        left = at

        def fails(*what: Any) -> None:
            nonlocal left
            if not left and what[2].sign != "-":
                raise IpvsError(errno.ENOMEM, "the table is full: raise conn_max")
            left -= 1
            make(*what)

        make, refusal = applying._make, None
        applying._make = fails
        try:
            apply(world.ipvs, layers, changes)
        except IpvsError as error:
            refusal = error
        finally:
            applying._make = make
        if refusal is None:
            assert left >= 0 or all(change.sign == "-" for change in changes[at:])
        else:
            assert refusal.errno == errno.ENOMEM
            assert kept == (
                table(world),
                {(k.lookup, s): layer for k, s, layer in layers.every()},
                dict(layers.fallbacks()),
            )
    finally:
        world.close()


def test_a_table_that_is_full_stays_as_it_is(place):
    """The director's own refusal, not one of the test's: of the records that are needed some are left."""
    world, layers = place
    taken = []
    while (rec := world.table.service_new()) is not None:
        taken.append(rec)
    for rec in taken[:5]:
        rec.free()
    servers = [{"address": f"198.51.100.{n}"} for n in range(1, 4)]
    asked = {"service": [{"fwmark": n, "server": servers} for n in (1, 2)], "sysctl": {"drop_packet": 1}}
    with pytest.raises(IpvsError, match=r"server 198.51.100.\d:0: the table is full"):
        apply(world.ipvs, layers, converge(wanted(parse(text(asked), "")), standing(world.ipvs, layers)))
    assert table(world) == ({}, (900, 120, 300), {})
    assert len(list(world.ipvs.services.trash)) <= 4


def spoil(draw: st.DrawFn, document: dict[str, Any]) -> str:
    """Something wrong somewhere in it; the key that must be named."""
    sites: list[tuple[str, dict[str, Any]]] = [
        ("", document),
        ("sysctl.", document["sysctl"]),
        ("timeouts.", document["timeouts"]),
    ]
    for i, service in enumerate(document["service"]):
        sites.append((f"service[{i}].", service))
        sites += [(f"service[{i}].server[{j}].", server) for j, server in enumerate(service["server"])]
    where, site = draw(st.sampled_from(sites))
    kind = "server" if ".server" in where else "service" if where.startswith("service") else where
    name, value = draw(
        st.sampled_from(
            {
                "": [("servise", 1), ("monitor", 3), ("director", {"interface": ""})],
                "sysctl.": [("expire", 1), ("drop_entry", 9), ("drop_entry", "x"), ("sync_threshold", 3), ("secure_tcp", True)],
                "timeouts.": [("tcp", -1), ("tcp_fin", "1"), ("icmp", 3)],
                "service": [("scheduler", "best"), ("scheduler", 3), ("weight", 1), ("quorum", 0), ("method", "dsr"), ("address", "x"), ("fwmark", 0), ("check", [{"type": "x"}]), ("persistent", 0), ("fallback", "localhost")],
                "server": [("weight", -1), ("weight", "1"), ("weight", 1.5), ("weight", 2**31), ("l_threshold", 99), ("method", "nat6"), ("address", "1.2.3.4.5:80"), ("addres", "1.2.3.4"), ("tunnel", {"type": "x"})],
            }[kind]
        )
    )  # fmt: skip
    site[name] = value
    return where + name


@given(st.data(), documents(), documents())
@settings(max_examples=80)
def test_a_file_that_is_wrong_changes_nothing_and_says_where(tmp_path_factory, data, good, bad):
    world = World()
    path = tmp_path_factory.mktemp("conf") / "uvs.toml"
    try:
        path.write_bytes(text(good))
        layers = Layers(world.ipvs.services, lambda: 1000.0)
        rule = Rule(str(path))
        rule.begin(world.ipvs, layers)
        Hands(data, world, layers).lay()
        before = table(world), list(layers.every())
        key = spoil(data.draw, bad)
        path.write_bytes(text(bad))
        rows = rule.reload()
        assert (table(world), list(layers.every())) == before
        named([row["fault"] for row in rows], path, key)
        with pytest.raises(ConfigError):
            Rule(str(path))
    finally:
        path.unlink()
        path.parent.rmdir()
        world.close()


def named(faults: list[str], path: Path, key: str) -> None:
    """Some fault names the key, and the line that it stands at."""
    lines = path.read_text().splitlines()
    for fault in faults:
        file, number, where, _ = fault.split(":", 3)
        assert file == str(path)
        if where.strip().startswith(key):
            assert key.rpartition(".")[2] in lines[int(number) - 1]
            return
    raise AssertionError((key, faults))


def test_documents_are_written_as_they_are():
    document = {
        "sysctl": {"drop_entry": 1},
        "timeouts": {},
        "service": [{"fwmark": 1, "server": [{"address": "::1", "check": [{"type": "ping"}]}]}],
    }
    assert tomllib.loads(text(document).decode()) == document


SCRAPS = ["=", "[", "]", "[[", "{", "}", '"', "'", "\n", "#", "1", "-1", "true", "x", ".", "\\", "1979-05-27", "nan", "\x00", "é", "[[service]]\n", 'check = [{type = "x"}]\n', "server = 1\n"]  # fmt: skip


@given(st.data(), documents())
@settings(max_examples=150)
def test_whatever_a_file_is_it_is_taken_or_refused_with_lines(data, document):
    """Letters and lines changed anywhere: never another error, and each fault has a line of the file."""
    letters = list(text(document).decode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(letters)))
        scrap = data.draw(st.sampled_from(SCRAPS))
        letters[at : at + data.draw(st.integers(0, 4))] = scrap
    spoilt = "".join(letters)
    found: list[Fault] = []
    try:
        wanted(parse(spoilt.encode(), "uvs.toml"))
    except ConfigError as error:
        found = error.faults
        told = str(error)
    for fault in found:
        assert 1 <= fault.line <= spoilt.count("\n") + 1
        assert told.count("\n") == len(found) - 1
