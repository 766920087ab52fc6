"""Walks on paper, `uvs web` over them, and a browser that looks at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import sync_playwright

UVS = (sys.executable, "-m", "uvs.cli")
SERVICES = """\
-A -t 192.0.2.100:80 -s rr
-a -t 192.0.2.100:80 -r 198.51.100.11:8080 -m -w 1
-A -u 192.0.2.100:53 -s rr
"""
HEAD = 'IP(src="192.0.2.2", dst="192.0.2.100")'
# A connection is opened and answered by NAT; a service without a server; no service.
PACKETS = (
    f'{HEAD}/TCP(sport=1024, dport=80, flags="S")',
    'IP(src="198.51.100.11", dst="192.0.2.2")/TCP(sport=8080, dport=1024, flags="SA")',
    "wait 20",
    f"{HEAD}/UDP(sport=1024, dport=53)",
    f'{HEAD}/TCP(sport=1024, dport=81, flags="S")',
)


def recording() -> str:
    """What `uvs walk --json` writes of PACKETS."""
    words = (*UVS, "walk", "--services", "-", "--json", *PACKETS)
    return subprocess.run(words, input=SERVICES, capture_output=True, text=True, check=True).stdout


@contextmanager
def served(*words: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run `uvs web` on a free port; the address that it prints. It ends, well, with the context."""
    pipe = subprocess.PIPE
    argv = (*UVS, "web", "--listen", "127.0.0.1:0", *words)
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **(env or {})}
    ) as process:
        try:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            process.stdin.write(stdin or "")
            process.stdin.close()
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.stderr.read()
            yield address
        finally:
            process.terminate()
            status = process.wait(60)
        assert process.stderr.read() == ""
        assert status in (0, -15)


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window (playwright)."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: scripts/test installs it (apt-get install chromium)"
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; it sees our own page only.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def page(started: Any, address: str, **context: Any) -> Iterator[Any]:
    """A page that complains of nothing on its console."""
    with started.new_context(**context) as opened:
        shown = opened.new_page()
        shown.set_default_timeout(60_000)
        said: list[str] = []
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.goto(address)
        yield shown
        assert said == []
