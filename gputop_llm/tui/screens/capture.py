"""The screens of a capture: its verdict, one finding, its timeline, help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from gputop_llm.tui.capture_commands import CAPTURE_COMMANDS
from gputop_llm.tui.draw import Block, Line, fit, plain
from gputop_llm.tui.panels import timeline_picture
from gputop_llm.tui.panels.frame_edges import status_line
from gputop_llm.tui.panels.verdict_page import capture_line, finding_lines, verdict_rows
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.screens.help import HelpScreen
from gputop_llm.tui.screens.page import PageScreen
from gputop_llm.tui.widgets.lines import LinesView
from gputop_llm.tui.widgets.rows import RowsView

if TYPE_CHECKING:
    from gputop_llm.tui.viewer import Viewer

    # At run time a plain class: Textual takes a screen's CSS from its first base that is a node.
    _Screen = MonitorScreen
else:
    _Screen = object


KEYS: list[BindingType] = [
    Binding(",".join(c.keys), f"viewer('{c.name}')", c.label, tooltip=c.help) for c in CAPTURE_COMMANDS
]


class CaptureEdges(_Screen):
    """Header, status line and keys of a capture's screens."""

    def __init__(self, viewer: Viewer) -> None:
        super().__init__()
        self.viewer = viewer

    def action_viewer(self, name: str) -> None:
        self.viewer.run(name)

    def run_command(self, name: str) -> None:
        self.viewer.run(name)

    def show_edges(self, view: View) -> None:
        width = self.size.width
        self._header.show(Block([fit(capture_line(self.viewer.opened.verdict), width)]))
        state = replace(view.state, screen=self.command, more_below=self.rows_below())
        status = status_line(state, width, CAPTURE_COMMANDS)
        self._status.zones = status.zones
        self._status.show(Block([status.line]))


class VerdictScreen(CaptureEdges, MonitorScreen):
    """The verdict's page; rows can be chosen."""

    command = "verdict"
    BINDINGS = KEYS

    def __init__(self, viewer: Viewer) -> None:
        super().__init__(viewer)
        self.rows = RowsView(id="rows")

    def body(self) -> Iterable[Widget]:
        yield self.rows

    def on_mount(self) -> None:
        self.rows.focus()

    def show_body(self, view: View) -> None:
        self.rows.show(verdict_rows(self.viewer.opened.verdict, self.size.width))

    def page_text(self) -> str:
        return self.rows.text()

    def chosen_kernel(self) -> str | None:
        """The full name of the kernel that the cursor is on; None where it is elsewhere."""
        kind, _, number = (self.rows.cursor or "").partition(":")
        return (
            str(self.viewer.opened.verdict.tables["kernels"][int(number)]["full_name"]) if kind == "kernels" else None
        )

    def rows_below(self) -> int:
        return self.rows.rows_below

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        kind, _, number = message.key.partition(":")
        if kind == "finding":
            self.viewer.show_finding(int(number))
        elif kind == "gaps":
            self.viewer.show_listed_gap(int(number))


class FindingScreen(CaptureEdges, PageScreen):
    """One finding."""

    command = "finding"
    BINDINGS = KEYS

    def lines(self, view: View, width: int) -> Sequence[Line]:
        return finding_lines(self.viewer.opened.verdict, self.viewer.finding, width)


class TimelineScreen(CaptureEdges, PageScreen):
    """The picture, with its scale above and its legend below."""

    command = "timeline"
    DEFAULT_CSS = "TimelineScreen > #legend { height: auto; }"
    # Also k, which scrolls other pages.
    BINDINGS = KEYS

    def __init__(self, viewer: Viewer) -> None:
        super().__init__(viewer)
        self._scale = LinesView(id="scale")
        self._legend = LinesView(id="legend")

    def body(self) -> Iterable[Widget]:
        yield self._scale
        yield self.page
        yield self._legend

    def show_body(self, view: View) -> None:
        opened = self.viewer.opened
        width = self.size.width
        viewport, scene = opened.viewport, opened.scene
        self._scale.show(Block([timeline_picture.scale(scene, viewport.low, viewport.high, width)]))
        notes: list[Line] = [[(self.viewer.view_text(), "strong")], *timeline_picture.legend(scene, width)]
        self._legend.styles.height = len(notes)
        self._legend.show(Block(notes))
        super().show_body(view)

    def lines(self, view: View, width: int) -> Sequence[Line]:
        opened = self.viewer.opened
        if not opened.scene.devices:
            return [[("no GPU activity in this capture", "warn")]]
        return timeline_picture.picture(opened.scene, opened.viewport.low, opened.viewport.high, width)

    def page_text(self) -> str:
        return "\n".join((plain(self._scale.block.lines), super().page_text(), plain(self._legend.block.lines)))


class CaptureHelp(CaptureEdges, HelpScreen):
    """Drawn from the command table of captures."""

    BINDINGS = KEYS
    commands = CAPTURE_COMMANDS
    more_keys: ClassVar[Sequence[tuple[str, str]]] = (
        ("↑ ↓ PgUp PgDn", "scroll, or move in a list"),
        ("Enter", "on a finding: what it rests on; on a gap: its place in the timeline"),
        ("Esc", "back"),
        ("mouse", "a row, a key on the last line, the wheel"),
    )
    words: ClassVar[Sequence[tuple[str, str]]] = (
        ("≤ 35 %", "an upper bound of what fixing a finding could give back, as a share of the window"),
        ("busy", "the share of each cell's time in which the device did anything: ▁ a little, █ all of it"),
        (
            "waits on",
            "what the host did where the device was idle, by the letter of what holds most of it; · a little",
        ),
        ("steps", "the phase of the engine's step; │ where one begins"),
        ("str 7", "the work on one stream of the device; long work has its name in it"),
    )
