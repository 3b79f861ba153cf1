"""Lines of a log to what they say: known wordings, and tracebacks folded into one line each.

Whoever writes the log may write anything into it; what comes out is one bounded, printable line without secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gputop_llm.model.log import START, LogSignal
from gputop_llm.model.symptom import Severity
from gputop_llm.printable import printable
from gputop_llm.redact_argv import redact_text
from gputop_llm.sources.engine_log_wording import TRACEBACK, body_of, hinted, wording_of

MOST_OF_START = 16
MOST = 24
TEXT = 300
# Lines of one traceback, and processes that write one at the same time.
_LONGEST = 300
_OPEN = 16

_FRAME = re.compile(r'\s*File "([^"]{1,1000})", line (\d{1,9}), in (\S{1,200})')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?:: \S.*)?$")
_ENDS_ON_PURPOSE = ("KeyboardInterrupt", "SystemExit", "asyncio.exceptions.CancelledError")
_DIGITS = re.compile(r"\d+")

# When a line was written, and by what that is known ("line" or "read").
When = Callable[[], tuple[float | None, str]]


@dataclass(slots=True)
class _Traceback:
    logged: bool
    lines: int = 0
    where: str | None = None


class Signals:
    """What the lines of one log say so far, in bounded memory. `seen` counts the signals, repeated ones too."""

    def __init__(self) -> None:
        self.seen = 0
        self._kept: dict[tuple[str, str], LogSignal] = {}
        self._open: dict[str, _Traceback] = {}

    def feed(self, lines: Iterable[bytes], when: Callable[[int], tuple[float | None, str]]) -> None:
        """Takes the next lines.

        Args:
            when: tells of the line at a position when it was written.
        """
        for position, line in enumerate(lines):
            if self._open or hinted(line):
                text = line.decode("utf-8", "backslashreplace")
                self._line(text, lambda position=position: when(position))  # type: ignore[misc]

    @property
    def waiting(self) -> bool:
        """Whether lines without any known word matter too: a traceback has not ended."""
        return bool(self._open)

    def all(self) -> tuple[LogSignal, ...]:
        """What was found, in the order it was written (last)."""
        return tuple(self._kept.values())

    def _line(self, text: str, when: When) -> None:
        source, logged, body = body_of(text)
        if body.startswith(("  | ", "  + ")):
            # A group of exceptions is drawn as a tree.
            body = body.lstrip(" |+")
        open_one = self._open.get(source)
        if body.endswith(TRACEBACK):
            if open_one is not None or len(self._open) < _OPEN:
                self._open[source] = _Traceback(logged)
            return
        if open_one is not None and self._continued(source, open_one, logged, body, when):
            return
        known = wording_of(body)
        if known is not None:
            self._add(*known, body, when, None)

    def _continued(self, source: str, open_one: _Traceback, logged: bool, body: str, when: When) -> bool:
        """Whether the line belongs to the traceback, as far as can be told."""
        open_one.lines += 1
        if open_one.lines > _LONGEST:
            del self._open[source]
            return False
        if (frame := _FRAME.match(body)) is not None:
            open_one.where = f"{frame[1].rpartition('/')[2]}:{frame[2]} in {frame[3]}"
            return True
        if not body.strip() or body[0].isspace():
            return True
        if (logged and not open_one.logged) or _EXCEPTION.match(body) is None:
            # Another process wrote in between.
            return False
        del self._open[source]
        severity = Severity.NOTE if body.startswith(_ENDS_ON_PURPOSE) else Severity.WARNING
        self._add(*(wording_of(body) or ("exception", severity)), body, when, open_one.where)
        return True

    def _add(self, kind: str, severity: Severity, body: str, when: When, where: str | None) -> None:
        self.seen += 1
        text = printable(redact_text(body.strip()), TEXT)
        at_s, at_from = when()
        key = kind, _DIGITS.sub("#", text)
        before = self._kept.pop(key, None)
        new = LogSignal(kind, severity, text, at_s, at_from, printable(where, TEXT) if where else None)
        if before is not None:
            new = replace(new, count=before.count + 1, where=new.where or before.where)
        self._kept[key] = new
        of_start = kind in START
        alike = [k for k in self._kept if (k[0] in START) == of_start]
        if len(alike) > (MOST_OF_START if of_start else MOST):
            # Of the start the first ones are kept: what comes later under such a name is a guess.
            del self._kept[alike[-1] if of_start else alike[0]]
