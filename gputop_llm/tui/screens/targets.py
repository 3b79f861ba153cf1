"""Choosing what to watch."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from gputop_llm.tui.draw import Block, plain, rule
from gputop_llm.tui.panels.process_rows import target_heading, target_of, target_rows
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.widgets.lines import LinesView
from gputop_llm.tui.widgets.rows import RowsView


class TargetsScreen(MonitorScreen):
    """One row per target; Enter attaches and goes back."""

    command = "targets"
    DEFAULT_CSS = "TargetsScreen > #heading { height: 2; }"

    def __init__(self) -> None:
        super().__init__()
        self._heading = LinesView(id="heading")
        self.rows = RowsView(id="rows")

    def body(self) -> Iterable[Widget]:
        yield self._heading
        yield self.rows

    def on_screen_resume(self) -> None:
        frame = self.monitor.view.frame
        if frame is not None and frame.focus is not None:
            self.rows.cursor = f"target:{frame.focus}"
        self.rows.focus()
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
        self._heading.show(Block([title, target_heading(width)]))
        self.rows.show(target_rows(view.frame, width))

    def page_text(self) -> str:
        return f"{plain(self._heading.block.lines)}\n{self.rows.text()}"

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.monitor.attach(target_of(message.key))
