"""A screen whose body is one long text that scrolls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from gputop_llm.tui.draw import Block, Line
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.widgets.lines import WHEEL_ROWS, LinesView


class PageScreen(MonitorScreen):
    """Subclasses give the lines; this scrolls them."""

    DEFAULT_CSS = "PageScreen > #page { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_rows(-1)", show=False),
        Binding("down,j", "scroll_rows(1)", show=False),
        Binding("pageup", "scroll_pages(-1)", show=False),
        Binding("pagedown", "scroll_pages(1)", show=False),
        Binding("home", "scroll_rows(-100000)", show=False),
        Binding("end", "scroll_rows(100000)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.page = LinesView(id="page")

    def body(self) -> Iterable[Widget]:
        yield self.page

    def lines(self, view: View, width: int) -> Sequence[Line]:
        """The text of the page."""
        raise NotImplementedError

    def show_body(self, view: View) -> None:
        self.page.show(Block(self.lines(view, self.size.width)))

    def page_text(self) -> str:
        return self.page.text()

    def rows_below(self) -> int:
        return self.page.rows_below

    def action_scroll_rows(self, by: int) -> None:
        self.page.scroll_rows(by)
        self.show_edges(self.monitor.view)

    def action_scroll_pages(self, by: int) -> None:
        self.action_scroll_rows(by * max(1, self.page.size.height - 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_rows(WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_rows(-WHEEL_ROWS)
