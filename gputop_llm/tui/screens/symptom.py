"""The page of one symptom, which stays when the symptom clears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from gputop_llm.tui.draw import Line
from gputop_llm.tui.panels.symptom_page import symptom_page
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen


class SymptomScreen(PageScreen):
    """Left and right lead to the one before and after in the ranking."""

    command = "symptom"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "another(-1)", show=False),
        Binding("right", "another(1)", show=False),
    ]

    def lines(self, view: View, width: int) -> Sequence[Line]:
        key = self.monitor.selected_symptom
        if view.frame is None or key is None:
            return []
        found = self.monitor.seen.find(key, view.frame)
        return symptom_page(found, view.frame, view.trails, width, self.size.height)

    def on_screen_resume(self) -> None:
        self.page.offset_rows = 0
        super().on_screen_resume()

    def action_another(self, by: int) -> None:
        frame = self.monitor.view.frame
        report = frame.symptoms if frame else None
        keys = [s.key for s in report.active] if report else []
        if not keys:
            return
        here = self.monitor.selected_symptom
        at = keys.index(here) + by if here in keys else 0
        self.monitor.selected_symptom = keys[at % len(keys)]
        self.page.offset_rows = 0
        self.show(self.monitor.view)
