"""Where the Python code of every rank is: read when the page opens, again by R, recorded by r."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from gputop_llm.errors import GputopError
from gputop_llm.tui.draw import Line, rule, wrapped
from gputop_llm.tui.panels.stacks_page import flame_lines, stacks_lines
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen

if TYPE_CHECKING:
    from gputop_llm.model.stacks import Flame, StackReport

_RECORD_S = 5.0


class StacksRead(Message, bubble=False):
    """A look or a recording is over."""


class StacksScreen(PageScreen):
    """Reads in a thread: a look takes some tenths of a second, a recording its time."""

    command = "stacks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "record", show=False),
        Binding("R", "look", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._report: StackReport | None = None
        self._flames: tuple[Flame, ...] = ()
        self._failure: GputopError | None = None
        self._doing = ""

    def on_screen_resume(self) -> None:
        self.action_look()
        super().on_screen_resume()

    def lines(self, view: View, width: int) -> Sequence[Line]:
        keys: Line = [("r", "key"), (f" record for {_RECORD_S:g} s   ", ""), ("R", "key"), (" look again   ", ""),
                      ("Esc", "key"), (" back   nothing is stopped for it", "dim")]  # fmt: skip
        lines: list[Line] = [[(self._doing, "strong")] if self._doing else keys]
        if self._failure is not None:
            lines += [rule([("Python stacks", "title")], width), *wrapped(self._failure.sentence(), width, "warn")]
        lines += flame_lines(self._flames, width)
        if self._report is not None:
            lines += stacks_lines(self._report, width)
        return lines

    def action_look(self) -> None:
        self._begin("reading the stacks of every rank …", self._look)

    def action_record(self) -> None:
        self._begin(f"recording for {_RECORD_S:g} s …", self._record)

    def on_stacks_read(self) -> None:
        self.show(self.monitor.view)

    def _look(self) -> None:
        self._report = self.monitor.desk.stacks()

    def _record(self) -> None:
        self._flames = self.monitor.desk.flames(_RECORD_S)

    def _begin(self, doing: str, work: Callable[[], None]) -> None:
        if self._doing:
            return
        self._doing = doing
        threading.Thread(target=self._work, args=(work,), name="stacks", daemon=True).start()
        self.show(self.monitor.view)

    def _work(self, work: Callable[[], None]) -> None:
        """Another thread."""
        try:
            self._failure = None
            work()
        except GputopError as failure:
            self._failure = failure
        finally:
            self._doing = ""
            self.post_message(StacksRead())
