"""Choosing what to watch."""

from __future__ import annotations

from gputop_llm.tui.draw import Block, rule
from gputop_llm.tui.panels.process_rows import target_heading, target_of, target_rows
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.listing import ListScreen
from gputop_llm.tui.widgets.rows import RowsView


class TargetsScreen(ListScreen):
    """One row per target; Enter attaches and goes back."""

    command = "targets"
    DEFAULT_CSS = "TargetsScreen > #heading { height: 2; }"

    def on_screen_resume(self) -> None:
        frame = self.monitor.view.frame
        if frame is not None and frame.focus is not None:
            self.rows.cursor = f"target:{frame.focus}"
        super().on_screen_resume()

    def show_body(self, view: View) -> None:
        if view.frame is None:
            return
        width = self.size.width
        title = rule(
            [("Which one to watch?", "title")],
            width,
            [("Enter", "key"), (" attaches, ", "dim"), ("Esc", "key"), (" leaves all as it is", "dim")],
        )
        self.heading.show(Block([title, target_heading(width)]))
        self.rows.show(target_rows(view.frame, width))

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.monitor.attach(target_of(message.key))
