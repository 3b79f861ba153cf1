"""Engines and their processes, and who else is on the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from gputop_llm.tui.draw import Block, Line, plain
from gputop_llm.tui.panels.process_rows import process_table, section, target_of
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.listing import ListScreen
from gputop_llm.tui.widgets.lines import LinesView
from gputop_llm.tui.widgets.rows import RowsView


class ProcessesScreen(ListScreen):
    """A table whose rows can be chosen; Enter attaches to the row's target."""

    command = "processes"
    DEFAULT_CSS = "ProcessesScreen > #notes { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._notes = LinesView(id="notes")
        self._all_notes: list[Line] = []

    def body(self) -> Iterable[Widget]:
        yield from super().body()
        yield self._notes

    def show_body(self, view: View) -> None:
        if view.frame is None:
            return
        width, height = self.size
        table = process_table(view.frame, width)
        notes = self._all_notes = [section("Notes", width), *table.notes] if table.notes else []
        room = min(len(notes), max(0, height // 3))
        if 1 < room < len(notes):
            hidden = len(notes) - room + 1
            notes = [*notes[: room - 1], [(f"and {hidden} more lines: x saves them all", "dim")]]
        if self._notes.styles.height is None or self._notes.styles.height.value != room:
            self._notes.styles.height = room
        self.heading.show(Block([table.heading]))
        self.rows.show(table.rows)
        self._notes.show(Block(notes))

    def page_text(self) -> str:
        return f"{super().page_text()}\n{plain(self._all_notes)}"

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.monitor.attach(target_of(message.key))
