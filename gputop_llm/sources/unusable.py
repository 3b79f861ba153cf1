"""The source of an endpoint that can't even be asked."""

from __future__ import annotations

from gputop_llm.errors import GputopError
from gputop_llm.model import EngineReading


class Unusable:
    """Each poll says why it can't be asked.

    Args:
        name: of the source.
        failure: what each poll raises.
    """

    deadline_s = 1.0

    def __init__(self, name: str, failure: GputopError) -> None:
        self.name = name
        self._failure = failure

    def poll(self) -> EngineReading:
        raise self._failure

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass
