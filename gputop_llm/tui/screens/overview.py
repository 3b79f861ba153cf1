"""The first screen: identity, GPUs, engine, host, symptoms, with no scrolling."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from gputop_llm.model import Frame
from gputop_llm.tui.draw import Block
from gputop_llm.tui.panels.common import engines_of
from gputop_llm.tui.panels.engine import engine_panel
from gputop_llm.tui.panels.gpus import gpu_panel, no_gpus
from gputop_llm.tui.panels.host import host_panel
from gputop_llm.tui.panels.symptoms import symptom_sizes, symptoms_panel
from gputop_llm.tui.plan import Plan, Rect, left_width, plan_overview
from gputop_llm.tui.screens.base import MonitorScreen, View
from gputop_llm.tui.widgets.lines import LinesView

PANELS = ("gpus", "engine", "host", "symptoms")


class Overview(MonitorScreen):
    """Panels placed by `plan_overview`; each shows what a pure function makes of the frame."""

    command = "overview"
    DEFAULT_CSS = """
    Overview > .panel { position: absolute; }
    Overview > #status { dock: bottom; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.panels = {name: LinesView(id=f"panel-{name}", classes="panel") for name in PANELS}
        self._plan: Plan = {}

    def body(self) -> Iterable[Widget]:
        yield from self.panels.values()

    def show_body(self, view: View) -> None:
        width, height = self.size
        frame = view.frame
        without = 2 if frame is None else len(no_gpus(frame, left_width(width)))
        plan = plan_overview(width, height, *_counts(frame), without)
        if plan != self._plan:
            self._place(plan)
        if frame is None:
            return
        for name, rect in plan.items():
            self.panels[name].show(self._block(name, frame, view, rect))

    def _place(self, plan: Plan) -> None:
        self._plan = plan
        for name, panel in self.panels.items():
            rect = plan.get(name)
            panel.display = rect is not None
            if rect is not None:
                panel.styles.offset = (rect.x, rect.y)
                panel.styles.width = rect.width
                panel.styles.height = rect.height

    def _block(self, name: str, frame: Frame, view: View, rect: Rect) -> Block:
        if name == "gpus":
            return gpu_panel(frame, view.trails, rect.width, rect.height)
        if name == "engine":
            return engine_panel(frame, view.trails, rect.width, rect.height)
        if name == "host":
            return host_panel(frame, rect.width, rect.height)
        return symptoms_panel(frame, view.events, rect.width, rect.height)

    def page_text(self) -> str:
        return "\n".join(self.panels[name].text() for name in PANELS if name in self._plan)

    def on_lines_view_clicked(self, message: LinesView.Clicked) -> None:
        self.monitor.follow_key(message.key)


def _counts(frame: Frame | None) -> tuple[int, int, int | None, tuple[int, int]]:
    """GPUs, processes, lines of the engine panel when no engine is attached, lines that symptoms need and can use."""
    if frame is None:
        return 1, 2, None, (0, 2)
    node = frame.gpus.value
    gpus = 0 if node is None or node.problem is not None else len(node.gpus)
    host = frame.host.value
    lines = None if frame.focused_engine is not None else max(3, 1 + len(engines_of(frame)))
    return gpus, len(host.processes) if host else 2, lines, symptom_sizes(frame.symptoms)
