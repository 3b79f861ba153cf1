"""A screen whose body is a list: a heading, and below it rows of which one can be chosen."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from gputop_llm.tui.draw import plain
from gputop_llm.tui.screens.base import MonitorScreen
from gputop_llm.tui.widgets.lines import LinesView
from gputop_llm.tui.widgets.rows import RowsView


class ListScreen(MonitorScreen):
    """Subclasses show `heading` and `rows`, and say what choosing a row does."""

    def __init__(self) -> None:
        super().__init__()
        self.heading = LinesView(id="heading")
        self.rows = RowsView(id="rows")

    def body(self) -> Iterable[Widget]:
        yield self.heading
        yield self.rows

    def on_screen_resume(self) -> None:
        self.rows.focus()
        super().on_screen_resume()

    def page_text(self) -> str:
        return f"{plain(self.heading.block.lines)}\n{self.rows.text()}"

    def rows_below(self) -> int:
        return self.rows.rows_below
