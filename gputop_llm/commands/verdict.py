"""`gputop-llm verdict FILE…`: what a capture or a bundle says, as text, Markdown or JSON."""

from __future__ import annotations

import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from gputop_llm.commands import output
from gputop_llm.errors import ExitCode, GputopError, UsageError
from gputop_llm.model.finding import Verdict

#: Between two redraws of the progress line.
_REDRAW_S = 0.1
#: Files that are read sooner get no progress line.
_QUIET_S = 0.3


def run(arguments: Namespace) -> int:
    """Reads the files, prints the verdict; returns 0 when it could be judged, else 4.

    Raises:
        GputopError: a file can't be read or is no capture, or the trace can't be written.
        UsageError: the files don't go together, or one of them is also to be written.
    """
    # Only here: the live monitor never loads NumPy.
    from gputop_llm.ncu.judge import Profiles, told_apart
    from gputop_llm.store.bundle import expanded
    from gputop_llm.timeline.read import read_capture
    from gputop_llm.verdict.assemble import judge
    from gputop_llm.verdict.context import Context

    named, profiled = told_apart([Path(name) for name in arguments.files])
    if arguments.kernel is not None and not profiled:
        raise UsageError("--kernel names a kernel of a profile", "no file of Nsight Compute is given", "")
    if profiled and not named:
        if arguments.perfetto is not None:
            raise UsageError("--perfetto needs a capture", "a profile of Nsight Compute has no timeline", "")
        return _printed(arguments, Profiles(profiled, arguments.kernel).verdict())
    profiles = Profiles(profiled, arguments.kernel) if profiled else None
    files, pace, notes = expanded(named)
    written = None if arguments.perfetto is None else _distinct(Path(arguments.perfetto), files)
    with _Progress() as progress:
        with _interruptible() as stopped:
            try:
                timeline = read_capture(files, progress.show, stopped.is_set)
                if written is not None:
                    from gputop_llm.report.perfetto import write_perfetto

                    write_perfetto(written, timeline, cancelled=stopped.is_set)
            except GputopError:
                if stopped.is_set():
                    raise KeyboardInterrupt from None
                raise
        # Here nothing lies about that must be removed: Ctrl-C may come as an exception, at once.
        progress.begin("analysing")
        context = Context(timeline)
        verdict = judge(timeline, context, pace, progress.show)
        if profiles is not None:
            verdict = profiles.beside(verdict, context)
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    return _printed(arguments, verdict)


def _printed(arguments: Namespace, verdict: Verdict) -> int:
    """Writes the verdict in the form that was asked for; the exit code."""
    if arguments.json:
        from gputop_llm.report import verdict_json

        output.write_text(verdict_json.verdict_text(verdict) + "\n")
    elif arguments.markdown:
        from gputop_llm.report import verdict_markdown

        output.write_text(verdict_markdown.verdict_markdown(verdict))
    else:
        from gputop_llm.report import verdict_text

        output.write_text(verdict_text.verdict_text(verdict))
    return ExitCode.OK if verdict.judged else ExitCode.PARTIAL


def _distinct(path: Path, files: Sequence[Path]) -> Path:
    """The path to write to, which must be none of those that are read."""
    if path.resolve() in [file.resolve() for file in files]:
        raise UsageError("--perfetto names the capture itself", "it would be overwritten", "give another name")
    return path


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets: the readers then end at the next chunk and remove what they unpacked.

    Within SQLite an exception of a signal's handler would be lost.
    """
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
    if stopped.is_set():
        raise KeyboardInterrupt


class _Progress:
    """One line on standard error, where that is a terminal."""

    def __init__(self) -> None:
        self._stream = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self._next = time.monotonic() + _QUIET_S
        self._shown = False
        self._phase = "reading"

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def begin(self, phase: str) -> None:
        """What follows is another phase."""
        self._phase = phase
        if self._shown:
            self._next = 0.0
        self.show(0.0)

    def show(self, share: float) -> None:
        """Tells the share that is done."""
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next, self._shown = now + _REDRAW_S, True
        self._stream.write(f"\r{self._phase} {100 * min(max(share, 0.0), 1.0):3.0f} %\x1b[K")
        self._stream.flush()
