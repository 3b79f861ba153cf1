"""MBU and MFU of the attached engine with every input."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.tui.draw import Line
from gputop_llm.tui.panels.limits import limits_page
from gputop_llm.tui.screens.base import View
from gputop_llm.tui.screens.page import PageScreen


class LimitsScreen(PageScreen):
    """One page."""

    command = "limits"

    def lines(self, view: View, width: int) -> Sequence[Line]:
        return limits_page(view.frame, width) if view.frame is not None else []
