"""The worker's side of its watchdog."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress

from gputop_llm.capture import process
from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.undo import Step
from gputop_llm.errors import GputopError

WATCHDOG = "gputop_llm.capture.watchdog"


class Guardian:
    """A watchdog that is armed when this has been made.

    Args:
        folder: of the capture, not yet made.
        arm_within_s: how long it may take to start.

    Raises:
        GputopError: it can't be started.
    """

    def __init__(self, folder: CaptureFolder, arm_within_s: float = 10.0) -> None:
        import select

        handle: tuple[int, ...] = ()
        # Kernels before 5.3 don't have it: an overrun is then ended by nobody.
        with suppress(OSError, AttributeError):
            handle = (os.pidfd_open(os.getpid()),)
        try:
            self._process = process.start(WATCHDOG, [*folder.named, *map(str, handle)], handle)
        finally:
            for fd in handle:
                os.close(fd)
        out = self._process.out
        armed = select.select([out], [], [], arm_within_s)[0] and os.read(out.fileno(), 64).startswith(b"armed")
        out.close()
        if not armed:
            self._process.to.close()
            raise GputopError("cannot capture", "the capture's watchdog did not start", "try again on a less busy node")

    def deadline(self, seconds: float) -> None:
        """What is done now is to be over within that time."""
        self._say(f"deadline {seconds:.3f}\n")

    def undo(self, steps: Sequence[Step]) -> None:
        """What is to be done when the worker dies from now on; in place of what was said before."""
        self._say(f"undo {json.dumps(list(steps), separators=(',', ':'))}\n")

    def done(self) -> None:
        """All is settled: it ends."""
        self._say("done\n")
        with suppress(OSError):
            self._process.to.close()
        self._process.ended(1.0)

    def _say(self, line: str) -> None:
        # One that was killed leaves the worker with its own deadlines.
        with suppress(OSError, ValueError):
            self._process.to.write(line.encode("ascii"))
