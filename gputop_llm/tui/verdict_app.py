"""The Textual app that shows a capture: reads it in a thread of its own, then its verdict and its timeline."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from gputop_llm.config import Config
from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.sampling.history import History
from gputop_llm.tui import terminal
from gputop_llm.tui.again import Node
from gputop_llm.tui.capture_commands import CAPTURE_COMMANDS
from gputop_llm.tui.draw import Block, Line, fit
from gputop_llm.tui.panels.frame_edges import State, status_line
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.screens.page import PageScreen
from gputop_llm.tui.terminal_app import TerminalApp
from gputop_llm.tui.trails import Trails
from gputop_llm.tui.viewer import Opened, Viewer, opened

#: How long leaving waits for the reader to remove what it unpacked.
STOP_WAIT_S = 5.0
# What can be asked for while a capture is read.
_WHILE_READING = [command for command in CAPTURE_COMMANDS if command.name in ("suspend", "quit")]


class ReadingMoved(Message, bubble=False):
    """Reading came further, or ended."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReadingMoved)


class ReadingScreen(PageScreen):
    """How far reading is."""

    command = "reading"

    def lines(self, view: View, width: int) -> Sequence[Line]:
        app = cast("VerdictApp", self.app)
        names = [[("  ", ""), (printable(str(path)), "")] for path in app.files]
        return [[(app.progress_text(), "strong")], *names, [], [("q or Ctrl-C gives up", "dim")]]

    def show_edges(self, view: View) -> None:
        width = self.size.width
        self._header.show(Block([fit([("gputop-llm", "strong")], width)]))
        status = status_line(replace(view.state, more_below=self.rows_below()), width, _WHILE_READING)
        self._status.zones = status.zones
        self._status.show(Block([status.line]))


class VerdictApp(TerminalApp, inherit_bindings=False):
    """Shows captures.

    Args:
        files: the captures, ranks of one run.
        term: what the terminal can show.
        node: the node that it runs on, for what is to be run there.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(",".join(c.keys), f"run('{c.name}')", c.label, id=c.name, tooltip=c.help) for c in _WHILE_READING),
        Binding("escape", "back", "back", show=False),
    ]

    def __init__(self, files: Sequence[Path], term: terminal.Terminal, node: Node | None = None) -> None:
        super().__init__(term)
        self._node = node
        self.files = tuple(files)
        self.viewer: Viewer | None = None
        self.failure: Exception | None = None
        self.cancelled = threading.Event()
        self._read_capture: Opened | None = None
        self._came = ("reading", 0)
        self._trails = Trails(History(points=1))
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)

    @property
    def opened(self) -> Opened | None:
        """The capture, once it is read and judged."""
        return None if self.viewer is None else self.viewer.opened

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
            self._read_capture = opened(self.files, self._came_to, self.cancelled.is_set)
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
        elif self._read_capture is not None and self.viewer is None:
            self.viewer = Viewer(self, self._read_capture, self.cancelled.is_set, self._node)
            self.viewer.open("verdict")
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

    def do_quit(self) -> None:
        self.cancelled.set()
        super().do_quit()


def run(files: Sequence[Path], config: Config, node: Node | None = None) -> int:
    """Shows captures full-screen until the user leaves; returns the exit code.

    Args:
        node: the node that this runs on, for what is to be run there.

    Raises:
        UsageError: there is no terminal to draw on, or the files don't go together.
        GputopError: a file can't be read or is no capture, or the display failed.
    """
    app = VerdictApp(files, terminal.check(os.environ, config), node)
    try:
        code = app.run()
    finally:
        app.let_go()
    app.check_failed()
    if app.failure is not None and not (app.cancelled.is_set() and isinstance(app.failure, GputopError) and code == 0):
        raise app.failure
    return code if code is not None else app.return_code or 0
