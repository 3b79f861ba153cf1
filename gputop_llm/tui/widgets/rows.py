"""Lines of which one is chosen: with the arrow keys or the mouse, kept by its key when rows come and go."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from gputop_llm.tui.draw import Block, Run, pad
from gputop_llm.tui.widgets.lines import WHEEL_ROWS, LinesView


class RowsView(LinesView):
    """Shows a block; the rows that have keys can be chosen."""

    class Chosen(Message):
        """A row was chosen by Enter or a click."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """Other rows may be in view now."""

    can_focus = True
    DEFAULT_CSS = "RowsView { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor: str | None = None

    def show(self, block: Block) -> None:
        if block.keys and self.cursor not in block.keys.values():
            self.cursor = next(iter(block.keys.values()))
        super().show(block)

    @property
    def cursor_row(self) -> int | None:
        """The first row of what is chosen."""
        return next((row for row, key in self.block.keys.items() if key == self.cursor), None)

    def select(self, key: str) -> None:
        """Moves the cursor to that row."""
        self.cursor = key
        self._keep_in_view()

    def action_move(self, by: int) -> None:
        # A key may have several rows.
        keys = list(dict.fromkeys(self.block.keys.values()))
        at = keys.index(self.cursor) if self.cursor in keys else 0
        to = max(0, min(len(keys) - 1, at + by))
        if keys and to != at:
            self.select(keys[to])
        else:
            # What stands before the first and after the last can only be read.
            self.scroll_rows(by)
        self.post_message(self.Moved())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(WHEEL_ROWS)
        self.post_message(self.Moved())

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-WHEEL_ROWS)
        self.post_message(self.Moved())

    def action_choose(self) -> None:
        if self.cursor is not None and self.cursor in self.block.keys.values():
            self.post_message(self.Chosen(self.cursor))

    def on_click(self, event: events.Click) -> None:
        key = self.block.keys.get(event.y + self.offset_rows)
        if key is None:
            return
        event.stop()
        if key == self.cursor:
            self.action_choose()
        else:
            self.select(key)

    def _keep_in_view(self) -> None:
        rows = [row for row, key in self.block.keys.items() if key == self.cursor]
        # Before it is laid out nothing is in view, and all that there is is still to come.
        if rows and self.size.height > 0:
            low = max(rows) - self.size.height + 1
            # With the first row, what stands above it comes back.
            high = max(low, 0) if min(rows) == min(self.block.keys) else min(rows)
            self.offset_rows = min(max(self.offset_rows, low), high)
        self._draw()

    def _row(self, at: int) -> tuple[Run, ...]:
        row = super()._row(at)
        if self.cursor is not None and self.block.keys.get(at) == self.cursor:
            text = "".join(text for text, _ in row)
            return ((pad(text, self.size.width), "selected"),)
        return row
