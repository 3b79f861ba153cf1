"""What the worker tells while it works: one JSON object a line, the last one says how it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Stage = Literal["lock", "preflight", "inject", "start", "recording", "finishing", "recovering", "ended"]
Outcome = Literal["done", "incomplete", "cancelled", "refused", "failed"]

#: No line is longer; what is longer is no progress.
MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """One moment of a capture.

    Args:
        stage: what is being done.
        text: the same as a clause, for people.
        share: how far the window is, 0 to 1; None outside of it.
        records_bytes: received so far from all ranks.
        outcome: with stage "ended" only. "done": whole; "incomplete": ended early by a guard or the target, what was
            recorded is kept; "cancelled": by the user, or because the monitor went away (what was recorded is kept, if
            anything was); "refused": nothing was done to the target; "failed": it could not be carried through.
        path: with "ended": the capture's folder; None where nothing was recorded.
        what, why, todo: with "ended": the sentence of any other outcome than "done".
        details: with "recovering": `records` is the folder of the records, all of them whole. With "ended":
            `recovered`, whether the engine was back at its pace; `bundle_error`, why there is no verdict.
    """

    stage: Stage
    text: str = ""
    share: float | None = None
    records_bytes: int = 0
    outcome: Outcome | None = None
    path: str | None = None
    what: str = ""
    why: str = ""
    todo: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def line_of(progress: Progress) -> bytes:
    """A progress as its line."""
    return json.dumps(asdict(progress), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def progress_of(line: bytes) -> Progress | None:
    """The progress in a line; None if it is none."""
    if len(line) > MOST_BYTES:
        return None
    try:
        return Progress(**json.loads(line))
    except (ValueError, TypeError):
        return None


class Teller:
    """Writes progress to a pipe that may be full or gone: a reader that sleeps never holds the worker up.

    Args:
        fd: the pipe, made non-blocking.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        os.set_blocking(fd, False)

    def tell(self, progress: Progress) -> None:
        """Writes it if there is room; a line that was begun is always ended first."""
        if self._flushed():
            self._rest = line_of(progress)
            self._flushed()

    def tell_last(self, progress: Progress, patience_s: float = 2.0) -> None:
        """Writes it, waiting a little for room."""
        import select

        self._rest += line_of(progress)
        with suppress(OSError, ValueError):
            while not self._flushed() and select.select([], [self._fd], [], patience_s)[1]:
                pass

    def _flushed(self) -> bool:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            return False
        except OSError:
            # The reader is gone; that its other pipe has ended says so to whom it concerns.
            self._rest = b""
        return True
