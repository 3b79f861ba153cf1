"""The ranked list of symptoms."""

from __future__ import annotations

from gputop_llm.tui.draw import Block
from gputop_llm.tui.panels.symptom_list import list_heading, symptom_list
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.listing import ListScreen
from gputop_llm.tui.widgets.rows import RowsView


class SymptomsScreen(ListScreen):
    """Enter opens the page of the chosen one."""

    command = "symptoms"

    def show_body(self, view: View) -> None:
        if view.frame is None:
            return
        width = self.size.width
        before = self.rows.cursor_row
        self.heading.show(Block([list_heading(view.frame, view.trails, width)]))
        self.rows.show(symptom_list(view.frame, view.trails, self.monitor.seen, width))
        if self.rows.cursor_row != before and self.rows.cursor is not None:
            # The ranking changed: what is chosen is followed.
            self.rows.select(self.rows.cursor)

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.monitor.follow_key(message.key)
