"""One model of a page that serves several: all that follows from the page is about it alone."""

from __future__ import annotations

from dataclasses import replace

from gputop_llm.model import EngineReading
from gputop_llm.sources.base import Source


class OneModel:
    """A page as if it served one model. What the page counts for no model, or for the server as a whole, stays.

    Args:
        page: the source that is narrowed down.
        model: the name that the page gives it; of a page that has it not, all models are kept, and the reading says so.
    """

    def __init__(self, page: Source[EngineReading], model: str) -> None:
        self._page = page
        self._model = model
        self.name = page.name
        self.deadline_s = page.deadline_s

    def poll(self) -> EngineReading:
        reading = self._page.poll()
        names = {one.model for one in reading.series}
        if self._model not in names:
            there = ", ".join(sorted(name for name in names if name))
            why = f"--model {self._model}: not on this page, which has {there or 'no model by name'}; all is shown"
            return replace(reading, not_narrowed=why) if reading.series else reading
        kept = tuple(one for one in reading.series if one.model in (self._model, None))
        if len(kept) == len(reading.series):
            return reading
        note = f"only {self._model} of {len(names - {None})} models on this page (--model)"
        return replace(reading, series=kept, notes=(*reading.notes, note))

    def abort(self) -> None:
        self._page.abort()

    def close(self) -> None:
        self._page.close()
