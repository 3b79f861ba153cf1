"""Everything that the attached engine says of itself."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.tui.draw import Line
from gputop_llm.tui.panels.engine_details import engine_details
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen


class EngineScreen(PageScreen):
    """One long page."""

    command = "engine"

    def lines(self, view: View, width: int) -> Sequence[Line]:
        return engine_details(view.frame, width) if view.frame is not None else []
