"""The widget that everything is drawn with: shows lines, repaints only what changed.

It keeps one finished strip per row and hands those to the compositor as they
are; a row whose runs are the same as before costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputop_llm.tui.draw import Block, Run, fit, plain

if TYPE_CHECKING:
    from gputop_llm.tui.app import MonitorApp

# How far one step of the mouse wheel goes.
WHEEL_ROWS = 3

_NO_ROW: tuple[Run, ...] = ()


class LinesView(Widget):
    """Shows the lines of one block, from `offset_rows` on; the rest of its area is blank."""

    class Clicked(Message):
        """A row with a key was clicked."""

        def __init__(self, view: LinesView, key: str) -> None:
            super().__init__()
            self.view = view
            self.key = key

        @property
        def control(self) -> LinesView:
            return self.view

    DEFAULT_CSS = "LinesView { width: 1fr; height: 1; }"
    can_focus = False

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.block = Block([])
        self.offset_rows = 0
        self._rows: list[tuple[Run, ...]] = []
        self._strips: list[Strip] = []
        self._drawn_width = 0

    def show(self, block: Block) -> None:
        """Shows these lines from now on."""
        self.block = block
        self._draw()

    def scroll_rows(self, by: int) -> None:
        """Moves the view by that many rows, within the lines."""
        self.offset_rows += by
        self._draw()

    def text(self) -> str:
        """All lines as bare text, also those out of view."""
        return plain(self.block.lines)

    @property
    def rows_below(self) -> int:
        """How many lines stand below the visible ones."""
        return max(0, len(self.block.lines) - self.offset_rows - self.size.height)

    def _draw(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        self.offset_rows = max(0, min(self.offset_rows, len(self.block.lines) - height))
        if width != self._drawn_width or height != len(self._rows):
            self._rows = [_NO_ROW] * height
            self._strips = [Strip.blank(width)] * height
            self._drawn_width = width
            self.refresh()
        changed: list[Region] = []
        rows, strips = self._rows, self._strips
        for y in range(height):
            row = self._row(y + self.offset_rows)
            if row != rows[y]:
                rows[y] = row
                strips[y] = self._strip(row, width)
                changed.append(Region(0, y, width, 1))
        if changed:
            self.refresh(*changed)

    def _row(self, at: int) -> tuple[Run, ...]:
        """What is drawn for line `at` of the block."""
        return tuple(self.block.lines[at]) if at < len(self.block.lines) else _NO_ROW

    def _strip(self, row: tuple[Run, ...], width: int) -> Strip:
        skin = cast("MonitorApp", self.app).skin
        styles, shown = skin.styles, skin.shown
        segments: list[Segment] = []
        text, role = "", ""
        for next_text, next_role in fit(row, width):
            if next_role == role:
                text += next_text
                continue
            if text:
                segments.append(Segment(shown(text), styles[role]))
            text, role = next_text, next_role
        if text:
            segments.append(Segment(shown(text), styles[role]))
        return Strip(segments, width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The finished strips: no border, padding or filter is ever applied to them."""
        width = self.size.width
        strips = self._strips[crop.y : crop.bottom]
        strips += [Strip.blank(width)] * (crop.height - len(strips))
        if width != self._drawn_width:
            # Between a change of size and the next drawing.
            strips = [strip.adjust_cell_length(width) for strip in strips]
        if crop.column_span != (0, width):
            return [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def on_resize(self) -> None:
        self._draw()

    def on_click(self, event: events.Click) -> None:
        key = self.block.keys.get(event.y + self.offset_rows)
        if key is not None:
            event.stop()
            self.post_message(self.Clicked(self, key))
