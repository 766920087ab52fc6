"""`uvs top` on a terminal.

The director is asked by a thread of its own; of the rows only those that are to be seen are drawn.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from uvs.control.client import Unreachable
from uvs.ipvs.spec import IpvsError
from uvs.top.model import Kind, Model, RowKey, Sort
from uvs.top.source import Snapshot, Source, rest

AGAIN_S = 1.0  # a director that is gone is looked for
LATE_S = 3.0  # an answer; then its absence is told
TYPED_S = 0.15  # without a key: what is typed is whole


_CLASSES = {
    Kind.SERVICE: "rows--service",
    Kind.UNSERVED: "rows--unserved",
    Kind.SERVER: "rows--server",
    Kind.QUIESCED: "rows--quiesced",
}


class Rows(ScrollView):
    """Services and their servers; one row is chosen."""

    DEFAULT_CSS = """
    Rows { height: 1fr; }
    Rows > .rows--service { text-style: bold; }
    Rows > .rows--unserved { text-style: bold; color: $text-error; }
    Rows > .rows--quiesced { color: $text-muted; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = set(_CLASSES.values())
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "to(0)", show=False),
        Binding("end", "to(-1)", show=False),
        Binding("enter", "fold(None)", "Fold"),
        Binding("left", "fold(True)", show=False),
        Binding("right", "fold(False)", show=False),
    ]

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.can_focus = True
        self.model = model
        self.chosen = 0
        self._chosen_key: RowKey | None = None

    def redraw(self) -> None:
        """The model's rows are others: the same one stays chosen, if it is still there."""
        rows = len(self.model)
        found = self.model.find(self._chosen_key) if self._chosen_key else None
        self.chosen = max(0, min(self.chosen if found is None else found, rows - 1))
        self.virtual_size = Size(0, rows)
        self._choose()

    def _choose(self) -> None:
        self._chosen_key = self.model.key(self.chosen) if len(self.model) else None
        height = self.scrollable_content_region.height
        top = round(self.scroll_y)
        if self.chosen < top:
            top = self.chosen
        elif height and self.chosen >= top + height:
            top = self.chosen - height + 1
        self.scroll_to(y=max(0, min(top, len(self.model) - height)), animate=False, force=True)
        self.refresh()

    def action_move(self, by: int) -> None:
        self.action_to(max(0, min(self.chosen + by, len(self.model) - 1)))

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.scrollable_content_region.height - 1, 1))

    def action_to(self, row: int) -> None:
        self.chosen = row % len(self.model) if len(self.model) else 0
        self._choose()

    def action_fold(self, folded: bool | None) -> None:
        if len(self.model):
            self.model.fold(self.chosen, folded)
            self.redraw()

    def render_line(self, y: int) -> Strip:
        row = y + round(self.scroll_y)
        width = self.scrollable_content_region.width
        if row >= len(self.model):
            return Strip.blank(width, self.rich_style)
        return Strip([Segment(self.model.line(row, width), self._style(row))]).adjust_cell_length(width)

    def _style(self, row: int) -> Style:
        style = self.get_component_rich_style(_CLASSES[self.model.kind(row)])
        return style + Style(reverse=True) if row == self.chosen else style


class Arrived(Message):
    """The director has answered."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class Absent(Message):
    """It has not, and why."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Top(App[None]):
    """The view."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status, #totals, #head, #queues, #reasons { height: auto; }
    #head { text-style: underline; }
    #below { height: auto; max-height: 50%; }
    #status.-wrong { color: $text-error; text-style: bold; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #filter.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # in the filter too
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("a", "sort('ACTIVE')", "Active"),
        Binding("c", "sort('CONNS')", "Conns"),
        Binding("p", "sort('PACKETS')", "Packets"),
        Binding("b", "sort('BYTES')", "Bytes"),
        Binding("n", "sort('NAME')", "Name"),
        Binding("x", "fold_all", "Fold all"),
        Binding("space", "pause", "Pause"),
        Binding("escape", "no_filter", show=False),
    ]

    def __init__(self, source: Source, model: Model, interval: float) -> None:
        super().__init__()
        self.source, self.model, self.interval = source, model, interval
        self.paused = False
        self.absent = ""  # why the director did not answer last time
        self.asked = self.answered = time.monotonic()
        self.took = model.snapshot.took if model.snapshot else 0.0
        self._wake = threading.Event()
        self._rows = Rows(model)

    def compose(self) -> ComposeResult:
        yield Static(id="status", markup=False)
        yield Static(id="totals", markup=False)
        yield Static(id="head")
        yield self._rows
        with Vertical(id="below"):
            yield Static(id="queues", markup=False)
            yield Static(id="reasons", markup=False)
        yield Input(placeholder="words of a service or server; Enter: keep, Esc: no filter", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.exit)
        self._rows.focus()
        self._show()
        self.set_interval(1.0, self._status)
        self._typing = self.set_timer(TYPED_S, self._status)
        # A daemon: while a director stands still, nothing waits for the answer that quitting forgoes.
        threading.Thread(target=self._follow, daemon=True).start()

    # ---- the director, in a thread of its own

    def _follow(self) -> None:
        pause = rest(self.interval, self.took)
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self.paused:
                pause = 3600.0
                continue
            self.asked = time.monotonic()
            try:
                snapshot = self.source.take()
            except (Unreachable, IpvsError) as error:
                self.post_message(Absent(error.strerror or str(error)))
                pause = AGAIN_S
            else:
                self.post_message(Arrived(snapshot))
                pause = rest(self.interval, snapshot.took)

    def on_arrived(self, message: Arrived) -> None:
        """Show it, unless it is to stay as it is."""
        self.absent, self.took = "", message.snapshot.took
        self.answered = time.monotonic()
        if not self.paused:
            self.model.take(message.snapshot)
        self._show()

    def on_absent(self, message: Absent) -> None:
        """Show why; what was there last stays."""
        self.absent = message.why
        self._status()

    # ---- keys

    async def action_quit(self) -> None:
        self.exit()

    def action_sort(self, name: str) -> None:
        self.model.sort_by(Sort[name])
        self._show()

    def action_fold_all(self) -> None:
        self.model.fold_all()
        self._show()

    def action_pause(self) -> None:
        self.paused = not self.paused
        self._wake.set()
        self._status()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("-open")
        box.focus()

    def action_no_filter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Once nothing more is typed: thousands of names take a moment to look through."""
        self._typing.stop()
        self._typing = self.set_timer(TYPED_S, self._filter)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Keep it."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("-open")
        self._rows.focus()
        self._filter()

    def _filter(self) -> None:
        self._typing.stop()
        self.model.filter(self.query_one("#filter", Input).value)
        self._show()

    # ---- drawing

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        self._status()
        model = self.model
        self.query_one("#totals", Static).update("\n".join(model.totals()))
        width = self._rows.scrollable_content_region.width or self.size.width
        pieces = [(piece, "bold reverse" if sorted_by else "") for piece, sorted_by in model.head(width)]
        self.query_one("#head", Static).update(Text.assemble(*pieces))
        self._rows.redraw()
        self.query_one("#queues", Static).update("\n".join(model.queues()))
        reasons = (("dropped", model.dropped()), ("not ours", model.ignored()))
        self.query_one("#reasons", Static).update(
            "\n".join(f"{title}: {', '.join(found) or 'nothing'}" for title, found in reasons)
        )

    def _status(self) -> None:
        status = self.query_one("#status", Static)
        status.update(self._state())
        status.set_class(bool(self._trouble()), "-wrong")

    def _state(self) -> str:
        parts = [f"uvs top: sorted by {self.model.sort.value}{', reversed' if self.model.reverse else ''}"]
        if self.model.words:
            parts.append(f"only {' '.join(self.model.words)}")
        every = max(self.interval, rest(self.interval, self.took))
        parts.append(self._trouble() or ("PAUSED" if self.paused else f"every {every:.3g} s"))
        return "; ".join(parts)

    def _trouble(self) -> str:
        since = time.monotonic() - self.answered
        if self.absent:
            return f"NO ANSWER for {since:.0f} s: {self.absent}"
        silent = time.monotonic() - self.asked
        if self.asked > self.answered and silent > LATE_S + 2 * self.took:
            return f"NO ANSWER for {since:.0f} s: is the director stopped?"
        return ""
