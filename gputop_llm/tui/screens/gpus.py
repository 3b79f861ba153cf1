"""Every value of every GPU: all in one list above, the chosen one in full below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from gputop_llm.model import Frame, Gpu
from gputop_llm.tui.draw import Block, Line, rule, wrapped
from gputop_llm.tui.panels.common import elsewhere, stale_text
from gputop_llm.tui.panels.gpu_details import gpu_details
from gputop_llm.tui.panels.gpus import gpu_panel
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen
from gputop_llm.tui.widgets.lines import LinesView


class GpusScreen(PageScreen):
    """Left and right choose the GPU; a click on its row does too."""

    command = "gpus"
    DEFAULT_CSS = "GpusScreen > #gpu-list { height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "choose(-1)", show=False),
        Binding("right", "choose(1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._list = LinesView(id="gpu-list")

    def body(self) -> Iterable[Widget]:
        yield self._list
        yield from super().body()

    def show_body(self, view: View) -> None:
        width, height = self.size
        gpus = _gpus(view.frame)
        # The list may take half of the screen.
        wanted = len(gpus) + 1 + (view.frame is not None and elsewhere(view.frame) is not None)
        rows = 0 if len(gpus) < 2 or view.frame is None else min(wanted, max(3, height // 2))
        if self._list.styles.height is None or self._list.styles.height.value != rows:
            self._list.styles.height = rows
        if rows and view.frame is not None:
            self._list.show(gpu_panel(view.frame, view.trails, width, rows))
        super().show_body(view)

    def lines(self, view: View, width: int) -> Sequence[Line]:
        frame = view.frame
        gpus = _gpus(frame)
        if frame is None or not gpus:
            return [] if frame is None else list(gpu_panel(frame, view.trails, width, 20).lines)
        gpu = self._chosen(gpus)
        hint: Line = [("← → another GPU", "dim")] if len(gpus) > 1 else []
        title: Line = [(f"GPU {gpu.index}", "title"), (f" of {len(gpus)}" if len(gpus) > 1 else "", "dim")]
        if (words := elsewhere(frame)) is not None:
            title.append((f" {words}", "warn"))
        stale = wrapped(stale_text(frame.gpus) or "", width, "warn")
        return [rule(title, width, hint), *stale, *gpu_details(frame, gpu, width)]

    def _chosen(self, gpus: tuple[Gpu, ...]) -> Gpu:
        return next((g for g in gpus if g.index == self.monitor.selected_gpu), gpus[0])

    def action_choose(self, by: int) -> None:
        gpus = _gpus(self.monitor.view.frame)
        if gpus:
            at = gpus.index(self._chosen(gpus))
            self.monitor.selected_gpu = gpus[(at + by) % len(gpus)].index
            self.show(self.monitor.view)

    def on_lines_view_clicked(self, message: LinesView.Clicked) -> None:
        self.monitor.selected_gpu = int(message.key.partition(":")[2])
        self.show(self.monitor.view)

    def page_text(self) -> str:
        texts = [self._list.text()] if self._list.block != Block([]) else []
        return "\n".join([*texts, self.page.text()])


def _gpus(frame: Frame | None) -> tuple[Gpu, ...]:
    node = frame.gpus.value if frame else None
    return node.gpus if node is not None and node.problem is None else ()
