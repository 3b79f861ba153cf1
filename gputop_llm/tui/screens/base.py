"""What all screens share: the header, the status line, and being shown a view."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.screen import Screen
from textual.widget import Widget

from gputop_llm.model import Frame
from gputop_llm.tui.draw import Block, plain
from gputop_llm.tui.panels.frame_edges import State, header_line, status_line
from gputop_llm.tui.plan import MIN_HEIGHT, MIN_WIDTH
from gputop_llm.tui.trails import Trails
from gputop_llm.tui.widgets.lines import LinesView

if TYPE_CHECKING:
    from gputop_llm.tui.app import MonitorApp

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What is to be seen now."""

    frame: Frame | None
    trails: Trails
    state: State
    events: tuple[tuple[float, str], ...] = ()


class StatusBar(LinesView):
    """The last line; a click on a key is that key."""

    def __init__(self) -> None:
        super().__init__(id="status")
        self.zones: tuple[tuple[int, int, str], ...] = ()

    def on_click(self, event: events.Click) -> None:
        for start, end, name in self.zones:
            if start <= event.x < end:
                event.stop()
                cast(MonitorScreen, self.screen).run_command(name)


class MonitorScreen(Screen[None]):
    """A screen between header and status line. Subclasses say what stands between."""

    # The name of the command that opens it.
    command: ClassVar[str] = ""
    ALLOW_SELECT = False
    DEFAULT_CSS = """
    MonitorScreen { overflow: hidden; layout: vertical; layers: page cover; }
    MonitorScreen > #small { layer: cover; display: none; width: 100%; height: 100%; }
    MonitorScreen.-small > #small { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._status = StatusBar()
        self._header = LinesView(id="header")
        self._small = LinesView(id="small")

    @property
    def monitor(self) -> MonitorApp:
        """The app, by its own type."""
        return cast("MonitorApp", self.app)

    def compose(self) -> Iterable[Widget]:
        yield self._header
        yield from self.body()
        yield self._status
        yield self._small

    def body(self) -> Iterable[Widget]:
        """The widgets between header and status line."""
        raise NotImplementedError

    def show_body(self, view: View) -> None:
        """Shows the view in the body's widgets."""
        raise NotImplementedError

    def page_text(self) -> str:
        """The whole body as text, also what is out of view."""
        raise NotImplementedError

    def show(self, view: View) -> None:
        """Shows the view; called for the screen on top only."""
        width, height = self.size
        if not width or not height:
            return
        small = width < MIN_WIDTH or height < MIN_HEIGHT
        self.set_class(small, "-small")
        if small:
            self._small.show(Block(too_small(width, height)))
            return
        try:
            self.show_body(view)
        except Exception as failure:  # a value that can't be drawn must not end the watch
            log.exception("the %s screen failed", self.command)
            message = f"▲ this screen can't be drawn: {type(failure).__name__} (the log has the details)"
            view = replace(view, state=replace(view.state, message=message))
        self.show_edges(view)

    def show_edges(self, view: View) -> None:
        """Shows header and status line."""
        width = self.size.width
        self._header.show(Block([header_line(view.frame, view.state, width)]))
        status = status_line(replace(view.state, screen=self.command, more_below=self.rows_below()), width)
        self._status.zones = status.zones
        self._status.show(Block([status.line]))

    def run_command(self, name: str) -> None:
        """Does what a key of the status line says."""
        self.monitor.run_command(name)

    def rows_below(self) -> int:
        """How many lines of the body are below the window."""
        return 0

    def on_rows_view_moved(self) -> None:
        self.show_edges(self.monitor.view)

    def on_screen_resume(self) -> None:
        self.show(self.monitor.view)

    def on_resize(self) -> None:
        # The widgets get their new sizes first.
        self.call_after_refresh(lambda: self.show(self.monitor.view))

    def text(self) -> str:
        """The screen as text: header, whole body, status line."""
        return "\n".join((plain(self._header.block.lines), self.page_text(), plain(self._status.block.lines))) + "\n"


def too_small(width: int, height: int) -> list[list[tuple[str, str]]]:
    """One sentence instead of a screen."""
    from gputop_llm.tui.draw import wrapped

    text = f"terminal too small ({width}×{height}): {MIN_WIDTH}×{MIN_HEIGHT} or more, or q to quit"
    return wrapped(text, max(width, 1))
