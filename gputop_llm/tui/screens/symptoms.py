"""The ranked list of symptoms."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from gputop_llm.tui.draw import Block, plain
from gputop_llm.tui.panels.symptom_list import list_heading, symptom_list
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.widgets.lines import LinesView
from gputop_llm.tui.widgets.rows import RowsView


class SymptomsScreen(MonitorScreen):
    """Enter opens the page of the chosen one."""

    command = "symptoms"

    def __init__(self) -> None:
        super().__init__()
        self._heading = LinesView(id="heading")
        self.rows = RowsView(id="rows")

    def body(self) -> Iterable[Widget]:
        yield self._heading
        yield self.rows

    def on_screen_resume(self) -> None:
        self.rows.focus()
        super().on_screen_resume()

    def show_body(self, view: View) -> None:
        if view.frame is None:
            return
        width = self.size.width
        before = self.rows.cursor_row
        self._heading.show(Block([list_heading(view.frame, view.trails, width)]))
        self.rows.show(symptom_list(view.frame, view.trails, self.monitor.seen, width))
        if self.rows.cursor_row != before and self.rows.cursor is not None:
            # The ranking changed: what is chosen is followed.
            self.rows.select(self.rows.cursor)

    def rows_below(self) -> int:
        return self.rows.rows_below

    def page_text(self) -> str:
        return f"{plain(self._heading.block.lines)}\n{self.rows.text()}"

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.monitor.follow_key(message.key)
