"""A capture that a display has open: what of it is in view, and the commands that move in it.

Any display can hold one: `gputop-llm open`, or the monitor over its live screens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from gputop_llm.errors import GputopError
from gputop_llm.model.finding import Verdict
from gputop_llm.ncu.judge import Profiles, told_apart
from gputop_llm.printable import printable
from gputop_llm.report.perfetto import write_perfetto
from gputop_llm.store.bundle import expanded
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.model import Origin, Timeline
from gputop_llm.timeline.read import read_capture
from gputop_llm.tui.again import Again, Node
from gputop_llm.tui.capture_commands import CAPTURE_COMMANDS
from gputop_llm.tui.export import save, save_by
from gputop_llm.tui.panels.timeline_picture import CAUSES, view_text
from gputop_llm.tui.panels.timeline_scene import Place, Scene, hottest_kernel, longest_gaps, scene, slowest_steps
from gputop_llm.tui.screens.base import MonitorScreen
from gputop_llm.tui.screens.capture import CaptureHelp, FindingScreen, TimelineScreen, VerdictScreen
from gputop_llm.tui.screens.rerun import RerunScreen
from gputop_llm.tui.terminal_app import TerminalApp
from gputop_llm.tui.viewport import Viewport
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.facts import span
from gputop_llm.verdict.step_marks import PHASE_LABELS, Phase

#: While something runs.
_REDRAW_S = 0.25
_OF_THE_TIMELINE = {"perfetto", "timeline"} | {c.name for c in CAPTURE_COMMANDS if c.group == "Timeline"}
OVER = {"finding": FindingScreen, "timeline": TimelineScreen, "help": CaptureHelp, "rerun": RerunScreen}


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
    #: A profile of kernels has a verdict, but no window.
    has_timeline: bool = True
    #: The captures, as they were named.
    paths: tuple[Path, ...] = ()


def opened(paths: Sequence[Path], progress: Callable[[str, float], None], cancelled: Callable[[], bool]) -> Opened:
    """Reads and judges captures, or a bundle; `progress` gets the phase and the share of it that is done, 0 to 1.

    Raises:
        GputopError: as `read_capture`, a folder is no bundle, or `cancelled` said yes between two analyses.
    """

    def analysed(share: float) -> None:
        if cancelled():
            raise GputopError("analysing was cancelled")
        progress("analysing", share)

    named, profiled = told_apart(paths)
    profiles = Profiles(profiled) if profiled else None
    if profiles is not None and not named:
        return _page_only(profiles.verdict())
    files, pace, notes = expanded(named)
    timeline = read_capture(files, lambda share: progress("reading", share), cancelled)
    context = Context(timeline)
    analysed(0.0)
    verdict = judge(timeline, context, pace, analysed)
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    if profiles is not None:
        verdict = profiles.beside(verdict, context)
    return Opened(context, verdict, scene(context), Viewport(timeline.start, timeline.end), paths=tuple(named))


def _page_only(verdict: Verdict) -> Opened:
    """A verdict without a timeline: that of a profile."""
    timeline = TimelineBuilder().build(Origin("ncu", ()), 0, 1)
    context = Context(timeline)
    return Opened(context, verdict, scene(context), Viewport(timeline.start, timeline.end), has_timeline=False)


class Viewer:
    """Shows one capture over whatever the display shows.

    Args:
        app: the display.
        opened: the capture.
        cancelled: whether the display is being left, so that saving stops.
        node: the node that the display runs on, for what is to be run on it; None where it isn't watched.
    """

    def __init__(
        self,
        app: TerminalApp,
        opened: Opened,
        cancelled: Callable[[], bool] = lambda: False,
        node: Node | None = None,
    ) -> None:
        self.app = app
        self.opened = opened
        self.finding = 0
        self.again: Again | None = None
        self._cancelled = cancelled
        self._node = node
        self._place: str | None = None
        self._page = VerdictScreen(self)

    def replace(self, opened: Opened) -> None:
        """Shows the same capture as it was read later, at the same place."""
        opened.viewport = self.opened.viewport
        self.finding = min(self.finding, max(0, len(opened.verdict.findings) - 1))
        self.opened = opened

    def run(self, name: str) -> None:
        """Does what the command says; a failure is told on the status line."""
        aside = name in ("left", "right") and isinstance(self.app.screen, FindingScreen)
        if name in _OF_THE_TIMELINE and not self.opened.has_timeline and not aside:
            self.app.say("a profile of kernels has no timeline")
            return
        try:
            getattr(self, f"do_{name}")()
        except GputopError as failure:
            self.app.say(f"▲ {failure.sentence()}")

    # -- screens ---------------------------------------------------------------

    def open(self, name: str) -> None:
        """Shows a screen over the verdict; "verdict" shows that itself."""
        stack = self.app.screen_stack
        if self._page not in stack:
            self.app.push_screen(self._page)
        elif cast(MonitorScreen, self.app.screen).command == name:
            return
        else:
            for _ in range(len(stack) - 1 - stack.index(self._page)):
                self.app.pop_screen()
        if name != "verdict":
            self.app.push_screen(OVER[name](self))

    def show_finding(self, number: int) -> None:
        """Shows one finding, by its position."""
        self.finding = number
        self.open("finding")

    def show_listed_gap(self, number: int) -> None:
        """Goes to a gap of the table."""
        row = self.opened.verdict.tables["gaps"][number]
        start = self.opened.viewport.start + round(cast(float, row["at_ms"]) * 1e6)
        end = start + round(cast(float, row["length_us"]) * 1e3)
        self._go(Place(start, end, f"gap on GPU {row['device']}: {row['cause']}"), "")

    def do_verdict(self) -> None:
        self.open("verdict")

    def do_timeline(self) -> None:
        self.open("timeline")

    def do_help(self) -> None:
        if cast(MonitorScreen, self.app.screen).command == "help":
            self.app.pop_screen()
        else:
            # Over what is shown: leaving it goes back there, not to the verdict.
            self.app.push_screen(OVER["help"](self))

    # -- timeline --------------------------------------------------------------

    def view_text(self) -> str:
        """What is in view."""
        viewport = self.opened.viewport
        text = view_text(viewport.low, viewport.high, viewport.start)
        return f"{text}  {self._place}" if self._place else f"{text}{' (all)' if viewport.whole else ''}"

    def _go(self, place: Place, rank: str) -> None:
        self.opened.viewport.show(place.start, place.end)
        self._place = f"{rank}{span(place.end - place.start)} {printable(place.text)}"
        self.open("timeline")
        self.app.refresh_view()

    def _next(self, command: str, found: Callable[[Context], list[Place]], none: str) -> None:
        opened = self.opened
        if command not in opened.places:
            opened.places[command] = found(opened.context)
        places = opened.places[command]
        if not places:
            self.app.say(none)
            return
        at = opened.last[command] = (opened.last.get(command, -1) + 1) % len(places)
        self._go(places[at], f"{at + 1}/{len(places)} ")

    def do_gap(self) -> None:
        labels = {cause: text for cause, (_, _, text) in CAUSES.items()}
        self._next("gap", lambda context: longest_gaps(context, labels), "there is no gap worth listing")

    def do_step(self) -> None:
        labels = {
            int(phase): text if phase is Phase.UNKNOWN else f"{text} step" for phase, text in PHASE_LABELS.items()
        }
        self._next("step", lambda context: slowest_steps(context, labels), "no step repeats in this capture")

    def do_kernel(self) -> None:
        self._next("kernel", hottest_kernel, "there is no kernel in this capture")

    def _move(self, move: Callable[[Viewport], None]) -> None:
        move(self.opened.viewport)
        self._place = None
        self.open("timeline")
        self.app.refresh_view()

    def do_zoom_in(self) -> None:
        self._move(lambda viewport: viewport.zoom(closer=True))

    def do_zoom_out(self) -> None:
        self._move(lambda viewport: viewport.zoom(closer=False))

    def do_left(self) -> None:
        self._aside(-1)

    def do_right(self) -> None:
        self._aside(1)

    def _aside(self, by: int) -> None:
        screen = self.app.screen
        if isinstance(screen, FindingScreen):
            self.finding = (self.finding + by) % len(self.opened.verdict.findings)
            screen.page.scroll_rows(-screen.page.offset_rows)
            self.app.refresh_view()
        else:
            self._move(lambda viewport: viewport.pan(later=by > 0))

    def do_reset(self) -> None:
        self._move(Viewport.reset)

    # -- running again -----------------------------------------------------------

    def do_rerun(self) -> None:
        """The chosen kernel of the table, else the hottest: what would be run. The one that goes on is shown first."""
        if self.again is None or not self.again.busy:
            if not self.opened.paths or self._node is None:
                raise GputopError("no kernel can be run again from here", "", "`gputop-llm rerun CAPTURE` does it")
            name = self._page.chosen_kernel()
            self.again = Again(self._node, self.opened.paths, self.opened.context, name, self._left)
            self._begin(self.again.prepare)
        self.open("rerun")

    def run_again(self) -> None:
        """What was asked about is agreed to."""
        if self.again is not None and self.again.job is not None and self.again.state == "asking":
            self._begin(self.again.run)

    def _begin(self, work: Callable[[], None]) -> None:
        self.app.run_worker(self._watched(work), exit_on_error=False)

    async def _watched(self, work: Callable[[], None]) -> None:
        """Does it in a thread, and shows meanwhile how far it is."""
        done = asyncio.ensure_future(asyncio.to_thread(work))
        while not done.done():
            await asyncio.wait([done], timeout=_REDRAW_S)
            self.app.refresh_view()
        if cast(MonitorScreen, self.app.screen).command != "rerun":
            self.app.say("the re-run of the hot kernel has news: n on the verdict's page")

    def _left(self) -> bool:
        return self._cancelled() or not self.app.is_running

    # -- saving ----------------------------------------------------------------

    def do_perfetto(self) -> None:
        opened = self.opened
        self.app.say("saving what is in view …")
        window = (opened.viewport.low, opened.viewport.high)
        self.app.run_worker(self._save_trace(opened.context.timeline, window), exit_on_error=False)

    async def _save_trace(self, timeline: Timeline, window: tuple[int, int]) -> None:
        """A million rows take seconds to write: not in the thread that draws."""

        def write(draft: Path) -> None:
            write_perfetto(draft, timeline, window, True, self._cancelled)

        try:
            self.app.say(f"saved {await asyncio.to_thread(save_by, write, 'perfetto.json.gz', time.time())}")
        except GputopError as failure:
            self.app.say(f"▲ {failure.sentence()}")

    def do_export_text(self) -> None:
        screen = cast(MonitorScreen, self.app.screen)
        self.app.say(f"saved {save(self.app.skin.shown(screen.text()), 'txt', time.time())}")

    def do_export_svg(self) -> None:
        self.app.say(f"saved {save(self.app.export_screenshot(title='gputop-llm'), 'svg', time.time())}")

    def do_suspend(self) -> None:
        self.app.do_suspend()

    def do_quit(self) -> None:
        self.app.do_quit()
