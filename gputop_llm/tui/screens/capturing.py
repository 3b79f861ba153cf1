"""The screens of taking a capture: asking first, how far it is, and those that were taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gputop_llm.tui.draw import Block, Line, rule
from gputop_llm.tui.panels.capture_words import capture_rows, ended_lines, plan_lines, taking_lines
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.screens.listing import ListScreen
from gputop_llm.tui.screens.page import PageScreen
from gputop_llm.tui.widgets.rows import RowsView

if TYPE_CHECKING:
    from gputop_llm.tui.desk import Desk


class _OnDesk(MonitorScreen):
    @property
    def desk(self) -> Desk:
        """What the monitor has of captures."""
        return self.monitor.desk


class ConfirmScreen(_OnDesk, PageScreen):
    """What would be done, and what it costs; only y does it."""

    command = "capture"
    DEFAULT_CSS = "ConfirmScreen > #page { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "take", show=False),
        Binding("n,enter", "app.back", show=False),
        Binding("plus,equals_sign", "longer(1)", show=False),
        Binding("minus", "longer(-1)", show=False),
    ]

    def lines(self, view: View, width: int) -> Sequence[Line]:
        return plan_lines(self.desk.plan, width, self.desk.arming) if self.desk.plan is not None else []

    def action_take(self) -> None:
        self.desk.take()

    def action_longer(self, by: int) -> None:
        self.desk.another_window(by)


class TakingScreen(_OnDesk, PageScreen):
    """How far the capture is, or how it ended."""

    command = "capturing"
    DEFAULT_CSS = "TakingScreen > #page { height: 1fr; }"

    def lines(self, view: View, width: int) -> Sequence[Line]:
        taking = self.desk.taking
        if taking is None:
            return []
        if self.desk.opening:
            return [[("reading the record …", "strong")]]
        if taking.ended is None:
            return taking_lines(taking, width)
        return ended_lines(taking.ended, width)


class CapturesScreen(_OnDesk, ListScreen):
    """One row per capture of this session; Enter opens its verdict."""

    command = "captures"
    DEFAULT_CSS = "CapturesScreen > #heading { height: 1; }"

    def show_body(self, view: View) -> None:
        width = self.size.width
        hint = [("Enter", "key"), (" opens the verdict, ", "dim"), ("Esc", "key"), (" back", "dim")]
        self.heading.show(Block([rule([("Captures", "title")], width, hint)]))
        self.rows.show(capture_rows(self.desk.ended, width))

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.desk.open(int(message.key.partition(":")[2]))
