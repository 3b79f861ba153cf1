"""Which ways of capturing are open for what is watched: looked at when the page opens, and again by R."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, rule, wrapped
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen

_ROLES = {"open": "good", "no": "dim", "later": "dim"}


class Examined(Message, bubble=False):
    """A look is over."""


class DoctorScreen(PageScreen):
    """Looks in a thread: it reads /proc and asks nsys."""

    command = "doctor"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("R", "look", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self._found: Sequence[str] = ()
        self._failure: GputopError | None = None
        self._looking = False

    def on_screen_resume(self) -> None:
        self.action_look()
        super().on_screen_resume()

    def lines(self, view: View, width: int) -> Sequence[Line]:
        keys: Line = [("R", "key"), (" look again   ", ""), ("Esc", "key"), (" back   nothing is done to it", "dim")]
        lines: list[Line] = [[("looking …", "strong")] if self._looking else keys]
        lines.append(rule([("What can be captured", "title")], width))
        if self._failure is not None:
            return [*lines, *wrapped(self._failure.sentence(), width, "warn")]
        for text in self._found:
            indent = " " * 9 if text.startswith("  ") else ""
            lines += wrapped(printable(text), width, _ROLES.get(text[2:7].strip(), ""), indent=indent) if text else [[]]
        return lines

    def action_look(self) -> None:
        if not self._looking:
            self._looking = True
            threading.Thread(target=self._look, name="doctor", daemon=True).start()
            self.show(self.monitor.view)

    def on_examined(self) -> None:
        self.show(self.monitor.view)

    def _look(self) -> None:
        """Another thread."""
        try:
            self._found, self._failure = self.monitor.desk.doctor(), None
        except GputopError as failure:
            self._failure = failure
        finally:
            self._looking = False
            self.post_message(Examined())
