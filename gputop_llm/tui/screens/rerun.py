"""The screen of a hot kernel that is run again: what would be run, how far it is, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from gputop_llm.tui.draw import Line
from gputop_llm.tui.panels.rerun_page import again_lines
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.capture import KEYS, CaptureEdges
from gputop_llm.tui.screens.page import PageScreen


class RerunScreen(CaptureEdges, PageScreen):
    """Only y runs it."""

    command = "rerun"
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS, Binding("y", "take", show=False)]

    def lines(self, view: View, width: int) -> Sequence[Line]:
        return again_lines(self.viewer.again, width) if self.viewer.again is not None else []

    def action_take(self) -> None:
        self.viewer.run_again()
