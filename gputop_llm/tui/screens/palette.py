"""Finding a command by a part of its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from gputop_llm.tui.commands import COMMANDS, Command
from gputop_llm.tui.draw import Block, Line, fit, pad, rule
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.widgets.lines import LinesView
from gputop_llm.tui.widgets.rows import RowsView


class PaletteScreen(MonitorScreen):
    """Typing narrows the list, arrows move in it, Enter runs the command."""

    command = "palette"
    DEFAULT_CSS = """
    PaletteScreen > #heading { height: 1; }
    PaletteScreen > Input { height: 1; border: none; padding: 0; background: ansi_default; }
    PaletteScreen > Input:focus { border: none; }
    """
    # The input has the focus; these keys are for the list.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("escape", "app.back", show=False, priority=True),
        Binding("ctrl+p", "app.back", show=False, priority=True),
        Binding("ctrl+c", "app.run('quit')", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._heading = LinesView(id="heading")
        self.input = Input(placeholder="type a part of a command", select_on_focus=False)
        self.input.cursor_blink = False
        self.rows = RowsView(id="rows")
        self.rows.can_focus = False

    def body(self) -> Iterable[Widget]:
        yield self._heading
        yield self.input
        yield self.rows

    def on_screen_resume(self) -> None:
        self.input.value = ""
        self.input.focus()
        super().on_screen_resume()

    def show_body(self, view: View) -> None:
        width = self.size.width
        self._heading.show(Block([rule([("Commands", "title")], width, [("Esc", "key"), (" back", "dim")])]))
        found = matching(self.input.value)
        lines: list[Line] = [fit([(pad(c.shown_key, 8), "key"), (c.help, "")], width) for c in found]
        if not found:
            lines = [[("no command has this in its name", "dim")]]
        self.rows.show(Block(lines, {row: c.name for row, c in enumerate(found)}))

    def page_text(self) -> str:
        return self.rows.text()

    def action_move(self, by: int) -> None:
        self.rows.action_move(by)

    def on_input_changed(self) -> None:
        self.show(self.monitor.view)

    def on_input_submitted(self) -> None:
        self.rows.action_choose()

    def on_rows_view_chosen(self, message: RowsView.Chosen) -> None:
        self.monitor.pop_screen()
        if message.key != self.command:
            self.monitor.run_command(message.key)


def matching(words: str) -> list[Command]:
    """Commands whose label, help or group has every one of the words."""
    wanted = words.lower().split()
    return [c for c in COMMANDS if all(w in f"{c.label} {c.help} {c.group}".lower() for w in wanted)]
