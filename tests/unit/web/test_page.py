"""The page in a browser: packets appear, a click shows the walk, timers run, keys and accessible names suffice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.control import running
from support.sandbox import wait_for
from support.web import browser, page, recording, served
from support.world import CIP, MASQ, RIP, VIP, tcp

PATIENCE_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def recorded() -> Iterator[str]:
    with served("-", stdin=recording()) as address:
        yield address


def waits(shown: Any, what: str) -> None:
    """Until an expression of the page holds. (wait_for_function would need eval() in the page.)"""
    wait_for(lambda: shown.evaluate(what), lambda: shown.locator("body").inner_text(), PATIENCE_S)


def test_a_recording(chromium: Any, recorded: str) -> None:
    with page(chromium, recorded) as shown:
        waits(shown, "document.querySelectorAll('#packets li').length === 4")
        shown.get_by_role("option", name="no_dest").click()
        walk = shown.get_by_role("region", name="Walk of packet 3")
        assert "DROP no_dest: the service has no real server for it" in walk.inner_text()
        shown.get_by_role("option", name=re.compile("^1 ")).click()
        walk = shown.get_by_role("region", name="Walk of packet 1")
        assert "ip_vs_nat_xmit Masq to 198.51.100.11:8080" in walk.inner_text()
        changed = walk.get_by_role("row", name="TCP dport 80 8080")
        assert changed.count() == 1
        lit = shown.eval_on_selector_all("#path .handler.on", "all => all.map(one => one.dataset.function)")
        assert lit == ["ip_vs_out", "ip_vs_in"]
        waits(shown, "document.querySelector('#way-xmit').classList.contains('on')")
        assert shown.locator(".dot").count() > 0, "a packet moves"


def test_the_time_line(chromium: Any, recorded: str) -> None:
    with page(chromium, recorded) as shown:
        line = shown.get_by_role("slider", name="time line")
        waits(shown, "document.querySelector('#when').textContent === 'packet 1 of 4, 0.000 s'")
        table = shown.get_by_role("region", name="Connections")
        assert "1:00" in table.inner_text()
        line.fill("2")
        shown.get_by_role("heading", name="Walk of packet 3").wait_for()
        assert "40 s" in table.inner_text(), "20 s later"
        shown.get_by_role("button", name="one packet back").click()
        assert line.get_attribute("aria-valuetext") == "packet 2 of 4, 0.000 s"
        shown.get_by_role("button", name="last packet").click()
        shown.get_by_role("button", name="Play").click()
        waits(shown, "document.querySelector('#when').textContent.startsWith('packet 2 of 4')")
        shown.get_by_role("button", name="Pause").click()


def test_by_keys_alone(chromium: Any, recorded: str) -> None:
    with page(chromium, recorded, reduced_motion="reduce") as shown:
        waits(shown, "document.querySelectorAll('#packets li').length === 4")
        order = []
        for _ in range(8):
            shown.keyboard.press("Tab")
            order.append(shown.evaluate("document.activeElement.id || document.activeElement.className"))
        assert order == ["skip", "first", "back", "play", "on", "last", "time", "packets"]
        shown.keyboard.press("ArrowDown")
        shown.keyboard.press("End")
        shown.keyboard.press("ArrowUp")
        chosen = shown.evaluate(
            "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).textContent"
        )
        assert "no_dest" in chosen
        shown.keyboard.press("Enter")
        assert shown.evaluate("document.activeElement.textContent") == "Walk of packet 3"
        shown.keyboard.press("Escape")
        assert shown.evaluate("document.activeElement.id") == "packets"
        assert shown.locator(".dot").count() == 0, "nothing moves where that is not wanted"


def test_everything_has_a_name(chromium: Any, recorded: str) -> None:
    """What can be worked, and each part, is named for a screen reader."""
    with page(chromium, recorded) as shown:
        waits(shown, "document.querySelectorAll('#packets li').length === 4")
        tree = shown.locator("body").aria_snapshot()
        for wanted in (
            'heading "uvs the hook path"',
            'img "The hook path"',
            'listbox "Packets"',
            'slider "time line',
            'region "Walk of packet 1"',
        ):
            assert wanted in tree, tree
        assert re.findall(r"^\s*- (?:button|slider|listbox|region|img|link)(?:$|:| \[)", tree, re.M) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(chromium: Any, recorded: str, scheme: str) -> None:
    """Words stand out from what is behind them (WCAG 2, 1.4.3: 4.5 to 1), in either scheme."""
    with page(chromium, recorded, color_scheme=scheme) as shown:
        names = ("text", "dim", "good", "bad", "other", "accent", "back", "card", "chosen")
        found = shown.evaluate(
            "names => Object.fromEntries(names.map(n => [n, getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()]))",
            names,
        )  # fmt: skip

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(c + c for c in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    faint = []
    for front in names[:6]:
        for back in names[6:]:
            high, low = sorted((luminance(found[front]), luminance(found[back])), reverse=True)
            if (high + 0.05) / (low + 0.05) < 4.5:
                faint.append((front, back))
    assert faint == []


def test_live(chromium: Any, tmp_path: Path) -> None:
    """A packet appears as it passes; the connection's timer counts down; a director that goes away is told of."""
    with running(tmp_path) as director:

        def service() -> None:
            svc = director.world.service(VIP)
            director.world.server(svc, RIP[1], 80, MASQ)

        director.do(service)
        with served(env={"UVS_SOCKET": director.path}) as address, page(chromium, address) as shown:
            assert f"{RIP[1]}:80" in shown.get_by_role("row", name=f"→ {RIP[1]}:80").inner_text()
            director.do(lambda: director.world.local_in(tcp(CIP, 1024, VIP, 80)))
            shown.get_by_role("option", name="forwarded").wait_for()
            shown.get_by_role("heading", name="Walk of packet 1").wait_for()
            # The director on paper has a clock that stands still: what counts down is the page's.
            waits(shown, "document.querySelector('#conns .left')")
            assert shown.get_by_role("status").all_inner_texts()[0] == "live", (
                "said once, not with each figure"
            )
            waits(shown, "document.querySelector('#figures').textContent.startsWith('connections: 1,')")
            director.do(director.server.close)
            waits(shown, "document.querySelector('#status').classList.contains('bad')")
            waits(shown, "parseInt(document.querySelector('#conns .left').textContent) < 58")


def test_stepping_back(chromium: Any, tmp_path: Path) -> None:
    """Over a director: its packets go on coming, and the chosen one stays; the last one follows again."""
    with (
        running(tmp_path) as director,
        served(env={"UVS_SOCKET": director.path}) as address,
        page(chromium, address) as shown,
    ):

        def packets(first: int, last: int) -> None:
            for port in range(first, last + 1):
                director.do(lambda port=port: director.world.local_in(tcp(CIP, 1024 + port, VIP, 81)))
            waits(shown, f"document.querySelectorAll('#packets li').length === {last}")

        shown.get_by_text("The director has no service.").wait_for()
        packets(1, 3)
        shown.get_by_role("heading", name="Walk of packet 3").wait_for()
        shown.get_by_role("button", name="first packet").click()
        packets(4, 5)
        waits(shown, "document.querySelector('#when').textContent.startsWith('packet 1 of 5')")
        assert "stepped back" in shown.locator("#when").inner_text()
        shown.get_by_role("button", name="last packet").click()
        packets(6, 6)
        shown.get_by_role("heading", name="Walk of packet 6").wait_for()
