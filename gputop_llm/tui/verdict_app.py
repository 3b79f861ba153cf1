"""The Textual app that shows a capture: reads it in a thread of its own, then its verdict and its timeline."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from gputop_llm.config import Config
from gputop_llm.errors import GputopError
from gputop_llm.model.finding import Verdict
from gputop_llm.printable import printable
from gputop_llm.report.perfetto import write_perfetto
from gputop_llm.sampling.history import History
from gputop_llm.timeline.model import Timeline
from gputop_llm.timeline.read import read_capture
from gputop_llm.tui import terminal
from gputop_llm.tui.capture_commands import CAPTURE_COMMANDS
from gputop_llm.tui.export import save, save_by
from gputop_llm.tui.panels.frame_edges import State
from gputop_llm.tui.panels.timeline_picture import CAUSES, view_text
from gputop_llm.tui.panels.timeline_scene import Place, Scene, hottest_kernel, longest_gaps, scene, slowest_steps
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.screens.capture import CaptureHelp, FindingScreen, ReadingScreen, TimelineScreen, VerdictScreen
from gputop_llm.tui.terminal_app import TerminalApp
from gputop_llm.tui.trails import Trails
from gputop_llm.tui.viewport import Viewport
from gputop_llm.units import seconds
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.step_marks import PHASE_LABELS

#: How long leaving waits for the reader to remove what it unpacked.
STOP_WAIT_S = 5.0


@dataclass
class Opened:
    """A capture that was read and judged, and which part of it is in view."""

    context: Context
    verdict: Verdict
    scene: Scene
    viewport: Viewport
    # By command: the places to go to, worked out when first asked for, and which of them was the last.
    places: dict[str, list[Place]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)


def opened(paths: Sequence[Path], progress: Callable[[str, float], None], cancelled: Callable[[], bool]) -> Opened:
    """Reads and judges captures; `progress` gets the phase and the share of it that is done, 0 to 1.

    Raises:
        GputopError: as `read_capture`, or `cancelled` said yes between two analyses.
    """

    def analysed(share: float) -> None:
        if cancelled():
            raise GputopError("analysing was cancelled")
        progress("analysing", share)

    timeline = read_capture(paths, lambda share: progress("reading", share), cancelled)
    context = Context(timeline)
    analysed(0.0)
    verdict = judge(timeline, context, analysed)
    return Opened(context, verdict, scene(context), Viewport(timeline.start, timeline.end))


class ReadingMoved(Message, bubble=False):
    """Reading came further, or ended."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReadingMoved)


class VerdictApp(TerminalApp, inherit_bindings=False):
    """Shows captures.

    Args:
        files: the captures, ranks of one run.
        term: what the terminal can show.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(",".join(c.keys), f"run('{c.name}')", c.label, id=c.name, tooltip=c.help) for c in CAPTURE_COMMANDS),
        Binding("escape", "back", "back", show=False),
    ]
    SCREENS: ClassVar[dict[str, Callable[[], Screen[None]]]] = {
        "verdict": VerdictScreen,
        "finding": FindingScreen,
        "timeline": TimelineScreen,
        "help": CaptureHelp,
    }

    def __init__(self, files: Sequence[Path], term: terminal.Terminal) -> None:
        super().__init__(term)
        self.files = tuple(files)
        self.opened: Opened | None = None
        self.failure: Exception | None = None
        self.finding = 0
        self.cancelled = threading.Event()
        self._came = ("reading", 0)
        self._place: str | None = None
        self._trails = Trails(History(points=1))
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)

    @property
    def view(self) -> View:
        """What the screens are shown."""
        return View(None, self._trails, State(screen="", period_s=0.0, message=self.message))

    def get_default_screen(self) -> Screen[None]:
        return ReadingScreen()

    def on_mount(self) -> None:
        self.guard_terminal()
        self._reader.start()

    # -- reading ---------------------------------------------------------------

    def _read(self) -> None:
        """The reader's thread."""
        try:
            self.opened = opened(self.files, self._came_to, self.cancelled.is_set)
        except Exception as failure:  # noqa: BLE001 - told by whoever runs the app, once the screen is given back
            self.failure = failure
        self.post_message(ReadingMoved())

    def _came_to(self, phase: str, share: float) -> None:
        # A whole percent at a time: more can't be seen.
        came = (phase, int(100 * min(max(share, 0.0), 1.0)))
        if came != self._came:
            self._came = came
            self.post_message(ReadingMoved())

    def on_reading_moved(self) -> None:
        if self.failure is not None:
            self.exit(1)
        elif self.opened is not None and isinstance(self.screen, ReadingScreen):
            self.push_screen("verdict")
        else:
            self.refresh_view()

    def progress_text(self) -> str:
        """How far reading or the analysis is."""
        return "{} {} %".format(*self._came)

    def let_go(self) -> None:
        """Cancels reading, and waits until what was unpacked is removed."""
        self.cancelled.set()
        if self._reader.ident is not None:
            self._reader.join(STOP_WAIT_S)

    # -- screens ---------------------------------------------------------------

    def refresh_view(self) -> None:
        screen = self.screen
        if isinstance(screen, MonitorScreen):
            screen.show(self.view)

    async def action_back(self) -> None:
        # Below the verdict there is only the screen of the reading.
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def _open(self, name: str) -> None:
        """Shows a screen over the verdict; "verdict" shows that itself."""
        if self.opened is None or cast(MonitorScreen, self.screen).command == name:
            return
        while len(self.screen_stack) > 2:
            self.pop_screen()
        if name != "verdict":
            self.push_screen(name)

    def show_finding(self, number: int) -> None:
        """Shows one finding, by its position."""
        self.finding = number
        self._open("finding")

    def show_listed_gap(self, number: int) -> None:
        """Goes to a gap of the table."""
        if self.opened is None:
            return
        row = self.opened.verdict.tables["gaps"][number]
        start = self.opened.viewport.start + round(cast(float, row["at_ms"]) * 1e6)
        end = start + round(cast(float, row["length_us"]) * 1e3)
        self._go(Place(start, end, f"gap on GPU {row['device']}: {row['cause']}"), "")

    def do_verdict(self) -> None:
        self._open("verdict")

    def do_timeline(self) -> None:
        self._open("timeline")

    def do_help(self) -> None:
        if cast(MonitorScreen, self.screen).command == "help":
            self.pop_screen()
        elif self.opened is not None:
            self.push_screen("help")

    # -- timeline --------------------------------------------------------------

    def view_text(self) -> str:
        """What is in view."""
        assert self.opened is not None
        viewport = self.opened.viewport
        text = view_text(viewport.low, viewport.high, viewport.start)
        return f"{text}  {self._place}" if self._place else f"{text}{' (all)' if viewport.whole else ''}"

    def _go(self, place: Place, rank: str) -> None:
        assert self.opened is not None
        self.opened.viewport.show(place.start, place.end)
        self._place = f"{rank}{seconds((place.end - place.start) / 1e9)} {printable(place.text)}"
        self._open("timeline")
        self.refresh_view()

    def _next(self, command: str, found: Callable[[Context], list[Place]], none: str) -> None:
        opened = self.opened
        if opened is None:
            return
        if command not in opened.places:
            opened.places[command] = found(opened.context)
        places = opened.places[command]
        if not places:
            self.say(none)
            return
        at = opened.last[command] = (opened.last.get(command, -1) + 1) % len(places)
        self._go(places[at], f"{at + 1}/{len(places)} ")

    def do_gap(self) -> None:
        labels = {cause: text for cause, (_, _, text) in CAUSES.items()}
        self._next("gap", lambda context: longest_gaps(context, labels), "there is no gap worth listing")

    def do_step(self) -> None:
        labels = {int(phase): text for phase, text in PHASE_LABELS.items() if phase} | {0: "a"}
        self._next("step", lambda context: slowest_steps(context, labels), "no step repeats in this capture")

    def do_kernel(self) -> None:
        self._next("kernel", hottest_kernel, "there is no kernel in this capture")

    def _move(self, move: Callable[[Viewport], None]) -> None:
        if self.opened is None:
            return
        move(self.opened.viewport)
        self._place = None
        self._open("timeline")
        self.refresh_view()

    def do_zoom_in(self) -> None:
        self._move(lambda viewport: viewport.zoom(closer=True))

    def do_zoom_out(self) -> None:
        self._move(lambda viewport: viewport.zoom(closer=False))

    def do_left(self) -> None:
        self._aside(-1)

    def do_right(self) -> None:
        self._aside(1)

    def _aside(self, by: int) -> None:
        screen = self.screen
        if isinstance(screen, FindingScreen) and self.opened is not None:
            self.finding = (self.finding + by) % len(self.opened.verdict.findings)
            screen.page.scroll_rows(-screen.page.offset_rows)
            self.refresh_view()
        else:
            self._move(lambda viewport: viewport.pan(later=by > 0))

    def do_reset(self) -> None:
        self._move(Viewport.reset)

    # -- saving ----------------------------------------------------------------

    def do_perfetto(self) -> None:
        opened = self.opened
        if opened is None:
            return
        self.say("saving what is in view …")
        window = (opened.viewport.low, opened.viewport.high)
        self.run_worker(self._save_trace(opened.context.timeline, window), exit_on_error=False)

    async def _save_trace(self, timeline: Timeline, window: tuple[int, int]) -> None:
        """A million rows take seconds to write: not in the thread that draws."""

        def write(draft: Path) -> None:
            write_perfetto(draft, timeline, window, True, self.cancelled.is_set)

        try:
            self.say(f"saved {await asyncio.to_thread(save_by, write, 'perfetto.json.gz', time.time())}")
        except GputopError as failure:
            self.say(f"▲ {failure.sentence()}")

    def do_quit(self) -> None:
        self.cancelled.set()
        super().do_quit()

    def do_export_text(self) -> None:
        screen = cast(MonitorScreen, self.screen)
        self.say(f"saved {save(self.skin.shown(screen.text()), 'txt', time.time())}")

    def do_export_svg(self) -> None:
        self.say(f"saved {save(self.export_screenshot(title='gputop-llm'), 'svg', time.time())}")


def run(files: Sequence[Path], config: Config) -> int:
    """Shows captures full-screen until the user leaves; returns the exit code.

    Raises:
        UsageError: there is no terminal to draw on, or the files don't go together.
        GputopError: a file can't be read or is no capture, or the display failed.
    """
    app = VerdictApp(files, terminal.check(os.environ, config))
    try:
        code = app.run()
    finally:
        app.let_go()
    app.check_failed()
    if app.failure is not None and not (app.cancelled.is_set() and isinstance(app.failure, GputopError) and code == 0):
        raise app.failure
    return code if code is not None else app.return_code or 0
