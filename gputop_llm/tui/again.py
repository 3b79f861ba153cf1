"""A hot kernel that is run again from its verdict: prepared, asked about, run; each in a thread of the display's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gputop_llm import paths
from gputop_llm.capture.engine_watch import EngineSample, samples_in
from gputop_llm.errors import GputopError, NothingFound, UsageError
from gputop_llm.model import Frame
from gputop_llm.printable import printable
from gputop_llm.rerun.job import Finished, Job, make_job
from gputop_llm.rerun.prepare import prepare
from gputop_llm.session import Session
from gputop_llm.verdict.context import Context

_BEFORE_S = 120.0


class Node(Protocol):
    """The node that a display runs on."""

    def frame(self) -> Frame:
        """The newest frame; may take some seconds.

        Raises:
            GputopError: there is none.
        """

    def samples(self) -> Sequence[EngineSample]:
        """What the attached engine has said of its pace."""


class SessionNode:
    """That of a session which goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def frame(self) -> Frame:
        frame = self._session.latest
        if frame is None:
            raise NothingFound("nothing is known of this node yet", "", "try again in a second")
        return frame

    def samples(self) -> Sequence[EngineSample]:
        frame = self._session.latest
        key = frame.focus if frame is not None else None
        return samples_in(self._session.history.frames(_BEFORE_S), key) if key is not None else ()


class Again:
    """One re-run. `state` is "preparing", "asking", "running" or "ended"; then there is `finished` or `failure`.

    Args:
        captures: the verdict's, as they were named; `context` is what was read of them.
        kernel: its full name; None: the hottest.
        left: whether the display is being left: nothing of it must go on then.
    """

    def __init__(
        self, node: Node, captures: Sequence[Path], context: Context, kernel: str | None, left: Callable[[], bool]
    ) -> None:
        self._node = node
        self._captures, self._context, self._kernel = tuple(captures), context, kernel
        self._left = left
        self.state = "preparing"
        self.text = "looking for what launched it"
        self.job: Job | None = None
        self.finished: Finished | None = None
        self.failure: GputopError | None = None

    @property
    def busy(self) -> bool:
        """Whether something goes on."""
        return self.state in ("preparing", "running")

    def prepare(self) -> None:
        """Finds out what would be run, and where; nothing is run."""
        try:
            pattern = re.compile(f"^{re.escape(self._kernel.removesuffix('…'))}") if self._kernel is not None else None
            place = paths.captures_folder()
            if place is None:
                raise UsageError("there is no place for the script", "this user has no home directory", "set HOME")
            prepared = prepare(self._captures, pattern, context=self._context)
            self.job = make_job(prepared, self._node.frame(), place)
            self.state = "asking"
        except GputopError as failure:
            self.failure, self.state = failure, "ended"

    def run(self) -> None:
        """Runs what was asked about."""
        assert self.job is not None
        self.state = "running"
        try:
            self.finished = self.job.run(self._node.samples, self._told, self._left)
        except GputopError as failure:
            self.failure = failure
        except KeyboardInterrupt:
            self.failure = GputopError("the re-run was ended")
        self.state = "ended"

    def _told(self, text: str) -> None:
        self.text = printable(text)
